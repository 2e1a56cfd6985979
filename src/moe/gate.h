/* The router: which experts a token visits, and with what weight. */
#ifndef COT_MOE_GATE_H
#define COT_MOE_GATE_H
#include "kernels/matmul.h"

typedef enum cot_gate_score {
    COT_GATE_SOFTMAX,        // softmax over all experts, then choose (Mixtral, OLMoE, Qwen, DeepSeek-V2)
    COT_GATE_SIGMOID,        // sigmoid of each logit (DeepSeek-V3)
    COT_GATE_CHOSEN_SOFTMAX, // choose by logit, softmax over the chosen (gpt-oss)
    COT_GATE_SPARSE_MIXER,   // choose by logit; each of the chosen a softmax of its own (Phi-3.5-MoE)
} cot_gate_score;

enum { COT_MAX_EXPERTS = 65535, COT_MAX_TOP_K = 64, COT_MAX_GROUPS = 64 };

/* How a group of experts is scored where only `group_limit` of `groups` may be chosen from. */
typedef enum cot_gate_group_score { COT_GROUP_MAX, COT_GROUP_TOP2_SUM } cot_gate_group_score;

typedef struct cot_gate {
    int64_t hidden, experts, top_k; // H, E, K
    cot_gate_score score;
    int64_t groups, group_limit; // groups of E / groups consecutive experts; 1, 1: no limit
    cot_gate_group_score group_score;
    bool normalise; // divide the chosen weights by their sum (+ epsilon)
    float epsilon;
    float
        jitter; // SPARSE_MIXER: an expert's softmax, without those chosen before it, is over itself and what is nearer to it than twice this, by size
    float scaling;           // routed_scaling_factor, applied last
    const float *weight;     // [E][H] as the operator keeps it; cot_gate_route: packed F32 [H][E]
    const float *bias;       // [E] added to the logits, or NULL
    const float *correction; // [E] added to the scores for choosing only, or NULL
} cot_gate;

/* Whether tokens can be routed so: E, K and groups within the limits above, K <= E, groups of equal size,
 * groups of two or more where their top 2 count, K experts left in group_limit groups. Errors:
 * INVALID_ARGUMENT, naming what is wrong. */
cot_status cot_gate_check(const cot_gate *gate, cot_error *error);

/* Tokens to be routed. */
typedef struct cot_gate_tokens {
    const float *x;        // [T][H]
    int64_t first, tokens; // the number of x's first token in messages; T
    uint16_t *experts;     // [T][K] out: ascending within a token
    float *weights;        // [T][K] out: beside them
    float *logits;         // [T][E] scratch
    bool unsound_pass;     // a token that cannot be routed gets experts 0 to K - 1 and weights that are NaN
} cot_gate_tokens;

/* Routes by a gate that passes the check. Equal scores: the lower expert is chosen. Errors: INVALID_ARGUMENT when a token's logits, corrections or weights are not
 * finite, naming the first such token, unless these pass. Never allocates; a token's result depends on that token alone. Experts of
 * groups not chosen take part with score 0 after a softmax without correction (DeepSeek-V2, where K may exceed what
 * group_limit groups hold), and not at all otherwise (DeepSeek-V3). */
cot_status cot_gate_route(const cot_gate_tokens *tokens, const cot_gate *gate, const cot_kernels *kernels,
                          cot_pool *pool, cot_error *error);

#endif
