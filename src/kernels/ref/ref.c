/* The oracle: what every table computes, in the plainest words. Products are fused multiply-adds with k
 * ascending, which is what the vector tables do in each lane; sums of rows are in double. */
#include "kernels/blocks.h"
#include "kernels/isa.h"

#include <math.h>
#include <string.h>

static float element(const void *x, cot_dtype type, int64_t i)
{
    if (type == COT_F32) return ((const float *)x)[i];
    uint16_t bits = ((const uint16_t *)x)[i];
    return type == COT_BF16 ? cot_bf16_to_f32(bits) : cot_f16_to_f32(bits);
}

static void put(void *out, cot_dtype type, int64_t i, float value)
{
    if (type == COT_F32)
        ((float *)out)[i] = value;
    else
        ((uint16_t *)out)[i] = cot_f32_to_bf16(value);
}

/* Bytes of B before a panel. */
static int64_t panel_at(const cot_gemm *g, int64_t panel)
{
    return g->b_pair_bytes ? panel / 2 * g->b_panel_bytes + panel % 2 * g->b_pair_bytes
                           : panel * g->b_panel_bytes;
}

static float packed(const cot_gemm *g, int64_t k, int64_t n)
{
    const char *panel = (const char *)g->b + panel_at(g, n / COT_PANEL);
    const int64_t column = n % COT_PANEL;
    return element(panel, g->type,
                   g->type == COT_F32 ? k * COT_PANEL + column : k / 2 * 2 * COT_PANEL + column * 2 + k % 2);
}

/* The factor that makes the greatest of `count` values 127, or 0 where there is none (all are too small), and what
 * one then stands for; NaN where a value is not finite. */
static float factor_of(float *scale, const void *x, cot_dtype type, int64_t at, int64_t count)
{
    float most = 0;
    for (int64_t i = 0; i < count; i++) {
        float size = fabsf(element(x, type, at + i));
        if (!isfinite(size)) return *scale = NAN;
        if (size > most) most = size;
    }
    float factor = most > 0 ? 127 / most : 0;
    if (factor > 0x1p127f) factor = 0;
    *scale = factor > 0 ? most / 127 : 0;
    return factor;
}

static void int8_gemm(const cot_gemm *g, int64_t m, int64_t n)
{
    const int8_t *panel = (const int8_t *)g->b + panel_at(g, n / COT_PANEL);
    float *c = g->c + m * g->c_stride + n, column_scale, scale;
    memcpy(&column_scale, panel + n % COT_PANEL * 4, 4);
    if (!g->accumulate) *c = 0;
    int64_t row = (g->a_rows ? g->a_rows[m] : m) * g->a_stride;
    for (int64_t k0 = 0; k0 < g->k; k0 += COT_QUANT_K) {
        int64_t k1 = g->k - k0 < COT_QUANT_K ? g->k : k0 + COT_QUANT_K;
        float factor = factor_of(&scale, g->a, g->type, row + k0, k1 - k0);
        int32_t sum = 0;
        for (int64_t k = k0; k < k1 && !isnan(factor); k++)
            sum += (int32_t)rintf(element(g->a, g->type, row + k) * factor) *
                   panel[COT_WORDS_BYTES + k / 4 * 4 * COT_PANEL + n % COT_PANEL * 4 + k % 4];
        *c = fmaf((float)sum, scale * column_scale, *c);
    }
}

/* Element (k, column) of words, without scale or offset. */
static float code_value(cot_format kind, const uint8_t *words, int64_t k, int64_t column)
{
    uint32_t word;
    const int64_t step = cot_format_step(kind);
    memcpy(&word, words + (k / step * COT_PANEL + column) * 4, 4);
    if (kind == COT_FORMAT_INT8) return (int8_t)(word >> k % 4 * 8);
    if (kind == COT_FORMAT_FP8) return cot_f8_e4m3_to_f32((uint8_t)(word >> k % 4 * 8));
    const int bits = word >> (k % 2 * 16 + k % 8 / 2 * 4) & 15;
    if (kind == COT_FORMAT_MXFP4) return cot_f4_e2m1_to_f32((uint8_t)bits);
    return (float)(bits < 8 ? bits : bits - 16);
}

