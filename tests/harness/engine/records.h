/* Runs of an engine with everything that it tells kept, to be compared. */
#ifndef COT_TESTS_HARNESS_ENGINE_RECORDS_H
#define COT_TESTS_HARNESS_ENGINE_RECORDS_H
#include "harness/engine/settings.h"

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

struct record {
    int64_t capacity;                    // positions that the sequence can come to
    float *logits;                       // [capacity][V] by position
    uint8_t *logits_told, *routing_told; // [capacity] how often
    uint16_t *experts;                   // [capacity][MoE layers][K]
    float *weights;
    int32_t *fed;     // [capacity] as on_routing names them
    int32_t *sampled; // [capacity]
    int64_t sampled_tokens;
    int finishes; // how often on_finish came
    cot_finish finish;
};

struct records {
    const cot_engine_info *info;
    size_t count;
    struct record *record;
    int64_t stop_after; // on_token returns false at that many tokens; 0: never
};

size_t routed(const cot_engine_info *info);

void records_free(struct records *all);

/* Room for what `requests` will tell; poisoned, so that what is not told cannot look right. */
struct records records_new(const cot_engine *engine, const cot_request *requests, size_t count);

cot_events events_of(struct records *all);

struct records must_run(cot_engine *engine, const cot_request *requests, size_t count);

/* Opens, runs, closes. `all.info` is gone afterwards but for what `info` copies. */
struct records run_once(const struct setting *s, const cot_request *requests, size_t count,
                        cot_engine_info *info);

/* Every token of a request with all_logits was told once, with the right id. */
void assert_told_once(const struct records *all, size_t i, const cot_request *q, bool captured);

#endif
