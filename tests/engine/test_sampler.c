/* The sampler against a plain reference: everything sorted, every rule one loop. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "engine/sampler.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 600 };

static uint64_t seed;

static double uniform(void)
{
    return (double)(draw(&seed) >> 11) * 0x1p-53;
}

/* The tokens that end a text for the model, in every test. */
static const int32_t eos[] = {2, MOST + 5};
static int64_t said;         // how many tokens of the history are text
static const uint32_t *mask; // of what may come; NULL: all

static bool may_come(int64_t t)
{
    return !mask || (mask[t / 32] >> t % 32 & 1);
}

/* ---- the reference ---- */

struct choice {
    double logit, probability;
    int32_t token;
};

static int by_logit(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* What may be drawn and with which probabilities, best first; returns how many. `edge` tells how near a cut of
 * top-p or min-p came to going the other way. */
static int64_t reference(struct choice *c, const float *logits, int64_t vocab, const int32_t *history,
                         int64_t history_tokens, const cot_sampling *s, double *edge)
{
    bool seen[MOST] = {false}, ends[MOST + 6] = {false};
    int64_t n = 0, came[MOST] = {0};
    *edge = 1;
    for (int64_t i = 0; i < history_tokens; i++) {
        seen[history[i]] = true;
        came[history[i]] += i >= history_tokens - said;
    }
    for (size_t i = 0; i < 2; i++) ends[eos[i]] = true;
    for (size_t i = 0; i < s->stop_count; i++) ends[s->stop_tokens[i]] = true;
    for (int64_t t = 0; t < vocab; t++) {
        double logit = logits[t];
        for (size_t i = 0; i < s->bias_count; i++)
            if (s->bias_tokens[i] == t) logit = (float)(logit + (double)s->bias[i]);
        if (seen[t])
            logit = (float)(logit > 0 ? logit / s->repetition_penalty : logit * s->repetition_penalty);
        if (came[t]) logit -= s->presence_penalty + (double)came[t] * s->frequency_penalty;
        if (may_come(t) && (said >= s->min_tokens || !ends[t]))
            c[n++] = (struct choice){(float)logit, 0, (int32_t)t};
    }
    qsort(c, (size_t)n, sizeof *c, by_logit);
    if (s->temperature == 0) {
        c[0].probability = 1;
        return n ? 1 : 0;
    }
    double best = c[0].logit, total = 0;
    for (int64_t i = 0; i < n; i++) c[i].logit = c[i].logit - best;
    for (int64_t i = 0; i < n && !s->temperature_last; i++) c[i].logit /= s->temperature;
    if (s->top_k && s->top_k < n) n = s->top_k;
    for (int64_t i = 0; i < n; i++) total += c[i].probability = exp(c[i].logit);
    if (s->top_p < 1) {
        int64_t kept = 0;
        for (double sum = 0; kept < n && sum < s->top_p * total;) {
            sum += c[kept++].probability;
            *edge = fmin(*edge, fabs(sum / total - s->top_p));
        }
        n = kept;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (s->min_p > 0 && i) *edge = fmin(*edge, fabs(c[i].probability - s->min_p));
        if (!i || c[i].probability >= s->min_p * c[0].probability) c[kept++] = c[i];
    }
    n = kept;
    for (int64_t i = 0; i < n && s->temperature_last; i++)
        c[i].probability = exp(c[i].logit / s->temperature);
    total = 0;
    for (int64_t i = 0; i < n; i++) total += c[i].probability;
    for (int64_t i = 0; i < n; i++) c[i].probability /= total;
    return n;
}

/* ---- calling the sampler ---- */

static int32_t sample(const float *logits, int64_t vocab, const int32_t *history, int64_t history_tokens,
                      const cot_sampling *s, int64_t position)
{
    float own[MOST];
    cot_candidate scratch[MOST];
    int32_t counts[MOST] = {0};
    memcpy(own, logits, (size_t)vocab * sizeof *own);
    memset(scratch, 0xff, sizeof scratch);
    const cot_sampler_history all = {history, history_tokens, history_tokens - said};
    const int32_t token =
        cot_sample(&(cot_sampler){vocab, own, scratch, counts, eos, 2, mask}, &all, s, position);
    for (int64_t t = 0; t < MOST; t++) assert_int_equal(counts[t], 0);
    assert_true(token >= 0 && token < vocab);
    return token;
}

static cot_sampling plain(void)
{
    cot_sampling s;
    cot_sampling_init(&s);
    return s;
}

static void draw_logits(float *logits, int64_t vocab, bool ties)
{
    double spread = 0.5 + 8 * uniform(), centre = 40 * uniform() - 20;
    for (int64_t t = 0; t < vocab; t++) {
        double x = centre + spread * (uniform() + uniform() + uniform() - 1.5);
        logits[t] = (float)(ties ? floor(x) : x);
    }
}

static cot_sampling drawn_settings(int64_t vocab)
{
    cot_sampling s = plain();
    s.temperature = draw(&seed) % 8 ? 0.1 + 2 * uniform() : 0;
    s.temperature_last = draw(&seed) % 2;
    s.top_k = draw(&seed) % 2 ? 0 : 1 + (int64_t)(draw(&seed) % (uint64_t)(vocab + 3));
    s.top_p = draw(&seed) % 2 ? 1 : 0.01 + 0.98 * uniform();
    s.min_p = draw(&seed) % 2 ? 0 : uniform() * uniform();
    s.repetition_penalty = draw(&seed) % 2 ? 1 : 0.5 + 2 * uniform();
    s.seed = draw(&seed);
    s.presence_penalty = draw(&seed) % 2 ? 0 : 4 * uniform() - 2;
    s.frequency_penalty = draw(&seed) % 2 ? 0 : 4 * uniform() - 2;
    return s;
}

/* Biases and stop tokens, which settings point to. */
struct lists {
    int32_t tokens[30], stops[5];
    float bias[30];
};

static void draw_lists(struct lists *lists, cot_sampling *s, int64_t vocab)
{
    s->bias_tokens = lists->tokens;
    s->bias = lists->bias;
    s->stop_tokens = lists->stops;
    s->bias_count = draw(&seed) % 2 ? 0 : draw(&seed) % 30;
    s->stop_count = draw(&seed) % 6;
    for (size_t i = 0; i < s->bias_count; i++) { // some tokens twice
        lists->tokens[i] = (int32_t)(draw(&seed) % (uint64_t)vocab);
        lists->bias[i] = (float)(draw(&seed) % 4 ? 8 * uniform() - 4 : 200 * uniform() - 100);
    }
    for (size_t i = 0; i < s->stop_count; i++) lists->stops[i] = (int32_t)(draw(&seed) % (uint64_t)vocab);
    s->min_tokens = (int64_t)(draw(&seed) % 6);
}

/* ---- tests ---- */

/* The token drawn is the one that the reference's probabilities, laid end to end in any order, could give: it is
 * allowed; and over many positions each allowed token with a good probability comes. */
static void only_what_the_rules_leave(void **state)
{
    (void)state;
    int64_t checked = 0;
    for (int round = 0; round < 600; round++) {
        float logits[MOST];
        struct choice c[MOST];
        int32_t history[40];
        int64_t vocab = 1 + (int64_t)(draw(&seed) % (round % 2 ? 12 : MOST)),
                remembered = (int64_t)(draw(&seed) % 41);
        double edge;
        draw_logits(logits, vocab, round % 3 == 0);
        for (int64_t i = 0; i < remembered; i++) history[i] = (int32_t)(draw(&seed) % (uint64_t)vocab);
        cot_sampling s = drawn_settings(vocab);
        struct lists lists;
        draw_lists(&lists, &s, vocab);
        uint32_t words[(MOST + 31) / 32];
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            words[i] = (uint32_t)draw(&seed) & (uint32_t)draw(&seed);
        words[draw(&seed) % (uint64_t)vocab / 32] |= 1U; // not empty
        mask = draw(&seed) % 2 ? words : NULL;
        said = (int64_t)(draw(&seed) % (uint64_t)(remembered + 1));
        int64_t n = reference(c, logits, vocab, history, remembered, &s, &edge);
        if (edge < 1e-5 || !n) continue; // rounding may cut either way; nothing may come
        bool came[MOST] = {false}, allowed[MOST] = {false};
        for (int64_t i = 0; i < n; i++) allowed[c[i].token] = true;
        for (int64_t position = 0; position < 60; position++) {
            int32_t token = sample(logits, vocab, history, remembered, &s, position);
            assert_true(allowed[token]);
            came[token] = true;
        }
        for (int64_t i = 0; i < n; i++)
            if (c[i].probability > 0.5) assert_true(came[c[i].token]); // fails once in 2^60
        checked++;
    }
    said = 0;
    mask = NULL;
    assert_true(checked > 300);
}

/* Chi-square of many draws; the seeds are fixed, so that the verdict is too. */
static void check_distribution(const cot_sampling *settings, const float *logits, int64_t vocab,
                               const int32_t *history, int64_t remembered)
{
    enum { DRAWS = 20000 };
    struct choice c[MOST];
    int64_t came[MOST] = {0};
    double edge, square = 0, rest = 0, rest_came = 0;
    int freedom = -1;
    int64_t n = reference(c, logits, vocab, history, remembered, settings, &edge);
    assert_true(edge > 1e-9);
    for (int64_t i = 0; i < DRAWS; i++) came[sample(logits, vocab, history, remembered, settings, i)]++;
    for (int64_t i = 0; i < n; i++) {
        double wanted = DRAWS * c[i].probability, found = (double)came[c[i].token];
        if (wanted < 8) { // too few for the approximation: counted together
            rest += wanted;
            rest_came += found;
            continue;
        }
        square += (found - wanted) * (found - wanted) / wanted;
        freedom++;
    }
    if (rest >= 8) {
        square += (rest_came - rest) * (rest_came - rest) / rest;
        freedom++;
    }
    assert_true(freedom >= 1);
    // Wilson and Hilferty's cube root: about normal, 4 standard deviations.
    double spread = 2.0 / (9 * freedom), z = (cbrt(square / freedom) - (1 - spread)) / sqrt(spread);
    if (!(z < 4)) fail_msg("chi-square %g with %d degrees of freedom", square, freedom);
}

static void tokens_come_as_often_as_they_should(void **state)
{
    (void)state;
    uint64_t own = seed;
    seed = 1;
    float logits[MOST];
    int32_t history[] = {3, 5, 3, 11, 0};
    for (int64_t vocab = 20; vocab < MOST; vocab += 193) {
        draw_logits(logits, vocab, false);
        cot_sampling s = plain();
        s.seed = (uint64_t)vocab;
        s.temperature = 1;
        check_distribution(&s, logits, vocab, NULL, 0);
        s.temperature = 0.7;
        s.top_k = 9;
        check_distribution(&s, logits, vocab, NULL, 0);
        s.temperature = 2.5;
        s.top_k = 0;
        s.top_p = 0.6;
        check_distribution(&s, logits, vocab, NULL, 0);
        s.min_p = 0.2;
        s.repetition_penalty = 1.7;
        check_distribution(&s, logits, vocab, history, 5);
        s.temperature_last = true;
        check_distribution(&s, logits, vocab, history, 5);
    }
    seed = own;
}

/* A text to which nothing may be added ends before min_tokens; one to which something may does not. */
static void where_ends_alone_are_left_one_comes(void **state)
{
    (void)state;
    const float logits[] = {9, 1, -3, 8, 7, 2, 0, 5};
    const int32_t stops[] = {6};
    cot_sampling s = plain();
    s.min_tokens = 3;
    s.stop_tokens = stops;
    s.stop_count = 1;
    s.bias_tokens = (int32_t[]){0};
    s.bias = (float[]){100};
    s.bias_count = 1;
    for (int hot = 0; hot < 2; hot++) {
        const uint32_t ends = 1U << 2 | 1U << 6, other = ends | 1U << 1;
        s.temperature = hot;
        mask = &ends;
        for (int64_t position = 0; position < 30; position++) {
            const int32_t token = sample(logits, 8, NULL, 0, &s, position);
            assert_true(token == 2 || token == 6);
        }
        mask = &other;
        assert_int_equal(sample(logits, 8, NULL, 0, &s, 0), 1);
    }
    mask = NULL;
}

static void the_same_draw_is_the_same_token(void **state)
{
    (void)state;
    float logits[100];
    int differ = 0;
    draw_logits(logits, 100, false);
    cot_sampling s = plain(), other = plain();
    s.temperature = other.temperature = 3;
    s.seed = draw(&seed);
    other.seed = s.seed + 1;
    for (int64_t position = 0; position < 100; position++) {
        int32_t token = sample(logits, 100, NULL, 0, &s, position);
        assert_int_equal(token, sample(logits, 100, NULL, 0, &s, position));
        differ += token != sample(logits, 100, NULL, 0, &other, position);
    }
    assert_true(differ > 20); // another seed draws otherwise
}

static void ties_go_to_the_first(void **state)
{
    (void)state;
    const float logits[] = {1, 4, 4, -2, 4};
    cot_sampling s = plain();
    assert_int_equal(sample(logits, 5, NULL, 0, &s, 0), 1);
    s.temperature = 1;
    s.top_k = 1;
    assert_int_equal(sample(logits, 5, NULL, 0, &s, 0), 1);
    s.top_k = 2;
    bool came[5] = {false};
    for (int64_t p = 0; p < 60; p++) came[sample(logits, 5, NULL, 0, &s, p)] = true;
    assert_true(came[1] && came[2] && !came[0] && !came[3] && !came[4]);
    s.top_k = 0;
    s.top_p = 0.3; // a third of nearly all each: one is enough
    assert_int_equal(sample(logits, 5, NULL, 0, &s, 7), 1);
    const float equal[] = {4, 4, 4, 4};
    s.top_p = 0.5; // two of four reach it exactly
    memset(came, 0, sizeof came);
    for (int64_t p = 0; p < 60; p++) came[sample(equal, 4, NULL, 0, &s, p)] = true;
    assert_true(came[0] && came[1] && !came[2] && !came[3]);
}

static void penalties_tell_signs_apart(void **state)
{
    (void)state;
    const float logits[] = {3, 2.9f, -1, -1.1f};
    const int32_t positive[] = {0, 0, 0}, all[] = {0, 1, 2};
    cot_sampling s = plain();
    s.repetition_penalty = 1.2;
    assert_int_equal(sample(logits, 4, positive, 3, &s, 0), 1); // 3 / 1.2, once though it came thrice
    assert_int_equal(sample(logits, 4, all, 3, &s, 0), 0);
    const float negative[] = {-1, -1.1f};
    assert_int_equal(sample(negative, 2, positive, 1, &s, 0), 1); // -1 x 1.2
}

static void extreme_temperatures(void **state)
{
    (void)state;
    const float logits[] = {-3e38f, 3e38f, 2.9e38f};
    cot_sampling s = plain();
    s.temperature = 1e-300;
    assert_int_equal(sample(logits, 3, NULL, 0, &s, 0), 1);
    s.temperature = 1e6;
    s.top_p = 1e-12;
    assert_int_equal(sample(logits, 3, NULL, 0, &s, 0), 1);
    s.top_p = 1;
    s.min_p = 1;
    assert_int_equal(sample(logits, 3, NULL, 0, &s, 0), 1);
}

/* However far a penalty pushes logits, what may be drawn is drawn and nothing else. */
static void extreme_penalties(void **state)
{
    (void)state;
    static const double temperatures[] = {0, 5e-324, 1e-300, 1e-30, 1, 1e6};
    const float high[] = {2e38f, 3e38f, -1, 2.5e38f}, low[] = {-3e38f, -2e38f, -3.4e38f};
    const int32_t history[] = {3, 0, 1, 2};
    for (size_t i = 0; i < sizeof temperatures / sizeof *temperatures; i++) {
        cot_sampling s = plain();
        s.temperature = temperatures[i];
        for (int rule = 0; rule < 4; rule++) {
            s.top_k = rule == 1 ? 3 : 0;
            s.top_p = rule == 2 ? 1e-300 : 1;
            s.min_p = rule == 3 ? 1e-300 : 0;
            bool came[4] = {false};
            s.repetition_penalty = 1e-6; // three logits beyond any float
            assert_int_equal(cot_sampler_check(&s, NULL), COT_OK);
            for (int64_t p = 0; p < 60; p++) came[sample(high, 4, history, 4, &s, p)] = true;
            assert_false(came[2]);
            assert_int_equal(came[0] + came[1] + came[3], s.temperature == 0 || rule == 2 ? 1 : 3);
            s.repetition_penalty = 1e6; // and all of them, below
            memset(came, 0, sizeof came);
            for (int64_t p = 0; p < 60; p++) came[sample(low, 3, history, 4, &s, p)] = true;
            assert_int_equal(came[0] + came[1] + came[2], s.temperature == 0 || rule == 2 ? 1 : 3);
        }
    }
}

static void settings_out_of_range_are_named(void **state)
{
    (void)state;
    cot_sampling good = plain();
    assert_int_equal(cot_sampler_check(&good, NULL), COT_OK);
#define REFUSED(field, value, name)                                                                          \
    do {                                                                                                     \
        cot_sampling s = plain();                                                                            \
        cot_error error = {0};                                                                               \
        s.field = (value);                                                                                   \
        assert_int_equal(cot_sampler_check(&s, &error), COT_INVALID_ARGUMENT);                               \
        assert_non_null(strstr(error.message, name));                                                        \
    } while (0)
    REFUSED(size, 3, "settings of 3 bytes");
    REFUSED(temperature, -0.1, "temperature");
    REFUSED(temperature, NAN, "temperature");
    REFUSED(temperature, INFINITY, "temperature");
    REFUSED(top_k, -1, "top-k");
    REFUSED(top_p, 0, "top-p");
    REFUSED(top_p, 1.01, "top-p");
    REFUSED(top_p, NAN, "top-p");
    REFUSED(min_p, -0.01, "min-p");
    REFUSED(min_p, 1.01, "min-p");
    REFUSED(min_p, NAN, "min-p");
    REFUSED(repetition_penalty, 0, "repetition penalty");
    REFUSED(repetition_penalty, -1, "repetition penalty");
    REFUSED(repetition_penalty, NAN, "repetition penalty");
    REFUSED(repetition_penalty, 1e-39, "repetition penalty 1e-39 is not in [1e-6, 1e6]");
    REFUSED(repetition_penalty, 9e-7, "repetition penalty");
    REFUSED(repetition_penalty, 1.1e6, "repetition penalty");
    REFUSED(repetition_penalty, INFINITY, "repetition penalty");
    REFUSED(temperature, 1.1e6, "temperature");
    REFUSED(top_p, -0.0, "top-p");
    REFUSED(max_tokens, -1, "max tokens");
    REFUSED(min_tokens, -1, "min tokens");
    REFUSED(presence_penalty, -2.01, "presence penalty");
    REFUSED(presence_penalty, NAN, "presence penalty");
    REFUSED(frequency_penalty, 2.01, "frequency penalty");
    REFUSED(frequency_penalty, NAN, "frequency penalty");
    REFUSED(bias_count, COT_MAX_BIAS + 1, "biases of 1025");
    REFUSED(stop_count, COT_MAX_STOP_TOKENS + 1, "65 stop tokens");
    static const float biases[] = {0, 100.5F, NAN, -100.5F};
    static const int32_t tokens[] = {7, 8, 9, 10};
    for (size_t i = 1; i < 4; i++) {
        cot_sampling s = plain();
        s.bias = biases + i;
        s.bias_tokens = tokens + i;
        s.bias_count = 1;
        cot_error error = {0};
        assert_int_equal(cot_sampler_check(&s, &error), COT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, i == 3 ? "of token 10" : i == 2 ? "of token 9" : "of token 8"));
        s.bias = biases;
        assert_int_equal(cot_sampler_check(&s, NULL), COT_OK);
    }
#undef REFUSED
}

