/* Networks against loops in double precision. */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/moe/near.h"
#include "harness/moe/oracle_ffn.h"
#include "harness/poisoned.h"
#include "harness/seed.h"

#include "kernels/pack.h"

#include <stdlib.h>
#include <string.h>

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
    size_t scratch_bytes = cot_ffn_scratch_bytes(shape, rows, jobs);
    uint8_t *scratch = poisoned(scratch_bytes + 64);
    cot_ffn_run(kernels, pool, shape, job, jobs, scratch);
    for (size_t i = 0; i < 64; i++) assert_int_equal(scratch[scratch_bytes + i], 0xff);

    double *wanted = calloc((size_t)hidden, sizeof *wanted), tolerance = 1e-4;
    if (shape->type == COT_BF16) tolerance = 0.05;
    if (shape->gate != shape->up) tolerance = 0.3; // whole numbers of a gate whose products are not rounded
    if (shape->rounded) tolerance = 0.6;
    float *alone = poisoned((size_t)hidden * sizeof *alone);
    for (int64_t j = 0; j < jobs; j++)
        for (int64_t i = 0; i < job[j].count; i++) {
            int64_t row = job[j].rows ? job[j].rows[i] : i;
            oracle_ffn_apply(wanted, &networks[j], x + row * hidden);
            for (int64_t h = 0; h < hidden; h++) near(job[j].y[i * hidden + h], wanted[h], tolerance);
            if (i % 4) continue; // a row alone: the same bits
            cot_ffn_job one = {
                .weights = job[j].weights, .count = 1, .x = typed + (size_t)(row * hidden) * w, .y = alone};
            cot_ffn_run(kernels, NULL, shape, &one, 1, scratch);
            assert_memory_equal(alone, job[j].y + i * hidden, (size_t)hidden * sizeof *alone);
        }
    for (int64_t j = 0; j < jobs; j++) {
        oracle_ffn_free(&networks[j]);
        free(lists[j]), free(job[j].y);
    }
    free(x), free(typed), free(scratch), free(wanted), free(alone);
}

