/* The gate against one written in double precision, with plain loops over unpacked weights. */

#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/moe/gate_cases.h"
#include "harness/moe/fused_call.h"
#include "harness/moe/near.h"
#include "harness/moe/oracle_gate.h"
#include "harness/poisoned.h"
#include "harness/seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void agrees(const struct gate_case *c, int64_t tokens, const cot_kernels *kernels, cot_pool *pool,
                   struct draw *draw)
{
    struct oracle_gate oracle = gate_of_case(c, draw);
    const cot_gate *gate = &oracle.gate;
    assert_int_equal(cot_gate_check(gate, NULL), COT_OK);
    float *x = draw_floats(draw, tokens * c->hidden, 1);
    const size_t row = (size_t)c->top_k,
                 choices = (size_t)tokens * row; // with room for a token more behind them
    uint16_t *experts = poisoned((choices + row) * sizeof *experts),
             *untouched = poisoned(row * sizeof *untouched);
    float *weights = poisoned((choices + row) * sizeof *weights);
    float *logits = poisoned((size_t)((tokens + 1) * c->experts) * sizeof *logits);
    assert_int_equal(cot_gate_route(&(cot_gate_tokens){x, 0, tokens, experts, weights, logits, false}, gate,
                                    kernels, pool, NULL),
                     COT_OK);
    assert_memory_equal(experts + choices, untouched, row * sizeof *experts);
    for (size_t i = 0; i < row; i++) assert_true(isnan(weights[choices + i]));
    int64_t compared = 0;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t wanted[COT_MAX_TOP_K];
        double wanted_weights[COT_MAX_TOP_K];
        if (!oracle_route(wanted, wanted_weights, &oracle, x + t * c->hidden)) continue; // too close to call
        compared++;
        for (int64_t k = 0; k < c->top_k; k++) {
            assert_int_equal(experts[t * c->top_k + k], wanted[k]);
            near(weights[t * c->top_k + k], wanted_weights[k], 2e-5 * c->scaling);
        }
    }
    if (compared < tokens * 9 / 10)
        fail_msg("%s: only %d of %d tokens compared", c->name, (int)compared, (int)tokens);
    /* A token alone has the very same routing. */
    uint16_t alone[COT_MAX_TOP_K];
    float alone_weights[COT_MAX_TOP_K];
    for (int64_t t = 0; t < tokens; t += 7) {
        assert_int_equal(
            cot_gate_route(&(cot_gate_tokens){x + t * c->hidden, 0, 1, alone, alone_weights, logits, false},
                           gate, kernels, NULL, NULL),
            COT_OK);
        assert_memory_equal(alone, experts + t * c->top_k, (size_t)c->top_k * sizeof *alone);
        assert_memory_equal(alone_weights, weights + t * c->top_k, (size_t)c->top_k * sizeof *alone_weights);
    }
    free(x), free(experts), free(weights), free(logits), free(untouched);
    oracle_gate_free(&oracle);
}

static void every_variant(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 1, 0};
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 1, NULL), COT_OK);
    for (cot_isa isa = 0; isa < COT_ISA_COUNT; isa++) {
        const cot_kernels *kernels = cot_kernels_of(isa);
        for (int i = 0; kernels && i < GATE_CASES; i++)
            for (int64_t tokens = 1; tokens < 100; tokens = tokens * 5 + 1)
                agrees(&gate_cases[i], tokens, kernels, tokens > 6 ? pool : NULL, &draw);
    }
    cot_pool_close(pool);
}

static const cot_kernels *best(void)
{
    const cot_kernels *kernels;
    assert_int_equal(cot_kernels_choose(&kernels, NULL, NULL), COT_OK);
    return kernels;
}

static void ties_take_the_lower_expert(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 2, 0};
    for (int i = 0; i < GATE_CASES; i++) {
        struct gate_case c = gate_cases[i];
        c.correction = c.bias = false;
        struct oracle_gate oracle = gate_of_case(&c, &draw);
        oracle_gate_set_weight(&oracle, 0);
        float *x = draw_floats(&draw, c.hidden, 1), weights[COT_MAX_TOP_K], logits[512];
        uint16_t experts[COT_MAX_TOP_K];
        assert_int_equal(cot_gate_route(&(cot_gate_tokens){x, 0, 1, experts, weights, logits, false},
                                        &oracle.gate, best(), NULL, NULL),
                         COT_OK);
        for (int64_t k = 0; k < c.top_k; k++) assert_int_equal(experts[k], k);
        free(x);
        oracle_gate_free(&oracle);
    }
}

