/* Feed-forward networks on packed weights: experts, shared experts, dense layers. In tiles, of which both a whole
 * network's run and an operator's tasks are made. */
#ifndef COT_MOE_FFN_H
#define COT_MOE_FFN_H
#include "base/pool.h"
#include "kernels/kernels.h"

typedef enum cot_ffn_activation {
    COT_FFN_SWIGLU, // act = silu(gate) up; limit > 0: kernels.h's swiglu_clamped
    COT_FFN_GELU,   // act = gelu(up), the exact (erf) form; there is no gate
    COT_FFN_RELU    // act = max(up, 0); there is no gate
} cot_ffn_activation;

/* y = W_down act(W_gate x + b_gate, W_up x + b_up) + b_down */
typedef struct cot_ffn_shape {
    cot_dtype type;            // F32 or BF16: rows and activations
    bool rounded;              // these are rounded to whole numbers within the products (kernels.h)
    cot_format gate, up, down; // of the weights
    cot_ffn_activation activation;
    int64_t hidden, intermediate; // H, I
    bool biased;
    float limit, alpha; // of clamped SwiGLU; limit 0: plain
} cot_ffn_shape;

static inline bool cot_ffn_is_gated(const cot_ffn_shape *shape)
{
    return shape->activation == COT_FFN_SWIGLU;
}

/* The formats of one network's matrices, at its weights' begin: networks side by side may differ in them. */
typedef struct cot_ffn_header {
    uint32_t gate, up, down; // cot_format
} cot_ffn_header;

/* One network's weights in one block of memory: a header, packed (kernels/format.h) gate [H][I] and up [H][I], each of whole
 * panels, packed down [I][H], and, if biased, float [I], [I] and [H]. Without a gate its two parts take no
 * bytes. All offsets are multiples of 64. */
typedef struct cot_ffn_layout {
    size_t gate, up, down, gate_bias, up_bias, down_bias; // offsets in bytes
    size_t bytes;
} cot_ffn_layout;
cot_ffn_layout cot_ffn_layout_of(const cot_ffn_shape *shape);
/* Of weights of a shape but for its formats: the shape with theirs. */
cot_ffn_shape cot_ffn_shape_of(const cot_ffn_shape *shape, const uint8_t *weights);

/* How the two products of one network are cut into tiles: `rows` rows by so many columns of I (up) or of H
 * (down), the last ones fewer. Columns are whole panels. */
typedef struct cot_ffn_blocks {
    int64_t rows, up_columns, down_columns;
} cot_ffn_blocks;

enum {
    COT_FFN_TILE_ROWS = 96, // bM: no tile has more rows, and with that many weights cost nothing to read
    COT_FFN_TILE_FLOATS = 1 << 15 // scratch enough for any tile of cot_ffn_blocks_of's
};

/* The blocks for a network with `rows` >= 1 rows, such that each of its products makes about `tasks` tiles if it
 * can while a tile stays worth handing out. Results never depend on them. */
cot_ffn_blocks cot_ffn_blocks_of(const cot_ffn_shape *shape, int64_t rows, int64_t tasks);

/* Floats of scratch that an up tile of `rows` by `columns` takes. */
int64_t cot_ffn_tile_floats(const cot_ffn_shape *shape, int64_t rows, int64_t columns);

/* Rows i < m of one product of a network, columns [c0, c1); c0 is a multiple of COT_PANEL, and so is c1 or it is the
 * last. Strides are in elements, from row to row. */
typedef struct cot_ffn_tile {
    const cot_ffn_shape *shape; // but for its formats, which the weights tell
    const uint8_t *weights;     // of the network
    const void *in;             // `type`
    int64_t in_stride;
    const int32_t *rows; // row i is in[rows[i]]; NULL: in[i]
    int64_t m, c0, c1;
    void *out;
    int64_t out_stride;
} cot_ffn_tile;

/* out[i][c0 .. c1) = the activation of row i of H elements, of `type`: out[i][0] is column 0. scratch:
 * cot_ffn_tile_floats(shape, m, c1 - c0) floats at a multiple of 64 bytes that no one else touches meanwhile. Never
 * allocates; a row's bits depend on that row alone, whatever the tile. */
void cot_ffn_up_tile(const cot_kernels *kernels, const cot_ffn_tile *tile, float *scratch);
/* out[i][c - c0] = column c of the activations in[i] (I elements) times W_down, plus b_down, in fp32: out is the tile's
 * own. The law is the same. */
void cot_ffn_down_tile(const cot_kernels *kernels, const cot_ffn_tile *tile);

/* One network's rows: y[i] = ffn(weights, x[rows ? rows[i] : i]), i < count. */
typedef struct cot_ffn_job {
    const uint8_t *weights; // a block laid out as above
    const int32_t *rows;    // NULL: 0, 1, ...
    int64_t count;
    const void *x; // `type`, [.][H]
    float *y;      // [count][H]
} cot_ffn_job;

enum { COT_FFN_LAUNCHES = 2 }; // loops over threads that cot_ffn_run begins

/* Scratch for `rows` rows of `count` jobs in all: `type` [rows][I], and where the tiles of each job begin. */
size_t cot_ffn_scratch_bytes(const cot_ffn_shape *shape, int64_t rows, int64_t count);
/* Runs independent jobs of one shape, whose formats may differ from it and each other, they and their rows in all at most what `scratch` (64-aligned) was sized for:
 * all up tiles, then all down tiles. Never allocates; a row's result depends on that row alone. */
void cot_ffn_run(const cot_kernels *kernels, cot_pool *pool, const cot_ffn_shape *shape,
                 const cot_ffn_job *jobs, int64_t count, void *scratch);

#endif
