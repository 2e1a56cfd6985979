/* Attention over KV pages against doubles, contexts of many blocks included, and each row's bits alone against those in
 * company: whatever tile, run or thread it falls to. */
#include "base/rng.h"
#include "kernels/isa.h"
#include "kernels/pack.h"
#include "model/attend.h"
#include "harness/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 4 };

static uint64_t drawn;

static int64_t between(int64_t low, int64_t high)
{
    return low + (int64_t)(cot_random_bits(test_seed(), 1, drawn++) % (uint64_t)(high - low + 1));
}

static float draw(cot_dtype type)
{
    const float value = (float)(cot_random_uniform(test_seed(), 2, drawn++) * 4 - 2);
    return type == COT_BF16 ? cot_bf16_to_f32(cot_f32_to_bf16(value)) : value;
}

/* Sequences with their plain keys and values beside the pages. */
struct world {
    cot_dtype type;
    int64_t kv_heads, group, key_width, value_width, window, sequences, context;
    float scale;
    float *keys, *values; // [sequence][position][KV head][width]
    float sinks[64];
    bool sink;
    cot_attention_weights weights;
    cot_kv kv;
    cot_arena arena;
};

static void make_world(struct world *w, cot_dtype type, bool narrow)
{
    const int64_t group = between(1, 5), window = narrow ? between(1, 1500) : 0;
    *w = (struct world){.type = type,
                        .kv_heads = between(1, 2),
                        .group = group,
                        .key_width = 2 * between(1, 9),
                        .value_width = between(1, 20),
                        .window = window,
                        .sequences = between(1, MOST_RUNS),
                        .context = between(1, 3300),
                        .scale = 0.7f,
                        .sink = between(0, 1)};
    w->weights = (cot_attention_weights){
        .heads = w->kv_heads * group, .kv_heads = w->kv_heads, .sinks = w->sink ? w->sinks : NULL};
    for (int i = 0; i < 64; i++) w->sinks[i] = draw(COT_F32);
    w->kv = (cot_kv){.type = type,
                     .layers = 1,
                     .heads = w->kv_heads,
                     .key_width = w->key_width,
                     .value_width = w->value_width,
                     .sequences = w->sequences,
                     .pages_a_sequence = cot_page_count(w->context)};
    w->kv.pages = w->sequences * w->kv.pages_a_sequence;
    cot_arena measure = {0};
    cot_kv_lay_out(&w->kv, &measure);
    assert_int_equal(cot_arena_open(&w->arena, measure.used, NULL), COT_OK);
    cot_kv_lay_out(&w->kv, &w->arena);
    const size_t rows = (size_t)(w->sequences * w->context * w->kv_heads);
    w->keys = malloc(rows * (size_t)w->key_width * sizeof(float));
    w->values = malloc(rows * (size_t)w->value_width * sizeof(float));
    assert_true(w->keys && w->values);
    for (size_t i = 0; i < rows * (size_t)w->key_width; i++) w->keys[i] = draw(type);
    for (size_t i = 0; i < rows * (size_t)w->value_width; i++) w->values[i] = draw(type);
    for (int64_t s = 0; s < w->sequences; s++) {
        for (int64_t p = 0; p < w->kv.pages_a_sequence; p++)
            cot_kv_map(&w->kv, s, p, (int32_t)(w->kv.pages - 1 - s * w->kv.pages_a_sequence - p), (int32_t)0,
                       0);
        for (int64_t at = 0; at < w->context; at++)
            for (int64_t h = 0; h < w->kv_heads; h++) {
                const int64_t row = (s * w->context + at) * w->kv_heads + h;
                cot_kv_store(&w->kv, s, at, 0, h, w->keys + row * w->key_width,
                             w->values + row * w->value_width);
            }
    }
}

static void end_world(struct world *w)
{
    cot_arena_close(&w->arena);
    free(w->keys);
    free(w->values);
}

static void attend(const struct world *w, const cot_kernels *kernels, cot_pool *pool, const cot_run *runs,
                   int64_t run_count, int64_t rows, const float *q, float *out)
{
    const int64_t heads = w->weights.heads, in = rows * heads * w->key_width,
                  n = rows * heads * w->value_width;
    const size_t bytes = cot_dtype_bytes(w->type);
    void *typed_q = malloc((size_t)in * bytes), *typed_out = malloc((size_t)n * bytes);
    assert_true(typed_q && typed_out);
    memset(typed_out, 0xff, (size_t)n * bytes);
    kernels->scale(typed_q, w->type, q, 1, in);
    cot_attend *attend = NULL;
    cot_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        cot_attend_scratch *scratch = cot_attend_scratch_lay_out(&arena, w->type, w->value_width, 3);
        attend = cot_attend_lay_out(&arena, scratch, w->kv_heads, heads, rows);
        if (!pass) assert_int_equal(cot_arena_open(&arena, arena.used, NULL), COT_OK);
    }
    cot_attend_run(attend, &(cot_attend_args){.kernels = kernels,
                                              .pool = pool,
                                              .kv = &w->kv,
                                              .weights = &w->weights,
                                              .group = w->group,
                                              .window = w->window,
                                              .scale = w->scale,
                                              .runs = runs,
                                              .run_count = run_count,
                                              .q = typed_q,
                                              .out = typed_out});
    kernels->to_f32(out, typed_out, w->type, n);
    cot_arena_close(&arena);
    free(typed_q);
    free(typed_out);
}

