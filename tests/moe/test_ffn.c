/* Networks against loops in double precision. */
#include "oracle.h"

static uint64_t seed;

enum { MAX_JOBS = 9 };

/* Jobs of one shape over one x, some by row lists, some empty; outputs and scratch are poisoned. */
static void agrees(const cot_kernels *kernels, cot_pool *pool, const cot_ffn_shape *shape, int64_t jobs,
                   int64_t most_rows, struct draw *draw)
{
    int64_t hidden = shape->hidden, x_rows = most_rows + 3, rows = 0;
    size_t w = cot_dtype_bytes(shape->type);
    float *x = draw_typed(draw, x_rows * hidden, 1, shape->type);
    uint8_t *typed = poisoned((size_t)(x_rows * hidden) * w);
    for (int64_t i = 0; i < x_rows; i++)
        kernels->scale(typed + (size_t)(i * hidden) * w, shape->type, x + i * hidden, 1, hidden);
    struct oracle_ffn networks[MAX_JOBS];
    cot_ffn_job job[MAX_JOBS];
    int32_t *lists[MAX_JOBS];
    for (int64_t j = 0; j < jobs; j++) {
        networks[j] = oracle_ffn_new(shape, draw);
        int64_t count = jobs > 1 ? draw_below(draw, most_rows + 1) : most_rows;
        lists[j] = poisoned((size_t)count * sizeof *lists[j]);
        for (int64_t i = 0; i < count; i++) lists[j][i] = (int32_t)draw_below(draw, x_rows);
        job[j] = (cot_ffn_job){.weights = networks[j].packed,
                               .rows = draw_below(draw, 3) ? lists[j] : NULL,
                               .count = count,
                               .x = typed,
                               .y = poisoned((size_t)(count * hidden) * sizeof(float))};
        rows += count;
    }
    size_t scratch_bytes = cot_ffn_scratch_bytes(shape, rows);
    uint8_t *scratch = poisoned(scratch_bytes + 64);
    cot_gemm *gemms = poisoned((size_t)jobs * sizeof *gemms);
    cot_ffn_run(kernels, pool, shape, job, jobs, scratch, gemms);
    for (size_t i = 0; i < 64; i++) assert_int_equal(scratch[scratch_bytes + i], 0xff);

    double *wanted = calloc((size_t)hidden, sizeof *wanted),
           tolerance = shape->type == COT_BF16 ? 0.05 : 1e-4;
    float *alone = poisoned((size_t)hidden * sizeof *alone);
    for (int64_t j = 0; j < jobs; j++)
        for (int64_t i = 0; i < job[j].count; i++) {
            int64_t row = job[j].rows ? job[j].rows[i] : i;
            oracle_ffn_apply(wanted, &networks[j], x + row * hidden);
            for (int64_t h = 0; h < hidden; h++) near(job[j].y[i * hidden + h], wanted[h], tolerance);
            if (i % 4) continue; // a row alone: the same bits
            cot_ffn_job one = {
                .weights = job[j].weights, .count = 1, .x = typed + (size_t)(row * hidden) * w, .y = alone};
            cot_ffn_run(kernels, NULL, shape, &one, 1, scratch, gemms);
            assert_memory_equal(alone, job[j].y + i * hidden, (size_t)hidden * sizeof *alone);
        }
    for (int64_t j = 0; j < jobs; j++) {
        oracle_ffn_free(&networks[j]);
        free(lists[j]), free(job[j].y);
    }
    free(x), free(typed), free(scratch), free(gemms), free(wanted), free(alone);
}

static void every_shape(void **state)
{
    (void)state;
    struct draw draw = {seed, 1, 0};
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 1, NULL), COT_OK);
    for (cot_isa isa = 0; isa < COT_ISA_COUNT; isa++) {
        const cot_kernels *kernels = cot_kernels_of(isa);
        for (int i = 0; kernels && i < 24; i++) {
            cot_ffn_shape shape = {.type = i & 1 ? COT_BF16 : COT_F32,
                                   .hidden = 1 + draw_below(&draw, 80),
                                   .intermediate = 1 + draw_below(&draw, 70),
                                   .biased = i & 2,
                                   .limit = i & 4 ? 1.5f : 0,
                                   .alpha = i & 4 ? 1.702f : 0};
            bool many = draw_below(&draw, 2);
            agrees(kernels, i & 8 ? pool : NULL, &shape, many ? MAX_JOBS : 1, 1 + draw_below(&draw, 20),
                   &draw);
        }
    }
    cot_pool_close(pool);
}

static void nothing_to_do(void **state)
{
    (void)state;
    const cot_ffn_shape shape = {.type = COT_F32, .hidden = 8, .intermediate = 8, .biased = true};
    cot_ffn_job jobs[2] = {{0}};
    cot_gemm gemms[2];
    cot_ffn_run(cot_kernels_of(COT_ISA_REF), NULL, &shape, jobs, 2, NULL, gemms);
    cot_ffn_run(cot_kernels_of(COT_ISA_REF), NULL, &shape, NULL, 0, NULL, NULL);
}

int main(void)
{
    seed = draw_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_shape), cmocka_unit_test(nothing_to_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