static float scale_value(cot_format format, const uint8_t *scales, int64_t at)
{
    const cot_dtype type = cot_format_scale(format);
    return type == COT_F8_E8M0 ? cot_f8_e8m0_to_f32(scales[at]) : element(scales, type, at);
}

/* Formats with scales, but for INT8 by rounded rows. */
static void grouped_gemm(const cot_gemm *g, int64_t m, int64_t n)
{
    const cot_format kind = cot_format_kind(g->format);
    const int64_t group = cot_format_group(g->format), column = n % COT_PANEL,
                  row = (g->a_rows ? g->a_rows[m] : m) * g->a_stride;
    const cot_panel_blocks blocks = cot_panel_blocks_of(g->format, g->k);
    const uint8_t *panel = (const uint8_t *)g->b + panel_at(g, n / COT_PANEL);
    float *c = g->c + m * g->c_stride + n, total = 0, scale = 0, factor = 0;
    if (!g->accumulate) *c = 0;
    for (int64_t k0 = 0; k0 < g->k; k0 += COT_SUM_K) {
        const int64_t k1 = g->k - k0 < COT_SUM_K ? g->k : k0 + COT_SUM_K,
                      block = g->k - k0 < COT_QUANT_K ? g->k - k0 : COT_QUANT_K, at = group ? k0 / group : 0;
        const float of_group = scale_value(g->format, panel + cot_scales_at(&blocks, at), column);
        const uint8_t *words = panel + cot_words_at(&blocks, k0);
        if (g->rounded && k0 % COT_QUANT_K == 0) {
            factor = factor_of(&scale, g->a, g->type, row + k0, block);
            total = 0;
        }
        const float two = kind == COT_FORMAT_MXFP4 ? 2 : 1; // makes E2M1 whole
        float sum = 0, of_row = 0; // of whole numbers they are exact: each is below 127 x 12 x 32
        for (int64_t k = k0; k < k1; k++) {
            float a = element(g->a, g->type, row + k), b = code_value(kind, words, k - k0, column);
            if (g->rounded) {
                a = isnan(factor) ? 0 : rintf(a * factor);
                b *= two;
            }
            sum = fmaf(a, b, sum);
            of_row += a;
        }
        if (cot_format_zeros(g->format))
            sum = fmaf(element(panel + cot_scales_offsets_at(&blocks, at), COT_BF16, column), of_row, sum);
        if (!g->rounded)
            *c = fmaf(sum, of_group, *c);
        else
            total = fmaf(sum, of_group, total);
        if (g->rounded && (k1 == g->k || k1 % COT_QUANT_K == 0)) *c = fmaf(total, scale / two, *c);
    }
}

/* Formats of blocks: a column's blocks one after the other, each by all rows. */
static void blocks_gemm(const cot_gemm *g, int64_t m0, int64_t m1, int64_t n)
{
    const int64_t elements = cot_tensor_block_elements(cot_format_blocks(g->format)),
                  skipped = cot_format_skipped(g->format);
    const uint8_t *panel = (const uint8_t *)g->b + panel_at(g, n / COT_PANEL);
    for (int64_t m = m0; m < m1 && !g->accumulate; m++) g->c[m * g->c_stride + n] = 0;
    for (int64_t b = 0; b < cot_format_block_count(g->format, g->k); b++) {
        float block[COT_BLOCKS_LONGEST];
        cot_blocks_of_panel(block, panel, g->format, n % COT_PANEL, b);
        for (int64_t m = m0; m < m1; m++) {
            const int64_t row = (g->a_rows ? g->a_rows[m] : m) * g->a_stride;
            float *c = g->c + m * g->c_stride + n;
            for (int64_t i = 0; i < elements; i++) {
                const int64_t k = b * elements + i - skipped;
                if (k >= 0 && k < g->k) *c = fmaf(element(g->a, g->type, row + k), block[i], *c);
            }
        }
    }
}

