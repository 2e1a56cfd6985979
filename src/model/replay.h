/* Routing that takes the place of what gates choose: recorded, or drawn. */
#ifndef COT_MODEL_REPLAY_H
#define COT_MODEL_REPLAY_H
#include "coterie/layout.h"
#include "coterie/trace.h"
#include <stdbool.h>

typedef struct cot_replay {
    const cot_trace *trace; // of kind tokens; NULL: routing is drawn
    int32_t first_layer;    // of the trace: it is the model's first MoE layer
    double lar;             // of drawn routing: the share of a rank's activations that stay there, 0 to 1
} cot_replay;

/* The experts [K] of the trace's `token` in a MoE layer, ascending, and their weights: 1 / K each where none are recorded. */
void cot_replay_row(uint16_t *experts, float *weights, const cot_replay *replay, int32_t moe_layer,
                    int64_t token);

/* A token whose routing is drawn. */
typedef struct cot_replay_draw {
    int rank;                            // its home
    int64_t place;                       // how many tokens of the step and layer are at home there before it
    int64_t top_k;                       // K
    const cot_expert_replicas *replicas; // where the layer's experts sit, each once
    int32_t experts;                     // E
    uint64_t stream;                     // of random numbers, one a (token, layer)
} cot_replay_draw;
/* Different experts [K], ascending, each with weight 1 / K: of the first n tokens at home on a rank floor(n K lar) are on that
 * rank. All that are there are alike, and all that are elsewhere. */
void cot_replay_draw_row(uint16_t *experts, float *weights, const cot_replay *replay,
                         const cot_replay_draw *draw);

/* Whether a rank with so many of a layer's E experts can have such tokens. */
bool cot_replay_can_draw(double lar, int64_t top_k, int64_t own, int64_t experts);

#endif