static void no_tokens(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 3, 0};
    struct oracle_gate oracle = gate_of_case(&gate_cases[0], &draw);
    assert_int_equal(cot_gate_route(&(cot_gate_tokens){NULL, 0, 0, NULL, NULL, NULL, false}, &oracle.gate,
                                    best(), NULL, NULL),
                     COT_OK);
    oracle_gate_free(&oracle);
}

static void what_is_not_finite_is_refused(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 4, 0};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < GATE_CASES; i++)
        for (int b = 0; b < 3; b++) {
            struct oracle_gate oracle = gate_of_case(&gate_cases[i], &draw);
            const int64_t tokens = 40, h = gate_cases[i].hidden;
            float *x = draw_floats(&draw, tokens * h, 1), weights[40 * COT_MAX_TOP_K];
            float *logits = poisoned((size_t)(tokens * gate_cases[i].experts) * sizeof *logits);
            uint16_t experts[40 * COT_MAX_TOP_K];
            x[17 * h + h - 1] = x[33 * h] = bad[b];
            cot_error error = {0};
            assert_int_equal(cot_gate_route(&(cot_gate_tokens){x, 0, tokens, experts, weights, logits, false},
                                            &oracle.gate, best(), NULL, &error),
                             COT_INVALID_ARGUMENT);
            assert_non_null(strstr(error.message, "token 17 "));
            cot_gate_tokens pass = {x, 0, tokens, experts, weights, logits, true};
            assert_int_equal(cot_gate_route(&pass, &oracle.gate, best(), NULL, NULL), COT_OK);
            for (int64_t t = 0; t < tokens; t++)
                for (int64_t k = 0; k < gate_cases[i].top_k; k++) {
                    const bool unsound = t == 17 || t == 33;
                    const int64_t at = t * gate_cases[i].top_k + k;
                    assert_true(isnan(weights[at]) ? unsound : !unsound && isfinite(weights[at]));
                    if (unsound) assert_int_equal(experts[at], k);
                }
            if (oracle.gate.correction) {
                x[17 * h + h - 1] = x[33 * h] = 0;
                oracle.correction[gate_cases[i].experts - 1] = bad[b];
                assert_int_equal(
                    cot_gate_route(&(cot_gate_tokens){x, 0, tokens, experts, weights, logits, false},
                                   &oracle.gate, best(), NULL, &error),
                    COT_INVALID_ARGUMENT);
                assert_non_null(strstr(error.message, "token 0 "));
            }
            free(x), free(logits);
            oracle_gate_free(&oracle);
        }
}

/* Logits of +-80: no score may overflow, and a sum of scores that all underflow still divides. */
static void large_logits_are_routed(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 5, 0};
    for (int i = 0; i < GATE_CASES; i++) {
        struct oracle_gate oracle = gate_of_case(&gate_cases[i], &draw);
        for (float sign = -1; sign <= 1; sign += 2) {
            oracle_gate_set_weight(&oracle, 1);
            float *x = draw_floats(&draw, gate_cases[i].hidden, 1), weights[COT_MAX_TOP_K], logits[512];
            for (int64_t h = 0; h < gate_cases[i].hidden; h++) x[h] = h ? 0 : sign * 80;
            uint16_t experts[COT_MAX_TOP_K];
            assert_int_equal(cot_gate_route(&(cot_gate_tokens){x, 0, 1, experts, weights, logits, false},
                                            &oracle.gate, best(), NULL, NULL),
                             COT_OK);
            for (int64_t k = 0; k < gate_cases[i].top_k; k++)
                assert_true(weights[k] >= 0 && weights[k] <= 100);
            free(x);
        }
        oracle_gate_free(&oracle);
    }
}

