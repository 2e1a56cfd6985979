/* The spectral baseline's second kind of iteration, k-means of tokens and experts together, against the same written plainly over
 * dense counts. Eigenvectors, the balanced k-means that it begins with and the repair of sizes are shared, and tested elsewhere. */
#include "harness/cmocka.h"
#include "harness/cocluster/samples.h"
#include "harness/seed.h"

#include "cocluster/eigen.h"
#include "cocluster/gram.h"

#include <math.h>
#include <string.h>

enum { POINTS = MAX_E + MAX_N, STEPS = 30 };

static struct {
    double count[MAX_N][MAX_E], expert_load[MAX_E], token_load[MAX_N];
    double at[POINTS][MAX_D], weight[POINTS]; // experts, then tokens
    int32_t E, N, dims;
} w;

static void count_calls(const cot_affinity *a)
{
    memset(&w, 0, sizeof w);
    w.E = a->n_experts;
    w.N = (int32_t)a->n_tokens;
    for (int32_t i = 0; i < w.N; i++)
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) {
            w.count[i][a->expert[k]] = a->count[k];
            w.expert_load[a->expert[k]] += a->count[k];
            w.token_load[i] += a->count[k];
        }
    for (int32_t e = 0; e < w.E; e++) w.weight[e] = w.expert_load[e];
    for (int32_t i = 0; i < w.N; i++) w.weight[w.E + i] = w.token_load[i];
}

static double over_root(double load)
{
    return load > 0 ? 1 / sqrt(load) : 0;
}

/* Experts at C^-1/2 v and tokens at R^-1 A C^-1/2 v / sigma, v and sigma^2 being of A_n^T A_n, A_n = R^-1/2 A C^-1/2: the greatest
 * but for the first. */
static void place_points(int32_t dims)
{
    static double matrix[MAX_E * MAX_E], vectors[MAX_E * MAX_E];
    bool used[MAX_E] = {false};
    const int32_t E = w.E;
    for (int32_t e = 0; e < E; e++)
        for (int32_t f = 0; f < E; f++) {
            double sum = 0;
            for (int32_t i = 0; i < w.N; i++) sum += 1 / w.token_load[i] * w.count[i][e] * w.count[i][f];
            matrix[e * E + f] = sum * (over_root(w.expert_load[e]) * over_root(w.expert_load[f]));
        }
    cot_eigen_symmetric(matrix, vectors, (size_t)E);
    w.dims = dims;
    for (int32_t k = -1; k < dims; k++) {
        int32_t best = -1;
        for (int32_t v = 0; v < E; v++)
            if (!used[v] && (best < 0 || matrix[v * E + v] > matrix[best * E + best])) best = v;
        used[best] = true;
        const double sigma = sqrt(fmax(matrix[best * E + best], 0));
        if (k < 0 || sigma < 1e-6) continue;
        for (int32_t e = 0; e < E; e++) w.at[e][k] = over_root(w.expert_load[e]) * vectors[best * E + e];
        for (int32_t i = 0; i < w.N; i++) {
            double sum = 0;
            for (int32_t e = 0; e < E; e++) sum += w.count[i][e] * w.at[e][k];
            w.at[E + i][k] = sum / w.token_load[i] / sigma;
        }
    }
}

static double apart(const double *x, const double *y)
{
    double sum = 0;
    for (int32_t k = 0; k < w.dims; k++) sum += (x[k] - y[k]) * (x[k] - y[k]);
    return sum;
}

/* A rank without points keeps its centre, at 0 at first. Shares are added in the order in which the method adds them, so that what is
 * as near to two centres is so here. */
static void mean_of(double centre[MAX_D][MAX_D], const int32_t *rank, int32_t points, int32_t D)
{
    for (int32_t d = 0; d < D; d++) {
        double all = 0, sum[MAX_D] = {0};
        for (int32_t i = 0; i < points; i++) all += rank[i] == d ? w.weight[i] : 0;
        for (int32_t i = 0; i < points && all > 0; i++)
            for (int32_t k = 0; k < w.dims && rank[i] == d; k++) sum[k] += w.weight[i] / all * w.at[i][k];
        if (all > 0) memcpy(centre[d], sum, sizeof sum);
    }
}

