/* Figures and their intervals of sums that are written by hand: shares and means by words, and intervals as wide as the theory of
 * samples from a normal distribution has them. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "predict/tally.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, EXPERTS = 4, MOST = 80 };

static cot_tallies opened(int32_t layers, int64_t sequences, int64_t steps)
{
    const cot_predictor_info info = {.n_layers = layers, .n_ranks = RANKS, .n_experts = EXPERTS};
    cot_tallies t;
    assert_int_equal(cot_tallies_open(&t, &info, sequences, steps, true, NULL), COT_OK);
    return t;
}

static double uniform(uint64_t round, uint64_t i)
{
    return cot_random_uniform(test_seed(), (uint32_t)round, i);
}

/* Half the width of an interval of a mean: t of n - 1 degrees of freedom times the standard error. */
static double half_width(const double *x, int64_t n, double t)
{
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
    return t * sqrt(squares / (double)(n - 1) / (double)n);
}

static void assert_within(double found, double wanted, double share, const char *what)
{
    if (!(fabs(found - wanted) <= share * wanted))
        fail_msg("%s: %g, expected %g within %g of that", what, found, wanted, share);
}

/* Of sequences of one length a share is a mean. Both ends are where that theory has them, and so are those of a mean over steps, which
 * are drawn again apart from sequences. */
static void intervals_are_those_of_samples(void **state)
{
    (void)state;
    static const struct {
        int64_t sequences;
        double t; // 97.5th percentile of Student's distribution
    } cases[] = {{80, 1.990}, {30, 2.045}, {15, 2.145}};
    enum { STEPS = 60, RESAMPLES = 3000 };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int64_t n = cases[c].sequences;
        cot_tallies tallies = opened(1, n, STEPS);
        double share[MOST], peak[STEPS], mean = 0, layer[COT_FIGURES];
        cot_predict_evaluation e = {.n_layers = 1, .layer = layer};
        for (int64_t s = 0; s < n; s++) {
            double *sum = tallies.layer[0].sum + s * COT_SUMS;
            share[s] = 0.3 + 0.4 * uniform(c, (uint64_t)s);
            sum[COT_SUM_TOKENS] = 100, sum[COT_SUM_ACTIVATIONS] = 1000, sum[COT_SUM_LOCAL] = 1000 * share[s];
            mean += share[s] / (double)n;
        }
        for (int i = 0; i < STEPS; i++)
            tallies.layer[0].step_peak[i] = peak[i] = 1 + uniform(c, 1000 + (uint64_t)i);
        assert_int_equal(cot_tallies_figure(&e, &tallies, RESAMPLES, test_seed(), NULL), COT_OK);
        const double half = half_width(share, n, cases[c].t), low = e.low[COT_FIGURE_LAR],
                     high = e.high[COT_FIGURE_LAR];
        assert_true(fabs(e.all[COT_FIGURE_LAR] - mean) < 1e-12);
        assert_within(mean - low, half, 0.2, "the lower end of a share");
        assert_within(high - mean, half, 0.2, "the upper end of a share");
        // steps are many, however few sequences are: only the widening is theirs
        const double of_steps =
                         half_width(peak, STEPS, 2.0) * cases[c].t / 1.96 * sqrt((double)n / (double)(n - 1)),
                     peak_mean = e.all[COT_FIGURE_HOME_PEAK];
        assert_within(peak_mean - e.low[COT_FIGURE_HOME_PEAK], of_steps, 0.2, "the lower end of a peak");
        assert_within(e.high[COT_FIGURE_HOME_PEAK] - peak_mean, of_steps, 0.2, "the upper end of a peak");
        cot_tallies_close(&tallies);
    }
}

/* Of two sequences the resamples are one, the other, or both: what they differ by is widened to about what Student's t has it, but a
 * ninth. Of none resampled, or of one sequence, nothing is known. */
