/* The baselines of co-clustering: METIS, k-means, spectral. */
#include "cocluster/eigen.h"
#include "cocluster/solver.h"

#include "base/error.h"
#include "base/rng.h"
#include "harness/seed.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_E = 24, MAX_N = 200, MAX_D = 8 };

static const char *const methods[] = {"metis", "kmeans", "spectral"};
enum { METHODS = 3 };

typedef struct layer {
    cot_affinity affinity;
    int64_t offsets[MAX_N + 1];
    uint16_t expert[MAX_N * MAX_E];
    uint32_t count[MAX_N * MAX_E];
} layer;

static uint64_t drawn;
static int32_t below(int32_t n)
{
    return (int32_t)(cot_random_bits(test_seed(), 7, drawn++) % (uint64_t)n);
}

static void begin_layer(layer *a, int32_t E)
{
    a->affinity = (cot_affinity){E, 0, a->offsets, a->expert, a->count};
    a->offsets[0] = 0;
}

static void add_token(layer *a, const uint32_t *calls)
{
    int64_t at = a->offsets[a->affinity.n_tokens];
    for (int32_t e = 0; e < a->affinity.n_experts; e++)
        if (calls[e]) {
            a->expert[at] = (uint16_t)e;
            a->count[at++] = calls[e];
        }
    a->offsets[++a->affinity.n_tokens] = at;
}

static cot_group_options options_of(const char *method, int32_t ranks, double balance)
{
    return (cot_group_options){.size = sizeof(cot_group_options),
                               .method = method,
                               .ranks = ranks,
                               .token_balance = balance,
                               .seed = test_seed()};
}

/* The best groups after some iterations, checked: sizes, the balance, and what is local, counted anew. */
static cot_grouping solve(cot_grouper **grouper, const layer *a, cot_group_options options,
                          int64_t iterations)
{
    cot_error error = {0};
    cot_grouping best;
    int32_t held[COT_TRACE_MAX_RANKS] = {0}, E = a->affinity.n_experts, D = options.ranks;
    uint64_t load[COT_TRACE_MAX_RANKS] = {0}, local = 0, total = 0;
    if (cot_grouper_open(grouper, &a->affinity, &options, &error) != COT_OK ||
        cot_grouper_iterate(*grouper, iterations, &error) != COT_OK)
        fail_msg("%s: %s", options.method, error.message);
    cot_grouper_best(&best, *grouper);
    for (int32_t e = 0; e < E; e++) {
        assert_in_range(best.expert_rank[e], 0, D - 1);
        held[best.expert_rank[e]]++;
    }
    for (int32_t d = 0; d < D; d++) assert_in_range(held[d], E / D, (E + D - 1) / D);
    for (int64_t i = 0; i < a->affinity.n_tokens; i++)
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) {
            int32_t d = best.token_rank[i];
            assert_in_range(d, 0, D - 1);
            load[d] += a->count[k];
            total += a->count[k];
            local += best.expert_rank[a->expert[k]] == d ? a->count[k] : 0;
        }
    const cot_cocluster *p = cot_grouper_problem(*grouper);
    for (int32_t d = 0; d < D; d++) assert_true((double)load[d] <= p->token_limit);
    assert_int_equal(best.local, local);
    assert_int_equal(best.total, total);
    assert_true((double)best.local <= best.bound * (1 + 1e-9));
    return best;
}

/* Tokens of D kinds, each calling a block of experts that are scattered over the layer, and now and then another. */
static void plant(layer *a, int32_t *block, int32_t E, int32_t D, int32_t N)
{
    begin_layer(a, E);
    for (int32_t e = 0; e < E; e++) block[e] = e % D;
    for (int32_t e = E - 1; e > 0; e--) {
        int32_t other = below(e + 1), held = block[e];
        block[e] = block[other];
        block[other] = held;
    }
    for (int32_t i = 0; i < N; i++) {
        uint32_t calls[MAX_E] = {0};
        for (int32_t e = 0; e < E; e++)
            calls[e] = block[e] == i % D ? (uint32_t)(8 + below(5)) : (uint32_t)(below(6) == 0);
        add_token(a, calls);
    }
}

static void test_planted(void **state)
{
    (void)state;
    for (int n = 0; n < 6; n++) {
        static layer a;
        int32_t D = n % 2 ? 3 : 4, E = n % 3 == 2 ? 2 * D + 1 : 24, block[MAX_E];
        plant(&a, block, E, D, 120);
        for (int m = 0; m < METHODS; m++) {
            cot_grouper *grouper;
            cot_grouping best = solve(&grouper, &a, options_of(methods[m], D, 0.3), 40);
            for (int32_t e = 0; e < E; e++)
                for (int32_t f = 0; f < E; f++)
                    if ((best.expert_rank[e] == best.expert_rank[f]) != (block[e] == block[f]))
                        fail_msg("%s: case %d: experts %d and %d", methods[m], n, e, f);
            cot_grouper_close(grouper);
        }
    }
}

