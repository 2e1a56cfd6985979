/* What swaps of two experts lose, as annealing weighs them all at once, against each swap counted by itself. */
#include "harness/cmocka.h"
#include "harness/cocluster/samples.h"
#include "harness/seed.h"

#include "cocluster/anneal.h"

#include <math.h>
#include <string.h>

/* What all tokens find on a rank where each finds most. */
static double gained(const cot_affinity *a, const int32_t *expert_rank)
{
    double sum = 0;
    for (int64_t i = 0; i < a->n_tokens; i++) {
        int64_t calls[MAX_D] = {0}, most = 0;
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++)
            calls[expert_rank[a->expert[k]]] += a->count[k];
        for (int32_t d = 0; d < MAX_D; d++) most = calls[d] > most ? calls[d] : most;
        sum += (double)most;
    }
    return sum;
}

static void exchange(int32_t *expert_rank, int32_t a, int32_t b)
{
    const int32_t held = expert_rank[a];
    expert_rank[a] = expert_rank[b];
    expert_rank[b] = held;
}

/* Groups without a limit on tokens, for which nothing is charged then: cold sweeps go on until one swaps nobody. */
static void losses_are_those_of_each_swap(void **state)
{
    (void)state;
    struct draw *draw = &(struct draw){.seed = test_seed(), .stream = 12};
    cot_error error = {0};
    for (int n = 0; n < 60; n++) {
        static sample s;
        const int32_t D = 2 + below(draw, MAX_D - 1), E = D + below(draw, MAX_E - D + 1),
                      N = 1 + below(draw, MAX_N);
        make_sample(&s, draw, 1, E, N, D, 1 + (uint32_t)below(draw, 3));
        const cot_group_options options = {.size = sizeof options,
                                           .method = "consecutive",
                                           .ranks = D,
                                           .token_balance = D,
                                           .seed = test_seed()};
        cot_grouper *grouper;
        cot_anneal now;
        if (cot_grouper_open(&grouper, s.layer, &options, &error) != COT_OK) fail_msg("%s", error.message);
        const cot_cocluster *p = cot_grouper_problem(grouper);
        int32_t rank[MAX_E], before[MAX_E], e = 0;
        for (int32_t d = 0; d < D; d++)
            for (int32_t k = 0; k < p->size[d]; k++) rank[e++] = d;
        for (e = E - 1; e > 0; e--) exchange(rank, e, below(draw, e + 1));
        assert_int_equal(cot_anneal_open(&now, p, &error), COT_OK);
        cot_anneal_set(&now, rank, NULL);
        double told;
        int64_t sweeps = 0;
        do {
            memcpy(before, now.rank, (size_t)E * sizeof *before);
            told = cot_anneal_sweep(&now, 0, sweeps++);
        } while (memcmp(before, now.rank, (size_t)E * sizeof *before) != 0);
        const double whole = gained(s.layer, before);
        double lost = 0;
        int looked = 0;
        for (int32_t a = 0; a < E; a++)
            for (int32_t b = 0; b < E; b++) {
                if (before[a] == before[b]) continue;
                exchange(before, a, b);
                const double loss = whole - gained(s.layer, before);
                exchange(before, a, b);
                assert_true(loss >= 0); // or it would have been done
                lost += loss;
                looked++;
            }
        assert_true(now.most == whole);
        if (fabs(told - lost / looked) > 1e-9 * (1 + whole))
            fail_msg("case %d: a swap loses %.9g, told are %.9g", n, lost / looked, told);
        cot_anneal_close(&now);
        cot_grouper_close(grouper);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(losses_are_those_of_each_swap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
