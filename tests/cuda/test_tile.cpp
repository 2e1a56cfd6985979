/* Tiles of matrix products on the emulator: every tail against double precision, counts of what a tile costs, and each word
 * of the pipeline weakened in turn. */
#include "expect.h"

#include "cuda/tile.h"

extern "C" {
#include "harness/draw.h"
#include "harness/moe/near.h"
#include "harness/seed.h"
}

#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <vector>

using mma_engine = cot::mma_engine;
using mma_many_engine = cot::mma_many_engine;
using fma_engine = cot::fma_engine;
using emulate::Fault;

namespace {
struct Product {
    emulate::Result result;
    std::vector<float> c;
};
struct Operands {
    int m, n, k;
    std::vector<uint16_t> a, b; // [M][K], [N][K]
};
} // namespace

static Operands draw_operands(int m, int n, int k, struct draw *draw)
{
    Operands o = {m, n, k, {}, {}};
    for (int i = 0; i < m * k; i++) o.a.push_back(cot_f32_to_bf16(draw_float(draw, 1, COT_BF16)));
    for (int i = 0; i < n * k; i++) o.b.push_back(cot_f32_to_bf16(draw_float(draw, 1, COT_BF16)));
    return o;
}

template <typename Engine>
static Product multiply_by(const Operands &o, unsigned blocks, const emulate::Options &options)
{
    emulate::Session session;
    const size_t outputs = static_cast<size_t>(o.m) * static_cast<size_t>(o.n);
    cot_cuda_product p = {{session.copy(o.a.data(), o.a.size(), "a"), o.m, o.k},
                          {session.copy(o.b.data(), o.b.size(), "b"), o.n, o.k},
                          session.allocate<float>(outputs, "c"),
                          {}};
    Product r;
    r.result =
        emulate::launch({blocks, Engine::THREADS, Engine::SHARED_BYTES}, options,
                        Engine::ROWS == 128 ? cot_cuda_product_many_kernel : cot_cuda_product_kernel, p);
    if (r.result.fault != Fault::NONE) return r;
    assert_int_equal(session.unwritten(p.c, outputs * sizeof(float)), 0);
    r.c.assign(p.c, p.c + outputs);
    return r;
}

static Product multiply(const Operands &o, unsigned blocks, const emulate::Options &options)
{
    return multiply_by<mma_engine>(o, blocks, options);
}

template <typename Engine> static void agrees(int m, int n, int k, unsigned blocks, uint64_t seed)
{
    struct draw draw = {test_seed(), seed, 0};
    const Operands o = draw_operands(m, n, k, &draw);
    emulate::Options options;
    options.seed = seed;
    options.rounding = static_cast<emulate::Rounding>(seed % 3);
    const Product r = multiply_by<Engine>(o, blocks, options);
    expect_none(r.result);
    assert_int_equal(r.result.counters.ldmatrix_conflicts, 0);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double wanted = 0, size = 0;
            for (int h = 0; h < k; h++) {
                const double term =
                    static_cast<double>(cot_bf16_to_f32(o.a[static_cast<size_t>(i * k + h)])) *
                    static_cast<double>(cot_bf16_to_f32(o.b[static_cast<size_t>(j * k + h)]));
                wanted += term, size += fabs(term);
            }
            near(static_cast<double>(r.c[static_cast<size_t>(i * n + j)]), wanted, 1e-6 * size + 1e-9);
        }
}

static void every_tail(void **)
{
    static const int shapes[][3] = {{1, 1, 8},
                                    {64, 64, 64},
                                    {65, 63, 72},
                                    {17, 40, 24},
                                    {40, 24, 40},
                                    {3, 130, 8},
                                    {70, 5, 328},
                                    {33, 31, 136},
                                    {65, 130, 40},
                                    {128, 127, 32},
                                    {129, 72, 104},
                                    /* each shape in more turns than one of a loop over all slots */
                                    {13, 5, 584},
                                    {31, 9, 456},
                                    {50, 6, 968}};
    uint64_t seed = 0;
    for (const auto &s : shapes)
        agrees<mma_engine>(s[0], s[1], s[2], 1 + static_cast<unsigned>(seed % 2), seed + 1), seed++;
}

static void every_tail_of_128_rows(void **)
{
    /* One row and column; a whole tile; tails of each kind, fewer stages than the ring has and more turns than one; two tiles below and beside each other. */
    static const int shapes[][3] = {{1, 1, 8},      {128, 128, 32}, {65, 63, 72},  {127, 20, 264},
                                    {128, 129, 40}, {129, 130, 24}, {3, 260, 136}, {200, 7, 104}};
    uint64_t seed = 20;
    for (const auto &s : shapes)
        agrees<mma_many_engine>(s[0], s[1], s[2], 1 + static_cast<unsigned>(seed % 2), seed + 1), seed++;
}

