/* The exact methods against every placement there is (tiny cases), against each other, and against what they prove. A
 * watchdog ends what does not end. */
#include "placement/problem.h"
#include "placement/verify.h"

#include "base/rng.h"
#include "harness/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { MOST = 4096 };

/* A random problem; arrays are filled in place. */
typedef struct instance {
    cot_problem p;
    double load[MOST], cost[MOST], pair[MOST * 8];
    int32_t c_layer[64], c_exp[64];
    uint64_t seed, at;
} instance;

static double uniform(instance *i)
{
    return cot_random_uniform(i->seed, 1, i->at++);
}
static int32_t below(instance *i, int32_t n)
{
    return (int32_t)(uniform(i) * n);
}

/* kind: 0 small whole loads (many ties), 1 large whole ones, 2 real ones over many powers of ten, 3 and 4 decimals of two
 * and of four digits. */
static double draw(instance *i, int kind)
{
    if (kind == 0) return below(i, 5);
    if (kind == 1) return below(i, 1000000);
    if (kind == 3) return below(i, 2000) / 100.0;
    if (kind == 4) return below(i, 100000000) / 1e4;
    return exp(12 * uniform(i) - 6);
}

static void make(instance *i, int32_t L, int32_t E, int32_t S, int load_kind, int cost_kind, bool pairs)
{
    i->p = (cot_problem){.L = L, .E = E, .S = S, .load = i->load, .c_layer = i->c_layer, .c_exp = i->c_exp};
    for (int32_t k = 0; k < L * E; k++) i->load[k] = draw(i, load_kind);
    for (int32_t k = 0; k < L * S; k++) i->cost[k] = draw(i, cost_kind);
    for (int32_t k = 0; k < L * E * S; k++) i->pair[k] = draw(i, cost_kind);
    for (int32_t s = 1; s < S; s++) // some ranks are alike
        if (below(i, 3) == 0)
            for (int32_t l = 0; l < L; l++) i->cost[l * S + s] = i->cost[l * S + s - 1];
    if (pairs)
        i->p.pair_cost = i->pair;
    else
        i->p.cost = i->cost;
    bool equal = below(i, 2);
    int32_t a = below(i, E + 1), b = below(i, L * E + 1);
    for (int32_t s = 0; s < S; s++) {
        i->c_layer[s] = equal ? a : below(i, E + 1);
        i->c_exp[s] = equal ? b : below(i, L * E + 1);
    }
}

/* Whether some placement respects the capacities, and the least that one costs. */
static double best_cost(const cot_problem *p, int32_t at, int32_t *layer_left, int32_t *left, double sum,
                        double best)
{
    if (at == p->L * p->E) return sum < best ? sum : best;
    int32_t l = at / p->E;
    for (int32_t s = 0; s < p->S; s++) {
        int32_t *here = &layer_left[l * p->S + s];
        if (!*here || !left[s]) continue;
        --*here;
        left[s]--;
        best = best_cost(p, at + 1, layer_left, left, sum + cot_problem_cost(p, l, at % p->E, s), best);
        ++*here;
        left[s]++;
    }
    return best;
}

static double exhaust(const cot_problem *p)
{
    int32_t layer_left[64], left[64];
    for (int32_t s = 0; s < p->S; s++) {
        left[s] = p->c_exp[s];
        for (int32_t l = 0; l < p->L; l++) layer_left[l * p->S + s] = p->c_layer[s];
    }
    return best_cost(p, 0, layer_left, left, 0, INFINITY);
}

/* Solves, verifies, demands a gap of exactly 0; returns the objective, or infinity when it is infeasible. */
static double solve(cot_method *method, const cot_problem *p, bool *feasible)
{
    cot_assignment a;
    cot_error error;
    cot_double_double objective, dual;
    assert_int_equal(cot_assignment_open(&a, p, &error), COT_OK);
    memset(a.rank, 0xa5, (size_t)(p->L * p->E) * sizeof *a.rank);
    cot_status status = method(&a, p, &error);
    *feasible = status == COT_OK;
    if (status == COT_OK) {
        assert_true(a.priced);
        if (cot_assignment_verify(&objective, &dual, &a, p, &error) != COT_OK) fail_msg("%s", error.message);
        if (objective.high != dual.high)
            fail_msg("L %d E %d S %d: objective %.17g, dual %.17g", p->L, p->E, p->S, objective.high,
                     dual.high);
    } else
        assert_int_equal(status, COT_INVALID_ARGUMENT);
    cot_assignment_close(&a);
    return status == COT_OK ? objective.high : INFINITY;
}

static bool near(double a, double b)
{
    return (isinf(a) && isinf(b)) || fabs(a - b) <= 1e-12 * fabs(b) + 1e-300;
}

