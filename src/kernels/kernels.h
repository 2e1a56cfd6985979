/* Arithmetic on tiles and rows: one table of functions per instruction set, chosen once at start.
 *
 * The law of this room: a row's result depends on that row alone. Every sum runs over its index in one fixed order,
 * whatever the number of rows, the tile it falls in, or how a caller cuts rows and panels between threads, so that a
 * token's result is bit-identical in any company. Different tables may round differently. `ref` is the readable oracle.
 */
#ifndef COT_KERNELS_KERNELS_H
#define COT_KERNELS_KERNELS_H
#include "coterie/status.h"
#include "kernels/delta.h"
#include "kernels/format.h"
#include <stdbool.h>
#include <stdint.h>

/* C[m][n] = (accumulate ? C[m][n] : 0) + sum_k A[row(m)][k] * B[k][n], k ascending, accumulated in fp32.
 *
 * A: rows of `k` elements of `type` (F32 or BF16), `a_stride` elements apart; row(m) = m, or a_rows[m]. B: packed in
 * `format` (format.h), `b_panel_bytes` from one panel of 32 columns to the next. C: fp32, `c_stride` elements a row; columns
 * >= n are not written. Nothing outside these extents is read or written. The format is the type's own, or `rounded` is set
 * and it is one that is multiplied by whole numbers (cot_format_multiplies).
 *
 * Without scales and with accumulate, k may be cut into consecutive calls without changing a bit where every cut is even.
 *
 * Blocks (format.h) are multiplied as the numbers that they stand for in fp32, and A as what it is: k is not cut.
 *
 * With scales, k is not cut. The products of COT_SUM_K rows of a column at a time, all of one group, are added by themselves,
 * from 0 on and k ascending, of elements without scale and offset; with zero points that sum t becomes, by one fused
 * multiply-add, t + the column's offset times the sum of A's elements there; then C[m][n] gets, in fp32, one fused multiply-add
 * of it and the group's scale.
 *
 * b_pair_bytes not 0: B is two matrices, whose panels come in turn: even panels are those of the first, an odd panel
 * is that far beyond the even one before it. Then p0 and p1 below are even.
 *
 * rounded: COT_QUANT_K elements of a row of A at a time are rounded to whole numbers
 * of units s, s = their greatest magnitude / 127. The sum of their products with B's whole numbers is exact, and C[m][n]
 * gets, in fp32, one fused multiply-add of that sum and (s times the column's scale). A NaN or an infinity makes that
 * row NaN. Of all but INT8 with a column's scale alone (of MXFP4 whole numbers are twice the elements) a sum t gets within the COT_QUANT_K
 * elements, from 0 on, one fused multiply-add of each COT_SUM_K rows' sum, which is made as above, and its scale, and then C[m][n] one of t and
 * s (MXFP4: s / 2). */
enum { COT_QUANT_K = 256, COT_SUM_K = 32 };

typedef struct cot_gemm {
    cot_dtype type;
    cot_format format;
    bool accumulate, rounded;
    int64_t m, n, k;
    const void *a;
    int64_t a_stride;
    const int32_t *a_rows;
    const void *b;
    int64_t b_panel_bytes, b_pair_bytes;
    float *c;
    int64_t c_stride;
} cot_gemm;

/* Bytes of B before a panel. */
static inline int64_t cot_gemm_panel_at(const cot_gemm *g, int64_t panel)
{
    return g->b_pair_bytes ? panel / 2 * g->b_panel_bytes + panel % 2 * g->b_pair_bytes
                           : panel * g->b_panel_bytes;
}

/* A weight as products read it: packed [k][n] in whichever format, and whether rows are rounded within them. */
typedef struct cot_packed {
    const uint8_t *b;
    cot_format format;
    bool rounded;
    int64_t k, n;
} cot_packed;

/* Matrices side by side, which are several where their formats are: columns follow each other. */
typedef struct cot_packed_parts {
    cot_packed part[6]; // of the same k
    int parts;
    int64_t n; // columns of all
} cot_packed_parts;

