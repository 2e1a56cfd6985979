#include "predict/tally.h"

#include "base/error.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cot_figure_names[COT_FIGURES] = {
    "recall_at_k",     "precision", "f1",          "lar",          "lar_gain", "lar_known",
    "lar_unknown",     "unknown",   "lar_dedup",   "remote_ranks", "rows",     "oracle_lar",
    "token_imbalance", "home_peak", "expert_peak", "lar_even"};

cot_status cot_tallies_open(cot_tallies *t, const cot_predictor_info *info, int64_t sequences, int64_t steps,
                            bool ordered, cot_error *error)
{
    const size_t L = (size_t)info->n_layers, S = (size_t)sequences, D = (size_t)info->n_ranks,
                 E = (size_t)info->n_experts;
    const size_t one = S * (COT_SUMS + 2 * D) + (size_t)steps + E + D;
    *t = (cot_tallies){.n_layers = info->n_layers,
                       .n_ranks = info->n_ranks,
                       .n_sequences = sequences,
                       .n_steps = steps,
                       .ordered = ordered};
    t->layer = malloc(L * sizeof *t->layer);
    t->memory = calloc(L, one * sizeof *t->memory);
    if (!t->layer || !t->memory) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the figures");
    for (size_t l = 0; l < L; l++) {
        cot_tally *tally = &t->layer[l];
        tally->sum = t->memory + l * one;
        tally->token_load = tally->sum + S * COT_SUMS;
        tally->expert_load = tally->token_load + S * D;
        tally->step_peak = tally->expert_load + S * D;
        tally->called = tally->step_peak + steps;
        tally->unknown_on = tally->called + E;
    }
    return COT_OK;
}

void cot_tallies_close(cot_tallies *t)
{
    free(t->layer);
    free(t->memory);
    *t = (cot_tallies){0};
}

/* x / y, NaN where there is nothing. */
static double ratio(double x, double y)
{
    return y > 0 ? x / y : NAN;
}

/* The figures that are ratios of sums. */
static void figure_sums(double *figure, const double *sum, bool ordered)
{
    const double precision = ratio(sum[COT_SUM_RIGHT], sum[COT_SUM_PICKED]);
    const double covered = ratio(sum[COT_SUM_RIGHT], sum[COT_SUM_ACTIVATIONS]);
    const double none = ordered ? 0 : NAN; // counts say nothing of single tokens
    const double remote = sum[COT_SUM_REMOTE] + none, own = sum[COT_SUM_OWN];
    figure[COT_FIGURE_RECALL] = ratio(sum[COT_SUM_HITS], sum[COT_SUM_ACTIVATIONS]);
    figure[COT_FIGURE_PRECISION] = precision;
    figure[COT_FIGURE_F1] =
        precision + covered > 0 ? 2 * precision * covered / (precision + covered) : precision + covered;
    figure[COT_FIGURE_LAR] = ratio(sum[COT_SUM_LOCAL], sum[COT_SUM_ACTIVATIONS]);
    figure[COT_FIGURE_LAR_GAIN] = ratio(sum[COT_SUM_LOCAL] - sum[COT_SUM_BLIND], sum[COT_SUM_ACTIVATIONS]);
    figure[COT_FIGURE_LAR_KNOWN] = ratio(sum[COT_SUM_LOCAL] - sum[COT_SUM_UNKNOWN_LOCAL],
                                         sum[COT_SUM_ACTIVATIONS] - sum[COT_SUM_UNKNOWN_ACTIVATIONS]);
    figure[COT_FIGURE_LAR_UNKNOWN] = ratio(sum[COT_SUM_UNKNOWN_LOCAL], sum[COT_SUM_UNKNOWN_ACTIVATIONS]);
    figure[COT_FIGURE_UNKNOWN] = ratio(sum[COT_SUM_UNKNOWN], sum[COT_SUM_TOKENS]);
    figure[COT_FIGURE_LAR_DEDUP] = ratio(own, remote + own);
    figure[COT_FIGURE_REMOTE_RANKS] = ratio(remote, sum[COT_SUM_TOKENS]);
    figure[COT_FIGURE_ROWS] = 2 * figure[COT_FIGURE_REMOTE_RANKS];
    figure[COT_FIGURE_ORACLE_LAR] = ratio(sum[COT_SUM_ORACLE] + none, sum[COT_SUM_ACTIVATIONS]);
    figure[COT_FIGURE_LAR_EVEN] = ratio(sum[COT_SUM_EVEN] + none, sum[COT_SUM_ACTIVATIONS]);
}

/* A layer's sums and loads, sequence s taken times[s] times (NULL: once). */
typedef struct layer_sums {
    double sum[COT_SUMS], token_load[COT_TRACE_MAX_RANKS], expert_load[COT_TRACE_MAX_RANKS];
} layer_sums;

static void add_up(layer_sums *all, const cot_tallies *t, int32_t l, const int32_t *times)
{
    const cot_tally *tally = &t->layer[l];
    const size_t D = (size_t)t->n_ranks;
    *all = (layer_sums){0};
    for (size_t s = 0; s < (size_t)t->n_sequences; s++) {
        const double n = times ? times[s] : 1;
        if (n == 0) continue;
        for (size_t i = 0; i < COT_SUMS; i++) all->sum[i] += n * tally->sum[s * COT_SUMS + i];
        for (size_t d = 0; d < D; d++) {
            all->token_load[d] += n * tally->token_load[s * D + d];
            all->expert_load[d] += n * tally->expert_load[s * D + d];
        }
    }
    double blind = 0;
    for (size_t d = 0; d < D; d++) blind += all->token_load[d] * all->expert_load[d];
    if (blind > 0) all->sum[COT_SUM_BLIND] = blind / all->sum[COT_SUM_TOKENS];
}

