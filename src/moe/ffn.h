/* SwiGLU feed-forward networks on packed weights: experts, shared experts, dense layers. */
#ifndef COT_MOE_FFN_H
#define COT_MOE_FFN_H
#include "kernels/matmul.h"

/* y = W_down act(W_gate x + b_gate, W_up x + b_up) + b_down; act: swiglu, or swiglu_clamped if limit > 0. */
typedef struct cot_ffn_shape {
    cot_dtype type;               // F32 or BF16: weights and activations
    int64_t hidden, intermediate; // H, I
    bool biased;
    float limit, alpha; // limit 0: plain SwiGLU
} cot_ffn_shape;

/* One network's weights in one block of memory: packed [H][2I] (columns 0..I-1 gate, I..2I-1 up), packed
 * [I][H], and, if biased, float [2I] and [H]. All offsets are multiples of 64. */
typedef struct cot_ffn_layout {
    size_t gate_up, down, gate_up_bias, down_bias; // offsets in bytes
    size_t bytes;
} cot_ffn_layout;
cot_ffn_layout cot_ffn_layout_of(const cot_ffn_shape *shape);

/* One network's rows: y[i] = ffn(weights, x[rows ? rows[i] : i]), i < count. */
typedef struct cot_ffn_job {
    const uint8_t *weights; // a block laid out as above
    const int32_t *rows;    // NULL: 0, 1, ...
    int64_t count;
    const void *x; // `type`, [.][H]
    float *y;      // [count][H]
} cot_ffn_job;

enum { COT_FFN_LAUNCHES = 3 }; // loops over threads that cot_ffn_run begins

/* Scratch for `rows` rows in all: floats [rows][2I] and `type` [rows][I]. */
size_t cot_ffn_scratch_bytes(const cot_ffn_shape *shape, int64_t rows);
/* Runs independent jobs of one shape, their rows in all at most what `scratch` (64-aligned) was sized for.
 * `gemms` has room for `count` descriptors. Never allocates; a row's result depends on that row alone. */
void cot_ffn_run(const cot_kernels *kernels, cot_pool *pool, const cot_ffn_shape *shape,
                 const cot_ffn_job *jobs, int64_t count, void *scratch, cot_gemm *gemms);

#endif
