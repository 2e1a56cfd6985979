#include "engine/sampler.h"

#include "base/error.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

void cot_sampling_init(cot_sampling *sampling)
{
    *sampling =
        (cot_sampling){.size = sizeof *sampling, .top_p = 1, .repetition_penalty = 1, .max_tokens = 256};
}

cot_status cot_sampling_check(const cot_sampling *s, cot_error *error)
{
    if (s->size != sizeof *s)
        return cot_fail(error, COT_INVALID_ARGUMENT, "sampling settings of %zu bytes, expected %zu", s->size,
                        sizeof *s);
    if (!(s->temperature >= 0 && s->temperature <= 1e6))
        return cot_fail(error, COT_INVALID_ARGUMENT, "temperature %g is not in [0, 1e6]", s->temperature);
    if (s->top_k < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "top-k %lld is negative", (long long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return cot_fail(error, COT_INVALID_ARGUMENT, "top-p %g is not in (0, 1]", s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return cot_fail(error, COT_INVALID_ARGUMENT, "min-p %g is not in [0, 1]", s->min_p);
    if (!(s->repetition_penalty >= 1e-6 && s->repetition_penalty <= 1e6))
        return cot_fail(error, COT_INVALID_ARGUMENT, "repetition penalty %g is not in [1e-6, 1e6]",
                        s->repetition_penalty);
    if (s->max_tokens < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "max tokens %lld is negative", (long long)s->max_tokens);
    return COT_OK;
}

static float clamp(double logit)
{
    return (float)fmin(fmax(logit, -FLT_MAX), FLT_MAX);
}

/* Each token of the history once: a positive logit is divided, a negative one multiplied (Keskar et al. 2019,
 * CTRL). What would overflow stays finite: the difference of two infinite logits is no number. */
static void penalise(float *logits, int64_t vocab, const int32_t *history, int64_t n, double penalty,
                     uint8_t *seen)
{
    for (int64_t t = 0; t < vocab; t++) seen[t] = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t t = history[i];
        if (seen[t]) continue;
        seen[t] = 1;
        logits[t] = clamp(logits[t] > 0 ? logits[t] / penalty : logits[t] * penalty);
    }
}

static int by_logit(const void *a, const void *b)
{
    const cot_candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* Moves the k best to the front, in no order (Hoare's selection). */
static void select_best(cot_candidate *c, int64_t n, int64_t k)
{
    for (int64_t low = 0, high = n - 1; low < high;) {
        cot_candidate pivot = c[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (by_logit(&c[i], &pivot) < 0) i++;
            while (by_logit(&pivot, &c[j]) < 0) j--;
            if (i > j) break;
            cot_candidate swap = c[i];
            c[i++] = c[j];
            c[j--] = swap;
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            break;
    }
}

/* Logits are relative to the best. Keeps the fewest best whose probabilities reach top_p. What is below (1 - top_p)
 * / n cannot be among them: all of those together have less than 1 - top_p. So only the rest is sorted. */
static int64_t keep_nucleus(cot_candidate *c, int64_t n, double top_p, double total)
{
    double floor = (1 - top_p) / (double)n * total;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
        if (exp(c[i].logit) >= floor) c[kept++] = c[i];
    qsort(c, (size_t)kept, sizeof *c, by_logit);
    double sum = 0;
    for (int64_t i = 0; i < kept; i++)
        if ((sum += exp(c[i].logit)) >= top_p * total) return i + 1;
    return kept;
}

static int32_t draw(const cot_candidate *c, int64_t n, double uniform)
{
    double total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) total += exp(c[i].logit);
    for (int64_t i = 0; i < n; i++)
        if ((sum += exp(c[i].logit)) > uniform * total) return c[i].token;
    return c[n - 1].token;
}

cot_status cot_sample(int32_t *token, cot_sampler *sampler, const int32_t *history, int64_t history_tokens,
                      const cot_sampling *s, int64_t position, cot_error *error)
{
    const int64_t vocab = sampler->vocab;
    float *logits = sampler->logits;
    cot_candidate *c = sampler->candidates;
    for (int64_t t = 0; t < vocab; t++)
        if (!isfinite(logits[t]))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "the logit of token %lld is not finite: the model's values overflowed",
                            (long long)t);
    if (s->repetition_penalty != 1)
        penalise(logits, vocab, history, history_tokens, s->repetition_penalty, sampler->seen);
    int32_t best = 0;
    for (int64_t t = 1; t < vocab; t++)
        if (logits[t] > logits[best]) best = (int32_t)t;
    *token = best;
    if (s->temperature == 0) return COT_OK;

    int64_t n = vocab;
    for (int64_t t = 0; t < vocab; t++) // relative to the best, so that no temperature overflows
        c[t] = (cot_candidate){clamp(((double)logits[t] - logits[best]) / s->temperature), (int32_t)t};
    if (s->top_k && s->top_k < n) {
        select_best(c, n, s->top_k);
        n = s->top_k;
        qsort(c, (size_t)n, sizeof *c, by_logit); // selection leaves no order to rely on
    }
    if (s->top_p < 1) {
        double total = 0;
        for (int64_t i = 0; i < n; i++) total += exp(c[i].logit);
        n = keep_nucleus(c, n, s->top_p, total);
    }
    if (s->min_p > 0) {
        int64_t kept = 0;
        for (int64_t i = 0; i < n; i++)
            if (c[i].token == best || exp(c[i].logit) >= s->min_p) c[kept++] = c[i];
        n = kept;
    }
    *token = draw(c, n, cot_random_uniform(s->seed, 0, (uint64_t)position));
    return COT_OK;
}