/* By hand: what each of the later rules does to a greedy choice. */
static void rules_by_example(void **state)
{
    (void)state;
    const float logits[] = {5, 4, 6, 1, -1};
    const int32_t text[] = {0, 2, 1, 1, 0}, first[] = {0, 0};
    cot_sampling s = plain();
    assert_int_equal(sample(logits, 5, text, 5, &s, 0), 2);
    s.min_tokens = 1; // token 2 ends texts
    assert_int_equal(sample(logits, 5, text, 5, &s, 0), 0);
    s.stop_tokens = first;
    s.stop_count = 2;
    assert_int_equal(sample(logits, 5, text, 5, &s, 0), 1);
    said = 1;
    assert_int_equal(sample(logits, 5, text, 5, &s, 0), 2); // enough has been said
    s = plain();
    s.presence_penalty = 1.5; // of the prompt nothing counts: said is the last 0 alone
    assert_int_equal(sample(logits, 5, text, 5, &s, 0), 2);
    said = 4; // 2, 1, 1, 0: 3.5, 2.5, 4.5
    assert_int_equal(sample(logits, 5, text, 5, &s, 0), 2);
    s.presence_penalty = 0;
    s.frequency_penalty = -2; // 7, 8, 8
    assert_int_equal(sample(logits, 5, text, 5, &s, 0), 1);
    said = 0;
    s = plain();
    const int32_t biased[] = {4, 3, 4};
    const float bias[] = {4, 5.5F, 4}; // 4 comes to 7, 3 to 6.5
    s.bias_tokens = biased;
    s.bias = bias;
    s.bias_count = 3;
    assert_int_equal(sample(logits, 5, text, 5, &s, 0), 4);
    const int32_t all[] = {0, 1, 2, 3, 4};
    s = plain();
    s.min_tokens = 3;
    s.stop_tokens = all;
    s.stop_count = 5; // nothing else is left
    assert_int_equal(sample(logits, 5, text, 5, &s, 0), 2);
    s.stop_count = 4;
    for (int way = 0; way < 4; way++) {
        s.temperature = way ? 1e6 : 0;
        s.top_p = way == 2 ? 0.9 : 1;
        s.min_p = way == 3 ? 0.1 : 0;
        for (int64_t p = 0; p < 20; p++) assert_int_equal(sample(logits, 5, text, 5, &s, p), 4);
    }
}

