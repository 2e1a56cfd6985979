#include "moe/ffn.h"

#include "kernels/pack.h"

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
    const size_t up = (size_t)cot_packed_bytes(shape->type, hidden, width);
    cot_ffn_layout l = {0};
    l.gate = take(&l.bytes, gated ? up : 0);
    l.up = take(&l.bytes, up);
    l.down = take(&l.bytes, (size_t)cot_packed_bytes(shape->type, width, hidden));
    l.gate_bias = take(&l.bytes, gated && biased ? (size_t)width * sizeof(float) : 0);
    l.up_bias = take(&l.bytes, biased ? (size_t)width * sizeof(float) : 0);
    l.down_bias = take(&l.bytes, biased ? (size_t)hidden * sizeof(float) : 0);
    return l;
}

/* Columns c0 .. c1-1 of one product, C a block of its own. */
static void multiply(const cot_kernels *kernels, const cot_gemm *whole, const uint8_t *b, int64_t c0,
                     int64_t c1, float *c)
{
    cot_gemm g = *whole;
    g.n = c1 - c0;
    g.b = b + c0 / COT_PANEL * g.b_panel_stride * (int64_t)cot_dtype_bytes(g.type);
    g.c = c;
    kernels->gemm(&g, 0, g.m, 0, cot_panels(g.n));
}

static int64_t padded(int64_t columns)
{
    return cot_panels(columns) * COT_PANEL;
}

int64_t cot_ffn_tile_floats(const cot_ffn_shape *shape, int64_t rows, int64_t columns)
{
    return rows * padded(columns) * (cot_ffn_is_gated(shape) ? 2 : 1);
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

void cot_ffn_up_tile(const cot_kernels *kernels, const cot_ffn_shape *shape, const uint8_t *weights,
                     const void *x, int64_t x_stride, const int32_t *rows, int64_t m, int64_t c0, int64_t c1,
                     void *act, int64_t act_stride, float *scratch)
{
    const cot_ffn_layout at = cot_ffn_layout_of(shape);
    const int64_t columns = c1 - c0, stride = padded(columns);
    const cot_gemm g = {.type = shape->type,
                        .m = m,
                        .k = shape->hidden,
                        .a = x,
                        .a_stride = x_stride,
                        .a_rows = rows,
                        .b_panel_stride = cot_panel_elements(shape->hidden),
                        .c_stride = stride};
    const bool gated = cot_ffn_is_gated(shape);
    float *up = scratch, *gate = scratch + m * stride;
    if (gated) multiply(kernels, &g, weights + at.gate, c0, c1, gate);
    multiply(kernels, &g, weights + at.up, c0, c1, up);
    for (int64_t i = 0; i < m; i++) {
        float *u = up + i * stride, *v = gated ? gate + i * stride : NULL;
        if (shape->biased) {
            kernels->add(u, (const float *)(const void *)(weights + at.up_bias) + c0, COT_F32, columns);
            if (v)
                kernels->add(v, (const float *)(const void *)(weights + at.gate_bias) + c0, COT_F32, columns);
        }
        activate(kernels, shape,
                 (uint8_t *)act + (size_t)(i * act_stride + c0) * cot_dtype_bytes(shape->type), v, u,
                 columns);
    }
}

void cot_ffn_down_tile(const cot_kernels *kernels, const cot_ffn_shape *shape, const uint8_t *weights,
                       const void *act, int64_t act_stride, int64_t m, int64_t c0, int64_t c1, float *y,
                       int64_t y_stride)
{
    const cot_ffn_layout at = cot_ffn_layout_of(shape);
    const cot_gemm g = {.type = shape->type,
                        .m = m,
                        .k = shape->intermediate,
                        .a = act,
                        .a_stride = act_stride,
                        .b_panel_stride = cot_panel_elements(shape->intermediate),
                        .c_stride = y_stride};
    multiply(kernels, &g, weights + at.down, c0, c1, y + c0);
    if (!shape->biased) return;
    const float *bias = (const float *)(const void *)(weights + at.down_bias) + c0;
    for (int64_t i = 0; i < m; i++) kernels->add(y + i * y_stride + c0, bias, COT_F32, c1 - c0);
}
