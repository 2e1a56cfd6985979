/* The gated delta rule: against its definition in double, to the bit between instruction sets and however tokens are cut into
 * calls, on shapes that fill panels and vectors and that do not, with guard pages behind all that is read or written. */
#include "harness/kernels/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 140, MOST_TOKENS = 40 };

struct head {
    int64_t tokens, dk, dv, stride, o_stride;
    guarded begin, rows, decay, beta; // begin: the state before; rows: q, k, v
};

static struct head drawn_head(check_draws *draws, int64_t tokens, int64_t dk, int64_t dv)
{
    struct head h = {.tokens = tokens, .dk = dk, .dv = dv};
    h.stride = 2 * dk + dv + random_between(draws, 0, 5);
    h.o_stride = dv + random_between(draws, 0, 5);
    h.begin = guarded_random(draws, dk * dv, COT_F32, 1);
    h.rows = guarded_random(draws, (tokens - 1) * h.stride + 2 * dk + dv, COT_F32, 1);
    h.decay = guard(tokens * 4);
    h.beta = guard(tokens * 4);
    for (int64_t t = 0; t < tokens; t++) {
        float *row = (float *)h.rows.data + t * h.stride, length = 0;
        for (int64_t i = 0; i < dk; i++) length += row[dk + i] * row[dk + i];
        for (int64_t i = 0; i < dk; i++)
            row[dk + i] /= sqrtf(length) + 1e-3f; // as keys are: states stay small
        ((float *)h.decay.data)[t] = t % 7 == 3 ? 0 : expf(-fabsf(random_value(draws, 1)));
        ((float *)h.beta.data)[t] = 1 / (1 + expf(random_value(draws, 2)));
    }
    return h;
}

static void forget(struct head *h)
{
    unguard(h->begin);
    unguard(h->rows);
    unguard(h->decay);
    unguard(h->beta);
}

/* Row-major, of states as they are kept: 32 columns after 32. */
static int64_t place(const struct head *h, int64_t row, int64_t column)
{
    const int64_t before = column / 32 * 32, wide = h->dv - before < 32 ? h->dv - before : 32;
    return before * h->dk + row * wide + column - before;
}

/* What tokens [t0, t1) make of a state and of o. */
static cot_delta part_of(const struct head *h, float *state, float *o, int64_t t0, int64_t t1)
{
    const float *row = (const float *)h->rows.data + t0 * h->stride;
    return (cot_delta){.tokens = t1 - t0,
                       .dk = h->dk,
                       .dv = h->dv,
                       .state = state,
                       .q = row,
                       .k = row + h->dk,
                       .v = row + 2 * h->dk,
                       .stride = h->stride,
                       .a = (const float *)h->decay.data + t0,
                       .beta = (const float *)h->beta.data + t0,
                       .o = o + t0 * h->o_stride,
                       .o_stride = h->o_stride};
}

static void expect_definition(const cot_kernels *kernels, const struct head *h, const float *state,
                              const float *o)
{
    static double s[LARGEST][LARGEST], size[LARGEST][LARGEST]; // size: of all that was added up
    for (int64_t i = 0; i < h->dk; i++)
        for (int64_t j = 0; j < h->dv; j++) {
            s[i][j] = ((const float *)h->begin.data)[place(h, i, j)];
            size[i][j] = fabs(s[i][j]);
        }
    for (int64_t t = 0; t < h->tokens; t++) {
        const float *q = (const float *)h->rows.data + t * h->stride, *k = q + h->dk, *v = k + h->dk;
        const double a = ((const float *)h->decay.data)[t], beta = ((const float *)h->beta.data)[t];
        for (int64_t j = 0; j < h->dv; j++) {
            double found = 0, around = 0, exact = 0, most = 0;
            for (int64_t i = 0; i < h->dk; i++) {
                found += k[i] * a * s[i][j];
                around += fabs(k[i] * a) * size[i][j];
            }
            for (int64_t i = 0; i < h->dk; i++) {
                s[i][j] = a * s[i][j] + k[i] * beta * (v[j] - found);
                size[i][j] = a * size[i][j] + fabs(k[i] * beta) * (fabs((double)v[j]) + around);
                exact += q[i] * s[i][j];
                most += fabs((double)q[i]) * size[i][j];
            }
            const double got = o[t * h->o_stride + j], error = error_of(got, exact, most + 1e-30);
            CHECK(error < 1e-5, "%s: o %lld of token %lld is %g, not %g (dk %lld, dv %lld)", kernels->name,
                  (long long)j, (long long)t, got, exact, (long long)h->dk, (long long)h->dv);
        }
    }
    for (int64_t i = 0; i < h->dk; i++)
        for (int64_t j = 0; j < h->dv; j++) {
            const double got = state[place(h, i, j)];
            CHECK(error_of(got, s[i][j], size[i][j] + 1e-30) < 1e-5, "%s: state %lld, %lld is %g, not %g",
                  kernels->name, (long long)i, (long long)j, got, s[i][j]);
        }
}

