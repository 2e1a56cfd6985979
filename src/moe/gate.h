/* The router: which experts a token visits, and with what weight. */
#ifndef COT_MOE_GATE_H
#define COT_MOE_GATE_H
#include "kernels/matmul.h"

typedef enum cot_gate_score {
    COT_GATE_SOFTMAX,        // softmax over all experts, then choose (Mixtral, OLMoE, Qwen, DeepSeek-V2)
    COT_GATE_SIGMOID,        // sigmoid of each logit (DeepSeek-V3)
    COT_GATE_CHOSEN_SOFTMAX, // choose by logit, softmax over the chosen (gpt-oss)
} cot_gate_score;

/* How a group of experts is scored where only `group_limit` of `groups` may be chosen from. */
typedef enum cot_group_score { COT_GROUP_MAX, COT_GROUP_TOP2_SUM } cot_group_score;

typedef struct cot_gate {
    int64_t hidden, experts, top_k; // H, E, K
    cot_gate_score score;
    int64_t groups, group_limit;    // groups of E / groups consecutive experts; 1, 1: no limit
    cot_group_score group_score;
    bool normalise;                 // divide the chosen weights by their sum (+ epsilon)
    float epsilon;
    float scaling;                  // routed_scaling_factor, applied last
    const float *weight;            // packed F32 [H][E]
    const float *bias;              // [E] added to the logits, or NULL
    const float *correction;        // [E] added to the scores for choosing only, or NULL
} cot_gate;

/* Routes x [T][H] (fp32): experts [T][K] ascending within a token, weights [T][K] beside them. Equal scores: the lower
 * expert is chosen. `logits` is scratch of T * E floats. Errors: INVALID_ARGUMENT when a token's logits are not finite,
 * naming the token. Never allocates; a token's result depends on that token alone. Experts of groups not chosen take part
 * with score 0 in DeepSeek-V2's gate and not at all in V3's where correction is used (see the source). */
cot_status cot_gate_route(uint16_t *experts, float *weights, const cot_kernels *kernels, cot_pool *pool,
                          const cot_gate *gate, const float *x, int64_t tokens, float *logits, cot_error *error);

#endif