/* `step` [n_steps]: which steps' peaks are taken; NULL: each once. */
static void figure_layer(double *figure, const layer_sums *all, const cot_tallies *t, int32_t l,
                         const int64_t *step)
{
    double peaks = 0;
    figure_sums(figure, all->sum, t->ordered);
    for (int64_t i = 0; i < t->n_steps; i++) peaks += t->layer[l].step_peak[step ? step[i] : i];
    const bool any = all->sum[COT_SUM_TOKENS] > 0;
    figure[COT_FIGURE_TOKEN_IMBALANCE] = any ? cot_load_peak(all->token_load, t->n_ranks) : NAN;
    figure[COT_FIGURE_EXPERT_PEAK] = any ? cot_load_peak(all->expert_load, t->n_ranks) : NAN;
    figure[COT_FIGURE_HOME_PEAK] = ratio(peaks, (double)t->n_steps);
}

/* Over all layers; `layer`, unless NULL, gets the layers' [L][COT_FIGURES]. */
static void figure_all(double *all, double *layer, const cot_tallies *t, const int32_t *times,
                       const int64_t *step)
{
    static const int means[] = {COT_FIGURE_TOKEN_IMBALANCE, COT_FIGURE_HOME_PEAK, COT_FIGURE_EXPERT_PEAK};
    enum { MEANS = sizeof means / sizeof *means };
    double sum[COT_SUMS] = {0}, mean[MEANS] = {0};
    int32_t counted[MEANS] = {0};
    for (int32_t l = 0; l < t->n_layers; l++) {
        layer_sums sums;
        double figure[COT_FIGURES];
        add_up(&sums, t, l, times);
        figure_layer(figure, &sums, t, l, step);
        for (int i = 0; i < COT_SUMS; i++) sum[i] += sums.sum[i];
        for (int i = 0; i < MEANS; i++) {
            if (isnan(figure[means[i]])) continue; // a layer without activations
            mean[i] += figure[means[i]];
            counted[i]++;
        }
        if (layer) memcpy(layer + (size_t)l * COT_FIGURES, figure, sizeof figure);
    }
    figure_sums(all, sum, t->ordered);
    for (int i = 0; i < MEANS; i++) all[means[i]] = ratio(mean[i], counted[i]);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The 97.5th percentile of Student's t over the normal distribution's, with n - 1 degrees of freedom: the terms of its
 * expansion in 1 / (n - 1), short by a ninth for two sequences, by 1 % for three. */
static double widening(int64_t n)
{
    const double v = (double)(n - 1), z = 1.959964;
    return (z + 2.3723 / v + 2.8225 / (v * v) + 2.5558 / (v * v * v) + 1.5895 / (v * v * v * v)) / z *
           sqrt((double)n / v);
}

/* The 2.5th and 97.5th percentile of each figure over the resamples of `sequences`. Resampled few sequences differ less
 * than as many others would. */
static void interval(cot_predict_evaluation *evaluation, double *sample, int32_t resamples, int64_t sequences)
{
    const size_t n = (size_t)resamples;
    const double beyond = (widening(sequences) - 1) / 2; // of the width, at each end
    for (size_t i = 0; i < COT_FIGURES; i++) {
        double *one = sample + i * n;
        size_t known = 0;
        for (size_t r = 0; r < n; r++)
            if (!isnan(one[r])) one[known++] = one[r];
        if (!known) continue;
        qsort(one, known, sizeof *one, by_value);
        const double low = one[(size_t)(0.025 * (double)(known - 1))];
        const double high = one[(size_t)ceil(0.975 * (double)(known - 1))];
        evaluation->low[i] = low - beyond * (high - low);
        evaluation->high[i] = high + beyond * (high - low);
    }
}

cot_status cot_tallies_figure(cot_predict_evaluation *evaluation, const cot_tallies *t, int32_t resamples,
                              uint64_t seed, cot_error *error)
{
    const size_t S = (size_t)t->n_sequences, n = (size_t)resamples;
    for (int i = 0; i < COT_FIGURES; i++) evaluation->low[i] = evaluation->high[i] = NAN;
    figure_all(evaluation->all, evaluation->layer, t, NULL, NULL);
    if (!resamples || !t->ordered || S < 2) return COT_OK; // one sequence says nothing of how they differ
    double *sample = malloc(n * COT_FIGURES * sizeof *sample);
    int32_t *times = malloc((S + 1) * sizeof *times);
    int64_t *step = malloc(((size_t)t->n_steps + 1) * sizeof *step);
    const bool good = sample && times && step;
    for (size_t r = 0; good && r < n; r++) {
        double all[COT_FIGURES];
        memset(times, 0, S * sizeof *times);
        for (size_t s = 0; s < S; s++) times[cot_random_bits(seed, 2 * r, s) % S]++;
        for (int64_t i = 0; i < t->n_steps; i++)
            step[i] = (int64_t)(cot_random_bits(seed, 2 * r + 1, (uint64_t)i) % (uint64_t)t->n_steps);
        figure_all(all, NULL, t, times, step);
        for (size_t i = 0; i < COT_FIGURES; i++) sample[i * n + r] = all[i];
    }
    if (good) interval(evaluation, sample, resamples, t->n_sequences);
    free(sample);
    free(times);
    free(step);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the intervals");
}
