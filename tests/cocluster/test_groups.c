/* Every method of co-clustering against all groups and all assignments of tokens on tiny cases. */
#include "coterie/group.h"

#include "base/rng.h"
#include "harness/seed.h"

#include <stdio.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

enum { MAX_E = 6, MAX_N = 6, MAX_D = 6 };

typedef struct tiny {
    int E, N, D;
    uint32_t count[MAX_N][MAX_E];
    bool bonus;
    float extra[MAX_N * MAX_D];
    double f, limit; // token balance, expert load
    int64_t offsets[MAX_N + 1];
    uint16_t expert[MAX_N * MAX_E];
    uint32_t called[MAX_N * MAX_E];
    uint64_t total;
} tiny;

/* The best of all, by trying all. */
typedef struct truth {
    double worth;                   // of those within both limits; -1: there is none
    double token_peak, expert_peak; // the least that are possible, over the mean
} truth;

static uint64_t at; // position of the test's random numbers

static uint64_t below(uint64_t n)
{
    return cot_random_bits(test_seed(), 7, at++) % n;
}

static cot_affinity finish(tiny *t)
{
    int64_t n = 0;
    t->total = 0;
    for (int i = 0; i < t->N; i++) {
        for (int e = 0; e < t->E; e++)
            if (t->count[i][e]) {
                t->expert[n] = (uint16_t)e;
                t->called[n++] = t->count[i][e];
                t->total += t->count[i][e];
            }
        t->offsets[i + 1] = n;
    }
    return (cot_affinity){t->E, t->N, t->offsets, t->expert, t->called};
}

static cot_affinity draw(tiny *t)
{
    *t = (tiny){.E = 1 + (int)below(MAX_E), .N = 1 + (int)below(MAX_N)};
    t->D = 1 + (int)below((uint64_t)(t->E < 3 ? t->E : 3));
    if (!below(6)) t->D = t->E < 4 ? t->E : t->D;
    const uint64_t most = 1 + below(9);
    for (int i = 0; i < t->N; i++)
        for (int e = 0; e < t->E; e++) t->count[i][e] = below(3) ? (uint32_t)below(most + 1) : 0;
    if (!below(4)) memset(t->count[0], 0, sizeof t->count[0]); // not called in this layer
    t->count[t->N - 1][t->E - 1] += below(3) ? 1 : 40;         // or a token that is most of the load
    t->bonus = !below(3);
    for (int i = 0; i < t->N * t->D; i++) t->extra[i] = (float)below(40) / 8;
    const double balances[] = {0, 0.1, 0.5, 3};
    t->f = balances[below(4)];
    t->limit = below(2) ? 0 : 1 + (double)below(10) / 10;
    return finish(t);
}

/* Over all assignments of N things to D: false once all have been seen. */
static bool next_assignment(int *rank, int n, int D)
{
    for (int i = 0; i < n; i++) {
        if (++rank[i] < D) return true;
        rank[i] = 0;
    }
    return false;
}

static double worth_of(const tiny *t, const int *expert, const int *token)
{
    double worth = 0;
    for (int i = 0; i < t->N; i++) {
        for (int e = 0; e < t->E; e++) worth += expert[e] == token[i] ? t->count[i][e] : 0;
        if (t->bonus) worth += (double)t->extra[i * t->D + token[i]];
    }
    return worth;
}

static double peak_of(const tiny *t, const int *rank, bool experts)
{
    double load[MAX_D] = {0}, peak = 0;
    for (int i = 0; i < t->N; i++)
        for (int e = 0; e < t->E; e++) load[rank[experts ? e : i]] += t->count[i][e];
    for (int d = 0; d < t->D; d++) peak = fmax(peak, load[d]);
    return peak * t->D / (double)t->total;
}

static bool sizes_right(const tiny *t, const int *expert)
{
    int held[MAX_D] = {0};
    for (int e = 0; e < t->E; e++) held[expert[e]]++;
    for (int d = 0; d < t->D; d++)
        if (held[d] != t->E / t->D + (d < t->E % t->D)) return false;
    return true;
}

