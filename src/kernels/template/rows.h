/* Functions of rows, for one instruction set; included as gemm.h is. A row's last vector, which may be a part
 * of one, goes through a copy: nothing beyond the row is touched, and its elements get the arithmetic of all
 * others. */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#define FOR_VECTORS(i, left, n)                                                                              \
    for (int64_t i = 0, left; i < n && (left = n - i < LANES ? n - i : LANES, 1); i += LANES)

/* `left` elements at `i`, the others zero. */
static inline vec get(const void *x, cot_dtype type, int64_t i, int64_t left)
{
    union {
        float wide[LANES];
        uint16_t half[LANES];
    } copy;
    const void *at =
        type == COT_F32 ? (const void *)((const float *)x + i) : (const void *)((const uint16_t *)x + i);
    if (left < LANES) {
        memset(&copy, 0, sizeof copy);
        memcpy(&copy, at, (size_t)left * (type == COT_F32 ? 4 : 2));
        at = &copy;
    }
    return type == COT_F32 ? v_load(at) : type == COT_BF16 ? v_load_bf16(at) : v_load_f16(at);
}

static inline vec get_f32(const float *x, int64_t i, int64_t left)
{
    return get(x, COT_F32, i, left);
}

static inline void put(void *out, cot_dtype type, int64_t i, int64_t left, vec x)
{
    union {
        float wide[LANES];
        uint16_t half[LANES];
    } copy;
    void *end = type == COT_F32 ? (void *)((float *)out + i) : (void *)((uint16_t *)out + i);
    void *at = left < LANES ? (void *)&copy : end;
    if (type == COT_F32)
        v_store(at, x);
    else
        v_store_bf16(at, x);
    if (left < LANES) memcpy(end, &copy, (size_t)left * (type == COT_F32 ? 4 : 2));
}

/* exp(x) = 2^n exp(r), n whole and |r| <= ln 2 / 2; exp(r) is a polynomial whose error is below 4e-9 (fitted
 * for the least greatest relative error), the whole within 1e-7. Beyond the ends: 0 and infinity; a NaN stays
 * one. */
static inline vec v_exp(vec x)
{
    x = v_min(v_set(89), v_max(v_set(-104), x));
    vec n = v_round(v_mul(x, v_set(0x1.715476p+0f)));
    vec r = v_fma(n, v_set(-0x1.63p-1f), x); // ln 2 in two parts, the first exact times n
    r = v_fma(n, v_set(0x1.bd0106p-13f), r);
    vec p = v_fma(v_set(0x1.6a23ccp-10f), r, v_set(0x1.123a2p-7f));
    p = v_fma(p, r, v_set(0x1.5558f2p-5f));
    p = v_fma(p, r, v_set(0x1.555492p-3f));
    p = v_fma(p, r, v_set(0x1.fffffcp-2f));
    p = v_fma(p, v_mul(r, r), r);
    return v_scale(v_add(p, v_set(1)), n);
}

static inline vec v_silu(vec x, vec minus_alpha)
{ // x sigmoid(alpha x)
    return v_div(x, v_add(v_set(1), v_exp(v_mul(minus_alpha, x))));
}

/* Sums and maxima keep 32 lanes, by i mod 32, in every instruction set. */
enum { ROW_LANES = 32, ROW_VECTORS = ROW_LANES / LANES };

