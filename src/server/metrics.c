#include "server/metrics.h"

#include "server/model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Upper bounds: vLLM's for times and lengths, so that its dashboards read them alike. */
static const double seconds[] = {0.001, 0.005, 0.01, 0.025, 0.05,  0.075, 0.1,    0.15,
                                 0.2,   0.3,   0.4,  0.5,   0.75,  1.0,   2.5,    5.0,
                                 10.0,  20.0,  40.0, 80.0,  160.0, 640.0, 2560.0, 5120.0};
static const double tokens[] = {1,   2,   5,   10,  20,  50,  100, 200, 500, 1e3, 2e3, 5e3,
                                1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7};

static const double step_sizes[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double restarts[] = {1, 2, 3, 4, 5, 10, 20};

static cot_prometheus_histogram histogram_of(const cot_metrics_histogram *h, const double *bounds)
{
    return (cot_prometheus_histogram){bounds, (uint64_t *)h->counts, COT_METRICS_BUCKETS, h->sum};
}

static void observe(cot_metrics_histogram *h, const double *bounds, double value)
{
    cot_prometheus_histogram histogram = histogram_of(h, bounds);
    cot_prometheus_observe(&histogram, value);
    h->sum = histogram.sum;
}

void cot_metrics_time(cot_metrics *m, cot_metrics_kind which, int64_t ns)
{
    observe(&m->times[which], seconds, (double)ns / 1e9);
}

void cot_metrics_lengths(cot_metrics *m, int64_t prompt_tokens, int64_t output_tokens)
{
    observe(&m->prompt_tokens, tokens, (double)prompt_tokens);
    observe(&m->output_tokens, tokens, (double)output_tokens);
}

void cot_metrics_longest(cot_metrics *m, int64_t output_tokens)
{
    observe(&m->longest_output, tokens, (double)output_tokens);
}

typedef struct writer {
    cot_prometheus *out;
    cot_prometheus_label labels[4];
} writer;

static void write_one(const writer *w, const char *name, const char *type, const char *help, double value)
{
    cot_prometheus_metric(w->out, name, type, help);
    cot_prometheus_value(w->out, name, w->labels, 2, value);
}

static void write_histogram(const writer *w, const char *name, const char *help,
                            const cot_metrics_histogram *h, const double *bounds)
{
    const cot_prometheus_histogram histogram = histogram_of(h, bounds);
    cot_prometheus_metric(w->out, name, "histogram", help);
    cot_prometheus_histogram_lines(w->out, name, w->labels, 2, &histogram);
}

/* What was counted in classes, by bounds among theirs: class i is of numbers up to `most(i)`, the last, which is of any more, beyond all
 * bounds. */
static void write_classes(const writer *w, const char *name, const char *help, const double *bounds,
                          size_t buckets, const uint64_t *count, int classes, double (*most)(int class),
                          uint64_t sum)
{
    uint64_t counts[COT_METRICS_BUCKETS + 1] = {0};
    size_t b = 0;
    for (int i = 0; i < classes; i++) {
        while (b < buckets && most(i) > bounds[b]) b++;
        counts[b] += count[i];
    }
    const cot_prometheus_histogram histogram = {bounds, counts, buckets, (double)sum};
    cot_prometheus_metric(w->out, name, "histogram", help);
    cot_prometheus_histogram_lines(w->out, name, w->labels, 2, &histogram);
}

static double most_tokens(int class)
{
    return ldexp(1, class);
}

static double most_restarts(int class)
{
    return class;
}

static void write_ends(writer *w, const cot_metrics *m)
{
    const struct {
        const char *reason;
        uint64_t count;
    } ends[] = {{"stop", m->stopped}, {"length", m->ended_by_length}, {"abort", m->aborted}};
    cot_prometheus_metric(w->out, "vllm:request_success_total", "counter", "Sequences that ended, by how.");
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        w->labels[2] = (cot_prometheus_label){"finished_reason", ends[i].reason};
        cot_prometheus_value(w->out, "vllm:request_success_total", w->labels, 3, (double)ends[i].count);
    }
}