static void few_sequences_make_wide_intervals(void **state)
{
    (void)state;
    double layer[COT_FIGURES];
    cot_predict_evaluation e = {.n_layers = 1, .layer = layer};
    for (int64_t n = 1; n <= 2; n++) {
        cot_tallies tallies = opened(1, n, 0);
        for (int64_t s = 0; s < n; s++) {
            double *sum = tallies.layer[0].sum + s * COT_SUMS;
            sum[COT_SUM_TOKENS] = 10, sum[COT_SUM_ACTIVATIONS] = 100,
            sum[COT_SUM_LOCAL] = 40 + 10 * (double)s;
        }
        for (int32_t resamples = 0; resamples <= 500; resamples += 500) {
            assert_int_equal(cot_tallies_figure(&e, &tallies, resamples, test_seed(), NULL), COT_OK);
            assert_true(fabs(e.all[COT_FIGURE_LAR] - (n == 1 ? 0.4 : 0.45)) < 1e-12);
            if (n == 1 || !resamples) {
                for (int i = 0; i < COT_FIGURES; i++) assert_true(isnan(e.low[i]) && isnan(e.high[i]));
                continue;
            }
            const double half = 12.706 * 8 / 9 * 0.1 / 2 / 1.96 * sqrt(2);
            assert_within(0.45 - e.low[COT_FIGURE_LAR], half, 0.02, "the lower end");
            assert_within(e.high[COT_FIGURE_LAR] - 0.45, half, 0.02, "the upper end");
        }
        cot_tallies_close(&tallies);
    }
}

/* A layer in which nothing was called is in no mean of peaks, and its own figures are no numbers; ratios are of all layers' sums. */
static void layers_without_activations_are_left_out(void **state)
{
    (void)state;
    cot_tallies tallies = opened(3, 2, 1);
    double layer[3 * COT_FIGURES];
    cot_predict_evaluation e = {.n_layers = 3, .layer = layer};
    static const double tokens[2][RANKS] = {{6, 2, 1}, {3, 3, 3}}, experts[2][RANKS] = {{9, 0, 0}, {2, 3, 4}};
    for (int l = 0; l < 3; l += 2) { // nothing in layer 1
        cot_tally *t = &tallies.layer[l];
        for (int s = 0; s < 2; s++) {
            double *sum = t->sum + s * COT_SUMS;
            sum[COT_SUM_TOKENS] = 9, sum[COT_SUM_ACTIVATIONS] = 9, sum[COT_SUM_LOCAL] = l ? 6 : 3;
            sum[COT_SUM_REMOTE] = l ? 2 : 5, sum[COT_SUM_OWN] = 4;
            for (int d = 0; d < RANKS; d++) {
                t->token_load[s * RANKS + d] = tokens[l / 2][d];
                t->expert_load[s * RANKS + d] = experts[l / 2][d];
            }
        }
        t->step_peak[0] = l ? 1.5 : 2.5;
    }
    assert_int_equal(cot_tallies_figure(&e, &tallies, 0, 1, NULL), COT_OK);
    const double *none = layer + COT_FIGURES;
    assert_true(isnan(none[COT_FIGURE_TOKEN_IMBALANCE]) && isnan(none[COT_FIGURE_EXPERT_PEAK]) &&
                isnan(none[COT_FIGURE_LAR]) && isnan(none[COT_FIGURE_REMOTE_RANKS]));
    assert_true(fabs(layer[COT_FIGURE_TOKEN_IMBALANCE] - 2) < 1e-12);
    assert_true(fabs(layer[COT_FIGURE_EXPERT_PEAK] - 3) < 1e-12);
    assert_true(fabs(layer[2 * COT_FIGURES + COT_FIGURE_TOKEN_IMBALANCE] - 1) < 1e-12);
    assert_true(fabs(layer[2 * COT_FIGURES + COT_FIGURE_EXPERT_PEAK] - 4.0 / 3) < 1e-12);
    assert_true(fabs(e.all[COT_FIGURE_TOKEN_IMBALANCE] - 1.5) < 1e-12);
    assert_true(fabs(e.all[COT_FIGURE_EXPERT_PEAK] - (3 + 4.0 / 3) / 2) < 1e-12);
    assert_true(fabs(e.all[COT_FIGURE_LAR] - 0.5) < 1e-12);
    assert_true(fabs(e.all[COT_FIGURE_REMOTE_RANKS] - 14.0 / 36) < 1e-12);
    assert_true(fabs(e.all[COT_FIGURE_ROWS] - 28.0 / 36) < 1e-12);
    assert_true(fabs(e.all[COT_FIGURE_LAR_DEDUP] - 16.0 / 30) < 1e-12);
    // by chance: a token's rank and an expert's agree as often as both are there
    const double blind = 2 * ((6 * 9) / 9.0 + (3 * 2 + 3 * 3 + 3 * 4) / 9.0);
    assert_true(fabs(e.all[COT_FIGURE_LAR_GAIN] - (18 - blind) / 36) < 1e-12);
    cot_tallies_close(&tallies);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intervals_are_those_of_samples),
        cmocka_unit_test(few_sequences_make_wide_intervals),
        cmocka_unit_test(layers_without_activations_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