/* The product of m rows of `type` with columns [column0, column0 + n), of which column0 begins a panel. The caller adds A and C. */
static inline cot_gemm cot_packed_gemm(const cot_packed *b, cot_dtype type, int64_t m, int64_t column0,
                                       int64_t n)
{
    const int64_t panel = cot_panel_bytes(b->format, b->k);
    return (cot_gemm){.type = type,
                      .format = b->format,
                      .rounded = b->rounded,
                      .m = m,
                      .n = n,
                      .k = b->k,
                      .b = b->b + column0 / COT_PANEL * panel,
                      .b_panel_bytes = panel};
}

/* What a softmax knows of the logits so far; of none: -infinity, 0; of one logit x: x, 1. */
typedef struct cot_softmax_sums {
    float max, sum; // sum of exp(logit - max)
} cot_softmax_sums;

typedef struct cot_kernels {
    const char *name; // as --isa spells it
    /* Rows [m0, m1) by panels [p0, p1) of the product; panels are of 32 columns. Safe on disjoint pieces at once. */
    void (*gemm)(const cot_gemm *gemm, int64_t m0, int64_t m1, int64_t p0, int64_t p1);

    /* Rows of n floats; `out` of type F32 or BF16 (round to nearest even). `out` may be the input where types agree. */
    float (*sum_squares)(const float *x, int64_t n);
    void (*scale)(void *out, cot_dtype type, const float *x, float factor, int64_t n); // out = factor x
    void (*scale_by)(float *out, const float *x, float factor, const float *weight,
                     int64_t n);                                           // out = (factor x) weight
    void (*add)(float *y, const void *x, cot_dtype type, int64_t n);       // y += x
    void (*add_scaled)(float *y, const float *x, float factor, int64_t n); // y += factor x
    /* out = silu(gate) up, silu(x) = x / (1 + exp(-x)) */
    void (*swiglu)(void *out, cot_dtype type, const float *gate, const float *up, int64_t n);
    /* gpt-oss: g = min(gate, limit), u = clamp(up, -limit, limit); out = (u + 1) g sigmoid(alpha g) */
    void (*swiglu_clamped)(void *out, cot_dtype type, const float *gate, const float *up, int64_t n,
                           float limit, float alpha);
    void (*gelu)(void *out, cot_dtype type, const float *x,
                 int64_t n); // x Phi(x), Phi the normal distribution's
    void (*relu)(void *out, cot_dtype type, const float *x, int64_t n);
    /* p[i] = exp(scale s[i] - max) / sum for begin <= i < end, 0 for the other i in [0, n). The max and the sum run over
     * [begin, end) and, where `before` is not NULL, over what it knows, which then knows these too. Returns the part of
     * the sum that came before: by it shrinks what was made of earlier logits. Sums depend on begin, end and i mod 32
     * alone, so that a row shifted by a multiple of 32 gives the same bits. begin < end. */
    float (*softmax)(void *p, cot_dtype type, const float *s, int64_t n, int64_t begin, int64_t end,
                     float scale, cot_softmax_sums *before);
    /* Rotates pairs in place: (x[i], x[i + half]) or, interleaved, (x[2i], x[2i + 1]), by the angle whose cosine and
     * sine are cosines[i], sines[i], 0 <= i < half. */
    void (*rope)(float *x, const float *cosines, const float *sines, int64_t half, bool interleaved);
    void (*to_f32)(float *out, const void *x, cot_dtype type, int64_t n); // from F32, BF16 or F16
    void (*delta)(const cot_delta *delta);                                // delta.h
} cot_kernels;

typedef enum cot_isa {
    COT_ISA_REF,
    COT_ISA_AVX2,
    COT_ISA_AVX512,
    COT_ISA_AVX512_VNNI,
    COT_ISA_AVX512_BF16,
    COT_ISA_NEON,
    COT_ISA_COUNT
} cot_isa;

/* The table of one instruction set, or NULL when this build or this CPU lacks it. */
const cot_kernels *cot_kernels_of(cot_isa isa);
/* The best table this CPU runs; `cap` names the most that may be used (NULL: no cap; see cot_isa names: ref, avx2,
 * avx512, avx512_vnni, avx512_bf16, neon). Errors: UNSUPPORTED when the named table does not exist here, with those
 * that do. */
cot_status cot_kernels_choose(const cot_kernels **kernels, const char *cap, cot_error *error);

#endif
