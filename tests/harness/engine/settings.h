/* An engine opened as a test sets it, or the test fails. */
#ifndef COT_TESTS_HARNESS_ENGINE_SETTINGS_H
#define COT_TESTS_HARNESS_ENGINE_SETTINGS_H
#include "coterie/engine.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether a process that has threads, or has had some, may fork: not under the thread sanitizer. */
#ifdef __SANITIZE_THREAD__
enum { CAN_FORK = 0 };
#else
enum { CAN_FORK = 1 };
#endif

struct setting {
    const char *folder;
    int ranks, threads;
    const char *attention, *precision, *weights, *weights_attention, *weights_head, *isa, *op, *combine;
    int64_t step_tokens, kv_tokens, block_tokens;
    int sequences;
    bool processes, quiet, counts_exchanges; // quiet: routing is not captured
    const cot_expert_map *placement;
    const char *tables, *pipeline, *predict, *collective, *a2a, *dedup;
    int32_t expert_slots;
    bool movable;
    const cot_engine_routing *routing;
    int64_t half_life; // of popularity, in tokens
    const char *home_by, *schedule;
};

cot_engine_options options_of(const struct setting *s);

cot_engine *must_open(const struct setting *s);

#endif
