/* One MoE layer with drawn weights and tokens, and its answer in double precision. */
#ifndef COT_TESTS_HARNESS_MOE_WORLD_H
#define COT_TESTS_HARNESS_MOE_WORLD_H
#include "harness/moe/oracle_ffn.h"
#include "harness/moe/oracle_gate.h"

#include "moe/moe.h"

#include <stdbool.h>
#include <stdint.h>

enum { WORLD_TOKENS = 2048, WORLD_EXPERTS = 512 };

struct world {
    const cot_moe_operator *op;
    cot_moe_options options; // all but the fabric
    struct oracle_gate gate;
    struct oracle_ffn *experts, shared;
    float *shared_gate; // [H], or NULL
    int64_t tokens;
    float *x;   // [T][H]
    double *y;  // [T][H], what the operator should answer
    bool *sure; // [T]: whether y is the only right answer
    double tolerance;
};

/* The options tell all but the fabric and how wide replies are: those that are reduced travel back in fp32. */
struct world world_new(const cot_moe_operator *op, const cot_moe_options *options, const cot_gate *rules,
                       bool with_bias, bool with_correction, bool shared_gated, int64_t tokens,
                       struct draw *draw);

/* The answer for the tokens as they are now. */
void world_solve(struct world *w);

void world_free(struct world *w);

#endif