static float fold_sum(const vec *sums)
{
    float lanes[ROW_LANES];
    for (int v = 0; v < ROW_VECTORS; v++) v_store(lanes + v * LANES, sums[v]);
    for (int width = ROW_LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

static float fold_max(const vec *most)
{
    float lanes[ROW_LANES], max = -INFINITY;
    for (int v = 0; v < ROW_VECTORS; v++) v_store(lanes + v * LANES, most[v]);
    for (int i = 0; i < ROW_LANES; i++) max = lanes[i] > max ? lanes[i] : max;
    return max;
}

static float sum_squares(const float *x, int64_t n)
{
    vec sums[ROW_VECTORS];
    for (int v = 0; v < ROW_VECTORS; v++) sums[v] = v_zero();
    int64_t i = 0;
    for (; i + ROW_LANES <= n; i += ROW_LANES)
        for (int v = 0; v < ROW_VECTORS; v++) {
            vec a = v_load(x + i + v * LANES);
            sums[v] = v_fma(a, a, sums[v]);
        }
    for (int v = 0; i < n; v++, i += LANES) {
        vec a = get_f32(x, i, n - i < LANES ? n - i : LANES);
        sums[v] = v_fma(a, a, sums[v]);
    }
    return fold_sum(sums);
}

static void scale(void *out, cot_dtype type, const float *x, float factor, int64_t n)
{
    const vec f = v_set(factor);
    FOR_VECTORS(i, left, n) put(out, type, i, left, v_mul(f, get_f32(x, i, left)));
}

static void scale_by(float *out, const float *x, float factor, const float *weight, int64_t n)
{
    const vec f = v_set(factor);
    FOR_VECTORS(i, left, n)
    put(out, COT_F32, i, left, v_mul(v_mul(f, get_f32(x, i, left)), get_f32(weight, i, left)));
}

static void add(float *y, const void *x, cot_dtype type, int64_t n)
{
    FOR_VECTORS(i, left, n) put(y, COT_F32, i, left, v_add(get_f32(y, i, left), get(x, type, i, left)));
}

static void add_scaled(float *y, const float *x, float factor, int64_t n)
{
    const vec f = v_set(factor);
    FOR_VECTORS(i, left, n) put(y, COT_F32, i, left, v_fma(f, get_f32(x, i, left), get_f32(y, i, left)));
}

static void swiglu(void *out, cot_dtype type, const float *gate, const float *up, int64_t n)
{
    const vec minus_one = v_set(-1);
    FOR_VECTORS(i, left, n)
    put(out, type, i, left, v_mul(v_silu(get_f32(gate, i, left), minus_one), get_f32(up, i, left)));
}

static void swiglu_clamped(void *out, cot_dtype type, const float *gate, const float *up, int64_t n,
                           float limit, float alpha)
{
    const vec most = v_set(limit), least = v_set(-limit), minus_alpha = v_set(-alpha), one = v_set(1);
    FOR_VECTORS(i, left, n)
    {
        vec g = v_min(most, get_f32(gate, i, left));
        vec u = v_max(least, v_min(most, get_f32(up, i, left)));
        put(out, type, i, left, v_mul(v_add(u, one), v_silu(g, minus_alpha)));
    }
}

/* max(x, 0) - a Phi(-a), a = |x|. With t = 1 / (1 + 0.35 a), Phi(-a) exp(a^2 / 2) is a polynomial in t (interpolated
 * at Chebyshev's nodes, its relative error below 5e-7); beyond 14 the product is 0. */
static inline vec v_gelu(vec x)
{
    vec a = v_min(v_set(14), v_max(v_sub(v_zero(), x), x));
    vec t = v_div(v_set(1), v_fma(v_set(0.35f), a, v_set(1)));
    vec p = v_fma(v_set(0x1.8fc238p-5f), t, v_set(-0x1.9d0264p-3f));
    p = v_fma(p, t, v_set(0x1.ebc23ep-3f));
    p = v_fma(p, t, v_set(-0x1.12f35ep-6f));
    p = v_fma(p, t, v_set(0x1.3f6624p-3f));
    p = v_fma(p, t, v_set(0x1.110ba2p-3f));
    p = v_fma(p, t, v_set(0x1.1f4b10p-3f));
    p = v_fma(p, t, v_set(-0x1.d814a8p-16f));
    vec tail = v_mul(p, v_exp(v_mul(v_mul(a, a), v_set(-0.5f))));
    return v_sub(v_max(v_zero(), x), v_mul(a, tail));
}

static void gelu(void *out, cot_dtype type, const float *x, int64_t n)
{
    FOR_VECTORS(i, left, n) put(out, type, i, left, v_gelu(get_f32(x, i, left)));
}

static void relu(void *out, cot_dtype type, const float *x, int64_t n)
{
    FOR_VECTORS(i, left, n) put(out, type, i, left, v_max(v_zero(), get_f32(x, i, left)));
}

/* The window [begin, end) by vectors that start at multiples of LANES: `scale` s[i], minus infinity outside.
 */
static inline vec logits(const float *s, int64_t i, int64_t begin, int64_t end, vec scale_)
{
    float copy[LANES];
    if (i >= begin && i + LANES <= end) return v_mul(scale_, v_load(s + i));
    for (int64_t l = 0; l < LANES; l++) copy[l] = -INFINITY;
    int64_t from = i < begin ? begin - i : 0, to = end - i < LANES ? end - i : LANES;
    if (to > from) {
        v_store(copy, v_zero());
        memcpy(copy + from, s + i + from, (size_t)(to - from) * 4);
        v_store(copy, v_mul(scale_, v_load(copy)));
        for (int64_t l = 0; l < LANES; l++)
            if (l < from || l >= to) copy[l] = -INFINITY;
    }
    return v_load(copy);
}

static float softmax(void *p, cot_dtype type, const float *s, int64_t n, int64_t begin, int64_t end,
                     float factor, cot_softmax_sums *before)
{
    const vec f = v_set(factor);
    const int64_t first = begin - begin % ROW_LANES, bytes = type == COT_F32 ? 4 : 2;
    vec most[ROW_VECTORS], sums[ROW_VECTORS];
    for (int v = 0; v < ROW_VECTORS; v++) {
        most[v] = v_set(-INFINITY);
        sums[v] = v_zero();
    }
    for (int64_t i = first; i < end; i += ROW_LANES)
        for (int v = 0; v < ROW_VECTORS; v++)
            most[v] = v_max(most[v], logits(s, i + v * LANES, begin, end, f));
    float max = fold_max(most);
    if (before && before->max > max) max = before->max;
    const vec top = v_set(max);
    for (int64_t i = first; i < end; i += ROW_LANES)
        for (int v = 0; v < ROW_VECTORS; v++)
            sums[v] = v_add(sums[v], v_exp(v_sub(logits(s, i + v * LANES, begin, end, f), top)));
    float sum = fold_sum(sums), earlier = before ? before->sum * expf(before->max - max) : 0;
    sum += earlier;
    if (before) *before = (cot_softmax_sums){max, sum};
    const vec share = v_set(1 / sum);
    for (int64_t i = first; i < end; i += LANES) {
        if (i + LANES <= begin) continue;
        vec x = v_mul(v_exp(v_sub(logits(s, i, begin, end, f), top)), share);
        if (i >= begin) {
            put(p, type, i, end - i < LANES ? end - i : LANES, x);
        } else { // the window begins within the vector
            unsigned char copy[LANES * 4];
            int64_t from = begin - i, to = end - i < LANES ? end - i : LANES;
            put(copy, type, 0, LANES, x);
            memcpy((char *)p + begin * bytes, copy + from * bytes, (size_t)((to - from) * bytes));
        }
    }
    memset(p, 0, (size_t)(begin * bytes));
    memset((char *)p + end * bytes, 0, (size_t)((n - end) * bytes));
    return earlier / sum;
}

static void rope(float *x, const float *cosines, const float *sines, int64_t half, bool interleaved)
{
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        vec a, b, c = v_load(cosines + i), s = v_load(sines + i);
        if (interleaved) {
            v_load_pairs(x + 2 * i, &a, &b);
        } else {
            a = v_load(x + i);
            b = v_load(x + half + i);
        }
        vec turned_a = v_sub(v_mul(a, c), v_mul(b, s)), turned_b = v_add(v_mul(b, c), v_mul(a, s));
        if (interleaved) {
            v_store_pairs(x + 2 * i, turned_a, turned_b);
        } else {
            v_store(x + i, turned_a);
            v_store(x + half + i, turned_b);
        }
    }
    for (; i < half; i++) { // the same three roundings
        float *a = x + (interleaved ? 2 * i : i), *b = interleaved ? a + 1 : a + half, a0 = *a, b0 = *b;
        *a = a0 * cosines[i] - b0 * sines[i];
        *b = b0 * cosines[i] + a0 * sines[i];
    }
}

static void to_f32(float *out, const void *x, cot_dtype type, int64_t n)
{
    FOR_VECTORS(i, left, n) put(out, COT_F32, i, left, get(x, type, i, left));
}