static double heaviest(const tiny *t)
{
    double most = 0;
    for (int i = 0; i < t->N; i++) {
        double load = 0;
        for (int e = 0; e < t->E; e++) load += t->count[i][e];
        most = fmax(most, load);
    }
    return most * t->D / (double)t->total;
}

/* `token_limit`, `expert_limit`: peaks over the mean that are allowed. */
static truth try_all(const tiny *t, double token_limit, double expert_limit)
{
    truth best = {-1, INFINITY, INFINITY};
    int expert[MAX_E] = {0}, token[MAX_N] = {0};
    do best.token_peak = fmin(best.token_peak, peak_of(t, token, false));
    while (next_assignment(token, t->N, t->D));
    do {
        if (!sizes_right(t, expert)) continue;
        const double peak = peak_of(t, expert, true);
        best.expert_peak = fmin(best.expert_peak, peak);
        if (peak > expert_limit + 1e-9) continue;
        memset(token, 0, sizeof token);
        do
            if (peak_of(t, token, false) <= token_limit + 1e-9)
                best.worth = fmax(best.worth, worth_of(t, expert, token));
        while (next_assignment(token, t->N, t->D));
    } while (next_assignment(expert, t->E, t->D));
    return best;
}

static cot_group_options options_of(const tiny *t, const char *method)
{
    return (cot_group_options){.size = sizeof(cot_group_options),
                               .method = method,
                               .ranks = t->D,
                               .token_balance = t->f,
                               .expert_load = t->limit,
                               .seed = test_seed(),
                               .bonus = t->bonus ? t->extra : NULL};
}

/* Checks what is said of the groups; returns how far from the best they are. */
static double check(const tiny *t, const cot_grouping *g)
{
    int expert[MAX_E], token[MAX_N];
    for (int e = 0; e < t->E; e++) expert[e] = g->expert_rank[e];
    for (int i = 0; i < t->N; i++) token[i] = g->token_rank[i];
    for (int e = 0; e < t->E; e++) assert_in_range(expert[e], 0, t->D - 1);
    for (int i = 0; i < t->N; i++) assert_in_range(token[i], 0, t->D - 1);
    assert_true(sizes_right(t, expert));
    const double worth = worth_of(t, expert, token);
    assert_true(fabs((double)g->local + g->bonus - worth) < 1e-4);
    assert_true(g->total == t->total);
    assert_true(fabs(g->token_peak - peak_of(t, token, false)) < 1e-9);
    assert_true(fabs(g->expert_peak - peak_of(t, expert, true)) < 1e-9);
    const double token_limit = fmax(1 + t->f, heaviest(t));
    const double expert_limit = t->limit > 0 ? t->limit : INFINITY;
    const truth least = try_all(t, fmax(token_limit, g->token_peak), fmax(expert_limit, g->expert_peak));
    assert_true(g->expert_peak_bound <= least.expert_peak + 1e-9);
    assert_true(g->bound >= least.worth - 1e-4);
    assert_true(worth <= least.worth + 1e-4);
    const bool fits = g->token_peak <= token_limit + 1e-9 && g->expert_peak <= expert_limit + 1e-9;
    assert_int_equal(g->feasible, fits);
    if (g->proven) assert_true(worth >= least.worth - 1e-4);
    /* A limit that can be met is met; experts are few enough for the smallest peak too. */
    if (least.expert_peak <= expert_limit)
        assert_true(g->expert_peak <= expert_limit + 1e-9);
    else
        assert_true(g->expert_peak <= least.expert_peak + 1e-9);
    if (t->f >= 0.5 && least.token_peak <= token_limit)
        assert_true(g->token_peak <= fmax(token_limit, 4.0 / 3 * least.token_peak) + 1e-9);
    return least.worth - worth;
}

