/* Every operator: right answers, exact bytes, the same bits wherever experts and tokens live. */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/moe/near.h"
#include "harness/moe/oracle_ffn.h"
#include "harness/moe/oracle_gate.h"
#include "harness/moe/outcome.h"
#include "harness/moe/plan.h"
#include "harness/moe/run.h"
#include "harness/moe/world.h"
#include "harness/poisoned.h"
#include "harness/seed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct variant {
    const char *name;
    cot_dtype type;
    int64_t hidden, intermediate, experts, top_k, shared;
    bool shared_gated, biased, gate_bias, correction;
    float limit;
    cot_gate rules;
};

#define SOFTMAX .rules = {.groups = 1, .group_limit = 1, .scaling = 1, .normalise = true}
static const struct variant variants[] = {
    {"mixtral", COT_F32, 32, 48, 8, 2, SOFTMAX},
    {"mixtral, bf16", COT_BF16, 32, 48, 8, 2, SOFTMAX},
    {"qwen2", COT_BF16, 24, 16, 10, 4, 40, true, SOFTMAX},
    {"deepseek-v2", COT_F32, 40, 24, 16, 4, 24, .rules = {.groups = 4, .group_limit = 2, .scaling = 4}},
    {"deepseek-v3", COT_BF16, 40, 24, 16, 4, 24, .correction = true,
     .rules = {.groups = 4,
               .group_limit = 2,
               .scaling = 2.5f,
               .score = COT_GATE_SIGMOID,
               .normalise = true,
               .group_score = COT_GROUP_TOP2_SUM,
               .epsilon = 1e-20f}},
    {"gpt-oss", COT_BF16, 33, 31, 12, 3, .biased = true, .gate_bias = true, .limit = 1.5f,
     .rules = {.groups = 1, .group_limit = 1, .scaling = 1, .score = COT_GATE_CHOSEN_SOFTMAX}},
    {"gpt-oss, fp32", COT_F32, 33, 31, 12, 3, .biased = true, .gate_bias = true, .limit = 1.5f,
     .rules = {.groups = 1, .group_limit = 1, .scaling = 1, .score = COT_GATE_CHOSEN_SOFTMAX}},
    {"one of five", COT_BF16, 16, 16, 5, 1, SOFTMAX},
    {"all of seven", COT_F32, 16, 16, 7, 7, 16, true, SOFTMAX},
    {"one expert of width one", COT_BF16, 1, 1, 1, 1, 1, false, SOFTMAX},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* How the layers of a test run. */
struct way {
    const char *name;
    const cot_moe_operator *op;
    cot_moe_combine combine;
    cot_moe_a2a a2a;
    cot_moe_dedup dedup;
};

static struct world world_of(const struct way *way, const struct variant *v, int64_t tokens,
                             struct draw *draw)
{
    cot_gate rules = v->rules;
    rules.hidden = v->hidden, rules.experts = v->experts, rules.top_k = v->top_k;
    float alpha = v->limit > 0 ? 1.702f : 0;
    cot_moe_options options = {.expert = {.type = v->type,
                                          .gate = cot_format_of(v->type),
                                          .up = cot_format_of(v->type),
                                          .down = cot_format_of(v->type),
                                          .hidden = v->hidden,
                                          .intermediate = v->intermediate,
                                          .biased = v->biased,
                                          .limit = v->limit,
                                          .alpha = alpha},
                               .shared = {.type = v->type,
                                          .gate = cot_format_of(v->type),
                                          .up = cot_format_of(v->type),
                                          .down = cot_format_of(v->type),
                                          .hidden = v->hidden,
                                          .intermediate = v->shared},
                               .experts = v->experts,
                               .top_k = v->top_k,
                               .combine = way->combine,
                               .a2a = way->a2a,
                               .dedup = way->dedup};
    struct world w =
        world_new(way->op, &options, &rules, v->gate_bias, v->correction, v->shared_gated, tokens, draw);
    world_solve(&w);
    return w;
}

static void check(const struct world *w, const struct plan *p)
{
    struct outcome *outcome = world_run(w, p);
    outcome_agrees(outcome, w, p);
    outcome_counts(outcome, w, p);
    outcome_free(outcome, w);
}

/* Every rank count with even shares and with drawn ones, three passes each (the third reuses every buffer).
 */
static void every_variant_on_1_to_8_ranks(void **state)
{
    struct draw draw = {test_seed(), 1, 0};
    for (int i = 0; i < VARIANTS; i++) {
        struct world w = world_of(*state, &variants[i], 23, &draw);
        for (int ranks = 1; ranks <= 8; ranks++) {
            struct plan even = plan_even(&w, ranks), drawn = plan_drawn(&w, ranks, &draw);
            even.passes = drawn.passes = 3;
            check(&w, &even);
            check(&w, &drawn);
        }
        world_free(&w);
    }
}

static void with_workers(void **state)
{
    struct draw draw = {test_seed(), 2, 0};
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 1, NULL), COT_OK);
    for (int i = 0; i < VARIANTS; i++) {
        struct world w = world_of(*state, &variants[i], 61, &draw);
        struct plan p = plan_drawn(&w, 3, &draw);
        p.pool = pool;
        check(&w, &p);
        world_free(&w);
    }
    cot_pool_close(pool);
}