/* All wait for room, none for anything else. */
static void write_reasons(writer *w, size_t waiting)
{
    static const char *const reasons[] = {"capacity", "deferred"};
    static const char name[] = "vllm:num_requests_waiting_by_reason";
    cot_prometheus_metric(w->out, name, "gauge", "Sequences that wait, by what they wait for.");
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        w->labels[2] = (cot_prometheus_label){"reason", reasons[i]};
        cot_prometheus_value(w->out, name, w->labels, 3, i ? 0 : (double)waiting);
    }
}

/* How the KV cache is laid out, as labels. vLLM's blocks are what is shared and what is allocated in one. */
static void write_cache(const writer *w, const cot_backend_info *info, const cot_engine_load *load)
{
    static const char name[] = "vllm:cache_config_info";
    char block[24], blocks[24];
    const int64_t positions = load->kv_pages * COT_SERVED_PAGE_TOKENS, each = info->block_tokens;
    snprintf(block, sizeof block, "%lld", (long long)(each ? each : COT_SERVED_PAGE_TOKENS));
    snprintf(blocks, sizeof blocks, "%lld", (long long)(positions / (each ? each : COT_SERVED_PAGE_TOKENS)));
    const cot_prometheus_label labels[] = {w->labels[0],
                                           w->labels[1],
                                           {"block_size", block},
                                           {"cache_dtype", "auto"},
                                           {"enable_prefix_caching", each ? "True" : "False"},
                                           {"num_gpu_blocks", blocks}};
    cot_prometheus_metric(w->out, name, "gauge", "How the KV cache is laid out.");
    cot_prometheus_value(w->out, name, labels, sizeof labels / sizeof *labels, 1);
}