static void test_tiny(void **state)
{
    (void)state;
    static instance i;
    i.seed = test_seed();
    int solved = 0;
    for (int n = 0; n < 3000; n++) {
        int32_t L = 1 + below(&i, 3), E = 1 + below(&i, L == 1 ? 6 : L == 2 ? 4 : 2), S = 1 + below(&i, 3);
        make(&i, L, E, S, below(&i, 5), below(&i, 5), n % 2);
        double best = exhaust(&i.p);
        bool feasible;
        double got = solve(n % 2 ? cot_place_pairs : cot_place_chain, &i.p, &feasible);
        if (!near(got, best)) fail_msg("case %d: got %.17g, best %.17g", n, got, best);
        solved += feasible;
        if (!(n % 2)) assert_true(near(solve(cot_place_pairs, &i.p, &feasible), best));
    }
    assert_in_range(solved, 500, 2900);
}

static void test_small(void **state)
{
    (void)state;
    static instance i;
    i.seed = test_seed() + 1;
    int solved = 0;
    for (int n = 0; n < 600; n++) {
        int32_t L = 1 + below(&i, 8), E = 1 + below(&i, 16), S = 1 + below(&i, 16);
        make(&i, L, E, S, below(&i, 5), below(&i, 5), false);
        int32_t each = (E + S - 1) / S, all = (L * E + S - 1) / S, more = below(&i, 3), most = below(&i, 3);
        for (int32_t s = 0; n % 4 && s < S; s++) { // near the least that suffices
            i.c_layer[s] = each + more;
            i.c_exp[s] = all + most;
        }
        bool feasible, other;
        double a = solve(cot_place_chain, &i.p, &feasible), b = solve(cot_place_pairs, &i.p, &other);
        assert_int_equal(feasible, other);
        if (!near(a, b)) fail_msg("case %d: %.17g and %.17g", n, a, b);
        solved += feasible;
    }
    assert_in_range(solved, 300, 600);
}

/* Whole loads at costs of two decimals, as multiples of 2^-59: below 2^78 and exact. */
__extension__ typedef __int128 fixed;

static fixed to_fixed(cot_double_double x)
{
    return (fixed)ldexp(x.high, 59) + (fixed)floor(ldexp(x.low, 59));
}

static fixed exact_cost(const cot_problem *p, int32_t at, int32_t s)
{
    int32_t l = at / p->E;
    if (p->pair_cost) return (fixed)ldexp(p->pair_cost[at * p->S + s], 59);
    return (fixed)p->load[at] * (fixed)ldexp(p->cost[l * p->S + s], 59);
}

static fixed exact_best(const cot_problem *p, int32_t at, int32_t *layer_left, int32_t *left, fixed sum,
                        fixed best)
{
    if (at == p->L * p->E) return best < 0 || sum < best ? sum : best;
    for (int32_t s = 0; s < p->S; s++) {
        int32_t *here = &layer_left[at / p->E * p->S + s];
        if (!*here || !left[s]) continue;
        --*here;
        left[s]--;
        best = exact_best(p, at + 1, layer_left, left, sum + exact_cost(p, at, s), best);
        ++*here;
        left[s]++;
    }
    return best;
}

/* Objective and bound are the least cost to the last bit: the double next to it, though 0.3 and 1.3 are less than 1 apart
 * in the first place, and no bound is above it. */
static void test_decimals(void **state)
{
    (void)state;
    static instance i;
    i.seed = test_seed() + 2;
    int solved = 0;
    for (int n = 0; n < 2000; n++) {
        int32_t L = 1 + below(&i, 2), E = 1 + below(&i, L == 1 ? 6 : 3), S = 1 + below(&i, 4);
        int32_t layer_left[16], left[16];
        make(&i, L, E, S, 0, 0, n % 2);
        const double tenths = below(&i, 100) / 100.0;
        double *cost = n % 2 ? i.pair : i.cost;
        for (int32_t k = 0; k < L * E; k++) i.load[k] = below(&i, 1000);
        for (int32_t k = 0; k < L * S * (n % 2 ? E : 1); k++)
            cost[k] = below(&i, 2) ? below(&i, 5) + tenths : below(&i, 2000) / 100.0;
        for (int32_t s = 0; s < S; s++) {
            left[s] = i.c_exp[s];
            for (int32_t l = 0; l < L; l++) layer_left[l * S + s] = i.c_layer[s];
        }
        cot_assignment a;
        cot_error error;
        cot_double_double objective, dual;
        cot_method *method = n % 2 ? cot_place_pairs : cot_place_chain;
        assert_int_equal(cot_assignment_open(&a, &i.p, &error), COT_OK);
        if (method(&a, &i.p, &error) == COT_OK) {
            const fixed best = exact_best(&i.p, 0, layer_left, left, 0, -1);
            fixed got = 0;
            assert_int_equal(cot_assignment_verify(&objective, &dual, &a, &i.p, &error), COT_OK);
            for (int32_t k = 0; k < L * E; k++) got += exact_cost(&i.p, k, a.rank[k]);
            if (got != best) fail_msg("case %d: the placement is not the cheapest", n);
            if (objective.high != ldexp((double)best, -59) || dual.high != objective.high)
                fail_msg("case %d: %.17g and %.17g, not %.17g", n, objective.high, dual.high,
                         ldexp((double)best, -59));
            if (to_fixed(dual) > best) fail_msg("case %d: the bound is above the optimum", n);
            solved++;
        }
        cot_assignment_close(&a);
    }
    assert_in_range(solved, 300, 1900);
}

