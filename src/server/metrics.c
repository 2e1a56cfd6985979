#include "server/metrics.h"

/* Upper bounds: vLLM's for times and lengths, so that its dashboards read them alike. */
static const double seconds[] = {0.001, 0.005, 0.01, 0.025, 0.05,  0.075, 0.1,    0.15,
                                 0.2,   0.3,   0.4,  0.5,   0.75,  1.0,   2.5,    5.0,
                                 10.0,  20.0,  40.0, 80.0,  160.0, 640.0, 2560.0, 5120.0};
static const double tokens[] = {1,   2,   5,   10,  20,  50,  100, 200, 500, 1e3, 2e3, 5e3,
                                1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7};

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
    cot_prometheus_label labels[3];
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

void cot_metrics_write(cot_prometheus *out, const cot_metrics *m, const cot_backend_state *state,
                       const char *model, size_t running, size_t waiting)
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
    write_one(&w, "coterie:requests_refused_total", "counter", "Requests that were answered 4xx or 5xx.",
              (double)m->refused);
    write_one(&w, "coterie:step_prediction_error", "gauge",
              "Mean part by which steps took other than they were expected to, lately.", l->prediction_error);
    write_one(&w, "coterie:tbt_target_seconds", "gauge",
              "Time between tokens that prompts may stretch steps to; 0: none.", (double)l->tbt_ns / 1e9);
    write_one(&w, "coterie:kv_cached_blocks", "gauge", "Blocks of tokens that the prefix cache knows.",
              (double)l->cached_blocks);
}
