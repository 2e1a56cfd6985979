/* The device's router on the emulator, against the one in double precision that the CPU's is held to. */
#include "expect.h"

#include "cuda/gate.h"

#include "cuda/c_begin.h"
#include "harness/moe/gate_cases.h"
#include "harness/moe/near.h"
#include "harness/seed.h"
#include "cuda/c_end.h"

#include "oracle_rules.h"

#include <cmath>
#include <cstdlib>
#include <vector>

static_assert(static_cast<int>(cot::gate_score::softmax) == COT_GATE_SOFTMAX, "the same order");
static_assert(static_cast<int>(cot::gate_score::sigmoid) == COT_GATE_SIGMOID, "the same order");
static_assert(static_cast<int>(cot::gate_score::chosen_softmax) == COT_GATE_CHOSEN_SOFTMAX, "the same order");
static_assert(static_cast<int>(cot::gate_group_score::top2_sum) == COT_GROUP_TOP2_SUM, "the same order");

namespace {
struct Routed {
    emulate::Result result;
    std::vector<uint16_t> experts;
    std::vector<float> weights;
    uint32_t unsound;
};
} // namespace

static Routed route(const struct oracle_gate &oracle, const float *x, int tokens, unsigned blocks,
                    unsigned warps, const emulate::Options &options)
{
    const cot_gate &gate = oracle.gate;
    const size_t hidden = static_cast<size_t>(gate.hidden), experts = static_cast<size_t>(gate.experts),
                 choices = static_cast<size_t>(tokens * gate.top_k);
    emulate::Session session;
    cot::gate_rules rules = rules_of(session, oracle);
    uint32_t *unsound = session.allocate<uint32_t>(1, "unsound");
    session.fill(unsound, 0xff, 4);
    cot::gate_tokens all = {session.copy(x, static_cast<size_t>(tokens) * hidden, "x"),
                            session.allocate<uint16_t>(choices, "experts"),
                            session.allocate<float>(choices, "weights"), tokens, unsound};
    const size_t shared =
        sizeof(float) * warps * static_cast<size_t>(cot::gate_scratch_floats(static_cast<int>(experts)));
    Routed r;
    r.result = emulate::launch({blocks, 32 * warps, shared}, options, cot_cuda_gate_kernel, rules, all);
    if (r.result.fault != emulate::Fault::NONE) return r;
    assert_int_equal(session.unwritten(all.experts, choices * sizeof(uint16_t)), 0);
    assert_int_equal(session.unwritten(all.weights, choices * sizeof(float)), 0);
    r.experts.assign(all.experts, all.experts + choices);
    r.weights.assign(all.weights, all.weights + choices);
    r.unsound = *unsound;
    return r;
}

static void every_variant(void **)
{
    struct draw draw = {test_seed(), 1, 0};
    for (int i = 0; i < GATE_CASES; i++) {
        const struct gate_case *c = &gate_cases[i];
        struct oracle_gate oracle = gate_of_case(c, &draw);
        const int tokens = 11;
        float *x = draw_floats(&draw, tokens * c->hidden, 1);
        const Routed r = route(oracle, x, tokens, 1, 2, seeded(test_seed() + static_cast<uint64_t>(i)));
        expect_none(r.result);
        assert_int_equal(r.unsound, UINT32_MAX);
        int compared = 0;
        for (int t = 0; t < tokens; t++) {
            int64_t wanted[COT_MAX_TOP_K];
            double wanted_weights[COT_MAX_TOP_K];
            if (!oracle_route(wanted, wanted_weights, &oracle, x + t * c->hidden))
                continue; // too close to call
            compared++;
            for (int64_t k = 0; k < c->top_k; k++) {
                const size_t at = static_cast<size_t>(t * c->top_k + k);
                assert_int_equal(r.experts[at], wanted[k]);
                near(static_cast<double>(r.weights[at]), wanted_weights[k],
                     2e-5 * static_cast<double>(c->scaling));
            }
        }
        if (compared < tokens * 8 / 10)
            fail_msg("%s: only %d of %d tokens compared", c->name, compared, tokens);
        /* The very same alone, and among other blocks and warps. */
        const Routed alone = route(oracle, x + 5 * c->hidden, 1, 1, 1, {});
        const Routed spread = route(oracle, x, tokens, 2, 1, seeded(3));
        expect_none(alone.result);
        expect_none(spread.result);
        for (size_t k = 0; k < static_cast<size_t>(c->top_k); k++) {
            const size_t at = 5 * static_cast<size_t>(c->top_k) + k;
            assert_true(alone.experts[k] == r.experts[at] && alone.weights[k] == r.weights[at]);
        }
        assert_true(spread.experts == r.experts && spread.weights == r.weights);
        free(x);
        oracle_gate_free(&oracle);
    }
}

