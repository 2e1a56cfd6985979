/* The gated delta rule of one head (model/delta.c says what it is for), over tokens that follow one another. */
#ifndef COT_KERNELS_DELTA_H
#define COT_KERNELS_DELTA_H
#include "kernels/format.h"

/* Each of `tokens` tokens, one after the other, with a = exp(g) its decay:
 *
 *     u = beta (v - a (k S)),   S = a S + k u,   o = q S
 *
 * S [dk][dv] is kept in panels of COT_PANEL columns, of which the last may be narrower: panel p begins at S + p COT_PANEL dk and is
 * [dk][its columns], so that a panel stays in a core's first cache however many tokens it meets. Columns know nothing of each
 * other. A column's sums k S and q S begin at 0 and are one fused multiply-add a row, rows ascending; a S is rounded, and k u
 * comes to it by one more; a (k S), v less that, and beta times it are rounded each. Every instruction set gives these bits, and so do
 * tokens that are cut into calls anywhere. `o` may be where v is. Nothing is aligned. */
typedef struct cot_delta {
    int64_t tokens, dk, dv;
    float *state;          // S
    const float *q, *k;    // [tokens][dk], and
    const float *v;        // [tokens][dv], their rows `stride` floats apart
    int64_t stride;        //
    const float *a, *beta; // [tokens]
    float *o;              // [tokens][dv], its rows o_stride floats apart
    int64_t o_stride;
} cot_delta;

#endif
