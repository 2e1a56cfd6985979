/* Inside an engine: shared by engine.c (opening), run.c (sequences) and stats.c. */
#ifndef COT_ENGINE_STATE_H
#define COT_ENGINE_STATE_H
#include "engine/group.h"
#include "engine/sampler.h"
#include "model/kv.h"

struct cot_engine {
    cot_checkpoint *checkpoint;
    const cot_config *config;
    cot_whole_weights whole;
    cot_load_progress progress;
    cot_group *group;
    cot_runner_options runner;
    cot_engine_info info;
    int32_t *moe_layer;
    bool failed; // a step failed: the group is gone
    /* Rank 0's scratch for running sequences, sized at open. */
    int32_t *free_pages; // a stack of runner.pages
    int64_t free_page_count;
    int32_t *ids;              // [step_tokens]
    cot_span *spans;           // [step_tokens]
    cot_page_map *maps;        // [2 step_tokens]
    float *penalised;          // [V]
    cot_candidate *candidates; // [V]
    uint8_t *seen;             // [V]
    uint16_t *token_experts;   // [MoE layers][K] of one token
    float *token_weights;
    uint8_t *touched; // [E]
    /* Counted at rank 0. */
    int64_t prefill_tokens, decode_tokens, prefill_ns, decode_ns, last_step_ns, steps;
    uint64_t prefill_read_bytes, decode_read_bytes;
};

/* Bytes of weights and KV that a step with this routing ([MoE layers][step_tokens][K]) had to read, each
 * once. */
uint64_t cot_engine_read_bytes(cot_engine *engine, const cot_step *step, const uint16_t *experts);

#endif
