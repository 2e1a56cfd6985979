/* The gated delta rule (kernels/delta.h), for one instruction set; included after rows.h. A pass over a strip of the state's
 * columns does what token t changes and, with what then lies in registers, finds what token t + 1's key sees: the state is read
 * and written once a token. Two vectors of columns are four chains of sums, which is what the latency of a multiply-add asks for
 * beside the two that have no chain. */
#include "kernels/delta.h"

enum { DELTA_VECTORS = 2, DELTA_COLUMNS = DELTA_VECTORS * LANES };

/* Whether all columns of a strip are there is known where this is called, so that tails cost the others nothing. */
#define DELTA_INLINE static inline __attribute__((always_inline))

DELTA_INLINE vec delta_get(const float *x, int v, int64_t columns, bool full)
{
    const int64_t left = columns - v * LANES;
    return full        ? v_load(x + v * LANES)
           : left <= 0 ? v_zero()
                       : get_f32(x, v * LANES, left < LANES ? left : LANES);
}

DELTA_INLINE void delta_put(float *x, int v, int64_t columns, bool full, vec value)
{
    const int64_t left = columns - v * LANES;
    if (full)
        v_store(x + v * LANES, value);
    else if (left > 0)
        put(x, COT_F32, v * LANES, left < LANES ? left : LANES, value);
}

/* One token: `found` is what its key finds, and becomes what `next`, the key after it, does (NULL: there is none). */
DELTA_INLINE void delta_token(const cot_delta *d, int64_t t, float *s, int64_t width, int64_t column,
                              int64_t columns, bool full, const float *next, vec *found)
{
    const float *q = d->q + t * d->stride, *k = d->k + t * d->stride, *v = d->v + t * d->stride + column;
    const vec a = v_set(d->a[t]), beta = v_set(d->beta[t]);
    vec u[DELTA_VECTORS], o[DELTA_VECTORS];
    for (int i = 0; i < DELTA_VECTORS; i++) {
        u[i] = v_mul(beta, v_sub(delta_get(v, i, columns, full), v_mul(a, found[i])));
        o[i] = found[i] = v_zero();
    }
    for (int64_t row = 0; row < d->dk; row++, s += width) {
        const vec key = v_set(k[row]), query = v_set(q[row]), after = next ? v_set(next[row]) : v_zero();
        for (int i = 0; i < DELTA_VECTORS; i++) {
            const vec x = v_fma(key, u[i], v_mul(a, delta_get(s, i, columns, full)));
            delta_put(s, i, columns, full, x);
            o[i] = v_fma(query, x, o[i]);
            if (next) found[i] = v_fma(after, x, found[i]);
        }
    }
    for (int i = 0; i < DELTA_VECTORS; i++)
        delta_put(d->o + t * d->o_stride + column, i, columns, full, o[i]);
}

/* All tokens of the columns [column, column + columns), whose part of the state begins at s, rows `width` floats apart. */
DELTA_INLINE void delta_strip(const cot_delta *d, float *s, int64_t width, int64_t column, int64_t columns,
                              bool full)
{
    vec found[DELTA_VECTORS];
    for (int i = 0; i < DELTA_VECTORS; i++) found[i] = v_zero();
    for (int64_t row = 0; row < d->dk; row++)
        for (int i = 0; i < DELTA_VECTORS; i++)
            found[i] = v_fma(v_set(d->k[row]), delta_get(s + row * width, i, columns, full), found[i]);
    for (int64_t t = 0; t + 1 < d->tokens; t++)
        delta_token(d, t, s, width, column, columns, full, d->k + (t + 1) * d->stride, found);
    delta_token(d, d->tokens - 1, s, width, column, columns, full, NULL, found);
}

static void delta(const cot_delta *d)
{
    if (!d->tokens) return;
    for (int64_t panel = 0; panel < d->dv; panel += COT_PANEL) {
        const int64_t width = d->dv - panel < COT_PANEL ? d->dv - panel : COT_PANEL;
        float *s = d->state + panel * d->dk;
        for (int64_t c = 0; c < width; c += DELTA_COLUMNS)
            if (width - c >= DELTA_COLUMNS)
                delta_strip(d, s + c, width, panel + c, DELTA_COLUMNS, true);
            else
                delta_strip(d, s + c, width, panel + c, width - c, false);
    }
}