static void test_tiny(void **state)
{
    (void)state;
    int missed = 0, cases = 0;
    for (int k = 0; k < 300; k++) {
        tiny t;
        const cot_affinity affinity = draw(&t);
        for (const cot_group_method *m = cot_group_methods; m->name; m++) {
            const cot_group_options options = options_of(&t, m->name);
            cot_grouper *grouper, *pieces;
            cot_grouping g, h;
            cot_error error = {0};
            const cot_status status = cot_grouper_open(&grouper, &affinity, &options, &error);
            if (status == COT_UNSUPPORTED && !strcmp(m->name, "metis")) { // more parts than it has vertices
                assert_true(affinity.n_tokens < options.ranks);
                continue;
            }
            assert_int_equal(status, COT_OK);
            assert_int_equal(cot_grouper_iterate(grouper, 12, &error), COT_OK);
            cot_grouper_best(&g, grouper);
            const double gap = check(&t, &g);
            if (m == cot_group_methods) {
                cases++;
                missed += gap > 1e-4;
            }
            /* In pieces the same. */
            assert_int_equal(cot_grouper_open(&pieces, &affinity, &options, &error), COT_OK);
            for (int i = 0; i < 4; i++) assert_int_equal(cot_grouper_iterate(pieces, 3, &error), COT_OK);
            cot_grouper_best(&h, pieces);
            assert_true(g.local == h.local && g.iterations == h.iterations);
            assert_memory_equal(g.expert_rank, h.expert_rank, (size_t)t.E * sizeof *g.expert_rank);
            assert_memory_equal(g.token_rank, h.token_rank, (size_t)t.N * sizeof *g.token_rank);
            cot_grouper_close(pieces);
            cot_grouper_close(grouper);
        }
    }
    printf("coterie missed the best of %d of %d tiny cases\n", missed, cases);
    assert_true(missed * 10 <= cases);
}

/* Without a limit of load experts stay in blocks, of which the first have one more, and one round is all. */
static void test_consecutive(void **state)
{
    (void)state;
    for (int k = 0; k < 30; k++) {
        tiny t;
        const cot_affinity affinity = draw(&t);
        cot_group_options options = options_of(&t, "consecutive");
        options.expert_load = 0;
        cot_grouper *grouper;
        cot_grouping g;
        assert_int_equal(cot_grouper_open(&grouper, &affinity, &options, NULL), COT_OK);
        assert_int_equal(cot_grouper_iterate(grouper, 5, NULL), COT_OK);
        assert_true(cot_grouper_is_done(grouper));
        cot_grouper_best(&g, grouper);
        assert_int_equal(g.iterations, 1);
        for (int32_t e = 0, d = 0, held = 0; e < t.E; e++, held++) {
            if (held == t.E / options.ranks + (d < t.E % options.ranks)) {
                d++;
                held = 0;
            }
            assert_int_equal(g.expert_rank[e], d);
        }
        cot_grouper_close(grouper);
    }
}

static void test_planted(void **state)
{
    (void)state;
    /* Tokens that call the experts of one group alone, groups shuffled: all is local, and every method but joint
     * sampling, which is weak, finds it. */
    enum { E = 16, D = 4, N = 400, K = 4 };
    static int64_t offsets[N + 1];
    static uint16_t expert[N * K];
    static uint32_t count[N * K];
    int name[E];
    for (int e = 0; e < E; e++) name[e] = e;
    for (int e = E - 1; e > 0; e--) {
        const int with = (int)below((uint64_t)e + 1), x = name[e];
        name[e] = name[with];
        name[with] = x;
    }
    for (int i = 0; i < N; i++) {
        int n = 0;
        for (int e = 0; e < E; e++)
            if (name[e] / K == i % D) {
                expert[i * K + n] = (uint16_t)e;
                count[i * K + n++] = 1 + (uint32_t)below(3);
            }
        offsets[i + 1] = (int64_t)(i + 1) * K;
    }
    const cot_affinity affinity = {E, N, offsets, expert, count};
    const cot_group_options options = {
        .size = sizeof options, .ranks = D, .token_balance = 0.1, .seed = test_seed()};
    cot_grouper *grouper;
    cot_grouping g;
    assert_int_equal(cot_grouper_open(&grouper, &affinity, &options, NULL), COT_OK);
    assert_int_equal(cot_grouper_iterate(grouper, 20, NULL), COT_OK);
    cot_grouper_best(&g, grouper);
    assert_true(g.local == g.total && g.proven && cot_grouper_is_done(grouper));
    cot_grouper_close(grouper);
}