static void many_ranks(void **state)
{
    struct draw draw = {test_seed(), 3, 0};
    const int counts[] = {16, 64};
    for (int i = 0; i < 2; i++) {
        struct world w =
            world_of(*state, &variants[3 + i], 50, &draw); // 16 experts: at 64 ranks most have none
        struct plan even = plan_even(&w, counts[i]), drawn = plan_drawn(&w, counts[i], &draw);
        check(&w, &even);
        check(&w, &drawn);
        world_free(&w);
    }
}

static void forked_ranks(void **state)
{
    struct draw draw = {test_seed(), 4, 0};
    for (int i = 1; i < 4; i += 2) {
        struct world w = world_of(*state, &variants[i], 19, &draw);
        struct plan p = plan_drawn(&w, 4, &draw);
        p.forked = true;
        p.passes = 3;
        check(&w, &p);
        world_free(&w);
    }
}

static void few_tokens(void **state)
{
    struct draw draw = {test_seed(), 5, 0};
    for (int64_t tokens = 1; tokens < 3; tokens++)
        for (int ranks = 1; ranks <= 5; ranks += 2) {
            struct world w = world_of(*state, &variants[2], tokens, &draw);
            struct plan p = plan_drawn(&w, ranks, &draw);
            for (int r = 0; r < ranks; r++) p.begin[r] = 0; // all home on the last rank
            p.begin[ranks] = tokens;
            p.passes = 2;
            check(&w, &p);
            world_free(&w);
        }
}

/* All tokens to one expert, which sits far from all of them; then all experts on one rank. */
static void hot_experts(void **state)
{
    struct draw draw = {test_seed(), 6, 0};
    struct world w = world_of(*state, &variants[7], 40, &draw);
    oracle_gate_set_weight(&w.gate, 0);
    for (int64_t h = 0; h < w.options.expert.hidden; h++) w.gate.plain[3 * w.options.expert.hidden + h] = 1;
    oracle_gate_pack(&w.gate);
    for (int64_t i = 0; i < w.tokens * w.options.expert.hidden; i++) w.x[i] = fabsf(w.x[i]);
    world_solve(&w);
    struct plan p = plan_even(&w, 4);
    for (int r = 0; r <= 4; r++) p.begin[r] = r ? w.tokens : 0;
    for (int64_t e = 0; e < w.options.experts; e++) p.rank[e] = 3;
    p.slots = (int32_t)w.options.experts;
    for (int64_t e = 0; e < w.options.experts; e++) p.slot[e] = (int32_t)e;
    struct outcome *outcome = world_run(&w, &p);
    outcome_agrees(outcome, &w, &p);
    outcome_counts(outcome, &w, &p);
    for (int64_t t = 0; t < w.tokens; t++) assert_int_equal(outcome->experts[t], 3);
    outcome_free(outcome, &w);
    world_free(&w);
}

/* More rows of one expert than a batch holds. */
static void experts_larger_than_a_batch(void **state)
{
    struct draw draw = {test_seed(), 7, 0};
    struct variant v = {"wide", COT_F32, 4, 4, 7, 7, 4, false, SOFTMAX};
    struct world w = world_of(*state, &v, 251, &draw);
    struct plan p = plan_even(&w, 1);
    check(&w, &p); // 7 x 251 rows: batches are cut between experts
    world_free(&w);
    /* 64 MiB of scratch hold few rows of so wide an expert: an expert's rows are cut, and
     * so are the shared expert's. */
    struct variant wide = {"very wide", COT_F32, 1, 90000, 1, 1, 9, true, SOFTMAX};
    w = world_of(*state, &wide, 70, &draw);
    for (int ranks = 1; ranks < 3; ranks++) {
        p = plan_even(&w, ranks);
        check(&w, &p);
    }
    world_free(&w);
}

