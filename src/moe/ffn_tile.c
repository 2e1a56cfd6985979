#include "moe/ffn.h"

#include "base/integers.h"

static size_t round_up_64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t take(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used += round_up_64(bytes);
    return at;
}

cot_ffn_layout cot_ffn_layout_of(const cot_ffn_shape *shape)
{
    const int64_t hidden = shape->hidden, width = shape->intermediate;
    const bool gated = cot_ffn_is_gated(shape), biased = shape->biased;
    cot_ffn_layout l = {.bytes = round_up_64(sizeof(cot_ffn_header))};
    l.gate = take(&l.bytes, gated ? (size_t)cot_packed_bytes(shape->gate, hidden, width) : 0);
    l.up = take(&l.bytes, (size_t)cot_packed_bytes(shape->up, hidden, width));
    l.down = take(&l.bytes, (size_t)cot_packed_bytes(shape->down, width, hidden));
    l.gate_bias = take(&l.bytes, gated && biased ? (size_t)width * sizeof(float) : 0);
    l.up_bias = take(&l.bytes, biased ? (size_t)width * sizeof(float) : 0);
    l.down_bias = take(&l.bytes, biased ? (size_t)hidden * sizeof(float) : 0);
    return l;
}

cot_ffn_shape cot_ffn_shape_of(const cot_ffn_shape *shape, const uint8_t *weights)
{
    const cot_ffn_header *header = (const cot_ffn_header *)(const void *)weights;
    cot_ffn_shape own = *shape;
    own.gate = (cot_format)header->gate;
    own.up = (cot_format)header->up;
    own.down = (cot_format)header->down;
    return own;
}

int64_t cot_ffn_tile_floats(const cot_ffn_shape *shape, int64_t rows, int64_t columns)
{
    return rows * cot_panels(columns) * COT_PANEL * (cot_ffn_is_gated(shape) ? 2 : 1);
}

/* Columns [c0, c0 + n) of a product; C is a block of its own, its first column that of c0. */
static cot_gemm product(const cot_ffn_shape *shape, cot_format format, const uint8_t *b, int64_t k, int64_t m,
                        int64_t c0, int64_t n)
{
    const cot_packed weights = {b, format, shape->rounded, k, c0 + n};
    return cot_packed_gemm(&weights, shape->type, m, c0, n);
}

static const float *floats_at(const uint8_t *weights, size_t at, int64_t column)
{
    return (const float *)(const void *)(weights + at) + column;
}

static void activate(const cot_kernels *kernels, const cot_ffn_shape *shape, void *out, const float *gate,
                     const float *up, int64_t n)
{
    if (shape->activation == COT_FFN_GELU)
        kernels->gelu(out, shape->type, up, n);
    else if (shape->activation == COT_FFN_RELU)
        kernels->relu(out, shape->type, up, n);
    else if (shape->limit > 0)
        kernels->swiglu_clamped(out, shape->type, gate, up, n, shape->limit, shape->alpha);
    else
        kernels->swiglu(out, shape->type, gate, up, n);
}

void cot_ffn_up_tile(const cot_kernels *kernels, const cot_ffn_tile *t, float *scratch)
{
    const cot_ffn_shape own = cot_ffn_shape_of(t->shape, t->weights), *shape = &own;
    const cot_ffn_layout at = cot_ffn_layout_of(shape);
    const bool gated = cot_ffn_is_gated(shape), in_turn = gated && shape->gate == shape->up;
    const int64_t panels = cot_panels(t->c1 - t->c0), of_each = gated ? 2 : 1, width = panels * COT_PANEL,
                  stride = of_each * width,
                  gate_step = in_turn ? 2 * COT_PANEL : COT_PANEL, // where the next panel of either is,
        up_at = in_turn ? COT_PANEL
                : gated ? width
                        : 0; // and where up's first: the scratch has room for whole panels
    cot_gemm g = product(shape, shape->up, t->weights + (in_turn ? at.gate : at.up), shape->hidden, t->m,
                         t->c0, in_turn ? stride : width);
    g.a = t->in;
    g.a_stride = t->in_stride;
    g.a_rows = t->rows;
    g.c = in_turn ? scratch : scratch + up_at;
    g.c_stride = stride;
    if (in_turn) g.b_pair_bytes = (int64_t)(at.up - at.gate);
    kernels->gemm(&g, 0, t->m, 0, cot_panels(g.n));
    if (gated && !in_turn) {
        cot_gemm of_gate =
            product(shape, shape->gate, t->weights + at.gate, shape->hidden, t->m, t->c0, width);
        of_gate.a = g.a;
        of_gate.a_stride = g.a_stride;
        of_gate.a_rows = g.a_rows;
        of_gate.c = scratch;
        of_gate.c_stride = stride;
        kernels->gemm(&of_gate, 0, t->m, 0, panels);
    }
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t p = 0; p < panels; p++) {
            const int64_t column = t->c0 + p * COT_PANEL, n = cot_smaller(t->c1 - column, COT_PANEL);
            float *gate = scratch + i * stride + p * gate_step, *up = gate + up_at;
            if (shape->biased) {
                if (gated) kernels->add(gate, floats_at(t->weights, at.gate_bias, column), COT_F32, n);
                kernels->add(up, floats_at(t->weights, at.up_bias, column), COT_F32, n);
            }
            activate(kernels, shape,
                     (uint8_t *)t->out + (size_t)(i * t->out_stride + column) * cot_dtype_bytes(shape->type),
                     gate, up, n);
        }
}

void cot_ffn_down_tile(const cot_kernels *kernels, const cot_ffn_tile *t)
{
    const cot_ffn_shape own = cot_ffn_shape_of(t->shape, t->weights), *shape = &own;
    const cot_ffn_layout at = cot_ffn_layout_of(shape);
    cot_gemm g =
        product(shape, shape->down, t->weights + at.down, shape->intermediate, t->m, t->c0, t->c1 - t->c0);
    g.a = t->in;
    g.a_stride = t->in_stride;
    g.c = t->out;
    g.c_stride = t->out_stride;
    kernels->gemm(&g, 0, t->m, 0, cot_panels(g.n));
    if (!shape->biased) return;
    for (int64_t i = 0; i < t->m; i++)
        kernels->add(g.c + i * t->out_stride, floats_at(t->weights, at.down_bias, t->c0), COT_F32, g.n);
}
