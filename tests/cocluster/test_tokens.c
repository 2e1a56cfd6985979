/* Tokens to ranks for given groups of experts, against all assignments of few tokens; and the cross-entropy method, which
 * gives draws up early, against itself with every draw valued to its end. */
#include "harness/cmocka.h"
#include "harness/cocluster/samples.h"
#include "harness/seed.h"

#include "cocluster/solver.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static cot_error error;
static sample s;

static cot_cocluster *open_problem(cot_grouper **grouper, const cot_affinity *a, int32_t D, double balance,
                                   const char *method)
{
    const cot_group_options options = {
        .size = sizeof options, .method = method, .ranks = D, .token_balance = balance, .seed = test_seed()};
    if (cot_grouper_open(grouper, a, &options, &error) != COT_OK) fail_msg("%s", error.message);
    return cot_grouper_problem(*grouper);
}

/* Few tokens of very unequal load, each calling every expert now and then. */
static void make_heavy(struct draw *draw, int32_t E, int32_t N)
{
    int64_t at = 0;
    s.layer[0] = (cot_affinity){E, N, s.offsets[0], s.expert[0], s.count[0]};
    s.offsets[0][0] = 0;
    for (int32_t i = 0; i < N; i++) {
        const int32_t most = below(draw, 3) ? 6 : 60;
        for (int32_t e = 0; e < E; e++)
            if (below(draw, 2) || e == i % E) {
                s.expert[0][at] = (uint16_t)e;
                s.count[0][at++] = 1 + (uint32_t)below(draw, most);
            }
        s.offsets[0][i + 1] = at;
    }
}

/* Random groups of the sizes that the problem asks. */
static void deal_experts(struct draw *draw, int32_t *expert_rank, const cot_cocluster *p)
{
    int32_t e = 0;
    for (int32_t d = 0; d < p->D; d++)
        for (int32_t k = 0; k < p->size[d]; k++) expert_rank[e++] = d;
    for (e = p->E - 1; e > 0; e--) {
        const int32_t other = below(draw, e + 1), held = expert_rank[e];
        expert_rank[e] = expert_rank[other];
        expert_rank[other] = held;
    }
}

/* Checked: the balance, and the gain counted anew. */
static double check(const int32_t *token_rank, double gained, const cot_cocluster *p)
{
    double load[MAX_D] = {0}, sum = 0;
    for (int64_t i = 0; i < p->N; i++) {
        assert_in_range(token_rank[i], 0, p->D - 1);
        load[token_rank[i]] += (double)p->token_load[i];
        sum += (double)p->gain[token_rank[i] * p->N + i];
    }
    for (int32_t d = 0; d < p->D; d++) assert_true(load[d] <= p->token_limit);
    assert_true(fabs(gained - sum) < 1e-6);
    return sum;
}

/* The most of all assignments within the limit. */
static double best_of_all(const cot_cocluster *p, double *load, int64_t i)
{
    double most = -INFINITY;
    if (i == p->N) return 0;
    for (int32_t d = 0; d < p->D; d++) {
        if (load[d] + (double)p->token_load[i] > p->token_limit) continue;
        load[d] += (double)p->token_load[i];
        most = fmax(most, (double)p->gain[d * p->N + i] + best_of_all(p, load, i + 1));
        load[d] -= (double)p->token_load[i];
    }
    return most;
}

static void test_all_assignments(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    double repaired = 0, settled = 0, truth = 0;
    for (int n = 0; n < 400; n++) {
        const int32_t D = 2 + below(draw, 2), E = D + below(draw, 6), N = 4 + below(draw, 6);
        cot_grouper *grouper;
        int32_t rank[MAX_N], expert_rank[MAX_E];
        double price[MAX_D] = {0}, load[MAX_D] = {0};
        make_heavy(draw, E, N);
        const cot_cocluster *p = open_problem(&grouper, s.layer, D, 0.05 * below(draw, 6), "coterie");
        deal_experts(draw, expert_rank, p);
        cot_cocluster_gains(p->gain, p, expert_rank);
        const double upper = cot_cocluster_token_prices(rank, price, 0, p, p->gain);
        const double bound = cot_cocluster_token_bound(price, 0, p, p->gain), best = best_of_all(p, load, 0);
        assert_true(upper >= best * (1 - 0x1p-8) && bound >= best - 1e-6 && best >= 0);
        const double enough = bound * (1 + 0.01 * below(draw, 9));
        const double early = cot_cocluster_token_bound(price, enough, p, p->gain);
        assert_true(early >= bound && early <= fmax(enough, bound));
        memset(rank, 0x55, sizeof rank);
        const double plain = cot_cocluster_token_settle(rank, price, 0, 7, p, p->gain);
        check(rank, plain, p);
        memset(rank, 0x55, sizeof rank);
        const double tried = cot_cocluster_token_settle(rank, price, 16, 7, p, p->gain);
        check(rank, tried, p);
        assert_true(tried >= plain && tried <= best + 1e-6);
        repaired += plain;
        settled += tried;
        truth += best;
        cot_grouper_close(grouper);
    }
    printf("of all that is possible: repaired %.4f, settled %.4f\n", repaired / truth, settled / truth);
    assert_true(truth - settled < 0.6 * (truth - repaired) && settled > 0.97 * truth);
}