void cot_metrics_write(cot_prometheus *out, const cot_metrics *m, const cot_backend_info *info,
                       const cot_backend_state *state, const char *model, size_t running, size_t waiting)
{
    static const struct {
        const char *name, *help;
    } times[COT_METRIC_TIMES] = {
        [COT_TIME_TO_FIRST_TOKEN] = {"vllm:time_to_first_token_seconds",
                                     "From a request to its first token."},
        [COT_TIME_BETWEEN_TOKENS] = {"vllm:inter_token_latency_seconds", "Between two tokens of a sequence."},
        [COT_TIME_PER_OUTPUT_TOKEN] = {"vllm:request_time_per_output_token_seconds",
                                       "Mean between the tokens of a sequence."},
        [COT_TIME_END_TO_END] = {"vllm:e2e_request_latency_seconds", "From a request to its last token."},
        [COT_TIME_QUEUE] = {"vllm:request_queue_time_seconds", "From a request to its first step."},
        [COT_TIME_PREFILL] = {"vllm:request_prefill_time_seconds",
                              "From a sequence's first step to its first token."},
        [COT_TIME_DECODE] = {"vllm:request_decode_time_seconds",
                             "From a sequence's first token to its last."},
        [COT_TIME_INFERENCE] = {"vllm:request_inference_time_seconds",
                                "From a sequence's first step to its last token."},
    };
    writer w = {out, {{"engine", "0"}, {"model_name", model}}};
    const cot_engine_load *l = &state->load;
    const double used = l->kv_pages ? 1 - (double)l->kv_pages_free / (double)l->kv_pages : 0;
    write_one(&w, "vllm:num_requests_running", "gauge", "Sequences that are computed.", (double)running);
    write_one(&w, "vllm:num_requests_waiting", "gauge", "Sequences that wait.", (double)waiting);
    write_reasons(&w, waiting);
    write_cache(&w, info, l);
    write_one(&w, "vllm:kv_cache_usage_perc", "gauge", "Part of the KV cache that sequences hold, 0 to 1.",
              used);
    write_one(&w, "vllm:gpu_cache_usage_perc", "gauge", "The same (the older name; there need be no GPU).",
              used);
    // Hits are among the queries, and these among the prompt tokens below: all three are counted where sequences are
    // admitted, of those too whose client has left by then, and of prompts alone.
    write_one(&w, "vllm:prefix_cache_queries_total", "counter",
              "Prompt tokens that were looked up in the cache.", (double)l->queried_tokens);
    write_one(&w, "vllm:prefix_cache_hits_total", "counter", "Prompt tokens that were found in the cache.",
              (double)l->hit_tokens);
    write_one(&w, "vllm:num_preemptions_total", "counter", "Sequences that gave their pages up for others.",
              (double)l->preemptions);
    write_classes(&w, "vllm:request_num_preemptions",
                  "How often a sequence that is over gave its pages up for others.", restarts,
                  sizeof restarts / sizeof *restarts, l->ended, COT_RESTART_CLASSES, most_restarts,
                  l->ended_restarts);
    write_classes(&w, "vllm:iteration_tokens_total", "Tokens of a step.", step_sizes,
                  sizeof step_sizes / sizeof *step_sizes, l->steps_of, COT_STEP_CLASSES, most_tokens,
                  l->step_tokens);
    write_one(&w, "vllm:prompt_tokens_total", "counter",
              "Prompt tokens of sequences that began or were complete.",
              (double)state->prompt_tokens + (double)m->unsubmitted_prompt_tokens);
    write_one(&w, "vllm:generation_tokens_total", "counter", "Tokens generated.",
              (double)m->generation_tokens_total);
    write_ends(&w, m);
    for (int t = 0; t < COT_METRIC_TIMES; t++)
        write_histogram(&w, times[t].name, times[t].help, &m->times[t], seconds);
    write_histogram(&w, "vllm:time_per_output_token_seconds",
                    "Between two tokens of a sequence (the older name).", &m->times[COT_TIME_BETWEEN_TOKENS],
                    seconds);
    write_histogram(&w, "vllm:request_prompt_tokens", "Prompt tokens of a sequence.", &m->prompt_tokens,
                    tokens);
    write_histogram(&w, "vllm:request_generation_tokens", "Tokens generated of a sequence.",
                    &m->output_tokens, tokens);
    write_histogram(&w, "vllm:request_max_num_generation_tokens",
                    "Tokens generated of the longest of a prompt's choices.", &m->longest_output, tokens);
    write_one(&w, "coterie:tool_calls_total", "counter", "Calls of tools in answers.", (double)m->calls);
    write_one(&w, "coterie:tool_calls_unread_total", "counter",
              "Calls of tools that could not be read, and stayed content.", (double)m->unread_calls);
    write_one(&w, "coterie:requests_refused_total", "counter", "Requests that were answered 4xx or 5xx.",
              (double)m->refused);
    write_one(&w, "coterie:connections", "gauge", "Connections that are open.", (double)m->connections);
    write_one(&w, "coterie:dropped_connections_total", "counter",
              "Connections that waited for their clients and were cut to make room for others.",
              (double)m->dropped_connections);
    write_one(&w, "coterie:step_prediction_error", "gauge",
              "Mean part by which steps took other than they were expected to, lately.", l->prediction_error);
    write_one(&w, "coterie:step_predicted_seconds", "gauge", "What the last step was expected to take.",
              l->predicted_ns / 1e9);
    write_one(&w, "coterie:step_observed_seconds", "gauge", "What the last step took.", l->observed_ns / 1e9);
    write_one(&w, "coterie:steps_waited_total", "counter",
              "Steps that sequences sat out for want of room in them, summed over sequences.",
              (double)l->waited_steps);
    write_one(&w, "coterie:tbt_target_seconds", "gauge",
              "Time between tokens that prompts may stretch steps to; 0: none.", (double)l->tbt_ns / 1e9);
    write_one(&w, "coterie:kv_cached_blocks", "gauge", "Blocks of tokens that the prefix cache knows.",
              (double)l->cached_blocks);
    write_one(&w, "coterie:cached_states", "gauge",
              "States of texts' beginnings that are kept, where layers have a state in place of keys.",
              (double)l->cached_states);
    write_one(&w, "coterie:cached_states_evicted_total", "counter", "Those of them that went for others.",
              (double)l->evicted_states);
    if (!state->publishes_cache) return;
    write_one(&w, "coterie:kv_event_batches_total", "counter", "Batches of events of the KV cache published.",
              (double)state->cache_batches);
    write_one(&w, "coterie:kv_event_losses_total", "counter",
              "How often events were lost and the whole cache was published anew.",
              (double)state->cache_losses);
}