/* fp32, rows of A gathered by index: K whole chunks of 16 bytes or not. */
static void fp32_of_gathered_rows(void **)
{
    static const int shapes[][3] = {{1, 1, 1},   {64, 64, 16}, {65, 63, 33},
                                    {5, 70, 36}, {3, 40, 131}, {129, 9, 20}};
    uint64_t seed = 100;
    for (const auto &s : shapes) {
        const size_t m = static_cast<size_t>(s[0]), n = static_cast<size_t>(s[1]),
                     k = static_cast<size_t>(s[2]);
        struct draw draw = {test_seed(), ++seed, 0};
        std::vector<float> a, b;
        std::vector<int32_t> index;
        for (size_t i = 0; i < (m + 3) * k; i++) a.push_back(draw_float(&draw, 1, COT_F32));
        for (size_t i = 0; i < n * k; i++) b.push_back(draw_float(&draw, 1, COT_F32));
        for (size_t i = 0; i < m; i++)
            index.push_back(static_cast<int32_t>(draw_below(&draw, static_cast<int64_t>(m + 3))));
        emulate::Session session;
        cot_cuda_product_f32 p = {{session.copy(a.data(), a.size(), "a"), s[0], s[2]},
                                  {session.copy(b.data(), b.size(), "b"), s[1], s[2]},
                                  session.allocate<float>(m * n, "c"),
                                  {session.copy(index.data(), m, "index"), 1}};
        emulate::Options options;
        options.seed = seed;
        const emulate::Result r = emulate::launch(
            {1 + static_cast<unsigned>(seed % 2), fma_engine::THREADS, fma_engine::SHARED_BYTES}, options,
            cot_cuda_product_f32_kernel, p);
        expect_none(r);
        assert_true(r.counters.shared_accesses > 0);
        assert_int_equal(r.counters.shared_conflicts, 0);
        if (k % 4 == 0) assert_int_equal(r.counters.copy_conflicts, 0);
        assert_int_equal(session.unwritten(p.c, m * n * sizeof(float)), 0);
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++) {
                double wanted = 0, size = 0;
                for (size_t h = 0; h < k; h++) {
                    const double term = static_cast<double>(a[static_cast<size_t>(index[i]) * k + h]) *
                                        static_cast<double>(b[j * k + h]);
                    wanted += term, size += fabs(term);
                }
                near(static_cast<double>(p.c[i * n + j]), wanted, 1e-6 * size + 1e-9);
            }
    }
}

/* A row's products have the same bits whatever rows are beside it and wherever in a tile it lies. */
static void a_row_has_the_same_bits_anywhere(void **)
{
    struct draw draw = {test_seed(), 50, 0};
    const int n = 24, k = 200;
    const Operands one = draw_operands(1, n, k, &draw);
    for (int rounding = 0; rounding < static_cast<int>(emulate::Rounding::COUNT); rounding++) {
        emulate::Options options;
        options.rounding = static_cast<emulate::Rounding>(rounding);
        const Product alone = multiply(one, 1, options);
        expect_none(alone.result);
        for (int at : {0, 9, 37, 66}) {
            Operands many = draw_operands(70, n, k, &draw);
            many.b = one.b;
            std::copy(one.a.begin(), one.a.end(), many.a.begin() + at * k);
            const Product r = multiply(many, 2, options);
            expect_none(r.result);
            for (int j = 0; j < n; j++)
                assert_true(r.c[static_cast<size_t>(at * n + j)] == alone.c[static_cast<size_t>(j)]);
        }
    }
}

/* Tiles with any number of rows have the bits of the full one, in every shape and rounding. */
static void every_shape_has_the_same_bits(void **)
{
    struct draw draw = {test_seed(), 55, 0};
    const int n = 40, k = 136;
    const Operands all = draw_operands(64, n, k, &draw);
    for (int rounding = 0; rounding < static_cast<int>(emulate::Rounding::COUNT); rounding++) {
        emulate::Options options;
        options.rounding = static_cast<emulate::Rounding>(rounding);
        const Product whole = multiply(all, 1, options);
        expect_none(whole.result);
        for (int rows : {1, 15, 16, 17, 32, 33, 49, 63}) {
            Operands some = all;
            some.m = rows;
            some.a.resize(static_cast<size_t>(rows * k));
            const Product r = multiply(some, 1, options);
            expect_none(r.result);
            assert_memory_equal(r.c.data(), whole.c.data(), r.c.size() * sizeof(float));
        }
    }
}

