/* Routing that takes the place of what gates choose: recorded, or drawn. */
#ifndef COT_MODEL_REPLAY_H
#define COT_MODEL_REPLAY_H
#include "coterie/layout.h"
#include "coterie/trace.h"
#include <stdbool.h>

/* A token of a step, at home on a rank. */
typedef struct cot_replay_token {
    int32_t moe_layer, sequence, position;
    int32_t recorded;                    // the sequence of the trace that it replays
    int rank;                            // its home
    int64_t place;                       // how many tokens of the step and layer are at home there before it
    const cot_expert_replicas *replicas; // where the layer's experts sit
} cot_replay_token;

/* A way to choose experts. */
typedef struct cot_replay cot_replay;
struct cot_replay {
    /* Different experts [K], ascending, and their weights. Recorded: as the trace has them, weights 1 / K each where it has none.
     * Drawn: each 1 / K; of the first n tokens at home on a rank floor(n K lar) experts are on that rank, all that are there alike,
     * and all that are elsewhere; every expert sits once. */
    void (*choose)(uint16_t *experts, float *weights, const cot_replay *replay,
                   const cot_replay_token *token);
    int64_t experts, top_k; // E, K
    const cot_trace *trace; // of kind tokens; NULL: routing is drawn
    int32_t first_layer;    // of the trace: it is the model's first MoE layer
    double lar;             // of drawn routing: the share of a rank's activations that stay there, 0 to 1
};
/* A trace's with one, else drawn. */
cot_replay cot_replay_of(const cot_trace *trace, int32_t first_layer, double lar, int64_t experts,
                         int64_t top_k);

/* Whether a rank with so many of a layer's E experts can have such tokens. */
bool cot_replay_can_draw(double lar, int64_t top_k, int64_t own, int64_t experts);

#endif
