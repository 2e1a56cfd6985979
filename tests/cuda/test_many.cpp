/* Tiles of 128 rows by wgmma on the emulator: every tail against double precision and, to the bit, against the tiles of mma, and each word
 * of the pipeline weakened in turn. */
#include "expect.h"

#include "cuda/many.h"

extern "C" {
#include "harness/draw.h"
#include "harness/moe/near.h"
#include "harness/seed.h"
}

#include <cmath>
#include <vector>

using by_256 = cot::many_engine<256>;
using by_128 = cot::many_engine<128>;
using emulate::Fault;

namespace {
struct Product {
    emulate::Result result;
    std::vector<float> c;
};
/* Of B some slots, of which one is meant; of A rows that an index picks, or all. */
struct Operands {
    int m, n, k, slots, slot;
    std::vector<uint16_t> a, b;
    std::vector<int32_t> pick;
};
} // namespace

static Operands draw_operands(int m, int n, int k, bool gathered, struct draw *draw)
{
    Operands o = {m, n, k, 3, static_cast<int>(draw_below(draw, 3)), {}, {}, {}};
    const int rows = gathered ? m + 5 : m;
    for (int i = 0; i < rows * k; i++) o.a.push_back(cot_f32_to_bf16(draw_float(draw, 1, COT_BF16)));
    for (int i = 0; i < o.slots * n * k; i++) o.b.push_back(cot_f32_to_bf16(draw_float(draw, 1, COT_BF16)));
    for (int i = 0; i < m && gathered; i++) o.pick.push_back(static_cast<int32_t>(draw_below(draw, rows)));
    return o;
}

template <typename Engine>
static Product multiply(const Operands &o, unsigned blocks, const emulate::Options &options)
{
    emulate::Session session;
    const size_t outputs = static_cast<size_t>(o.m) * static_cast<size_t>(o.n);
    const int rows = static_cast<int>(o.a.size()) / o.k;
    cot_cuda_many_product p = {{session.copy(o.a.data(), o.a.size(), "a"), o.m, o.k},
                               {nullptr, 0},
                               nullptr,
                               o.slot,
                               o.n,
                               session.allocate<float>(outputs, "c")};
    if (!o.pick.empty()) p.pick = {session.copy(o.pick.data(), o.pick.size(), "pick"), 1};
    assert_true(o.pick.empty() ? rows == o.m : rows > o.m);
    cot::tile_map map;
    emulate::make_tile_map(&map, session.copy(o.b.data(), o.b.size(), "b"), o.k, o.n, o.slots, o.n * o.k * 2,
                           Engine::N);
    p.b = session.copy(&map, 1, "map");
    Product r;
    r.result = emulate::launch({blocks, Engine::THREADS, Engine::SHARED_BYTES}, options,
                               Engine::N == 256 ? cot_cuda_many_256_kernel : cot_cuda_many_128_kernel, p);
    if (r.result.fault != Fault::NONE) return r;
    assert_int_equal(session.unwritten(p.c, outputs * sizeof(float)), 0);
    r.c.assign(p.c, p.c + outputs);
    return r;
}

/* The same by the tiles of mma. */
static std::vector<float> multiply_few(const Operands &o, const emulate::Options &options)
{
    emulate::Session session;
    const size_t outputs = static_cast<size_t>(o.m) * static_cast<size_t>(o.n);
    const uint16_t *const slot = o.b.data() + o.slot * o.n * o.k;
    cot_cuda_product p = {
        {session.copy(o.a.data(), o.a.size(), "a"), o.m, o.k},
        {session.copy(slot, static_cast<size_t>(o.n) * static_cast<size_t>(o.k), "b"), o.n, o.k},
        session.allocate<float>(outputs, "c"),
        {nullptr, 0}};
    if (!o.pick.empty()) p.pick = {session.copy(o.pick.data(), o.pick.size(), "pick"), 1};
    expect_none(emulate::launch({2, cot::mma_engine::THREADS, cot::mma_engine::SHARED_BYTES}, options,
                                cot_cuda_product_kernel, p));
    return std::vector<float>(p.c, p.c + outputs);
}

