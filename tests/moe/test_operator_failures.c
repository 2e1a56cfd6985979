/* What cannot be done is refused by name, and a rank that fails takes the others with it at once. */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/moe/oracle_gate.h"
#include "harness/moe/plan.h"
#include "harness/moe/run.h"
#include "harness/moe/world.h"
#include "harness/seed.h"

#include "base/clock.h"
#include "fabric/threads/threads.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const cot_gate rules = {
    .hidden = 16, .experts = 6, .top_k = 2, .groups = 1, .group_limit = 1, .scaling = 1, .normalise = true};
static cot_moe_options sizes = { // all but how rows travel, which differs from run to run
    .expert = {.type = COT_BF16,
               .gate = COT_FORMAT_BF16,
               .up = COT_FORMAT_BF16,
               .down = COT_FORMAT_BF16,
               .hidden = 16,
               .intermediate = 24},
    .experts = 6,
    .top_k = 2,
    .tokens = 1,
    .combine_type = COT_BF16,
    .threads = 1};

/* One token that is not finite, on each rank in turn. */
static void a_gate_that_is_not_finite_ends_all_ranks(void **state)
{
    struct draw draw = {test_seed(), 1, 0};
    for (int ranks = 1; ranks <= 8; ranks += ranks < 4 ? 1 : 4)
        for (int forked = 0; forked < 2; forked++)
            for (int guilty = 0; guilty < ranks; guilty += 3) {
                struct world w = world_new(*state, &sizes, &rules, false, false, false, 16, &draw);
                struct plan p = plan_even(&w, ranks);
                p.forked = forked;
                p.passes = 2;
                w.x[p.begin[guilty] * w.options.expert.hidden + 5] = NAN;
                int64_t since_ns = cot_now_ns();
                struct outcome *outcome = world_run(&w, &p);
                assert_true(cot_now_ns() - since_ns < 30000000000); // half the group's time-out
                char others[64];
                snprintf(others, sizeof others, "the routing of rank %d's tokens is not sound", guilty);
                for (int r = 0; r < ranks; r++) {
                    assert_int_equal(outcome->status[r], COT_INVALID_ARGUMENT);
                    assert_non_null(strstr(outcome->message[r], r == guilty ? "token 0 " : others));
                }
                outcome_free(outcome, &w);
                world_free(&w);
            }
}

/* A router of NaN fails on every rank that has tokens. */
static void a_router_of_nan_is_an_error_on_all_ranks(void **state)
{
    struct draw draw = {test_seed(), 2, 0};
    struct world w = world_new(*state, &sizes, &rules, false, false, false, 3, &draw);
    oracle_gate_set_weight(&w.gate, NAN);
    struct plan p = plan_even(&w, 5);
    struct outcome *outcome = world_run(&w, &p);
    for (int r = 0; r < 5; r++) assert_int_equal(outcome->status[r], COT_INVALID_ARGUMENT);
    outcome_free(outcome, &w);
    world_free(&w);
}

static void impossible_sizes_are_named(void **state)
{
    const cot_moe_operator *op = *state;
    struct {
        cot_moe_options options;
        const char *text;
    } bad[] = {{sizes, "0 experts, "},
               {sizes, "65536 experts"},
               {sizes, "0 experts a token"},
               {sizes, "7 experts a token"},
               {sizes, "65 experts a token"},
               {sizes, "0 tokens"},
               {sizes, "1073741824 tokens"},
               {sizes, "16 by 24 F16"},
               {sizes, "0 by 24"},
               {sizes, "16 by 0"},
               {sizes, "33554432 by 24"},
               {sizes, "8 by 24 BF16 cannot be run beside 16"},
               {sizes, "16 by -1"}};
    bad[0].options.experts = 0;
    bad[1].options.experts = 65536;
    bad[2].options.top_k = 0;
    bad[3].options.top_k = 7;
    bad[4].options.experts = 100, bad[4].options.top_k = 65;
    bad[5].options.tokens = 0;
    bad[6].options.tokens = 1 << 30;
    bad[7].options.expert.type = COT_F16;
    bad[8].options.expert.hidden = 0;
    bad[9].options.expert.intermediate = 0;
    bad[10].options.expert.hidden = 1 << 25;
    bad[11].options.shared = (cot_ffn_shape){.type = COT_BF16,
                                             .gate = COT_FORMAT_BF16,
                                             .up = COT_FORMAT_BF16,
                                             .down = COT_FORMAT_BF16,
                                             .hidden = 8,
                                             .intermediate = 24};
    bad[12].options.shared = (cot_ffn_shape){.type = COT_BF16,
                                             .gate = COT_FORMAT_BF16,
                                             .up = COT_FORMAT_BF16,
                                             .down = COT_FORMAT_BF16,
                                             .hidden = 16,
                                             .intermediate = -1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_moe *moe;
        cot_error error = {0};
        assert_int_equal(op->open(&moe, &bad[i].options, &error), COT_INVALID_ARGUMENT);
        assert_null(moe);
        if (!strstr(error.message, bad[i].text)) fail_msg("'%s' lacks '%s'", error.message, bad[i].text);
    }
}