/* Numbers over hundreds of powers of ten: the methods end, and what they prove is no more than what is so. */
static void test_extremes(void **state)
{
    (void)state;
    static instance i;
    i.seed = test_seed() + 3;
    for (int n = 0; n < 1000; n++) {
        int32_t L = 1 + below(&i, 2), E = 1 + below(&i, L == 1 ? 6 : 3), S = 1 + below(&i, 4);
        make(&i, L, E, S, 0, 0, n % 2);
        const double wide = n % 3 ? 300 : 40, middle = n % 4 ? 0 : -600;
        for (int32_t k = 0; k < L * E; k++) i.load[k] = exp(wide * (uniform(&i) - 0.5));
        for (int32_t k = 0; k < L * S; k++) i.cost[k] = exp(wide * (uniform(&i) - 0.5) + middle);
        for (int32_t k = 0; k < L * E * S; k++) i.pair[k] = exp(2 * wide * (uniform(&i) - 0.5) + middle);
        cot_assignment a;
        cot_error error;
        cot_double_double objective, dual;
        cot_method *method = n % 2 ? cot_place_pairs : cot_place_chain;
        assert_int_equal(cot_assignment_open(&a, &i.p, &error), COT_OK);
        if (method(&a, &i.p, &error) == COT_OK) {
            const double best = exhaust(&i.p);
            assert_int_equal(cot_assignment_verify(&objective, &dual, &a, &i.p, &error), COT_OK);
            assert_true(dual.high <= objective.high);
            if (dual.high > best * (1 + 1e-12) + 1e-320)
                fail_msg("case %d: bound %g above %g", n, dual.high, best);
        }
        cot_assignment_close(&a);
    }
}

static void demand(const cot_problem *p, const char *words)
{
    cot_assignment a;
    cot_error error;
    assert_int_equal(cot_assignment_open(&a, p, &error), COT_OK);
    assert_int_equal(cot_place_chain(&a, p, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, words)) fail_msg("'%s' lacks '%s'", error.message, words);
    cot_assignment_close(&a);
}

static void test_infeasible(void **state)
{
    (void)state;
    const double load[8] = {1, 1, 1, 1, 1, 1, 1, 1}, cost[4] = {0, 1, 1, 0};
    cot_problem p = {2, 4, 2, load, cost, NULL, (const int32_t[]){1, 2}, (const int32_t[]){9, 9}};
    demand(&p, "c_layer is too small: 2 ranks hold 3 experts of a layer, 1 fewer than its 4");
    p.c_layer = (const int32_t[]){4, 4};
    p.c_exp = (const int32_t[]){3, 3};
    demand(&p, "c_exp is too small: 2 ranks hold 6 experts, 2 fewer than the 8 of 2 layers");
    p.c_layer = (const int32_t[]){1, 4};
    p.c_exp = (const int32_t[]){5, 4};
    demand(&p, "c_layer and c_exp together are too small: 2 ranks hold 6 experts, 2 fewer");
    p.c_layer = p.c_exp = (const int32_t[]){8, 8};
    p.cost = (const double[]){0, 1e300, 1, 0};
    demand(&p, "loads or costs are too large");
}

/* The verifier finds what is wrong with a placement. */
static void test_verifier(void **state)
{
    (void)state;
    const double load[4] = {5, 1, 1, 5}, cost[4] = {0, 1, 1, 0};
    cot_problem p = {2, 2, 2, load, cost, NULL, (const int32_t[]){1, 1}, (const int32_t[]){2, 2}};
    cot_assignment a;
    cot_error error;
    cot_double_double objective, dual;
    assert_int_equal(cot_assignment_open(&a, &p, &error), COT_OK);
    assert_int_equal(cot_place_chain(&a, &p, &error), COT_OK);
    assert_int_equal(cot_assignment_verify(&objective, &dual, &a, &p, &error), COT_OK);
    assert_true(objective.high == 2 && dual.high == 2);
    a.price[0] = cot_double_double_of(0.5);
    assert_int_equal(cot_assignment_verify(&objective, &dual, &a, &p, &error), COT_OK);
    assert_true(dual.high < 2);
    a.price[0] = cot_double_double_of(-1);
    assert_int_equal(cot_assignment_verify(&objective, &dual, &a, &p, &error), COT_INVALID_ARGUMENT);
    a.price[0] = cot_double_double_of(0);
    a.rank[0] = 1 - a.rank[0];
    assert_int_equal(cot_assignment_verify(&objective, &dual, &a, &p, &error), COT_INVALID_ARGUMENT);
    a.rank[0] = 2;
    assert_int_equal(cot_assignment_verify(&objective, &dual, &a, &p, &error), COT_INVALID_ARGUMENT);
    cot_assignment_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiny),       cmocka_unit_test(test_small),
                                       cmocka_unit_test(test_decimals),   cmocka_unit_test(test_extremes),
                                       cmocka_unit_test(test_infeasible), cmocka_unit_test(test_verifier)};
    alarm(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