static void impossible_gates_are_named(void **state)
{
    (void)state;
    const cot_gate good = {.hidden = 8, .experts = 32, .top_k = 4, .groups = 8, .group_limit = 2};
    assert_int_equal(cot_gate_check(&good, NULL), COT_OK);
    struct {
        cot_gate gate;
        const char *text;
    } bad[] = {{good, "0 experts"},     {good, "65536 experts"}, {good, "0 of 32"},
               {good, "33 of 32"},      {good, "65 of 300"},     {good, "0 groups"},
               {good, "5 groups"},      {good, "100 groups"},    {good, "0 of 8 groups"},
               {good, "9 of 8 groups"}, {good, "groups of one"}, {good, "hold only 4"},
               {good, "hidden size"}};
    bad[0].gate.experts = 0;
    bad[1].gate.experts = 65536;
    bad[2].gate.top_k = 0;
    bad[3].gate.top_k = 33;
    bad[4].gate.experts = 300, bad[4].gate.top_k = 65;
    bad[5].gate.groups = 0;
    bad[6].gate.groups = 5;
    bad[7].gate.experts = 200, bad[7].gate.groups = 100;
    bad[8].gate.group_limit = 0;
    bad[9].gate.group_limit = 9;
    bad[10].gate.groups = 32, bad[10].gate.group_limit = 4, bad[10].gate.group_score = COT_GROUP_TOP2_SUM;
    bad[11].gate.group_limit = 1, bad[11].gate.top_k = 5, bad[11].gate.score = COT_GATE_SIGMOID;
    bad[12].gate.hidden = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_error error = {0};
        assert_int_equal(cot_gate_check(&bad[i].gate, &error), COT_INVALID_ARGUMENT);
        if (!strstr(error.message, bad[i].text)) fail_msg("'%s' lacks '%s'", error.message, bad[i].text);
    }
}

/* exp(x[own] - best) over the sum of those that are left: what is masked is -infinity, as its authors write it. NAN: too close to call. */
static double softmax_of(const double *logits, const bool *gone, int experts, int own, double jitter)
{
    double best = -INFINITY, sum = 0;
    for (int e = 0; e < experts; e++)
        if (!gone[e] && logits[e] > best) best = logits[e];
    for (int e = 0; e < experts; e++) {
        const double size = fabs(logits[e]) > best ? fabs(logits[e]) : best;
        const double apart = (best - logits[e]) / size - 2 * jitter;
        if (!gone[e] && fabs(apart) < 1e-5) return NAN;
        if (!gone[e] && !(apart > 0)) sum += exp(logits[e] - best);
    }
    return exp(logits[own] - best) / sum;
}

/* Two experts, each by a softmax of its own. */
static void sparse_mixing(void **state)
{
    (void)state;
    enum { E = 9, K = 2, TOKENS = 200 };
    struct draw draw = {test_seed(), 9, 0};
    const cot_gate rules = {.hidden = 1,
                            .experts = E,
                            .top_k = K,
                            .score = COT_GATE_SPARSE_MIXER,
                            .groups = 1,
                            .group_limit = 1,
                            .jitter = 0.15f,
                            .scaling = 1};
    struct oracle_gate oracle = oracle_gate_new(&rules, true, false, &draw);
    int shared = 0;
    oracle_gate_set_weight(&oracle, 0);
    for (int t = 0; t < TOKENS; t++) {
        float *logits = draw_floats(&draw, E, t % 2 ? 1 : 5), weights[K], scratch[E], x = 1;
        uint16_t experts[K];
        double exact[E];
        bool gone[E] = {false};
        if (t % 4 == 3) // of negative ones, too
            for (int e = 0; e < E; e++) logits[e] -= 9;
        for (int e = 0; e < E; e++) oracle.bias[e] = logits[e], exact[e] = (double)logits[e];
        assert_int_equal(cot_gate_route(&(cot_gate_tokens){&x, 0, 1, experts, weights, scratch, false},
                                        &oracle.gate, best(), NULL, NULL),
                         COT_OK);
        int first = 0, second;
        for (int e = 1; e < E; e++)
            if (exact[e] > exact[first]) first = e;
        const double first_weight = softmax_of(exact, gone, E, first, (double)rules.jitter);
        gone[first] = true;
        second = first ? 0 : 1;
        for (int e = 0; e < E; e++)
            if (e != first && exact[e] > exact[second]) second = e;
        const double second_weight = softmax_of(exact, gone, E, second, (double)rules.jitter);
        const bool ordered = first < second;
        free(logits);
        if (isnan(first_weight) || isnan(second_weight)) continue;
        assert_int_equal(experts[!ordered], first);
        assert_int_equal(experts[ordered], second);
        near(weights[!ordered], first_weight, 1e-5);
        near(weights[ordered], second_weight, 1e-5);
        shared += first_weight < 1;
    }
    assert_true(shared > TOKENS / 10 && shared < TOKENS);
    oracle_gate_free(&oracle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant),
        cmocka_unit_test(ties_take_the_lower_expert),
        cmocka_unit_test(sparse_mixing),
        cmocka_unit_test(no_tokens),
        cmocka_unit_test(what_is_not_finite_is_refused),
        cmocka_unit_test(large_logits_are_routed),
        cmocka_unit_test(impossible_gates_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