static void test_start(void **state)
{
    (void)state;
    tiny t;
    do draw(&t);
    while (t.E < 4 || t.D < 2);
    t.limit = 0;
    const cot_affinity affinity = finish(&t);
    int32_t start[MAX_E];
    for (int e = 0, d = 0, k = 0; e < t.E; e++) {
        start[e] = d;
        if (++k == t.E / t.D + (d < t.E % t.D)) k = 0, d++;
    }
    cot_group_options options = options_of(&t, "ce-joint");
    options.start = start;
    cot_grouper *grouper;
    assert_int_equal(cot_grouper_open(&grouper, &affinity, &options, NULL), COT_OK);
    assert_int_equal(cot_grouper_iterate(grouper, 1, NULL), COT_OK);
    cot_grouper_close(grouper);
    start[0] = t.D;
    cot_error error;
    assert_int_equal(cot_grouper_open(&grouper, &affinity, &options, &error), COT_INVALID_ARGUMENT);
    start[0] = t.D - 1; // sizes wrong
    assert_int_equal(cot_grouper_open(&grouper, &affinity, &options, &error), COT_INVALID_ARGUMENT);
    assert_null(grouper);
}

static void test_bad_options(void **state)
{
    (void)state;
    tiny t = {.E = 2, .N = 1, .D = 2, .count = {{1, 2}}};
    const cot_affinity affinity = finish(&t);
    const cot_group_options good = options_of(&t, NULL);
    cot_group_options bad[8];
    for (int k = 0; k < 8; k++) bad[k] = good;
    const float negative[2] = {0, -1};
    bad[0].size = 8;
    bad[1].ranks = 0;
    bad[2].ranks = 3; // more than experts
    bad[3].token_balance = -0.1;
    bad[4].token_balance = NAN;
    bad[5].expert_load = 0.5;
    bad[6].method = "cosine";
    bad[7].bonus = negative;
    for (int k = 0; k < 8; k++) {
        cot_grouper *grouper;
        cot_error error = {0};
        assert_int_equal(cot_grouper_open(&grouper, &affinity, &bad[k], &error), COT_INVALID_ARGUMENT);
        assert_int_equal(error.status, COT_INVALID_ARGUMENT);
        assert_null(grouper);
    }
    tiny none = {.E = 2, .N = 1, .D = 1};
    const cot_affinity empty = finish(&none);
    cot_grouper *grouper;
    assert_int_equal(cot_grouper_open(&grouper, &empty, &good, NULL), COT_INVALID_ARGUMENT);
}