/* The reference bits come from one rank and a token at a time. */
static void the_same_bits_everywhere(void **state)
{
    struct draw draw = {test_seed(), 8, 0};
    for (int i = 0; i < VARIANTS; i++) {
        struct world w = world_of(*state, &variants[i], 17, &draw);
        int64_t hidden = w.options.expert.hidden, top_k = w.options.top_k;
        size_t row_bytes = (size_t)hidden * sizeof(float);
        float *alone = poisoned((size_t)w.tokens * row_bytes);
        uint16_t experts[17 * COT_MAX_TOP_K];
        float weights[17 * COT_MAX_TOP_K];
        for (int64_t t = 0; t < w.tokens; t++) {
            struct plan one = plan_even(&w, 1);
            one.order[0] = t;
            one.begin[1] = 1;
            struct outcome *outcome = world_run(&w, &one);
            assert_int_equal(outcome->status[0], COT_OK);
            memcpy(alone + t * hidden, outcome->y, row_bytes);
            memcpy(experts + t * top_k, outcome->experts, (size_t)top_k * sizeof *experts);
            memcpy(weights + t * top_k, outcome->weights, (size_t)top_k * sizeof *weights);
            outcome_free(outcome, &w);
        }
        for (int ranks = 1 + (int)draw_below(&draw, 2); ranks <= 9; ranks += 2) {
            struct plan p = ranks / 2 % 2 ? plan_drawn(&w, ranks, &draw) : plan_even(&w, ranks);
            struct outcome *outcome = world_run(&w, &p);
            for (int64_t t = 0; t < w.tokens; t++) {
                int64_t of = p.order[t];
                assert_memory_equal(outcome->y + t * hidden, alone + of * hidden, row_bytes);
                assert_memory_equal(outcome->experts + t * top_k, experts + of * top_k,
                                    (size_t)top_k * sizeof *experts);
                assert_memory_equal(outcome->weights + t * top_k, weights + of * top_k,
                                    (size_t)top_k * sizeof *weights);
            }
            outcome_free(outcome, &w);
        }
        free(alone);
        world_free(&w);
    }
}

/* y as moe.h defines it, a row at a time with the same kernels: rounded rows, ascending experts, the shared
 * one last. */
static void sums_are_in_the_order_of_experts(void **state)
{
    struct draw draw = {test_seed(), 9, 0};
    for (int i = 0; i < VARIANTS; i++) {
        struct variant v = variants[i];
        v.shared_gated = false;
        struct world w = world_of(*state, &v, 30, &draw);
        const cot_kernels *kernels = w.options.kernels;
        int64_t hidden = v.hidden, rows = w.options.shared.intermediate ? v.top_k + 1 : v.top_k;
        uint8_t *scratch = poisoned(cot_ffn_scratch_bytes(&w.options.expert, 1, 1) +
                                    cot_ffn_scratch_bytes(&w.options.shared, 1, 1));
        uint8_t *typed = poisoned((size_t)hidden * sizeof(float));
        float *row = poisoned((size_t)hidden * sizeof(float)),
              *sum = poisoned((size_t)hidden * sizeof(float));
        for (int ranks = 1; ranks < 4; ranks++) {
            struct plan p = plan_drawn(&w, ranks, &draw);
            struct outcome *outcome = world_run(&w, &p);
            for (int64_t t = 0; t < w.tokens; t++) {
                memset(sum, 0, (size_t)hidden * sizeof *sum);
                for (int64_t k = 0; k < rows; k++) {
                    bool shared = k == v.top_k;
                    const struct oracle_ffn *network =
                        shared ? &w.shared : &w.experts[outcome->experts[t * v.top_k + k]];
                    kernels->scale(typed, v.type, w.x + p.order[t] * hidden, 1, hidden);
                    cot_ffn_job job = {.weights = network->packed, .count = 1, .x = typed, .y = row};
                    cot_ffn_run(kernels, NULL, &network->shape, &job, 1, scratch);
                    if (!shared)
                        kernels->scale(typed, v.type, row, outcome->weights[t * v.top_k + k], hidden);
                    kernels->add(sum, shared ? (void *)row : typed, shared ? COT_F32 : v.type, hidden);
                }
                assert_memory_equal(sum, outcome->y + t * hidden, (size_t)hidden * sizeof *sum);
            }
            outcome_free(outcome, &w);
        }
        free(scratch), free(typed), free(row), free(sum);
        world_free(&w);
    }
}