/* Tries differ by the stream and by nothing else. */
static void test_streams(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    int differ = 0;
    for (int n = 0; n < 40; n++) {
        cot_grouper *grouper;
        int32_t a[MAX_N], b[MAX_N], expert_rank[MAX_E];
        double price[MAX_D] = {0};
        make_heavy(draw, 16, 60);
        const cot_cocluster *p = open_problem(&grouper, s.layer, 8, 0.05, "coterie");
        deal_experts(draw, expert_rank, p);
        cot_cocluster_gains(p->gain, p, expert_rank);
        const double gained = cot_cocluster_token_step(a, price, p, p->gain);
        check(a, gained, p);
        const double first = cot_cocluster_token_settle(a, price, 3, 40, p, p->gain);
        const double again = cot_cocluster_token_settle(b, price, 3, 40, p, p->gain);
        assert_true(first == again);
        assert_memory_equal(a, b, (size_t)p->N * sizeof *a);
        /* More tries are those and more. */
        assert_true(cot_cocluster_token_settle(b, price, 9, 40, p, p->gain) >= first);
        cot_cocluster_token_settle(b, price, 3, 1000, p, p->gain);
        differ += memcmp(a, b, (size_t)p->N * sizeof *a) != 0;
        cot_grouper_close(grouper);
    }
    assert_true(differ > 0);
}

/* Prices given up early say no more than that they would have ended below. */
static void test_given_up(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    int given_up = 0;
    for (int n = 0; n < 60; n++) {
        const int32_t D = 2 + below(draw, 7);
        cot_grouper *grouper;
        int32_t rank[MAX_N], same[MAX_N], expert_rank[MAX_E];
        make_sample(&s, draw, 1, 8 + below(draw, 16), 20 + below(draw, 100), D, 3);
        const cot_cocluster *p = open_problem(&grouper, s.layer, D, 0.1, "ce");
        deal_experts(draw, expert_rank, p);
        cot_cocluster_gains(p->gain, p, expert_rank);
        double price[MAX_D] = {0};
        const double whole = cot_cocluster_token_prices(rank, price, 0, p, p->gain);
        for (int k = -20; k <= 20; k++) {
            double now[MAX_D] = {0};
            const double least = whole * (1 + 0.002 * k);
            const double got = cot_cocluster_token_prices(same, now, least, p, p->gain);
            assert_true(got >= whole);
            if (whole < least) {
                assert_true(got < least);
                given_up++;
                continue;
            }
            assert_true(got == whole);
            assert_memory_equal(now, price, (size_t)D * sizeof *now);
            assert_memory_equal(same, rank, (size_t)p->N * sizeof *rank);
        }
        cot_grouper_close(grouper);
    }
    assert_true(given_up > 0);
}

static void test_cross_entropy(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 9};
    for (int n = 0; n < 12; n++) {
        const int32_t D = 2 + below(draw, 5);
        cot_grouper *early, *whole;
        cot_grouping a, b;
        make_sample(&s, draw, 1, 2 * D + below(draw, 12), 40 + below(draw, 60), D, n % 3 ? 1 : 2);
        open_problem(&early, s.layer, D, 0.1, "ce");
        cot_cocluster *p = open_problem(&whole, s.layer, D, 0.1, "ce");
        p->method->end(p);
        p->method = &cot_cocluster_ce_whole;
        assert_int_equal(p->method->begin(p, &error), COT_OK);
        for (int k = 0; k < 12; k++) {
            assert_int_equal(cot_grouper_iterate(early, 1, &error), COT_OK);
            assert_int_equal(cot_grouper_iterate(whole, 1, &error), COT_OK);
            cot_grouper_best(&a, early);
            cot_grouper_best(&b, whole);
            assert_true(a.local == b.local && a.iterations == b.iterations);
            assert_memory_equal(a.expert_rank, b.expert_rank, (size_t)p->E * sizeof *a.expert_rank);
            assert_memory_equal(a.token_rank, b.token_rank, (size_t)p->N * sizeof *a.token_rank);
        }
        cot_grouper_close(early);
        cot_grouper_close(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_assignments), cmocka_unit_test(test_streams),
                                       cmocka_unit_test(test_given_up), cmocka_unit_test(test_cross_entropy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
