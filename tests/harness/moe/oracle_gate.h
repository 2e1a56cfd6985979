/* The gate in double precision: plain loops over unpacked weights, nothing of src/ but exact conversions of
 * scalars. Only packing for the code under test goes through pack.h. */
#ifndef COT_TESTS_HARNESS_MOE_ORACLE_GATE_H
#define COT_TESTS_HARNESS_MOE_ORACLE_GATE_H
#include "harness/draw.h"

#include "moe/gate.h"

#include <stdbool.h>
#include <stdint.h>

struct oracle_gate {
    cot_gate gate; // points to the following
    float *plain;  // [E][H]
    float *weight, *bias, *correction;
};

void oracle_gate_pack(struct oracle_gate *o);

/* A gate of these sizes and rules with drawn weights; with_bias and with_correction: drawn, too. */
struct oracle_gate oracle_gate_new(const cot_gate *rules, bool with_bias, bool with_correction,
                                   struct draw *draw);

/* Every weight of even experts becomes `value`, of odd ones -value. */
void oracle_gate_set_weight(struct oracle_gate *o, float value);

void oracle_gate_free(struct oracle_gate *o);

/* Routes x [H]: experts ascending, their weights beside. False where fp32 may rightly choose otherwise. */
bool oracle_route(int64_t *experts, double *weights, const struct oracle_gate *o, const float *x);

#endif