/* Replicas share the work, and change no bit. */
static void replicas(void **state)
{
    struct draw draw = {test_seed(), 10, 0};
    for (int i = 0; i < VARIANTS; i++) {
        struct world w = world_of(*state, &variants[i], 45, &draw);
        struct plan one = plan_even(&w, 1);
        struct outcome *expected = world_run(&w, &one);
        for (int ranks = 1; ranks < 7; ranks += 2) {
            struct plan p = plan_replicated(&w, ranks, &draw);
            p.passes = 2;
            struct outcome *outcome = world_run(&w, &p);
            outcome_agrees(outcome, &w, &p);
            outcome_counts(outcome, &w, &p);
            if (w.options.combine == COT_COMBINE_EXACT)
                assert_memory_equal(outcome->y, expected->y,
                                    (size_t)(w.tokens * w.options.expert.hidden) * sizeof(float));
            outcome_free(outcome, &w);
        }
        outcome_free(expected, &w);
        world_free(&w);
    }
}

/* A routing from elsewhere. */
static void given_routing(void **state)
{
    struct draw draw = {test_seed(), 11, 0};
    for (int i = 0; i < VARIANTS; i++) {
        struct world w = world_of(*state, &variants[i], 33, &draw);
        struct plan p = plan_drawn(&w, 1 + i % 4, &draw);
        p.given = true;
        check(&w, &p);
        world_free(&w);
    }
}

/* More tokens than a pass takes, many packets, tiles that fill and split; all on one rank, or spread. */
static void many_tokens(void **state)
{
    struct draw draw = {test_seed(), 12, 0};
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 1, NULL), COT_OK);
    for (int i = 0; i < 4; i++) {
        struct variant v = variants[i];
        v.hidden = 6 + i;
        v.intermediate = 5;
        struct world w = world_of(*state, &v, 700 + draw_below(&draw, WORLD_TOKENS - 700), &draw);
        for (int ranks = 1; ranks < 5; ranks++) {
            struct plan p = plan_even(&w, ranks), home = plan_even(&w, ranks);
            p.pool = home.pool = pool;
            p.passes = 2;
            for (int r = 1; r < ranks; r++) home.begin[r] = home.begin[ranks];
            check(&w, &p);
            check(&w, &home);
        }
        world_free(&w);
    }
    cot_pool_close(pool);
}

/* One place, any number of threads, again and again. */
static void the_same_bits_for_any_thread_count(void **state)
{
    struct draw draw = {test_seed(), 13, 0};
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 3, NULL), COT_OK);
    for (int i = 0; i < VARIANTS; i++) {
        struct world w = world_of(*state, &variants[i], 150, &draw);
        struct plan p = plan_drawn(&w, 3, &draw);
        const size_t bytes = (size_t)(w.tokens * w.options.expert.hidden) * sizeof(float);
        w.options.threads = 1;
        struct outcome *expected = world_run(&w, &p);
        p.pool = pool;
        for (w.options.threads = 1; w.options.threads <= 4; w.options.threads++) {
            struct outcome *outcome = world_run(&w, &p);
            outcome_agrees(outcome, &w, &p);
            assert_memory_equal(outcome->y, expected->y, bytes);
            outcome_free(outcome, &w);
        }
        outcome_free(expected, &w);
        world_free(&w);
    }
    cot_pool_close(pool);
}

/* The other operator's, which shares no code with this one's packets; and the bytes that they should take. */
static void the_same_bits_as_elsewhere(void **state)
{
    const struct way *way = *state;
    const cot_moe_operator *fused = cot_moe_operator_find("fused");
    struct draw draw = {test_seed(), 14, 0};
    for (int i = 0; i < VARIANTS; i++) {
        struct world w = world_of(way, &variants[i], 37, &draw);
        const size_t bytes = (size_t)(w.tokens * w.options.expert.hidden) * sizeof(float);
        for (int ranks = 1 + (int)draw_below(&draw, 2); ranks <= 8; ranks += 2) {
            const int kind = (ranks / 2 + i) % 3;
            struct plan p = kind == 0   ? plan_even(&w, ranks)
                            : kind == 1 ? plan_drawn(&w, ranks, &draw)
                                        : plan_replicated(&w, ranks, &draw);
            p.passes = 1 + kind; // the third reuses every buffer
            p.warmed = true;
            struct world other = w;
            other.op = fused;
            other.options.a2a = COT_A2A_AUTO, other.options.dedup = COT_DEDUP_AUTO;
            if (kind == 0) w.options.home_tokens = (w.tokens + ranks - 1) / ranks;
            struct outcome *outcome = world_run(&w, &p), *expected = world_run(&other, &p);
            w.options.home_tokens = 0;
            outcome_counts(outcome, &w, &p);
            assert_memory_equal(outcome->y, expected->y, bytes);
            outcome_free(expected, &w);
            outcome_free(outcome, &w);
        }
        world_free(&w);
    }
}

