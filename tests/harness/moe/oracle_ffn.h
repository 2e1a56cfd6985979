/* An expert's network in double precision: plain loops over unpacked weights, nothing of src/ but exact
 * conversions of scalars. Only packing for the code under test goes through moe/weights.h. */
#ifndef COT_TESTS_HARNESS_MOE_ORACLE_FFN_H
#define COT_TESTS_HARNESS_MOE_ORACLE_FFN_H
#include "harness/draw.h"

#include "moe/weights.h"

#include <stdint.h>

struct oracle_ffn {
    cot_ffn_shape shape;
    float *gate, *up, *down;                // [I][H], [I][H], [H][I]; no gate: NULL
    float *gate_bias, *up_bias, *down_bias; // [I], [I], [H]
    uint8_t *packed;                        // by cot_moe_packed
};

struct oracle_ffn oracle_ffn_new(const cot_ffn_shape *shape, struct draw *draw);

/* Into memory of weights->slot_bytes. */
void oracle_ffn_store(const struct oracle_ffn *o, const cot_moe_weights *weights, uint8_t *slot);

void oracle_ffn_free(struct oracle_ffn *o);

/* y [H] of x [H]; activations are rounded to the shape's type where the network rounds them. */
void oracle_ffn_apply(double *y, const struct oracle_ffn *o, const float *x);

#endif