/* One row of one head, in doubles. */
static void expect(const struct world *w, int64_t sequence, int64_t position, int64_t head, const float *q,
                   double *out)
{
    const int64_t kv_head = head / w->group,
                  begin = w->window && position + 1 > w->window ? position + 1 - w->window : 0;
    double *logit = malloc((size_t)(position + 1) * sizeof *logit),
           max = w->sink ? (double)w->sinks[head] : -INFINITY;
    assert_non_null(logit);
    for (int64_t at = begin; at <= position; at++) {
        const float *key = w->keys + ((sequence * w->context + at) * w->kv_heads + kv_head) * w->key_width;
        logit[at] = 0;
        for (int64_t i = 0; i < w->key_width; i++) logit[at] += (double)key[i] * (double)q[i];
        logit[at] *= (double)w->scale;
        max = fmax(max, logit[at]);
    }
    double sum = w->sink ? exp((double)w->sinks[head] - max) : 0;
    memset(out, 0, (size_t)w->value_width * sizeof *out);
    for (int64_t at = begin; at <= position; at++) {
        const float *value =
            w->values + ((sequence * w->context + at) * w->kv_heads + kv_head) * w->value_width;
        const double share = exp(logit[at] - max);
        sum += share;
        for (int64_t i = 0; i < w->value_width; i++) out[i] += share * (double)value[i];
    }
    for (int64_t i = 0; i < w->value_width; i++) out[i] /= sum;
    free(logit);
}

static void check_world(const cot_kernels *kernels, cot_pool *pool, cot_dtype type, bool narrow)
{
    struct world w;
    make_world(&w, type, narrow);
    cot_run runs[MOST_RUNS];
    int64_t rows = 0;
    for (int64_t s = 0; s < w.sequences; s++) {
        const int64_t tokens = between(1, w.context < 150 ? w.context : 150);
        runs[s] = (cot_run){s, w.context - tokens - between(0, w.context - tokens), rows, tokens};
        rows += tokens;
    }
    const int64_t heads = w.weights.heads, width = w.value_width;
    float *q = malloc((size_t)(rows * heads * w.key_width) * sizeof *q),
          *out = malloc((size_t)(rows * heads * width) * sizeof *out),
          *alone = malloc((size_t)(heads * width) * sizeof *alone);
    double *exact = malloc((size_t)width * sizeof *exact);
    assert_true(q && out && alone && exact);
    for (int64_t i = 0; i < rows * heads * w.key_width; i++) q[i] = draw(type);
    attend(&w, kernels, pool, runs, w.sequences, rows, q, out);
    for (int64_t s = 0; s < w.sequences; s++)
        for (int64_t t = 0; t < runs[s].tokens; t += 1 + between(0, 40)) {
            const int64_t row = runs[s].row + t;
            const float *own = q + row * heads * w.key_width;
            const cot_run one = {s, runs[s].position + t, 0, 1};
            attend(&w, kernels, NULL, &one, 1, 1, own, alone);
            assert_memory_equal(alone, out + row * heads * width, (size_t)(heads * width) * sizeof *alone);
            for (int64_t h = 0; h < heads; h++) {
                expect(&w, s, one.position, h, own + h * w.key_width, exact);
                for (int64_t i = 0; i < width; i++) {
                    const double got = (double)alone[h * width + i], most = type == COT_F32 ? 2e-5 : 2e-2;
                    if (!(fabs(got - exact[i]) <= most))
                        fail_msg("%s %s: %g, not %g, at position %lld, window %lld", kernels->name,
                                 cot_dtype_name(type), got, exact[i], (long long)one.position,
                                 (long long)w.window);
                }
            }
        }
    void *owned[] = {q, out, alone, exact};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    end_world(&w);
}

static void test_attention(void **state)
{
    (void)state;
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 2, NULL), COT_OK);
    for (int isa = COT_ISA_REF + 1; isa < COT_ISA_COUNT; isa++) {
        const cot_kernels *kernels = cot_kernels_of((cot_isa)isa);
        for (int i = 0; kernels && i < 6; i++) check_world(kernels, pool, i % 3 ? COT_F32 : COT_BF16, i % 2);
    }
    cot_pool_close(pool);
}

/* A page that another rank took over is gone from here, to the byte, and neighbours are whole. */
static void test_give_up(void **state)
{
    (void)state;
    struct world w;
    make_world(&w, COT_F32, false);
    w.kv.layers = 64; // a page of more than the system's
    cot_arena measure = {0}, arena;
    w.kv.pages = 3;
    cot_kv_lay_out(&w.kv, &measure);
    assert_int_equal(cot_arena_open(&arena, measure.used, NULL), COT_OK);
    cot_kv_lay_out(&w.kv, &arena);
    for (int32_t p = 0; p < 3; p++) {
        cot_kv_map(&w.kv, 0, 0, p, p, 0);
        memset(w.kv.memory + (size_t)p * w.kv.page_bytes, 1, w.kv.page_bytes);
    }
    cot_kv_give_up(&w.kv, 1);
    const uint8_t *page = w.kv.memory + w.kv.page_bytes;
    size_t left = 0;
    for (size_t i = 0; i < w.kv.page_bytes; i++) {
        left += page[i];
        assert_int_equal(page[-1 - (ptrdiff_t)i], 1);
        assert_int_equal(page[w.kv.page_bytes + i], 1);
    }
    assert_true(left < 2 * 4096 && left < w.kv.page_bytes);
    cot_arena_close(&arena);
    end_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention), cmocka_unit_test(test_give_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