template <typename Engine>
static void agrees(int m, int n, int k, bool gathered, unsigned blocks, uint64_t seed)
{
    struct draw draw = {test_seed(), seed, 0};
    const Operands o = draw_operands(m, n, k, gathered, &draw);
    emulate::Options options;
    options.seed = seed;
    options.rounding = static_cast<emulate::Rounding>(seed % static_cast<uint64_t>(emulate::Rounding::COUNT));
    const Product r = multiply<Engine>(o, blocks, options);
    expect_none(r.result);
    const emulate::Counters &c = r.result.counters;
    const int tiles = (m + 127) / 128 * ((n + Engine::N - 1) / Engine::N), stages = (k + 63) / 64;
    assert_int_equal(c.tiles, tiles * stages);
    assert_int_equal(c.group_mma, tiles * stages * 4 * 2);
    assert_int_equal(c.copy_conflicts, 0);
    assert_int_equal(c.shared_conflicts, 0);
    assert_int_equal(c.tile_bytes, (m + 127) / 128 * n * k * 2); // each row of B once for each 128 of A
    const std::vector<float> few = multiply_few(o, options);
    assert_memory_equal(r.c.data(), few.data(), few.size() * sizeof(float));
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double wanted = 0, size = 0;
            const int row = gathered ? o.pick[static_cast<size_t>(i)] : i;
            for (int h = 0; h < k; h++) {
                const double term =
                    static_cast<double>(cot_bf16_to_f32(o.a[static_cast<size_t>(row * k + h)])) *
                    static_cast<double>(cot_bf16_to_f32(o.b[static_cast<size_t>((o.slot * n + j) * k + h)]));
                wanted += term, size += fabs(term);
            }
            /* What is added to a sum is cut at most 18 times in 16 of k, each time by 2^-23 of the largest there. */
            near(static_cast<double>(r.c[static_cast<size_t>(i * n + j)]), wanted,
                 18 * ((k + 15) / 16) * size / (1 << 23) + 1e-9);
        }
}

static void every_tail(void **)
{
    /* One row and column, whole tiles, tails of each kind; more stages than the ring has; two tiles below and beside each other. */
    agrees<by_256>(1, 1, 8, false, 1, 1);
    agrees<by_256>(128, 256, 64, true, 1, 2);
    agrees<by_256>(65, 20, 72, true, 1, 3);
    agrees<by_256>(129, 260, 136, false, 1, 4);
    agrees<by_256>(40, 300, 328, true, 2, 5);
    agrees<by_128>(3, 130, 40, true, 1, 6);
    agrees<by_128>(128, 128, 448, false, 1, 7);
    agrees<by_128>(140, 140, 200, true, 1, 8);
    agrees<by_128>(100, 7, 520, true, 2, 9);
}

/* How each weakening may show: by what is wrong at once, or by numbers that are none. */
static void each_weakening_is_found(void **)
{
    struct draw draw = {test_seed(), 70, 0};
    const Operands o = draw_operands(130, 40, 520, true, &draw);
    const emulate::Options plain;
    const Product right = multiply<by_256>(o, 1, plain);
    expect_none(right.result);
    for (const char *mutant :
         {"many_map", "many_registers", "many_arrivals", "many_words_for_all", "many_rows_for_products",
          "many_wait_empty", "many_bytes", "many_wait_rows", "many_wait_full", "many_parity",
          "many_sums_for_products", "many_commit", "many_wait_products", "many_wait_last"}) {
        int found = 0;
        for (uint64_t seed = 1; seed <= 3; seed++) {
            emulate::Options options;
            options.seed = seed;
            options.mutant = mutant;
            const Product r = multiply<by_256>(o, 1, options);
            assert_true(r.result.counters.mutant_reached > 0);
            found += r.result.fault != Fault::NONE;
        }
        if (found != 3) fail_msg("%s was found in %d of 3 schedules", mutant, found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tail),
        cmocka_unit_test(each_weakening_is_found),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