static void every_shape(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 1, 0};
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 1, NULL), COT_OK);
    for (cot_isa isa = 0; isa < COT_ISA_COUNT; isa++) {
        const cot_kernels *kernels = cot_kernels_of(isa);
        for (int i = 0; kernels && i < 64; i++) {
            const cot_format format = i >= 40 ? COT_FORMAT_INT8 : i & 1 ? COT_FORMAT_BF16 : COT_FORMAT_FP32;
            cot_ffn_shape shape = {.type = i & 1 ? COT_BF16 : COT_F32,
                                   .activation = i < 16    ? COT_FFN_SWIGLU
                                                 : i < 32  ? COT_FFN_GELU
                                                 : i >= 48 ? COT_FFN_SWIGLU
                                                           : COT_FFN_RELU,
                                   .rounded = i >= 40,
                                   .gate = i < 16 && i % 4 == 1 ? COT_FORMAT_INT8 : format, // apart from up
                                   .up = format,
                                   .down = format,
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

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Tiles of any size, at any place, of rows in any list: the bits of the whole network's run, and nothing written
 * beside them. */
static void tiles_of_any_size(void **state)
{
    (void)state;
    enum { MOST_ROWS = 130, LIST = 140 };
    struct draw draw = {test_seed(), 2, 0};
    for (cot_isa isa = 0; isa < COT_ISA_COUNT; isa++) {
        const cot_kernels *kernels = cot_kernels_of(isa);
        for (int i = 0; kernels && i < 24; i++) {
            const cot_format format = i >= 12 ? COT_FORMAT_INT8 : i & 1 ? COT_FORMAT_BF16 : COT_FORMAT_FP32;
            const cot_ffn_shape shape = {.type = i & 1 ? COT_BF16 : COT_F32,
                                         .activation = (cot_ffn_activation)(i / 2 % 3),
                                         .rounded = i >= 12,
                                         .gate = i % 6 == 1 && i < 12 ? COT_FORMAT_INT8 : format,
                                         .up = format,
                                         .down = format,
                                         .hidden = 1 + draw_below(&draw, i % 4 ? 150 : 700),
                                         .intermediate = 1 + draw_below(&draw, 150),
                                         .biased = i & 1};
            const int64_t hidden = shape.hidden, width = shape.intermediate,
                          w = (int64_t)cot_dtype_bytes(shape.type);
            const int64_t m = 1 + draw_below(&draw, MOST_ROWS), x_stride = hidden + draw_below(&draw, 3),
                          act_stride = width + draw_below(&draw, 3), y_stride = hidden + draw_below(&draw, 3);
            struct oracle_ffn network = oracle_ffn_new(&shape, &draw);
            float *x = draw_typed(&draw, LIST * hidden, 1, shape.type);
            uint8_t *typed = poisoned((size_t)(LIST * x_stride * w)),
                    *dense = poisoned((size_t)(m * hidden * w));
            int32_t rows[MOST_ROWS];
            for (int64_t r = 0; r < LIST; r++)
                kernels->scale(typed + r * x_stride * w, shape.type, x + r * hidden, 1, hidden);
            for (int64_t r = 0; r < m; r++) {
                rows[r] = (int32_t)draw_below(&draw, LIST);
                memcpy(dense + r * hidden * w, typed + rows[r] * x_stride * w, (size_t)(hidden * w));
            }
            float *wanted = poisoned((size_t)(m * hidden) * sizeof *wanted),
                  *y = poisoned((size_t)(m * y_stride) * sizeof *y);
            uint8_t *scratch = poisoned(cot_ffn_scratch_bytes(&shape, m, 1)),
                    *act = poisoned((size_t)(m * act_stride * w));
            const cot_ffn_job job = {.weights = network.packed, .count = m, .x = dense, .y = wanted};
            cot_ffn_run(kernels, NULL, &shape, &job, 1, scratch);

            float *floats = poisoned((size_t)cot_ffn_tile_floats(&shape, m, width) * sizeof *floats);
            for (int64_t m0 = 0, m1; m0 < m; m0 = m1) {
                m1 = m0 + 1 + draw_below(&draw, m - m0);
                for (int64_t c0 = 0, c1; c0 < width; c0 = c1) {
                    c1 = least(c0 + COT_PANEL * (1 + draw_below(&draw, 3)), width);
                    cot_ffn_up_tile(kernels,
                                    &(cot_ffn_tile){&shape, network.packed, typed, x_stride, rows + m0,
                                                    m1 - m0, c0, c1, act + m0 * act_stride * w, act_stride},
                                    floats);
                }
            }
            for (int64_t m0 = 0, m1; m0 < m; m0 = m1) {
                m1 = m0 + 1 + draw_below(&draw, m - m0);
                for (int64_t c0 = 0, c1; c0 < hidden; c0 = c1) {
                    c1 = least(c0 + COT_PANEL * (1 + draw_below(&draw, 3)), hidden);
                    const int64_t n = c1 - c0; // a block that is the tile's alone
                    float *tile = poisoned((size_t)((m1 - m0) * n) * sizeof *tile);
                    cot_ffn_down_tile(kernels,
                                      &(cot_ffn_tile){&shape, network.packed, act + m0 * act_stride * w,
                                                      act_stride, NULL, m1 - m0, c0, c1, tile, n});
                    for (int64_t r = m0; r < m1; r++)
                        memcpy(y + r * y_stride + c0, tile + (r - m0) * n, (size_t)n * sizeof *tile);
                    free(tile);
                }
            }
            for (int64_t r = 0; r < m; r++) {
                assert_memory_equal(y + r * y_stride, wanted + r * hidden, (size_t)hidden * sizeof *y);
                for (int64_t b = hidden * 4; b < y_stride * 4; b++)
                    assert_int_equal(((uint8_t *)(y + r * y_stride))[b], 0xff);
                for (int64_t b = width * w; b < act_stride * w; b++)
                    assert_int_equal(act[r * act_stride * w + b], 0xff);
            }
            oracle_ffn_free(&network);
            free(x), free(typed), free(dense), free(wanted), free(y), free(scratch), free(act), free(floats);
        }
    }
}

static void blocks_fit(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 3, 0};
    for (int i = 0; i < 3000; i++) {
        const cot_ffn_shape shape = {.type = i & 1 ? COT_BF16 : COT_F32,
                                     .gate = i & 1 ? COT_FORMAT_BF16 : COT_FORMAT_FP32,
                                     .up = i & 1 ? COT_FORMAT_BF16 : COT_FORMAT_FP32,
                                     .down = i & 1 ? COT_FORMAT_BF16 : COT_FORMAT_FP32,
                                     .activation = (cot_ffn_activation)(i / 2 % 3),
                                     .hidden = 1 + draw_below(&draw, 8000),
                                     .intermediate = 1 + draw_below(&draw, 8000)};
        const int64_t rows = 1 + draw_below(&draw, i % 3 ? 16 : 5000);
        const cot_ffn_blocks b = cot_ffn_blocks_of(&shape, rows, draw_below(&draw, 40));
        assert_true(b.rows >= 1 && b.rows <= COT_FFN_TILE_ROWS && b.rows <= rows);
        assert_true(b.up_columns >= COT_PANEL && b.up_columns % COT_PANEL == 0);
        assert_true(b.down_columns >= COT_PANEL && b.down_columns % COT_PANEL == 0);
        assert_true(cot_ffn_tile_floats(&shape, b.rows, b.up_columns) <= COT_FFN_TILE_FLOATS);
    }
}

/* 16 rows are rounded twice and once for all columns, where tasks are many; a single row's tiles are no longer than others'. */
static void rounded_rows_have_wide_tiles(void **state)
{
    (void)state;
    const cot_ffn_shape shape = {.type = COT_BF16,
                                 .rounded = true,
                                 .gate = COT_FORMAT_INT8,
                                 .up = COT_FORMAT_INT8,
                                 .down = COT_FORMAT_INT8,
                                 .hidden = 2048,
                                 .intermediate = 1024};
    const cot_ffn_blocks many = cot_ffn_blocks_of(&shape, 16, 1), one = cot_ffn_blocks_of(&shape, 1, 1),
                         last = cot_ffn_blocks_of(&shape, 16, 16);
    assert_int_equal(many.up_columns, 512);
    assert_int_equal(many.down_columns, 2048);
    assert_true(one.up_columns <= 256);
    assert_true(last.down_columns <= 128);
}

static void nothing_to_do(void **state)
{
    (void)state;
    const cot_ffn_shape shape = {.type = COT_F32, .hidden = 8, .intermediate = 8, .biased = true};
    cot_ffn_job jobs[2] = {{0}};
    cot_ffn_run(cot_kernels_of(COT_ISA_REF), NULL, &shape, jobs, 2, NULL);
    cot_ffn_run(cot_kernels_of(COT_ISA_REF), NULL, &shape, NULL, 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape), cmocka_unit_test(tiles_of_any_size), cmocka_unit_test(blocks_fit),
        cmocka_unit_test(rounded_rows_have_wide_tiles), cmocka_unit_test(nothing_to_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