/* ---- the backend ---- */

/* A line a rank. */
static void write_ranks(writer *w, const char *name, const char *help, const cot_backend_metrics *m,
                        size_t offset)
{
    cot_prometheus_metric(w->out, name, "counter", help);
    for (int rank = 0; rank < m->ranks; rank++) {
        char text[16];
        uint64_t value;
        memcpy(&value, (const char *)&m->rank[rank] + offset, sizeof value);
        snprintf(text, sizeof text, "%d", rank);
        w->labels[2] = (cot_prometheus_label){"rank", text};
        cot_prometheus_value(w->out, name, w->labels, 3, (double)value);
    }
}

/* A line a phase, of what all ranks sent each other. */
static void write_phases(writer *w, const char *name, const char *help, const cot_backend_metrics *m,
                         const uint64_t *sums)
{
    cot_prometheus_metric(w->out, name, "counter", help);
    for (int p = 0; p < m->phases; p++) {
        w->labels[2] = (cot_prometheus_label){"phase", m->phase[p]};
        cot_prometheus_value(w->out, name, w->labels, 3, (double)sums[p]);
    }
}

/* Steps with prompt tokens, and the others. */
static void write_steps(writer *w, const char *name, const char *help, double prefill, double decode)
{
    cot_prometheus_metric(w->out, name, "counter", help);
    w->labels[2] = (cot_prometheus_label){"kind", "prefill"};
    cot_prometheus_value(w->out, name, w->labels, 3, prefill);
    w->labels[2] = (cot_prometheus_label){"kind", "decode"};
    cot_prometheus_value(w->out, name, w->labels, 3, decode);
}

/* The mean over ranks of the activations that they serve in a layer, over the most: an expert's are split evenly over its
 * replicas. 1 before the first. */
static double balancedness(const cot_backend_placement *p, int32_t layer, const uint64_t *calls, int ranks)
{
    const int32_t *begin = p->begin + (int64_t)layer * (p->experts + 1), *rank_of = p->rank + p->first[layer];
    double load[COT_METRICS_RANKS] = {0}, sum = 0, most = 0;
    for (int32_t e = 0; e < p->experts; e++)
        for (int32_t i = begin[e]; i < begin[e + 1]; i++)
            load[rank_of[i]] += (double)calls[e] / (double)(begin[e + 1] - begin[e]);
    for (int rank = 0; rank < ranks; rank++) {
        sum += load[rank];
        most = load[rank] > most ? load[rank] : most;
    }
    return most > 0 ? sum / ranks / most : 1;
}