/* The most that can be local, of all groups of experts with these sizes, tokens going anywhere. */
static uint64_t most_local(const layer *a, int32_t *rank, int32_t e, const int32_t *size, int32_t *held,
                           int32_t D)
{
    uint64_t most = 0;
    if (e == a->affinity.n_experts) {
        for (int64_t i = 0; i < a->affinity.n_tokens; i++) {
            uint64_t on[MAX_D] = {0}, best = 0;
            for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) on[rank[a->expert[k]]] += a->count[k];
            for (int32_t d = 0; d < D; d++) best = on[d] > best ? on[d] : best;
            most += best;
        }
        return most;
    }
    for (int32_t d = 0; d < D; d++) {
        if (held[d] == size[d]) continue;
        held[d]++;
        rank[e] = d;
        uint64_t here = most_local(a, rank, e + 1, size, held, D);
        most = here > most ? here : most;
        held[d]--;
    }
    return most;
}

static void test_tiny(void **state)
{
    (void)state;
    double reached[METHODS] = {0}, best_of_all = 0;
    for (int n = 0; n < 60; n++) {
        static layer a;
        int32_t D = 1 + below(4), E = D + below(8 - D), N = D + below(12), size[MAX_D], held[MAX_D] = {0};
        int32_t rank[MAX_E];
        begin_layer(&a, E);
        for (int32_t i = 0; i < N; i++) {
            uint32_t calls[MAX_E] = {0};
            for (int32_t e = 0; e < E; e++) calls[e] = below(3) ? 0 : (uint32_t)(1 + below(20));
            calls[below(E)]++;
            add_token(&a, calls);
        }
        if (n % 5 == 0) // a row of no activations is a token all the same
            add_token(&a, (const uint32_t[MAX_E]){0});
        for (int32_t d = 0; d < D; d++) size[d] = E / D + (d < E % D);
        uint64_t most = most_local(&a, rank, 0, size, held, D);
        best_of_all += (double)most;
        for (int m = 0; m < METHODS; m++) {
            cot_grouper *grouper;
            cot_grouping best = solve(&grouper, &a, options_of(methods[m], D, MAX_D), 8);
            assert_true(best.local <= most);
            reached[m] += (double)best.local;
            cot_grouper_close(grouper);
            solve(&grouper, &a, options_of(methods[m], D, 0), 2); // as even as tokens can be divided
            cot_grouper_close(grouper);
        }
    }
    for (int m = 0; m < METHODS; m++)
        if (reached[m] < 0.9 * best_of_all) fail_msg("%s: %g of %g", methods[m], reached[m], best_of_all);
}

static void test_tails(void **state)
{
    (void)state;
    static layer a;
    uint32_t calls[MAX_E] = {0};
    cot_error error;
    cot_grouper *grouper;
    begin_layer(&a, 5);
    calls[3] = 4000000000u; // weights that METIS must not add up as they are
    calls[1] = 3000000000u;
    add_token(&a, calls);
    for (int m = 0; m < METHODS; m++) {
        cot_grouping best = solve(&grouper, &a, options_of(methods[m], 1, 0.1), 1);
        assert_int_equal(best.local, 7000000000u);
        cot_grouper_close(grouper);
        cot_group_options options = options_of(methods[m], 2, 0.1);
        if (m == 0) { // one token, two ranks
            assert_int_equal(cot_grouper_open(&grouper, &a.affinity, &options, &error), COT_UNSUPPORTED);
            assert_null(grouper);
            continue;
        }
        best = solve(&grouper, &a, options, 8);
        if (m == 1) assert_int_equal(best.local, 7000000000u); // one row has no second singular vector
        cot_grouper_close(grouper);
    }
    for (int32_t i = 0; i < 9; i++) add_token(&a, calls);
    for (int m = 0; m < METHODS; m++) {
        for (int32_t D = 2; D <= 5; D++) { // each expert for itself at last
            cot_grouping best = solve(&grouper, &a, options_of(methods[m], D, MAX_D), 8);
            if (m == 0 || D == 5) assert_int_equal(best.local, D < 5 ? 70000000000u : 40000000000u);
            cot_grouper_close(grouper);
        }
    }
}

static void test_same_again(void **state)
{
    (void)state;
    static layer a;
    int32_t block[MAX_E];
    plant(&a, block, 20, 4, 60);
    for (int m = 0; m < METHODS; m++) {
        cot_grouper *one, *other;
        cot_grouping first = solve(&one, &a, options_of(methods[m], 5, 0.1), 5);
        cot_error error;
        cot_group_options options = options_of(methods[m], 5, 0.1);
        assert_int_equal(cot_grouper_open(&other, &a.affinity, &options, &error), COT_OK);
        for (int i = 0; i < 5; i++) assert_int_equal(cot_grouper_iterate(other, 1, &error), COT_OK);
        cot_grouping second;
        cot_grouper_best(&second, other);
        assert_memory_equal(first.expert_rank, second.expert_rank, 20 * sizeof(int32_t));
        assert_memory_equal(first.token_rank, second.token_rank, 60 * sizeof(int32_t));
        cot_grouper_close(one);
        cot_grouper_close(other);
    }
}

