/* What is counted of requests, for /metrics. */
#ifndef COT_SERVER_METRICS_H
#define COT_SERVER_METRICS_H
#include "net/prometheus.h"
#include "worker/backend.h"

enum { COT_METRICS_BUCKETS = 24, COT_METRICS_RANKS = 64 }; // the most ranks of a backend

typedef enum cot_metrics_kind {
    COT_TIME_TO_FIRST_TOKEN,
    COT_TIME_BETWEEN_TOKENS,
    COT_TIME_PER_OUTPUT_TOKEN, // of a request: the mean between its tokens
    COT_TIME_END_TO_END,
    COT_TIME_QUEUE,
    COT_TIME_PREFILL,
    COT_TIME_DECODE,
    COT_TIME_INFERENCE, // prefill and decode
    COT_METRIC_TIMES
} cot_metrics_kind;

typedef struct cot_metrics_histogram {
    uint64_t counts[COT_METRICS_BUCKETS + 1];
    double sum;
} cot_metrics_histogram;

typedef struct cot_metrics {
    cot_metrics_histogram times[COT_METRIC_TIMES]; // seconds
    cot_metrics_histogram prompt_tokens, output_tokens;
    cot_metrics_histogram longest_output; // of a prompt's choices
    uint64_t unsubmitted_prompt_tokens;   // of choices complete without the backend; it counts the others'
    uint64_t generation_tokens_total;
    uint64_t stopped, ended_by_length, aborted; // requests' choices, by how they ended
    uint64_t calls, unread_calls;               // of tools; that could not be read and are content
    uint64_t refused;                           // requests that were answered 4xx or 5xx
    uint64_t connections, dropped_connections;  // open now; those that went to make room
} cot_metrics;

void cot_metrics_time(cot_metrics *metrics, cot_metrics_kind which, int64_t ns);
void cot_metrics_lengths(cot_metrics *metrics, int64_t prompt_tokens, int64_t output_tokens);
/* Counts the longest of a prompt's choices, once all have ended. */
void cot_metrics_longest(cot_metrics *metrics, int64_t output_tokens);
/* Writes everything, under vLLM's names where they mean the same. */
void cot_metrics_write(cot_prometheus *out, const cot_metrics *metrics, const cot_backend_info *info,
                       const cot_backend_state *state, const char *model, size_t running, size_t waiting);
/* What a backend has counted: of ranks and phases, and a line a layer. Bounded by ranks, phases and layers, whatever the number
 * of experts. */
void cot_metrics_write_backend(cot_prometheus *out, const cot_backend_metrics *metrics,
                               const cot_backend_placement *placement, const char *model);

/* What has become of experts that were to move, in all, and the slots that they have. */
void cot_metrics_write_moves(cot_prometheus *out, const cot_backend_moves *all, bool under_way,
                             const cot_backend_placement *placement, const char *model);
/* What has come of cycles in which it is seen whether experts should move. */
void cot_metrics_write_rebalancing(cot_prometheus *out, const cot_backend_rebalancing *rebalancing,
                                   const char *model);

#endif
