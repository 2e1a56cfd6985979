/* Products cut over a pool: every table, the bits of one call of its gemm. */
#include "harness/kernels/check.h"

#include "kernels/matmul.h"
#include "kernels/pack.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 9 };

static void fill(check_draws *draws, void *x, cot_dtype type, int64_t n)
{
    for (int64_t i = 0; i < n; i++) put_element(x, type, i, (float)random_between(draws, -64, 64) / 32);
}

static void several(check_draws *draws, const cot_kernels *kernels, cot_pool *pool,
                    const int64_t (*shapes)[3], int64_t count)
{
    cot_gemm gemms[MOST] = {0};
    float *expected[MOST];
    for (int64_t i = 0; i < count; i++) {
        int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
        cot_dtype type = random_between(draws, 0, 1) ? COT_BF16 : COT_F32;
        size_t c_bytes = (size_t)(m * n) * 4;
        void *a = malloc((size_t)(m * k) * 4),
             *b = calloc(1, (size_t)cot_packed_bytes(cot_format_of(type), k, n));
        fill(draws, a, type, m * k);
        fill(draws, b, type, cot_packed_bytes(cot_format_of(type), k, n) / (int64_t)cot_dtype_bytes(type));
        gemms[i] = (cot_gemm){.type = type,
                              .format = cot_format_of(type),
                              .m = m,
                              .n = n,
                              .k = k,
                              .a = a,
                              .a_stride = k,
                              .b = b,
                              .c_stride = n,
                              .b_panel_bytes = cot_panel_bytes(cot_format_of(type), k),
                              .c = malloc(c_bytes)};
        expected[i] = malloc(c_bytes);
        cot_gemm whole = gemms[i];
        whole.c = expected[i];
        if (m) kernels->gemm(&whole, 0, m, 0, cot_panels(n));
        memset(gemms[i].c, 0xff, c_bytes);
    }
    cot_matmul(kernels, pool, gemms, count);
    for (int64_t i = 0; i < count; i++) {
        CHECK(memcmp(expected[i], gemms[i].c, (size_t)(gemms[i].m * gemms[i].n) * 4) == 0, "%s product %lld",
              kernels->name, (long long)i);
        free((void *)gemms[i].a);
        free((void *)gemms[i].b);
        free(gemms[i].c);
        free(expected[i]);
    }
}

/* Pieces of a product that nobody computes. */
static struct {
    int64_t count, area, narrowest;
} pieces;

static void count_piece(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
    (void)g;
    pieces.count++;
    pieces.area += (m1 - m0) * (p1 - p0);
    if (p1 - p0 < pieces.narrowest) pieces.narrowest = p1 - p0;
}

/* Under a lock, where several threads do. */
static void count_piece_of_many(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    count_piece(g, m0, m1, p0, p1);
    pthread_mutex_unlock(&lock);
}

/* However wide pieces are, each of many threads has several. */
static void many_threads_have_pieces_enough(void)
{
    static const cot_kernels counting = {.gemm = count_piece_of_many};
    const cot_gemm g = {
        .type = COT_BF16, .format = COT_FORMAT_INT8, .rounded = true, .m = 64, .n = 16384, .k = 2048};
    cot_pool *pool;
    CHECK(cot_pool_open(&pool, 15, NULL) == COT_OK, "no pool");
    pieces.count = pieces.area = 0;
    cot_matmul(&counting, pool, &g, 1);
    CHECK(pieces.area == g.m * cot_panels(g.n), "%lld", (long long)pieces.area);
    CHECK(pieces.count >= 128, "%lld pieces for 16 threads", (long long)pieces.count);
    cot_pool_close(pool);
}

/* Each piece lays out its rows, which takes long where they are rounded: there pieces of a large product are four times as wide. Of
 * a small one there are as many as keep threads busy. */
static void rounded_rows_are_laid_out_seldom(void)
{
    static const cot_kernels counting = {.gemm = count_piece};
    static const int64_t rows[] = {16, 64, 96, 128, 300};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int rounded = 0; rounded < 2; rounded++)
            for (int large = 0; large < 2; large++) {
                const cot_gemm g = {.type = COT_BF16,
                                    .format = rounded ? COT_FORMAT_INT8 : COT_FORMAT_BF16,
                                    .rounded = rounded,
                                    .m = rows[i],
                                    .n = large ? 51200 : 2048,
                                    .k = 2048};
                pieces.count = pieces.area = 0;
                pieces.narrowest = INT64_MAX;
                cot_matmul(&counting, NULL, &g, 1);
                CHECK(pieces.area == g.m * cot_panels(g.n), "%lld of %lld", (long long)pieces.area,
                      (long long)(g.m * cot_panels(g.n)));
                if (large)
                    CHECK(pieces.narrowest >= (rounded ? 16 : 4), "%lld rows, rounded %d: %lld panels",
                          (long long)rows[i], rounded, (long long)pieces.narrowest);
                else
                    CHECK(pieces.count >= 16, "%lld rows, rounded %d: %lld pieces", (long long)rows[i],
                          rounded, (long long)pieces.count);
            }
}

int main(int argc, char **argv)
{
    rounded_rows_are_laid_out_seldom();
    many_threads_have_pieces_enough();
    check_draws drawn = check_start(argc, argv), *draws = &drawn;
    static const int64_t one[][3] = {{1, 1, 1}}, none[][3] = {{0, 70, 5}}, decode[][3] = {{1, 2048, 512}};
    static const int64_t tall[][3] = {{1000, 33, 200}}, large[][3] = {{300, 500, 256}};
    static const int64_t mixed[][3] = {{3, 100, 40}, {0, 64, 64}, {1, 700, 300},  {200, 64, 129}, {0, 1, 1},
                                       {17, 31, 7},  {1, 1, 1},   {500, 100, 64}, {0, 10, 10}};
    cot_pool *pools[2] = {NULL};
    CHECK(cot_pool_open(&pools[1], 3, NULL) == COT_OK, "no pool");
    FOR_EACH_TABLE(kernels)
    {
        for (int p = 0; p < 2; p++) {
            several(draws, kernels, pools[p], none, 0);
            several(draws, kernels, pools[p], none, 1);
            several(draws, kernels, pools[p], one, 1);
            several(draws, kernels, pools[p], decode, 1);
            several(draws, kernels, pools[p], mixed, MOST);
            if (strcmp(kernels->name, "ref") == 0) continue; // slow
            several(draws, kernels, pools[p], tall, 1);
            several(draws, kernels, pools[p], large, 1);
        }
    }
    cot_pool_close(pools[1]);
    return 0;
}