/* Whole, then in parts; `first` are the bits of the first table, or are filled with them. */
static void run_head(check_draws *draws, const cot_kernels *kernels, const struct head *h, float *first,
                     bool fill)
{
    const int64_t states = h->dk * h->dv, outs = (h->tokens - 1) * h->o_stride + h->dv;
    for (int way = 0; way < 2; way++) {
        guarded gs = guard(states * 4), go = guard(outs * 4);
        float *state = gs.data, *o = go.data;
        memcpy(state, h->begin.data, (size_t)states * 4);
        for (int64_t t = 0, end; t < h->tokens; t = end) {
            end = way ? t + random_between(draws, 0, h->tokens - t) : h->tokens;
            const cot_delta part = part_of(h, state, o, t, end);
            kernels->delta(&part);
        }
        if (!way) expect_definition(kernels, h, state, o);
        for (int64_t t = 0; t + 1 < h->tokens; t++)
            for (int64_t i = h->dv; i < h->o_stride; i++)
                CHECK(is_poison(o[t * h->o_stride + i]), "%s wrote beside o", kernels->name);
        if (fill && !way) {
            memcpy(first, state, (size_t)states * 4);
            for (int64_t t = 0; t < h->tokens; t++)
                memcpy(first + states + t * h->dv, o + t * h->o_stride, (size_t)h->dv * 4);
        }
        CHECK(memcmp(first, state, (size_t)states * 4) == 0, "%s: another state %s (dk %lld, dv %lld)",
              kernels->name, way ? "in parts" : "than ref's", (long long)h->dk, (long long)h->dv);
        for (int64_t t = 0; t < h->tokens; t++)
            CHECK(memcmp(first + states + t * h->dv, o + t * h->o_stride, (size_t)h->dv * 4) == 0,
                  "%s: another o of token %lld %s (dk %lld, dv %lld)", kernels->name, (long long)t,
                  way ? "in parts" : "than ref's", (long long)h->dk, (long long)h->dv);
        unguard(gs);
        unguard(go);
    }
}

static void head(check_draws *draws, int64_t tokens, int64_t dk, int64_t dv)
{
    struct head h = drawn_head(draws, tokens, dk, dv);
    float *first = malloc((size_t)(dk * dv + tokens * dv) * 4);
    bool fill = true;
    FOR_EACH_TABLE(kernels)
    {
        run_head(draws, kernels, &h, first, fill);
        fill = false;
    }
    free(first);
    forget(&h);
}

/* o may take v's place, and no tokens change nothing. */
static void in_place(check_draws *draws, const cot_kernels *kernels)
{
    struct head h = drawn_head(draws, 5, 9, 37);
    float state[2][9 * 37], apart[5 * 50], *rows = h.rows.data;
    for (int i = 0; i < 2; i++) memcpy(state[i], h.begin.data, sizeof state[i]);
    cot_delta part = part_of(&h, state[0], apart, 0, 0);
    kernels->delta(&part);
    CHECK(memcmp(state[0], h.begin.data, sizeof state[0]) == 0, "%s: no tokens", kernels->name);
    part = part_of(&h, state[0], apart, 0, 5);
    kernels->delta(&part);
    part = part_of(&h, state[1], rows + 2 * h.dk, 0, 5);
    part.o_stride = h.stride;
    kernels->delta(&part);
    CHECK(memcmp(state[0], state[1], sizeof state[0]) == 0, "%s: the state, in place", kernels->name);
    for (int64_t t = 0; t < 5; t++)
        CHECK(memcmp(apart + t * h.o_stride, rows + t * h.stride + 2 * h.dk, (size_t)h.dv * 4) == 0,
              "%s: o in place", kernels->name);
    forget(&h);
}

int main(int argc, char **argv)
{
    check_draws draws = check_start(argc, argv);
    static const int64_t widths[] = {1, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 128, LARGEST};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        head(&draws, random_between(&draws, 1, 5), random_between(&draws, 1, 40), widths[i]);
        head(&draws, random_between(&draws, 1, MOST_TOKENS), widths[i], random_between(&draws, 1, 70));
    }
    head(&draws, MOST_TOKENS, 128, 128);
    FOR_EACH_TABLE(kernels) in_place(&draws, kernels);
    return 0;
}