static void a_full_heap_is_an_error(void **state)
{
    const cot_moe_operator *op = *state;
    cot_fabric_group *group;
    const cot_fabric_group_options group_options = {
        .ranks = 1, .heap_bytes = 4096, .running = 1, .timeout_ns = 1000000000};
    assert_int_equal(cot_fabric_group_open(&group, &group_options, NULL), COT_OK);
    cot_moe_options options = sizes;
    options.fabric = cot_fabric_group_rank(group, 0);
    options.tokens = 1000;
    assert_int_equal(cot_kernels_choose(&options.kernels, NULL, NULL), COT_OK);
    cot_moe *moe;
    assert_int_equal(op->open(&moe, &options, NULL), COT_OUT_OF_MEMORY);
    assert_null(moe);
    op->close(NULL);
    cot_fabric_group_close(group);
}

static void operators_are_found_by_name(void **state)
{
    (void)state;
    const char *const *names = cot_moe_operator_names();
    assert_string_equal(names[0], "fused");
    for (; *names; names++) assert_string_equal(cot_moe_operator_find(*names)->name, *names);
    assert_null(cot_moe_operator_find("bul"));
    assert_null(cot_moe_operator_find(""));
}

/* Each operator by name refuses what only another does, and nothing else: settle says what open says. */
static void what_an_operator_does_not_do_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *op;
        cot_moe_a2a a2a;
        cot_moe_dedup dedup;
        cot_moe_combine combine;
        const char *text; // NULL: fine
    } cases[] = {
        {"fused", COT_A2A_PADDED, COT_DEDUP_AUTO, COT_COMBINE_EXACT, "'padded' is of 'bulk'"},
        {"fused", COT_A2A_TWO_PHASE, COT_DEDUP_AUTO, COT_COMBINE_EXACT, "'two-phase' is of 'bulk'"},
        {"fused", COT_A2A_AUTO, COT_DEDUP_OFF, COT_COMBINE_EXACT, "dedup off is of 'bulk'"},
        {"fused", COT_A2A_ONE_SHOT, COT_DEDUP_ON, COT_COMBINE_REDUCED, NULL},
        {"bulk", COT_A2A_PADDED, COT_DEDUP_ON, COT_COMBINE_EXACT, "no dedup"},
        {"bulk", COT_A2A_ONE_SHOT, COT_DEDUP_AUTO, COT_COMBINE_REDUCED, "combine must be exact"},
        {"bulk", COT_A2A_PADDED, COT_DEDUP_OFF, COT_COMBINE_REDUCED, "combine must be exact"},
        {"bulk", COT_A2A_AUTO, COT_DEDUP_ON, COT_COMBINE_REDUCED, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const cot_moe_operator *op = cot_moe_operator_find(cases[i].op);
        cot_fabric fabric = {.ranks = 4};
        cot_moe_options options = sizes;
        options.fabric = &fabric;
        options.a2a = cases[i].a2a, options.dedup = cases[i].dedup, options.combine = cases[i].combine;
        cot_error error = {0}, opened = {0};
        cot_moe *moe;
        const cot_moe_options asked = options;
        const cot_status status = op->settle(&options, &error);
        assert_int_equal(status, cases[i].text ? COT_UNSUPPORTED : COT_OK);
        if (!cases[i].text) {
            assert_true(options.a2a != COT_A2A_AUTO && options.dedup != COT_DEDUP_AUTO);
            continue;
        }
        assert_non_null(strstr(error.message, cases[i].text));
        assert_int_equal(op->open(&moe, &asked, &opened), COT_UNSUPPORTED);
        assert_null(moe);
        assert_string_equal(opened.message, error.message);
    }
    assert_string_equal(cot_moe_a2a_name(COT_A2A_ONE_SHOT), "one-shot");
    assert_string_equal(cot_moe_a2a_name(COT_A2A_PADDED), "padded");
    assert_null(cot_moe_a2a_name(COT_A2A_AUTO));
}

static int run(const char *name, cot_moe_a2a a2a)
{
    sizes.a2a = a2a;
    void *op = (void *)(uintptr_t)cot_moe_operator_find(name); // what a test is given is no constant
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_gate_that_is_not_finite_ends_all_ranks, op),
        cmocka_unit_test_prestate(a_router_of_nan_is_an_error_on_all_ranks, op),
        cmocka_unit_test_prestate(impossible_sizes_are_named, op),
        cmocka_unit_test_prestate(a_full_heap_is_an_error, op),
        cmocka_unit_test(operators_are_found_by_name),
        cmocka_unit_test(what_an_operator_does_not_do_is_named),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(void)
{
    int failed = 0;
    for (const char *const *op = cot_moe_operator_names(); *op; op++) failed += run(*op, COT_A2A_AUTO);
    return failed + run("bulk", COT_A2A_PADDED) + run("bulk", COT_A2A_ONE_SHOT);
}