void cot_metrics_write_backend(cot_prometheus *out, const cot_backend_metrics *s,
                               const cot_backend_placement *placement, const char *model)
{
    writer w = {out, {{"engine", "0"}, {"model_name", model}}};
    write_one(&w, "coterie:steps_total", "counter", "Steps of the engine.", (double)s->steps);
    write_steps(&w, "coterie:step_tokens_total",
                "Tokens that went through steps, by whether prompts were fed.", (double)s->prefill_tokens,
                (double)s->decode_tokens);
    write_steps(&w, "coterie:step_seconds_total", "Time that steps took, by whether prompts were fed.",
                (double)s->prefill_ns / 1e9, (double)s->decode_ns / 1e9);
    write_phases(&w, "coterie:sent_bytes_total", "Bytes that ranks sent each other, by what for.", s,
                 s->bytes);
    write_phases(&w, "coterie:sent_messages_total", "Messages that ranks sent each other, by what for.", s,
                 s->messages);
    if (!placement->layers) return;
    write_ranks(&w, "coterie:routed_tokens_total", "Tokens at home on a rank, counted once a MoE layer.", s,
                offsetof(cot_backend_rank, tokens));
    write_ranks(&w, "coterie:activations_total", "Calls of experts by tokens at home on a rank.", s,
                offsetof(cot_backend_rank, activations));
    write_ranks(&w, "coterie:local_activations_total", "Those of them that were served on that rank.", s,
                offsetof(cot_backend_rank, local));
    write_ranks(
        &w, "coterie:remote_sends_total",
        "Other ranks that tokens at home on a rank were served on, counted once a token and MoE layer.", s,
        offsetof(cot_backend_rank, sends));
    write_ranks(&w, "coterie:distinct_experts_total",
                "Experts that tokens at home on a rank called, each counted once a step and MoE layer.", s,
                offsetof(cot_backend_rank, distinct_experts));
    write_one(&w, "coterie:moe_layers", "gauge", "MoE layers of the model.", (double)placement->layers);
    cot_prometheus_metric(
        out, "coterie:balancedness", "gauge",
        "Mean over ranks of the calls that they served in a layer since the start, over the most.");
    for (int32_t l = 0; l < placement->layers; l++) {
        char text[16];
        snprintf(text, sizeof text, "%d", (int)placement->layer[l]);
        w.labels[2] = (cot_prometheus_label){"layer", text};
        cot_prometheus_value(
            out, "coterie:balancedness", w.labels, 3,
            balancedness(placement, l, s->calls + (int64_t)l * placement->experts, s->ranks));
    }
}

/* ---- experts that move ---- */

static void write_move(writer *w, const char *action, const char *outcome, int64_t count)
{
    w->labels[2] = (cot_prometheus_label){"action", action};
    w->labels[3] = (cot_prometheus_label){"outcome", outcome};
    cot_prometheus_value(w->out, "coterie:expert_moves_total", w->labels, 4, (double)count);
}

void cot_metrics_write_moves(cot_prometheus *out, const cot_backend_moves *m, bool under_way,
                             const cot_backend_placement *placement, const char *model)
{
    writer w = {out, {{"engine", "0"}, {"model_name", model}}};
    const char *seconds_name = "coterie:expert_move_seconds_total";
    const int64_t slots =
        placement->ranks * (placement->layers * (int64_t)placement->own_slots + placement->transit);
    cot_prometheus_metric(out, "coterie:expert_moves_total", "counter",
                          "Replicas of experts that were to be made or dropped, by what became of them.");
    write_move(&w, "copy", "done", m->copied);
    for (int o = 0; o < m->outcomes; o++) write_move(&w, "copy", m->outcome[o], m->given_up[o]);
    write_move(&w, "drop", "done", m->dropped);
    write_one(&w, "coterie:expert_move_bytes_total", "counter",
              "Bytes of experts that ranks sent each other to move them.", (double)m->bytes);
    cot_prometheus_metric(out, seconds_name, "counter",
                          "Time beside steps that moves took: copying, and agreeing on placements.");
    w.labels[2] = (cot_prometheus_label){"state", "copying"};
    cot_prometheus_value(out, seconds_name, w.labels, 3, (double)m->copy_ns / 1e9);
    w.labels[2] = (cot_prometheus_label){"state", "placing"};
    cot_prometheus_value(out, seconds_name, w.labels, 3, (double)m->place_ns / 1e9);
    write_one(&w, "coterie:expert_moves_under_way", "gauge", "1 while experts move.", under_way);
    write_one(&w, "coterie:placement_epoch", "gauge", "Placements that have followed the first.",
              (double)placement->epoch);
    write_one(&w, "coterie:expert_slots", "gauge", "Slots for experts on all ranks, in all layers.",
              (double)slots);
    write_one(&w, "coterie:expert_slots_used", "gauge", "Those of them that hold an expert in force.",
              placement->layers ? (double)placement->first[placement->layers] : 0);
}

static void write_labelled(writer *w, const char *name, const char *label, const char *value, int64_t count)
{
    w->labels[2] = (cot_prometheus_label){label, value};
    cot_prometheus_value(w->out, name, w->labels, 3, (double)count);
}

