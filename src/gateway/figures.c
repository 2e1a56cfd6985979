#include "gateway/gateway_state.h"

#include <stddef.h>

typedef struct worker_metric {
    const char *name, *help;
    size_t offset; // of the count, a uint64_t, in a cot_gateway_worker
} worker_metric;

#define OF(count) offsetof(cot_gateway_worker, count)
static const worker_metric counters[] = {
    {"coterie:router_worker_requests_total", "Requests that were sent to a worker", OF(requests)},
    {"coterie:router_worker_refusals_total", "Answers 429 and 503 of a worker", OF(refusals)},
    {"coterie:router_worker_failures_total",
     "Connections to a worker that broke, and streams that stalled, ended early or could not be read",
     OF(failures)},
    {"coterie:router_worker_prompt_tokens_total", "Tokens of prompts that were sent to a worker",
     OF(prompt_tokens)},
    {"coterie:router_worker_cached_tokens_total", "Those that the router expected to be cached there",
     OF(cached_tokens)},
    {"coterie:router_worker_resumed_from_total", "Streams of a worker that had to go on elsewhere",
     OF(resumed_from)},
    {"coterie:router_worker_resumed_to_total", "Streams that a worker took on", OF(resumed_to)},
    {"coterie:router_worker_signatures_total", "Requests of which a worker told what experts they called",
     OF(signatures)},
    {"coterie:router_worker_ignored_signatures_total",
     "Those whose signature was none of the model's, or whose block nobody holds", OF(ignored_signatures)},
};

static void write_counter(cot_prometheus *out, const char *name, const char *help, uint64_t value)
{
    cot_prometheus_metric(out, name, "counter", help);
    cot_prometheus_value(out, name, NULL, 0, (double)value);
}

static void write_workers(const cot_gateway *g, cot_prometheus *out)
{
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        cot_prometheus_metric(out, counters[i].name, "counter", counters[i].help);
        for (const cot_gateway_worker *w = g->workers; w; w = w->next) {
            const cot_prometheus_label label = {"worker", w->entry.name};
            const uint64_t *count = (const uint64_t *)(const void *)((const char *)w + counters[i].offset);
            if (w->listed) cot_prometheus_value(out, counters[i].name, &label, 1, (double)*count);
        }
    }
    static const char up[] = "coterie:router_worker_up", running[] = "coterie:router_worker_requests_running";
    cot_prometheus_metric(out, up, "gauge", "Whether a worker gets requests");
    for (const cot_gateway_worker *w = g->workers; w; w = w->next) {
        const cot_prometheus_label label = {"worker", w->entry.name};
        if (w->listed) cot_prometheus_value(out, up, &label, 1, w->state == COT_GATEWAY_UP && !w->drains);
    }
    cot_prometheus_metric(out, running, "gauge", "Requests that a worker answers now");
    for (const cot_gateway_worker *w = g->workers; w; w = w->next) {
        const cot_prometheus_label label = {"worker", w->entry.name};
        if (w->listed) cot_prometheus_value(out, running, &label, 1, (double)w->relays);
    }
}

void cot_gateway_write_figures(cot_gateway *g, cot_prometheus *out)
{
    static const char *const stages[COT_STAGES] = {"tokenise", "decide"};
    static const char stage[] = "coterie:router_stage_seconds", blocks[] = "coterie:router_index_blocks",
                      bytes[] = "coterie:router_index_bytes", known[] = "coterie:router_signature_blocks",
                      connections[] = "coterie:connections";
    const cot_gateway_figures *f = &g->figures;
    cot_route_index_figures index = {0};
    if (g->index) cot_route_index_measure(g->index, &index);
    write_counter(out, "coterie:router_requests_total", "Requests that were for workers", f->requests);
    write_counter(out, "coterie:requests_refused_total", "Answers 4xx and 5xx", f->refused);
    write_counter(out, "coterie:router_resumptions_total", "Streams that another worker went on with",
                  f->resumptions);
    write_counter(out, "coterie:router_broken_streams_total", "Streams that ended in an error",
                  f->broken_streams);
    write_counter(out, "coterie:router_untokenised_total", "Requests that went without ids of their prompts",
                  f->untokenised);
    write_counter(out, "coterie:router_kv_event_gaps_total",
                  "Gaps in events of KV caches that could not be closed", f->gaps);
    write_counter(out, "coterie:router_foretold_total",
                  "Requests whose experts tables foretold, as no worker had told of their blocks",
                  f->foretold);
    write_workers(g, out);
    cot_gateway_write_peers(g, out);
    cot_prometheus_metric(out, blocks, "gauge", "Blocks that some worker holds");
    cot_prometheus_value(out, blocks, NULL, 0, (double)index.blocks);
    cot_prometheus_metric(out, bytes, "gauge", "Memory of the index of blocks");
    cot_prometheus_value(out, bytes, NULL, 0, (double)index.bytes);
    cot_prometheus_metric(out, known, "gauge", "Blocks of which it is known what experts their texts call");
    cot_prometheus_value(out, known, NULL, 0,
                         g->signatures ? (double)cot_route_signatures_count(g->signatures) : 0);
    cot_prometheus_metric(out, connections, "gauge", "Connections that are open");
    cot_prometheus_value(out, connections, NULL, 0, (double)cot_http_server_connections(g->http));
    cot_prometheus_metric(out, stage, "histogram", "Time that a request takes in the router, by stage");
    for (size_t i = 0; i < COT_STAGES; i++) {
        const cot_prometheus_label label = {"stage", stages[i]};
        cot_prometheus_histogram_lines(out, stage, &label, 1, &f->stage[i]);
    }
}
