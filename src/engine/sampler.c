#include "engine/sampler.h"

#include "base/error.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static cot_status check_lists(const cot_sampling *s, cot_error *error)
{
    if (s->bias_count > COT_MAX_BIAS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "biases of %zu tokens, at most %d are taken",
                        s->bias_count, COT_MAX_BIAS);
    if (s->stop_count > COT_MAX_STOP_TOKENS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%zu stop tokens, at most %d are taken", s->stop_count,
                        COT_MAX_STOP_TOKENS);
    for (size_t i = 0; i < s->stop_count; i++)
        if (s->stop_tokens[i] < 0)
            return cot_fail(error, COT_INVALID_ARGUMENT, "stop token %zu is %d, ids are 0 or more", i,
                            (int)s->stop_tokens[i]);
    for (size_t i = 0; i < s->bias_count; i++)
        if (!(s->bias[i] >= -100 && s->bias[i] <= 100))
            return cot_fail(error, COT_INVALID_ARGUMENT, "the bias %g of token %d is not in [-100, 100]",
                            (double)s->bias[i], (int)s->bias_tokens[i]);
    return COT_OK;
}

cot_status cot_sampler_check(const cot_sampling *s, cot_error *error)
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
    if (!(s->presence_penalty >= -2 && s->presence_penalty <= 2))
        return cot_fail(error, COT_INVALID_ARGUMENT, "presence penalty %g is not in [-2, 2]",
                        s->presence_penalty);
    if (!(s->frequency_penalty >= -2 && s->frequency_penalty <= 2))
        return cot_fail(error, COT_INVALID_ARGUMENT, "frequency penalty %g is not in [-2, 2]",
                        s->frequency_penalty);
    if (s->max_tokens < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "max tokens %lld is negative", (long long)s->max_tokens);
    if (s->min_tokens < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "min tokens %lld is negative", (long long)s->min_tokens);
    return check_lists(s, error);
}

bool cot_sampler_stops(const cot_sampling *s, int32_t token)
{
    for (size_t i = 0; i < s->stop_count; i++)
        if (s->stop_tokens[i] == token) return true;
    return false;
}

static float clamp(double logit)
{
    return (float)fmin(fmax(logit, -FLT_MAX), FLT_MAX);
}

static void add_biases(float *logits, const cot_sampling *s)
{
    for (size_t i = 0; i < s->bias_count; i++) {
        float *logit = &logits[s->bias_tokens[i]];
        *logit = clamp((double)*logit + (double)s->bias[i]);
    }
}

/* Each token of the history once: a positive logit is divided, a negative one multiplied (Keskar et al. 2019,
 * CTRL). What would overflow stays finite: the difference of two infinite logits is no number. */
static void penalise_repetition(cot_sampler *sampler, const cot_sampler_history *h, double penalty)
{
    for (int64_t i = 0; i < h->tokens; i++) {
        float *logit = &sampler->logits[h->ids[i]];
        if (sampler->counts[h->ids[i]]++) continue;
        *logit = clamp(*logit > 0 ? *logit / penalty : *logit * penalty);
    }
    for (int64_t i = 0; i < h->tokens; i++) sampler->counts[h->ids[i]] = 0;
}

static void penalise_output(cot_sampler *sampler, const cot_sampler_history *h, double presence,
                            double frequency)
{
    for (int64_t i = h->prompt_tokens; i < h->tokens; i++) sampler->counts[h->ids[i]]++;
    for (int64_t i = h->prompt_tokens; i < h->tokens; i++) {
        int32_t *count = &sampler->counts[h->ids[i]];
        float *logit = &sampler->logits[h->ids[i]];
        if (*count) *logit = clamp(*logit - (presence + frequency * *count));
        *count = 0;
    }
}

/* What may not come gets -INFINITY, which nothing else has. What was added to it before is of no account. */
static void forbid_masked(cot_sampler *sampler)
{
    for (int64_t t = 0; t < sampler->vocab; t++)
        if (!(sampler->mask[t / 32] >> t % 32 & 1)) sampler->logits[t] = -INFINITY;
}

/* Whether a token may come that is not counted. */
static bool has_uncounted(const cot_sampler *sampler)
{
    for (int64_t t = 0; t < sampler->vocab; t++)
        if (!sampler->counts[t] && sampler->logits[t] > -INFINITY) return true;
    return false;
}

/* Ends get -INFINITY, too; where nothing would be left, they do not. */
static void forbid_ends(cot_sampler *sampler, const cot_sampling *s)
{
    const int32_t *lists[] = {sampler->eos, s->stop_tokens};
    const size_t counts[] = {sampler->eos_count, s->stop_count};
    bool others = false;
    for (int pass = 0; pass < 2; pass++) {
        others = pass && has_uncounted(sampler);
        for (int l = 0; l < 2; l++)
            for (size_t i = 0; i < counts[l]; i++) {
                const int32_t t = lists[l][i];
                if (t < 0 || t >= sampler->vocab) continue; // a configuration may say so
                sampler->counts[t] = !pass;
                if (others) sampler->logits[t] = -INFINITY;
            }
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

static void heat(cot_candidate *c, int64_t n, double temperature)
{
    for (int64_t i = 0; i < n; i++) c[i].logit = clamp(c[i].logit / temperature);
}

static int32_t draw(const cot_candidate *c, int64_t n, double uniform)
{
    double total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) total += exp(c[i].logit);
    for (int64_t i = 0; i < n; i++)
        if ((sum += exp(c[i].logit)) > uniform * total) return c[i].token;
    return c[n - 1].token;
}

/* Logits that differ from the model's. */
static void adjust(cot_sampler *sampler, const cot_sampler_history *history, const cot_sampling *s)
{
    add_biases(sampler->logits, s);
    if (s->repetition_penalty != 1) penalise_repetition(sampler, history, s->repetition_penalty);
    if (s->presence_penalty != 0 || s->frequency_penalty != 0)
        penalise_output(sampler, history, s->presence_penalty, s->frequency_penalty);
    if (sampler->mask) forbid_masked(sampler);
    if (history->tokens - history->prompt_tokens < s->min_tokens) forbid_ends(sampler, s);
}

int32_t cot_sample(cot_sampler *sampler, const cot_sampler_history *history, const cot_sampling *s,
                   int64_t position)
{
    const int64_t vocab = sampler->vocab;
    float *logits = sampler->logits;
    cot_candidate *c = sampler->candidates;
    adjust(sampler, history, s);
    int32_t best = 0;
    for (int64_t t = 1; t < vocab; t++)
        if (logits[t] > logits[best]) best = (int32_t)t;
    if (s->temperature == 0) return best;

    int64_t n = 0;
    const double first = s->temperature_last ? 1 : s->temperature;
    for (int64_t t = 0; t < vocab; t++) // relative to the best, so that no temperature overflows
        if (logits[t] > -INFINITY)
            c[n++] = (cot_candidate){clamp(((double)logits[t] - logits[best]) / first), (int32_t)t};
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
    if (s->temperature_last) heat(c, n, s->temperature);
    return draw(c, n, cot_random_uniform(s->seed, s->stream, (uint64_t)position));
}
