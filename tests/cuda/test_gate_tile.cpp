/* Logits in tiles on the emulator: every tail to the bit against sums in the order that is promised, against double precision, and against
 * the forms of few tokens; counts of what a tile costs; and each word that orders its threads weakened in turn. */
#include "expect.h"

#include "cuda/gate_tile.h"

extern "C" {
#include "harness/draw.h"
#include "harness/moe/near.h"
#include "harness/seed.h"
}

#include <cmath>
#include <cstring>
#include <vector>

using cot::gate_tile;
using emulate::Fault;

namespace {
struct Gate {
    int tokens, experts, hidden;
    std::vector<float> x, weight, bias;
};
struct Logits {
    emulate::Result result;
    std::vector<float> all;
};
} // namespace

static std::vector<float> drawn(int count, struct draw *draw)
{
    std::vector<float> v;
    for (int i = 0; i < count; i++) v.push_back(draw_float(draw, 1, COT_F32));
    return v;
}

static Gate draw_gate(int tokens, int experts, int hidden, bool biased, struct draw *draw)
{
    Gate g = {tokens, experts, hidden, drawn(tokens * hidden, draw), drawn(experts * hidden, draw), {}};
    if (biased) g.bias = drawn(experts, draw);
    return g;
}

/* The forms of few tokens: a warp takes four tokens by four experts, four by one, or one by one. */
template <int ROWS, int TOKENS> static void by_few(const cot_cuda_gate_product &p)
{
    for (int t = 0; t < p.tokens; t += TOKENS)
        cot::gate_logits<ROWS, TOKENS>(p.rules, p.x + t * p.rules.hidden,
                                       p.tokens - t < TOKENS ? p.tokens - t : TOKENS, 0, p.rules.experts,
                                       p.logits + t * p.rules.experts, p.rules.experts);
}
COT_KERNEL four_by_four(cot_cuda_gate_product p)
{
    by_few<4, 4>(p);
}
COT_KERNEL one_by_four(cot_cuda_gate_product p)
{
    by_few<1, 4>(p);
}
COT_KERNEL one_by_one(cot_cuda_gate_product p)
{
    by_few<1, 1>(p);
}

static Logits run(const Gate &g, void (*kernel)(cot_cuda_gate_product), unsigned blocks,
                  const emulate::Options &options)
{
    emulate::Session session;
    const size_t outputs = static_cast<size_t>(g.tokens) * static_cast<size_t>(g.experts);
    cot_cuda_gate_product p = {};
    p.rules.hidden = g.hidden, p.rules.experts = g.experts;
    p.rules.weight = session.copy(g.weight.data(), g.weight.size(), "weight");
    if (!g.bias.empty()) p.rules.bias = session.copy(g.bias.data(), g.bias.size(), "bias");
    p.x = session.copy(g.x.data(), g.x.size(), "x");
    p.logits = session.allocate<float>(outputs, "logits");
    p.tokens = g.tokens;
    const bool tiled = kernel == cot_cuda_gate_tile_kernel;
    Logits r;
    r.result = emulate::launch(
        {blocks, tiled ? gate_tile::THREADS : 32u, tiled ? gate_tile::SHARED_BYTES : 4u}, options, kernel, p);
    if (r.result.fault != Fault::NONE) return r;
    assert_int_equal(session.unwritten(p.logits, outputs * sizeof(float)), 0);
    r.all.assign(p.logits, p.logits + outputs);
    return r;
}

/* A logit in the order that gate.h tells: of every 32nd four values of k one sum, then these in pairs. */
static float in_order(const float *x, const float *w, int hidden)
{
    float sums[32] = {};
    for (int k = 0; k < hidden; k++) sums[k / 4 % 32] = fmaf(x[k], w[k], sums[k / 4 % 32]);
    for (int by = 16; by; by /= 2)
        for (int i = 0; i < by; i++) sums[i] += sums[i + by];
    return sums[0];
}