static void test_eigen(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 12; n++) {
        double a[144], held[144], v[144];
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++) a[i * n + j] = a[j * n + i] = below(2001) / 1000.0 - 1;
        if (n > 6) // rank 1: all but one eigenvalue are 0
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < n; j++) a[i * n + j] = (double)(i + 1) * (double)(j + 1);
        memcpy(held, a, sizeof held);
        for (size_t i = 0; i < 144; i++) v[i] = NAN;
        cot_eigen_symmetric(a, v, n);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                double product = 0, dot = 0; // (A v_i)_j = lambda_i v_ij; v_i v_j = [i = j]
                for (size_t k = 0; k < n; k++) {
                    product += held[j * n + k] * v[i * n + k];
                    dot += v[i * n + k] * v[j * n + k];
                }
                assert_true(fabs(product - a[i * n + i] * v[i * n + j]) < 1e-9 * (double)(n * n * n));
                assert_true(fabs(dot - (i == j)) < 1e-12 * (double)n);
            }
    }
}

static cot_status fail_slowly(cot_cocluster *p, int64_t iteration, cot_error *error)
{
    for (int32_t wait = 0; wait < p->E * 100; wait++) sched_yield(); // those of fewer experts are sooner
    return cot_fail(error, COT_UNSUPPORTED, "nothing for %d experts in iteration %d", (int)p->E,
                    (int)iteration);
}

/* Of many layers that fail the first one's reason is told, whichever thread meets it, and the others go on. */
static void test_reason(void **state)
{
    (void)state;
    static layer a[8];
    for (int32_t threads = 1; threads <= 4; threads++) {
        cot_grouper *grouper[8];
        cot_cocluster_method failing[8];
        cot_error error = {0};
        const int32_t first = below(8);
        for (int32_t l = 0; l < 8; l++) {
            int32_t block[MAX_E];
            a[l] = (layer){0};
            plant(&a[l], block, 24 - 2 * l, 2, 60);
            const cot_group_options options = options_of("kmeans", 2, 0.1);
            assert_int_equal(cot_grouper_open(&grouper[l], &a[l].affinity, &options, &error), COT_OK);
            cot_cocluster *p = cot_grouper_problem(grouper[l]);
            failing[l] = *p->method;
            failing[l].iterate = fail_slowly;
            if (l >= first) p->method = &failing[l];
        }
        char want[64];
        snprintf(want, sizeof want, "nothing for %d experts in iteration 0", (int)(24 - 2 * first));
        assert_int_equal(cot_groupers_iterate(grouper, 8, 1, threads, &error), COT_UNSUPPORTED);
        assert_int_equal(error.status, COT_UNSUPPORTED);
        assert_string_equal(error.message, want);
        assert_int_equal(cot_groupers_iterate(grouper, 8, 1, threads, NULL), COT_UNSUPPORTED);
        assert_int_equal(cot_groupers_iterate(grouper, first, 1, threads, NULL), COT_OK);
        for (int32_t l = 0; l < 8; l++) {
            cot_grouping best;
            cot_grouper_best(&best, grouper[l]);
            assert_int_equal(best.iterations > 0, l < first);
            cot_grouper_close(grouper[l]);
        }
    }
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
}

/* What handles signals, and which wait, is as before once METIS has run. */
static void test_handlers(void **state)
{
    (void)state;
    static layer a;
    int32_t block[MAX_E];
    static const int numbers[] = {SIGTERM, SIGABRT};
    struct sigaction before[2], mine = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&mine.sa_mask);
    sigaddset(&mine.sa_mask, SIGUSR1);
    for (int i = 0; i < 2; i++) assert_int_equal(sigaction(numbers[i], &mine, &before[i]), 0);
    plant(&a, block, 20, 4, 60);
    for (int waits = 0; waits < 2; waits++) {
        cot_grouper *grouper;
        sigset_t asked, held, old;
        sigemptyset(&asked);
        if (waits) sigaddset(&asked, SIGABRT);
        pthread_sigmask(SIG_SETMASK, &asked, &old);
        solve(&grouper, &a, options_of("metis", 5, 0.1), 3);
        assert_int_equal(cot_groupers_iterate(&grouper, 1, 3, 2, NULL), COT_OK);
        pthread_sigmask(SIG_SETMASK, &old, &held);
        assert_int_equal(sigismember(&held, SIGABRT), waits);
        assert_false(sigismember(&held, SIGTERM));
        cot_grouper_close(grouper);
    }
    for (int i = 0; i < 2; i++) {
        struct sigaction now;
        assert_int_equal(sigaction(numbers[i], &before[i], &now), 0);
        assert_true(now.sa_sigaction == on_signal);
        assert_int_equal(now.sa_flags & (SA_SIGINFO | SA_RESTART), SA_SIGINFO | SA_RESTART);
        assert_true(sigismember(&now.sa_mask, SIGUSR1));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_planted), cmocka_unit_test(test_tiny),
                                       cmocka_unit_test(test_tails),   cmocka_unit_test(test_same_again),
                                       cmocka_unit_test(test_eigen),   cmocka_unit_test(test_reason),
                                       cmocka_unit_test(test_handlers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