/* And so have tiles of up to 128 rows, wherever in one a row lies. */
static void tiles_of_128_rows_have_the_same_bits(void **)
{
    struct draw draw = {test_seed(), 56, 0};
    const Operands all = draw_operands(130, 140, 72, &draw);
    for (int rounding = 0; rounding < static_cast<int>(emulate::Rounding::COUNT); rounding++) {
        emulate::Options options;
        options.rounding = static_cast<emulate::Rounding>(rounding);
        const Product few = multiply(all, 2, options), many = multiply_by<mma_many_engine>(all, 2, options);
        expect_none(few.result);
        expect_none(many.result);
        assert_memory_equal(few.c.data(), many.c.data(), few.c.size() * sizeof(float));
    }
}

/* Rows that a tile does not have are not read, and multiplied as far as its shape goes. */
static void what_a_tile_costs(void **)
{
    struct draw draw = {test_seed(), 60, 0};
    for (int rows : {1, 16, 17, 32, 33, 48, 49, 64}) {
        const int columns = mma_engine::columns_of(rows);
        assert_int_equal(columns, rows > 32 ? 64 : 128);
        const Product r = multiply(draw_operands(rows, columns, 256, &draw), 1, {});
        expect_none(r.result);
        const emulate::Counters &c = r.result.counters;
        const uint64_t blocks = rows <= 16 ? 1 : rows <= 32 ? 2 : 4, steps = 256 / 16; // of k
        assert_int_equal(c.copied_bytes, (rows + columns) * 256 * 2);                  // each operand once
        assert_int_equal(c.mma, blocks * static_cast<uint64_t>(columns / 8) * steps);
        /* Four warps beside each other read each block and a quarter of B; or two by two, each its blocks and half of B. */
        assert_int_equal(c.ldmatrix, steps * (blocks <= 2 ? 4 * (blocks + 2) : 2 * blocks + 4 * 2));
        assert_int_equal(c.ldmatrix_conflicts, 0);
        assert_int_equal(c.copy_conflicts, 0);
        assert_int_equal(c.shared_conflicts, 0); // where sums pass through
        assert_int_equal(c.barriers, 4);         // one for each stage
    }
}

static void what_a_tile_of_128_rows_costs(void **)
{
    struct draw draw = {test_seed(), 61, 0};
    for (int rows : {1, 64, 128}) {
        const Product r = multiply_by<mma_many_engine>(draw_operands(rows, 128, 128, &draw), 1, {});
        expect_none(r.result);
        const emulate::Counters &c = r.result.counters;
        assert_int_equal(c.copied_bytes, (rows + 128) * 128 * 2); // each operand once
        assert_int_equal(c.mma, 8 * 16 * (128 / 16));
        assert_int_equal(c.ldmatrix, 4 * (4 + 4) * (128 / 16)); // two by two warps each read half of both
        assert_int_equal(c.ldmatrix_conflicts, 0);
        assert_int_equal(c.copy_conflicts, 0);
        assert_int_equal(c.shared_conflicts, 0); // where sums pass through
        assert_int_equal(c.barriers, 128 / 32);  // one for each stage
    }
}

template <typename Engine>
static void finds_each(const Operands &o, std::initializer_list<const char *> mutants)
{
    for (const char *mutant : mutants) {
        int found = 0;
        for (uint64_t seed = 1; seed <= 4; seed++) {
            emulate::Options options;
            options.seed = seed;
            options.mutant = mutant;
            const Product r = multiply_by<Engine>(o, 1, options);
            assert_true(r.result.counters.mutant_reached > 0);
            found += r.result.fault == Fault::RACE || r.result.fault == Fault::UNWRITTEN ||
                     r.result.fault == Fault::COPY;
        }
        if (found != 4) fail_msg("%d rows: %s was found in %d of 4 schedules", o.m, mutant, found);
    }
}

static void each_weakening_is_found(void **)
{
    struct draw draw = {test_seed(), 70, 0};
    /* Two tiles in each shape. */
    const Operands shapes[] = {draw_operands(40, 70, 264, &draw), draw_operands(20, 130, 264, &draw),
                               draw_operands(9, 130, 264, &draw)};
    for (const Operands &o : shapes)
        finds_each<mma_engine>(o, {"tile_wait_group", "tile_barrier", "tile_sums_slot",
                                   "tile_barrier_before_next", "tile_sums_behind_next"});
    finds_each<mma_many_engine>(
        draw_operands(70, 130, 264, &draw),
        {"tile_wait_group", "tile_barrier", "tile_barrier_before_next", "tile_sums_behind_stages"});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tail),
        cmocka_unit_test(every_tail_of_128_rows),
        cmocka_unit_test(fp32_of_gathered_rows),
        cmocka_unit_test(a_row_has_the_same_bits_anywhere),
        cmocka_unit_test(every_shape_has_the_same_bits),
        cmocka_unit_test(tiles_of_128_rows_have_the_same_bits),
        cmocka_unit_test(what_a_tile_costs),
        cmocka_unit_test(what_a_tile_of_128_rows_costs),
        cmocka_unit_test(each_weakening_is_found),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