static void write_budget(writer *w, const cot_backend_budget *b)
{
    const char *bytes = "coterie:memory_bytes", *looks = "coterie:memory_looks_total";
    cot_prometheus_metric(w->out, bytes, "gauge",
                          "Memory that KV pages and replicas of experts share: what is open for either, what "
                          "replicas take, what states do.");
    write_labelled(w, bytes, "part", "all", b->bytes);
    write_labelled(w, bytes, "part", "states", b->states_bytes);
    write_labelled(w, bytes, "part", "pages", b->pages_bytes);
    write_labelled(w, bytes, "part", "slots", b->slots_bytes);
    write_labelled(w, bytes, "part", "replicas", b->replicas_bytes);
    cot_prometheus_metric(w->out, looks, "counter",
                          "Looks at how that memory is split, by what came of them.");
    for (int i = 0; i < b->reasons; i++) write_labelled(w, looks, "reason", b->reason[i], b->looks[i]);
    write_one(w, "coterie:memory_turns_total", "counter",
              "Those of them that moved memory the other way than the move before.", (double)b->turns);
    write_one(w, "coterie:memory_gain_seconds", "gauge",
              "What a step would take less by the split that the last look found best.", b->gain_ns / 1e9);
}

void cot_metrics_write_rebalancing(cot_prometheus *out, const cot_backend_rebalancing *r, const char *model)
{
    writer w = {out, {{"engine", "0"}, {"model_name", model}}};
    const char *cycles = "coterie:rebalance_cycles_total", *layers = "coterie:rebalance_layers_total",
               *replicas = "coterie:rebalance_replicas_total";
    cot_prometheus_metric(out, cycles, "counter", "Looks whether experts should move, by what came of them.");
    write_labelled(&w, cycles, "outcome", "moved", r->moved);
    write_labelled(&w, cycles, "outcome", "stayed", r->stayed);
    write_labelled(&w, cycles, "outcome", "refused", r->refused);
    write_one(&w, "coterie:rebalance_given_up_total", "counter",
              "Looks whose moves took longer than their bytes and one time-out should, and were given up.",
              (double)r->given_up);
    write_one(&w, "coterie:rebalance_turns_total", "counter",
              "Looks that left out what was called before the last one, since other experts are called now.",
              (double)r->turns);
    cot_prometheus_metric(out, layers, "counter",
                          "Layers in those looks, by whether experts move and why not.");
    for (int i = 0; i < r->reasons; i++) write_labelled(&w, layers, "reason", r->reason[i], r->layers[i]);
    cot_prometheus_metric(out, replicas, "counter", "Replicas of experts that those looks asked to move.");
    write_labelled(&w, replicas, "action", "copy", r->copies);
    write_labelled(&w, replicas, "action", "drop", r->drops);
    write_one(&w, "coterie:rebalance_saving_seconds", "gauge",
              "What a step was to take less by the moves of the last look.", r->saving_ns / 1e9);
    if (r->compared) {
        const char *compared = "coterie:rebalance_compared_saving_seconds";
        cot_prometheus_metric(
            out, compared, "gauge",
            "Of the last moves with 256 steps before and behind them: what a step was to take "
            "less, and takes less.");
        w.labels[2] = (cot_prometheus_label){"saving", "foreseen"};
        cot_prometheus_value(out, compared, w.labels, 3, r->foreseen_ns / 1e9);
        w.labels[2] = (cot_prometheus_label){"saving", "realised"};
        cot_prometheus_value(out, compared, w.labels, 3, r->realised_ns / 1e9);
    }
    write_one(&w, "coterie:rebalance_since_seconds", "gauge", "Time since the last look, or the start.",
              (double)r->since_ns / 1e9);
    write_one(&w, "coterie:rebalance_seconds_total", "counter", "Time beside steps that looks took.",
              (double)r->plan_ns / 1e9);
    if (r->budget.bytes) write_budget(&w, &r->budget);
}