static void gemm(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
    int64_t n1 = p1 * COT_PANEL < g->n ? p1 * COT_PANEL : g->n;
    if (cot_format_blocks(g->format)) {
        for (int64_t n = p0 * COT_PANEL; n < n1; n++) blocks_gemm(g, m0, m1, n);
        return;
    }
    for (int64_t m = m0; m < m1; m++) {
        int64_t row = (g->a_rows ? g->a_rows[m] : m) * g->a_stride;
        for (int64_t n = p0 * COT_PANEL; n < n1; n++) {
            if (g->format == COT_FORMAT_INT8 && g->rounded) {
                int8_gemm(g, m, n);
                continue;
            }
            if (cot_format_groups(g->format, g->k)) {
                grouped_gemm(g, m, n);
                continue;
            }
            float *c = g->c + m * g->c_stride + n, sum = g->accumulate ? *c : 0;
            for (int64_t k = 0; k < g->k; k++)
                sum = fmaf(element(g->a, g->type, row + k), packed(g, k, n), sum);
            *c = sum;
        }
    }
}

static float sum_squares(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return (float)sum;
}

static void scale(void *out, cot_dtype type, const float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++) put(out, type, i, factor * x[i]);
}

static void scale_by(float *out, const float *x, float factor, const float *weight, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = factor * x[i] * weight[i];
}

static void add(float *y, const void *x, cot_dtype type, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += element(x, type, i);
}

static void add_scaled(float *y, const float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = fmaf(factor, x[i], y[i]);
}

static void swiglu(void *out, cot_dtype type, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) put(out, type, i, gate[i] / (1 + expf(-gate[i])) * up[i]);
}

static void swiglu_clamped(void *out, cot_dtype type, const float *gate, const float *up, int64_t n,
                           float limit, float alpha)
{
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i] > limit ? limit : gate[i];
        float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        put(out, type, i, (u + 1) * (g / (1 + expf(-alpha * g))));
    }
}

static void gelu(void *out, cot_dtype type, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) put(out, type, i, (float)(0.5 * x[i] * erfc(-x[i] * sqrt(0.5))));
}

static void relu(void *out, cot_dtype type, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) put(out, type, i, x[i] < 0 ? 0 : x[i]);
}

static float softmax(void *p, cot_dtype type, const float *s, int64_t n, int64_t begin, int64_t end,
                     float factor, cot_softmax_sums *before)
{
    float max = before ? before->max : -INFINITY;
    for (int64_t i = begin; i < end; i++) max = factor * s[i] > max ? factor * s[i] : max;
    const double earlier = before ? before->sum * exp((double)before->max - max) : 0;
    double sum = earlier;
    for (int64_t i = begin; i < end; i++) sum += expf(factor * s[i] - max);
    for (int64_t i = 0; i < n; i++)
        put(p, type, i, i < begin || i >= end ? 0 : (float)(expf(factor * s[i] - max) / sum));
    if (before) *before = (cot_softmax_sums){max, (float)sum};
    return (float)(earlier / sum);
}

static void rope(float *x, const float *cosines, const float *sines, int64_t half, bool interleaved)
{
    for (int64_t i = 0; i < half; i++) {
        float *a = x + (interleaved ? 2 * i : i), *b = interleaved ? a + 1 : a + half, a0 = *a, b0 = *b;
        *a = a0 * cosines[i] - b0 * sines[i];
        *b = b0 * cosines[i] + a0 * sines[i];
    }
}

static void to_f32(float *out, const void *x, cot_dtype type, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = element(x, type, i);
}

/* Element (row, column) of a head's state, in its panel. */
static float *delta_element(const cot_delta *d, int64_t row, int64_t column)
{
    const int64_t panel = column - column % COT_PANEL,
                  width = d->dv - panel < COT_PANEL ? d->dv - panel : COT_PANEL;
    return d->state + panel * d->dk + row * width + column % COT_PANEL;
}