static void agrees(int tokens, int experts, int hidden, unsigned blocks, uint64_t seed)
{
    struct draw draw = {test_seed(), seed, 0};
    const Gate g = draw_gate(tokens, experts, hidden, seed % 2, &draw);
    const Logits r = run(g, cot_cuda_gate_tile_kernel, blocks, seeded(seed));
    expect_none(r.result);
    for (int t = 0; t < tokens; t++)
        for (int e = 0; e < experts; e++) {
            const float *const x = g.x.data() + t * hidden, *const w = g.weight.data() + e * hidden,
                               bias = g.bias.empty() ? 0 : g.bias[static_cast<size_t>(e)];
            const float found = r.all[static_cast<size_t>(t * experts + e)], sum = in_order(x, w, hidden),
                        wanted = g.bias.empty() ? sum : sum + bias;
            assert_memory_equal(&found, &wanted, sizeof found);
            double exact = static_cast<double>(bias), size = fabs(exact);
            for (int k = 0; k < hidden; k++) {
                const double term = static_cast<double>(x[k]) * static_cast<double>(w[k]);
                exact += term, size += fabs(term);
            }
            near(static_cast<double>(found), exact, 1e-6 * size + 1e-9);
        }
    for (const auto kernel : {four_by_four, one_by_four, one_by_one}) {
        const Logits few = run(g, kernel, 1, seeded(seed));
        expect_none(few.result);
        assert_memory_equal(few.all.data(), r.all.data(), r.all.size() * sizeof(float));
    }
    /* Each row once for each tile that has it; a barrier a stage. */
    const emulate::Counters &c = r.result.counters;
    const int down = (tokens + 15) / 16, across = (experts + 31) / 32;
    assert_int_equal(c.copied_bytes, (across * tokens + down * experts) * hidden * 4);
    assert_int_equal(c.barriers, down * across * 8 * ((hidden + 255) / 256));
    assert_int_equal(c.copy_conflicts, 0);
    assert_int_equal(c.shared_conflicts, 0);
}

static void every_tail(void **)
{
    static const int shapes[][3] = {{1, 1, 4},     {16, 32, 256}, {17, 33, 260}, {5, 40, 128}, {15, 31, 68},
                                    {40, 70, 516}, {3, 8, 1028},  {33, 5, 12},   {2, 64, 2052}};
    uint64_t seed = 0;
    for (const auto &s : shapes)
        agrees(s[0], s[1], s[2], 1 + static_cast<unsigned>(seed % 3), seed + 1), seed++;
}

/* What is not finite stays its token's, or its expert's. */
static void what_is_not_finite_stays_where_it_is(void **)
{
    struct draw draw = {test_seed(), 30, 0};
    const int tokens = 18, experts = 34, hidden = 272, token = 17, expert = 33;
    Gate g = draw_gate(tokens, experts, hidden, true, &draw);
    const Logits before = run(g, cot_cuda_gate_tile_kernel, 1, seeded(1));
    expect_none(before.result);
    g.x[static_cast<size_t>(token * hidden + hidden - 1)] = INFINITY;
    g.weight[static_cast<size_t>(expert * hidden)] = NAN;
    const Logits r = run(g, cot_cuda_gate_tile_kernel, 1, seeded(1));
    expect_none(r.result);
    for (int t = 0; t < tokens; t++)
        for (int e = 0; e < experts; e++) {
            const size_t at = static_cast<size_t>(t * experts + e);
            if (t == token || e == expert)
                assert_false(std::isfinite(r.all[at]));
            else
                assert_memory_equal(&r.all[at], &before.all[at], sizeof(float));
        }
}

static void each_weakening_is_found(void **)
{
    struct draw draw = {test_seed(), 40, 0};
    const Gate g = draw_gate(20, 40, 512, false, &draw); // four tiles, one behind the other
    for (const char *mutant : {"gate_tile_wait", "gate_tile_barrier"}) {
        int found = 0;
        for (uint64_t seed = 1; seed <= 4; seed++) {
            const Logits r = run(g, cot_cuda_gate_tile_kernel, 1, seeded(seed, mutant));
            assert_true(r.result.counters.mutant_reached > 0);
            found += r.result.fault == Fault::RACE || r.result.fault == Fault::UNWRITTEN ||
                     r.result.fault == Fault::COPY;
        }
        if (found != 4) fail_msg("%s was found in %d of 4 schedules", mutant, found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tail),
        cmocka_unit_test(what_is_not_finite_stays_where_it_is),
        cmocka_unit_test(each_weakening_is_found),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