static void group_together(int32_t *expert_rank, const cot_cocluster *p, int64_t iteration)
{
    static double gram[MAX_E * MAX_E], worth[MAX_E * MAX_D];
    double centre[MAX_D][MAX_D] = {{0}};
    int32_t rank[POINTS];
    for (int32_t e = 0; e < w.E; e++)
        for (int32_t f = 0; f < w.E; f++) {
            gram[e * w.E + f] = 0;
            for (int32_t k = 0; k < w.dims; k++) gram[e * w.E + f] += w.at[e][k] * w.at[f][k];
        }
    assert_int_equal(cot_gram_kmeans(rank, p, gram, p->options.seed, (uint64_t)iteration, NULL), COT_OK);
    for (int32_t i = w.E; i < w.E + w.N; i++) rank[i] = -1;
    mean_of(centre, rank, w.E, p->D);
    for (int step = 0; step < STEPS; step++) {
        int moved = 0;
        for (int32_t i = 0; i < w.E + w.N; i++) {
            int32_t nearest = 0;
            for (int32_t d = 1; d < p->D; d++)
                if (apart(w.at[i], centre[d]) < apart(w.at[i], centre[nearest])) nearest = d;
            moved += rank[i] != nearest;
            rank[i] = nearest;
        }
        if (!moved) break;
        mean_of(centre, rank, w.E + w.N, p->D);
    }
    for (int32_t e = 0; e < w.E; e++)
        for (int32_t d = 0; d < p->D; d++) worth[e * p->D + d] = -apart(w.at[e], centre[d]);
    memcpy(expert_rank, rank, (size_t)w.E * sizeof *rank);
    cot_cocluster_repair_sizes(expert_rank, p, worth);
}

static void tokens_and_experts_together(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 13};
    cot_error error = {0};
    for (int n = 0; n < 100; n++) {
        static sample s;
        const int32_t D = 2 + below(draw, 5), E = D + below(draw, MAX_E - D + 1),
                      N = 30 + below(draw, MAX_N - 29);
        make_sample(&s, draw, 1, E, N, D, 1 + (uint32_t)below(draw, 3));
        const cot_group_options options = {.size = sizeof options,
                                           .method = "spectral",
                                           .ranks = D,
                                           .token_balance = D,
                                           .seed = test_seed()};
        cot_grouper *grouper;
        if (cot_grouper_open(&grouper, s.layer, &options, &error) != COT_OK) fail_msg("%s", error.message);
        cot_cocluster *p = cot_grouper_problem(grouper);
        count_calls(s.layer);
        place_points(D - 1);
        for (int64_t iteration = 1; iteration <= 5; iteration += 2) { // none goes on from the one before
            int32_t expert_rank[MAX_E];
            assert_int_equal(cot_cocluster_spectral.iterate(p, iteration, &error), COT_OK);
            group_together(expert_rank, p, iteration);
            for (int32_t e = 0; e < E; e++) // what was offered is in `trial`
                if (p->trial[e] != expert_rank[e])
                    fail_msg("case %d, iteration %d: expert %d is on rank %d, expected %d", n, (int)iteration,
                             e, p->trial[e], expert_rank[e]);
        }
        cot_grouper_close(grouper);
    }
}

/* Few tokens, which are where they were before: the same iteration offers the same again. */
static void nothing_is_left_of_an_iteration(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 14};
    cot_error error = {0};
    for (int n = 0; n < 400; n++) {
        static sample s;
        const int32_t D = 2 + below(draw, 3), E = D + below(draw, 6), N = 1 + below(draw, 6);
        make_sample(&s, draw, 1, E, N, D, 1 + (uint32_t)below(draw, 3));
        const cot_group_options options = {.size = sizeof options,
                                           .method = "spectral",
                                           .ranks = D,
                                           .token_balance = D,
                                           .seed = test_seed()};
        cot_grouper *grouper;
        int32_t first[MAX_E];
        if (cot_grouper_open(&grouper, s.layer, &options, &error) != COT_OK) fail_msg("%s", error.message);
        cot_cocluster *p = cot_grouper_problem(grouper);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(cot_cocluster_spectral.iterate(p, 1, &error), COT_OK);
            if (again) assert_memory_equal(p->trial, first, (size_t)E * sizeof *first);
            memcpy(first, p->trial, (size_t)E * sizeof *first);
        }
        cot_grouper_close(grouper);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_and_experts_together),
                                       cmocka_unit_test(nothing_is_left_of_an_iteration)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