/* Texts of one prompt draw for themselves. */
static void streams_differ(void **state)
{
    (void)state;
    float logits[100];
    int differ = 0;
    draw_logits(logits, 100, false);
    cot_sampling s = plain(), other = plain();
    s.temperature = other.temperature = 3;
    s.seed = other.seed = draw(&seed);
    other.stream = 1;
    for (int64_t position = 0; position < 100; position++)
        differ +=
            sample(logits, 100, NULL, 0, &s, position) != sample(logits, 100, NULL, 0, &other, position);
    assert_true(differ > 20);
}

static int by_chance(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static void chances_of_tokens(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        float logits[MOST];
        struct choice c[MOST];
        const int64_t vocab = 1 + (int64_t)(draw(&seed) % MOST);
        draw_logits(logits, vocab, round % 2 == 0);
        if (round % 5 == 0) logits[0] = round % 3 ? 3e38F : -3e38F;
        const int32_t token = (int32_t)(draw(&seed) % (uint64_t)vocab);
        const size_t k = round % 3 == 0 ? 0 : draw(&seed) % (COT_MAX_LOGPROBS + 1);
        long double sum = 0;
        int32_t rank = 1;
        for (int64_t t = 0; t < vocab; t++) {
            c[t] = (struct choice){(double)logits[t], 0, (int32_t)t};
            rank += logits[t] > logits[token];
        }
        qsort(c, (size_t)vocab, sizeof *c, by_chance);
        for (int64_t t = vocab - 1; t >= 0; t--)
            sum += expl((long double)c[t].logit - (long double)c[0].logit);
        const long double offset = logl(sum) + (long double)c[0].logit;
        cot_sampled s;
        cot_logprob top[COT_MAX_LOGPROBS];
        memset(&s, 0xff, sizeof s);
        memset(top, 0xff, sizeof top);
        cot_logprobs_of(logits, vocab, token, NULL, k, &s, top);
        assert_int_equal(s.token, token);
        assert_int_equal(s.rank, rank);
        assert_int_equal(s.top_count, (int64_t)k < vocab ? (int64_t)k : vocab);
        assert_ptr_equal(s.top, top);
        const long double own = (long double)logits[token] - offset;
        assert_true(fabsl((long double)s.logprob - own) <= 1e-6L * (1 + fabsl(own)));
        for (size_t i = 0; i < s.top_count; i++) {
            assert_int_equal(top[i].token, c[i].token);
            const long double chance = (long double)c[i].logit - offset;
            assert_true(fabsl((long double)top[i].logprob - chance) <= 1e-6L * (1 + fabsl(chance)));
        }
        for (size_t i = s.top_count; i < COT_MAX_LOGPROBS; i++) assert_int_equal(top[i].token, -1);
        int32_t of[COT_MAX_LOGPROB_TOKENS]; // these tokens, some of them twice, in this order
        cot_logprob told[COT_MAX_LOGPROB_TOKENS];
        const size_t asked = round % 4 ? draw(&seed) % 9 : COT_MAX_LOGPROB_TOKENS;
        for (size_t i = 0; i < asked; i++) of[i] = (int32_t)(draw(&seed) % (uint64_t)vocab);
        cot_sampled again;
        memset(&again, 0xff, sizeof again);
        cot_logprobs_of(logits, vocab, token, of, asked, &again, told);
        assert_true(again.token == token && again.rank == rank && again.logprob == s.logprob);
        assert_int_equal(again.top_count, asked);
        for (size_t i = 0; i < asked; i++) {
            assert_int_equal(told[i].token, of[i]);
            const long double chance = (long double)logits[of[i]] - offset;
            assert_true(fabsl((long double)told[i].logprob - chance) <= 1e-6L * (1 + fabsl(chance)));
        }
    }
}

int main(void)
{
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_the_rules_leave),
        cmocka_unit_test(tokens_come_as_often_as_they_should),
        cmocka_unit_test(where_ends_alone_are_left_one_comes),
        cmocka_unit_test(the_same_draw_is_the_same_token),
        cmocka_unit_test(ties_go_to_the_first),
        cmocka_unit_test(penalties_tell_signs_apart),
        cmocka_unit_test(extreme_temperatures),
        cmocka_unit_test(extreme_penalties),
        cmocka_unit_test(settings_out_of_range_are_named),
        cmocka_unit_test(rules_by_example),
        cmocka_unit_test(streams_differ),
        cmocka_unit_test(chances_of_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