static void test_counting(void **state)
{
    (void)state;
    /* Two sequences; id 7 twice, one id unknown. */
    const int32_t ids[] = {7, 3, -1, 7, 9};
    const int64_t offsets[] = {0, 3, 5};
    const uint8_t experts[] = {0, 1, 1, 2, 0, 2, 2, 0, 1, 2};
    const int32_t layers[] = {0};
    cot_trace trace = {.kind = COT_TRACE_TOKENS,
                       .model = "",
                       .n_layers = 1,
                       .n_experts = 3,
                       .top_k = 2,
                       .layers = layers,
                       .n_tokens = 5,
                       .token_ids = ids,
                       .n_sequences = 2,
                       .sequence_offsets = offsets,
                       .experts_u8 = experts};
    cot_affinities a;
    assert_int_equal(cot_affinities_count(&a, &trace, NULL, NULL), COT_OK);
    assert_int_equal(a.n_tokens, 3);
    assert_null(a.positions);
    assert_int_equal(a.token_ids[0], 3);
    assert_int_equal(a.token_ids[1], 7);
    const cot_affinity *l = &a.layer[0];
    assert_int_equal(l->offsets[2] - l->offsets[1], 3); // 7 called 0 twice, 1 and 2 once
    assert_int_equal(l->count[l->offsets[1]], 2);
    assert_int_equal(l->count[l->offsets[1] + 1], 1);
    cot_affinities_free(&a);
    const uint8_t second[] = {0, 1}, none[] = {0, 0};
    assert_int_equal(cot_affinities_count(&a, &trace, second, NULL), COT_OK);
    assert_int_equal(a.n_tokens, 2);
    assert_int_equal(a.layer[0].offsets[2], 4);
    cot_affinities_free(&a);
    assert_int_equal(cot_affinities_count(&a, &trace, none, NULL), COT_INVALID_ARGUMENT);
    const int32_t unknown[] = {-1, -1, -1, -1, -1};
    trace.token_ids = unknown;
    assert_int_equal(cot_affinities_count(&a, &trace, second, NULL), COT_OK);
    assert_null(a.token_ids);
    assert_int_equal(a.n_tokens, 2);
    assert_int_equal(a.positions[0], 3);
    assert_int_equal(a.layer[0].expert[a.layer[0].offsets[1]], 1);
    cot_affinities_free(&a);
    const int32_t row_ids[] = {-1, 4};
    const uint32_t counts[] = {5, 0, 0, 1, 0, 2};
    const cot_trace table = {.kind = COT_TRACE_COUNTS,
                             .model = "",
                             .n_layers = 1,
                             .n_experts = 3,
                             .top_k = 2,
                             .layers = layers,
                             .n_tokens = 2,
                             .token_ids = row_ids,
                             .counts = counts};
    assert_int_equal(cot_affinities_count(&a, &table, NULL, NULL), COT_OK);
    assert_int_equal(a.n_tokens, 1);
    assert_int_equal(a.layer[0].offsets[1], 2);
    assert_int_equal(a.layer[0].count[1], 2);
    cot_affinities_free(&a);
}

/* A few layers of a real trace. */
static void test_real(void **state)
{
    (void)state;
    const char *path = COT_SHARED "/data/routing/gpt-oss-20b";
    struct stat unused;
    if (stat(path, &unused)) {
        printf("SKIPPED: no routing data at %s\n", path);
        skip();
    }
    cot_trace trace;
    cot_affinities a;
    cot_error error;
    assert_int_equal(cot_trace_import(&trace, path, NULL, &error), COT_OK);
    uint8_t *chosen = calloc((size_t)trace.n_sequences, 1);
    assert_non_null(chosen);
    for (int64_t s = 0; s < trace.n_sequences; s++) chosen[s] = s % 5 == 0;
    assert_int_equal(cot_affinities_count(&a, &trace, chosen, &error), COT_OK);
    for (int32_t l = 3; l < trace.n_layers; l += 10) {
        double worth[3];
        for (int m = 0; m < 3; m++) {
            const cot_group_options options = {.size = sizeof options,
                                               .ranks = 8,
                                               .token_balance = 0.1,
                                               .method = cot_group_methods[m].name,
                                               .seed = test_seed()};
            cot_grouper *grouper;
            cot_grouping g;
            assert_int_equal(cot_grouper_open(&grouper, &a.layer[l], &options, &error), COT_OK);
            assert_int_equal(cot_grouper_iterate(grouper, m ? 10 : 60, &error), COT_OK); // ce's take longer
            cot_grouper_best(&g, grouper);
            assert_true(g.feasible && g.token_peak <= 1.1 + 1e-9 && (double)g.local <= g.bound);
            worth[m] = (double)g.local;
            cot_grouper_close(grouper);
        }
        assert_true(worth[0] >= worth[1] && worth[0] >= worth[2]);
    }
    cot_affinities_free(&a);
    cot_trace_close(&trace);
    free(chosen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),  cmocka_unit_test(test_consecutive), cmocka_unit_test(test_planted),
        cmocka_unit_test(test_start), cmocka_unit_test(test_bad_options), cmocka_unit_test(test_counting),
        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