static void delta(const cot_delta *d)
{
    for (int64_t t = 0; t < d->tokens; t++)
        for (int64_t c = 0; c < d->dv; c++) {
            const float *q = d->q + t * d->stride, *k = d->k + t * d->stride, a = d->a[t];
            float found = 0, o = 0;
            for (int64_t row = 0; row < d->dk; row++) found = fmaf(k[row], *delta_element(d, row, c), found);
            const float kept = a * found, u = d->beta[t] * (d->v[t * d->stride + c] - kept);
            for (int64_t row = 0; row < d->dk; row++) {
                float *s = delta_element(d, row, c);
                const float left = a * *s;
                *s = fmaf(k[row], u, left);
                o = fmaf(q[row], *s, o);
            }
            d->o[t * d->o_stride + c] = o;
        }
}

static void look_up_ranks(int16_t *rank, uint16_t *confidence, const cot_rank_tables *t, int64_t n)
{
    static const uint16_t nothing[2] = {UINT16_MAX, 0};
    for (int64_t i = 0; i < n; i++) {
        const uint16_t *pair = nothing;
        if (t->token && t->row[i] >= 0 && t->row[i] < t->n_rows)
            pair = t->token + 2 * t->row_pairs * t->row[i];
        int64_t at = 0, power = 1;
        for (int32_t j = 0; t->sequence && j < t->order; j++, power *= t->ranks) {
            const int16_t r = t->before[j * t->before_stride + i];
            if (r < 0 || r >= t->ranks) break;
            at += (r + 1) * power;
        }
        if (t->sequence && t->sequence[2 * at + 1] > pair[1]) pair = t->sequence + 2 * at;
        rank[i] = (int16_t)pair[0]; // 65535 becomes -1
        if (confidence) confidence[i] = pair[1];
    }
}

static void logistic_rows(float *p, const int8_t *const *row, int64_t n_rows, const int16_t *bias,
                          float scale_, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t sum = bias[i];
        for (int64_t r = 0; r < n_rows; r++) sum += row[r][i];
        p[i] = 1 / (1 + expf(-scale_ * (float)sum));
    }
}

/* Eight independent chains of a multiplication and an addition, as plain C has them. */
static double loop(int64_t rounds)
{
    volatile float seed = 1;
    float x[8], factor = seed * 0.999f, offset = seed * 0.001f;
    for (int i = 0; i < 8; i++) x[i] = seed;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < 8; i++) x[i] = x[i] * factor + offset;
    for (int i = 0; i < 8; i++) seed = x[i];
    return 16 * (double)rounds;
}

/* The same of whole numbers. */
static double whole_loop(int64_t rounds)
{
    volatile uint32_t seed = 3;
    uint32_t x[8], factor = seed, offset = seed + 2;
    for (int i = 0; i < 8; i++) x[i] = seed;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < 8; i++) x[i] = x[i] * factor + offset;
    for (int i = 0; i < 8; i++) seed = x[i];
    return 16 * (double)rounds;
}

static float read_loop(const void *data, size_t bytes)
{
    const float *x = data;
    const size_t quarter = bytes / 16;
    float sums[16] = {0};
    for (size_t i = 0; i < quarter; i += 4)
        for (size_t s = 0; s < 16; s++) sums[s] += x[s / 4 * quarter + i + s % 4];
    for (int s = 1; s < 16; s++) sums[0] += sums[s];
    return sums[0];
}

const cot_isa_code cot_isa_ref = {
    .kernels = {.name = "ref",
                .gemm = gemm,
                .sum_squares = sum_squares,
                .scale = scale,
                .scale_by = scale_by,
                .add = add,
                .add_scaled = add_scaled,
                .swiglu = swiglu,
                .swiglu_clamped = swiglu_clamped,
                .gelu = gelu,
                .relu = relu,
                .softmax = softmax,
                .rope = rope,
                .to_f32 = to_f32,
                .delta = delta},
    .lookup = {.look_up_ranks = look_up_ranks, .logistic_rows = logistic_rows},
    .f32_loop = loop,
    .bf16_loop = loop,
    .int8_loop = whole_loop,
    .read_loop = read_loop,
};