static void ties_take_the_lower_expert(void **)
{
    struct draw draw = {test_seed(), 2, 0};
    for (int i = 0; i < GATE_CASES; i++) {
        struct gate_case c = gate_cases[i];
        c.correction = c.bias = false;
        struct oracle_gate oracle = gate_of_case(&c, &draw);
        oracle_gate_set_weight(&oracle, 0);
        float *x = draw_floats(&draw, c.hidden, 1);
        const Routed r = route(oracle, x, 1, 1, 1, {});
        expect_none(r.result);
        for (int64_t k = 0; k < c.top_k; k++) assert_int_equal(r.experts[static_cast<size_t>(k)], k);
        free(x);
        oracle_gate_free(&oracle);
    }
}

static void what_is_not_finite_is_told(void **)
{
    struct draw draw = {test_seed(), 4, 0};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < GATE_CASES; i++) {
        struct oracle_gate oracle = gate_of_case(&gate_cases[i], &draw);
        const int tokens = 9;
        const int64_t h = gate_cases[i].hidden, k_count = gate_cases[i].top_k;
        float *x = draw_floats(&draw, tokens * h, 1);
        x[4 * h + h - 1] = x[7 * h] = bad[i % 3];
        const Routed r = route(oracle, x, tokens, 1, 2, seeded(test_seed()));
        expect_none(r.result);
        assert_int_equal(r.unsound, 4);
        for (int64_t at = 0; at < tokens * k_count; at++) {
            const bool unsound = at / k_count == 4 || at / k_count == 7;
            assert_int_equal(std::isnan(r.weights[static_cast<size_t>(at)]), unsound);
            if (unsound) assert_int_equal(r.experts[static_cast<size_t>(at)], at % k_count);
        }
        free(x);
        oracle_gate_free(&oracle);
    }
}

/* Each word that orders lanes is needed: by groups of experts (case 4), or by tokens one after the other (case 1). */
static void each_weakening_is_found(void **)
{
    static const struct {
        const char *mutant;
        int gate;
    } mutants[] = {{"gate_scores_before_groups", 4},
                   {"gate_groups_before_masks", 4},
                   {"gate_chosen_before_weights", 1},
                   {"gate_weights_before_next_token", 1}};
    struct draw draw = {test_seed(), 5, 0};
    for (const auto &m : mutants) {
        struct oracle_gate oracle = gate_of_case(&gate_cases[m.gate], &draw);
        float *x = draw_floats(&draw, 3 * oracle.gate.hidden, 1);
        for (uint64_t seed = 1; seed <= 5; seed++) {
            const Routed r = route(oracle, x, 3, 1, 1, seeded(seed, m.mutant));
            if (r.result.fault != emulate::Fault::RACE && r.result.fault != emulate::Fault::UNWRITTEN)
                fail_msg("%s, seed %d: not found", m.mutant, static_cast<int>(seed));
        }
        free(x);
        oracle_gate_free(&oracle);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant),
        cmocka_unit_test(ties_take_the_lower_expert),
        cmocka_unit_test(what_is_not_finite_is_told),
        cmocka_unit_test(each_weakening_is_found),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