static int run_exact(struct way *way)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_variant_on_1_to_8_ranks, way),
        cmocka_unit_test_prestate(with_workers, way),
        cmocka_unit_test_prestate(many_ranks, way),
        cmocka_unit_test_prestate(forked_ranks, way),
        cmocka_unit_test_prestate(few_tokens, way),
        cmocka_unit_test_prestate(hot_experts, way),
        cmocka_unit_test_prestate(experts_larger_than_a_batch, way),
        cmocka_unit_test_prestate(the_same_bits_everywhere, way),
        cmocka_unit_test_prestate(sums_are_in_the_order_of_experts, way),
        cmocka_unit_test_prestate(replicas, way),
        cmocka_unit_test_prestate(given_routing, way),
        cmocka_unit_test_prestate(many_tokens, way),
        cmocka_unit_test_prestate(the_same_bits_for_any_thread_count, way),
    };
    return cmocka_run_group_tests_name(way->name, tests, NULL, NULL);
}

/* Bulk's ways of sending rows differ in what travels, not in what is computed. */
static int run_way(struct way *way)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(many_ranks, way),
        cmocka_unit_test_prestate(forked_ranks, way),
        cmocka_unit_test_prestate(few_tokens, way),
        cmocka_unit_test_prestate(hot_experts, way),
        cmocka_unit_test_prestate(the_same_bits_as_elsewhere, way),
        cmocka_unit_test_prestate(the_same_bits_for_any_thread_count, way),
    };
    return cmocka_run_group_tests_name(way->name, tests, NULL, NULL);
}

static int run_reduced(struct way *way)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_variant_on_1_to_8_ranks, way),
        cmocka_unit_test_prestate(with_workers, way),
        cmocka_unit_test_prestate(many_ranks, way),
        cmocka_unit_test_prestate(forked_ranks, way),
        cmocka_unit_test_prestate(few_tokens, way),
        cmocka_unit_test_prestate(hot_experts, way),
        cmocka_unit_test_prestate(replicas, way),
        cmocka_unit_test_prestate(given_routing, way),
        cmocka_unit_test_prestate(many_tokens, way),
        cmocka_unit_test_prestate(the_same_bits_for_any_thread_count, way),
    };
    return cmocka_run_group_tests_name(way->name, tests, NULL, NULL);
}

int main(void)
{
    const cot_moe_operator *bulk = cot_moe_operator_find("bulk");
    int failed = 0;
    for (const char *const *op = cot_moe_operator_names(); *op; op++) {
        struct way exact = {*op, cot_moe_operator_find(*op), COT_COMBINE_EXACT, 0, 0};
        failed += run_exact(&exact);
    }
    struct way reduced = {"fused, reduced", cot_moe_operator_find("fused"), COT_COMBINE_REDUCED, 0, 0};
    failed += run_reduced(&reduced);
    struct way ways[] = {
        {"bulk, padded", bulk, COT_COMBINE_EXACT, COT_A2A_PADDED, COT_DEDUP_OFF},
        {"bulk, one-shot", bulk, COT_COMBINE_EXACT, COT_A2A_ONE_SHOT, COT_DEDUP_OFF},
        {"bulk, one-shot, dedup", bulk, COT_COMBINE_EXACT, COT_A2A_ONE_SHOT, COT_DEDUP_ON},
        {"bulk, two-phase, dedup", bulk, COT_COMBINE_EXACT, COT_A2A_TWO_PHASE, COT_DEDUP_ON},
        {"bulk, one-shot, reduced", bulk, COT_COMBINE_REDUCED, COT_A2A_ONE_SHOT, COT_DEDUP_ON},
        {"bulk, two-phase, reduced", bulk, COT_COMBINE_REDUCED, COT_A2A_TWO_PHASE, COT_DEDUP_ON},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) failed += run_way(&ways[i]);
    return failed;
}
