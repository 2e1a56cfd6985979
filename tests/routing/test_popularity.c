/* Counts that halve, the tokens kept beside them, and signatures, against sums over all tokens that ever came. */
#include "harness/scratch.h"
#include "routing/popularity.h"
#include "routing/signature.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 4000, MOST_CALLS = 64 };

/* All that came. */
struct token {
    int home;
    double when; // in half-lives
    uint16_t experts[MOST_CALLS];
};

static void assert_near(double a, double b)
{
    assert_true(fabs(a - b) <= 1e-9 * (1 + fabs(b)));
}

/* What the tokens so far are worth at `now`, each expert asked for by itself. */
static void compare(const cot_popularity *p, const struct token *token, int n, double now)
{
    const cot_popularity_options *o = &p->options;
    const int cells = o->n_layers * o->n_experts;
    double *got = malloc((size_t)cells * sizeof *got), *want = malloc((size_t)cells * sizeof *want);
    for (int home = COT_POPULARITY_ALL; home < o->n_homes; home++) {
        double tokens = 0;
        memset(want, 0, (size_t)cells * sizeof *want);
        for (int i = 0; i < n; i++) {
            if (home != COT_POPULARITY_ALL && token[i].home != home) continue;
            const double worth = pow(0.5, now - token[i].when);
            tokens += worth;
            for (int l = 0; l < o->n_layers; l++)
                for (int k = 0; k < o->top_k; k++)
                    want[l * o->n_experts + token[i].experts[l * o->top_k + k]] += worth;
        }
        cot_popularity_counts(got, p, home);
        for (int i = 0; i < cells; i++) assert_near(got[i], want[i]);
        assert_near(cot_popularity_tokens(p, home), tokens);
    }
    free(got);
    free(want);
}

/* Half-lives of a token and of many, in tokens and in seconds; short ones bring the counts back often. */
static void counts_halve(void **state)
{
    scratch_pad *pad = *state;
    static struct token token[MOST_TOKENS];
    for (int round = 0; round < 24; round++) {
        const bool seconds = round % 2;
        const double life = (const double[]){1, 3.5, 100, 65536}[round / 2 % 4];
        const int L = 1 + (int)pad_draw(pad, 4), K = 1 + (int)pad_draw(pad, 4),
                  E = K + (int)pad_draw(pad, 60), n = 1 + (int)pad_draw(pad, MOST_TOKENS);
        const cot_popularity_options options = {.n_layers = L,
                                                .n_experts = E,
                                                .top_k = K,
                                                .n_homes = 1 + (int)pad_draw(pad, 5),
                                                .half_life_tokens = seconds ? 0 : life,
                                                .half_life_seconds = seconds ? life : 0};
        cot_popularity p;
        cot_error error;
        assert_int_equal(cot_popularity_open(&p, &options, &error), COT_OK);
        const int stride = K + (int)pad_draw(pad, 9);
        double now = 0;
        for (int i = 0; i < n; i++) {
            uint16_t rows[4 * 16];
            for (int l = 0; l < L; l++) {
                draw_experts(pad, token[i].experts + l * K, K, E);
                memcpy(rows + l * stride, token[i].experts + l * K, (size_t)K * sizeof *rows);
            }
            const double gone = seconds ? pad_draw(pad, 1000) / 50. : 1;
            cot_popularity_elapse(&p, gone); // means nothing where tokens count
            now += gone / life;
            token[i].home = (int)pad_draw(pad, (uint32_t)options.n_homes);
            token[i].when = now;
            cot_popularity_add(&p, token[i].home, rows, stride);
        }
        compare(&p, token, n, now);
        cot_popularity_elapse(&p, life / 4);
        compare(&p, token, n, now + (seconds ? 0.25 : 0));
        cot_popularity_elapse(&p, 1e9 * life); // all is forgotten, and nothing is NaN
        if (seconds) compare(&p, token, 0, 0);
        cot_popularity_close(&p);
    }
}

/* Tokens say in their experts when they came. Each is there with half the chance a half-life later: the mean age of those
 * that are held is that of an exponential law. */
static void the_reservoir_halves_too(void **state)
{
    scratch_pad *pad = *state;
    enum { HELD = 512, LIFE = 1024, TOKENS = 16 * LIFE, ROUNDS = 8 };
    double age = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const cot_popularity_options options = {.n_layers = 2,
                                                .n_experts = 65536,
                                                .top_k = 1,
                                                .n_homes = 3,
                                                .half_life_tokens = LIFE,
                                                .reservoir = HELD,
                                                .seed = pad->seed + (uint64_t)round};
        cot_popularity p;
        cot_error error;
        assert_int_equal(cot_popularity_open(&p, &options, &error), COT_OK);
        for (int i = 0; i < TOKENS; i++) {
            const uint16_t experts[] = {(uint16_t)i, (uint16_t)(65535 - i)};
            cot_popularity_add(&p, i % 3, experts, 1);
            assert_int_equal(p.held, i < HELD ? i + 1 : HELD);
        }
        static bool seen[TOKENS];
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < HELD; i++) {
            const int when = p.held_experts[2 * i];
            assert_int_equal(p.held_experts[2 * i + 1], 65535 - when);
            assert_int_equal(p.held_home[i], when % 3);
            assert_false(seen[when]);
            seen[when] = true;
            age += TOKENS - 1 - when;
        }
        cot_popularity_close(&p);
    }
    // 4096 ages of mean LIFE / ln 2 and as large a deviation; draws of one reservoir depend on each other little
    const double mean = LIFE / log(2), deviation = mean / sqrt(HELD * ROUNDS);
    assert_true(fabs(age / (HELD * ROUNDS) - mean) < 8 * deviation);
}

/* What is called lately, and how far that is from before, at marks and turns of any time, against sums over the tokens that came since. */
static void what_came_before_can_be_left_out(void **state)
{
    scratch_pad *pad = *state;
    enum { L = 3, E = 12, K = 2, HELD = 64, TOKENS = 1500 };
    static struct token token[TOKENS];
    int turns = 0;
    for (int round = 0; round < 12; round++) {
        const double life = (const double[]){2, 40, 1000}[round % 3];
        const cot_popularity_options options = {.n_layers = L,
                                                .n_experts = E,
                                                .top_k = K,
                                                .n_homes = 1 + round % 3,
                                                .half_life_tokens = life,
                                                .reservoir = HELD,
                                                .seed = pad->seed + (uint64_t)round};
        cot_popularity p;
        cot_error error;
        assert_int_equal(cot_popularity_open(&p, &options, &error), COT_OK);
        int mark = 0, left = 0, since = 0;
        int64_t kept = 0; // places at the last turn, behind token `since`
        for (int n = 0; n < TOKENS; n++) {
            token[n] = (struct token){.home = (int)pad_draw(pad, (uint32_t)options.n_homes), .when = n + 1};
            for (int l = 0; l < L; l++) draw_experts(pad, token[n].experts + l * K, K, E);
            cot_popularity_add(&p, token[n].home, token[n].experts, K);
            if (pad_draw(pad, 40)) continue;
            double want[2][L * E] = {{0}}, sum[2] = {0}, got[L * E], apart = 0, chance;
            for (int i = left; i <= n; i++) {
                const double worth = exp2((i - n) / life);
                sum[i >= mark] += worth;
                for (int l = 0; l < L; l++)
                    for (int k = 0; k < K; k++) want[i >= mark][l * E + token[i].experts[l * K + k]] += worth;
            }
            assert_near(cot_popularity_lately(got, &p), sum[0] + sum[1]);
            assert_near(cot_popularity_since(&p), mark > left ? sum[1] : sum[0] + sum[1]);
            for (int i = 0; i < L * E; i++) assert_near(got[i], want[0][i] + want[1][i]);
            for (int64_t i = 0; i < p.held; i++) { // each is whole, and came lately
                const int64_t at = p.held_position[i];
                assert_in_range(at, left, n);
                assert_memory_equal(p.held_experts + i * L * K, token[at].experts, L * K * sizeof(uint16_t));
                assert_int_equal(p.held_home[i], token[at].home);
            }
            const int64_t room = kept + n + 1 - since; // a place that is free is taken
            assert_int_equal(p.held, room < HELD ? room : HELD);
            const bool both = mark > left && mark <= n;
            for (int i = 0; both && i < L * E; i++)
                apart += fabs(want[1][i] / (sum[1] * K) - want[0][i] / (sum[0] * K));
            assert_near(cot_popularity_change(&chance, &p), apart / 2 / L);
            assert_near(chance, both ? sqrt(E / (2 * acos(-1)) * (1 / sum[0] + 1 / sum[1]) / K) : 0);
            if (pad_draw(pad, 2)) {
                cot_popularity_leave(&p);
                turns += left != mark;
                left = mark;
                kept = p.held;
                since = n + 1;
            }
            if (pad_draw(pad, 2)) {
                cot_popularity_mark(&p);
                mark = n + 1;
            }
        }
        cot_popularity_close(&p);
    }
    assert_true(turns > 20);
}

/* Of calls that are drawn from the same all the time, two parts are hardly further apart than chance has them. */
static void chance_is_told(void **state)
{
    scratch_pad *pad = *state;
    enum { L = 16, E = 32, K = 4, TOKENS = 2000 };
    const cot_popularity_options options = {
        .n_layers = L, .n_experts = E, .top_k = K, .n_homes = 1, .half_life_tokens = 1e6};
    cot_popularity p;
    cot_error error;
    assert_int_equal(cot_popularity_open(&p, &options, &error), COT_OK);
    for (int i = 0; i < TOKENS; i++) {
        uint16_t experts[L * K];
        for (int l = 0; l < L; l++) draw_experts(pad, experts + l * K, K, E);
        if (i == TOKENS / 2) cot_popularity_mark(&p);
        cot_popularity_add(&p, 0, experts, K);
    }
    double chance;
    const double change = cot_popularity_change(&chance, &p);
    assert_true(change > 0.7 * chance && change < 1.1 * chance); // a token's experts differ: less than chance
    cot_popularity_close(&p);
}

static void bad_options_are_refused(void **state)
{
    (void)state;
    const cot_popularity_options good = {
        .n_layers = 2, .n_experts = 4, .top_k = 2, .n_homes = 1, .half_life_tokens = 9};
    cot_popularity_options bad[] = {good, good, good, good, good, good};
    bad[0].half_life_tokens = 0;
    bad[1].half_life_tokens = -1;
    bad[2].half_life_tokens = NAN;
    bad[3].top_k = 5;
    bad[4].n_homes = 0;
    bad[5].half_life_tokens = INFINITY;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_popularity p;
        cot_error error;
        assert_int_equal(cot_popularity_open(&p, &bad[i], &error), COT_INVALID_ARGUMENT);
        if (i < 1) assert_string_equal(error.message, "the half-life of popularity is 0, not above 0");
        cot_popularity_close(&p);
    }
}

static void shapes_keep_what_fits(void **state)
{
    scratch_pad *pad = *state;
    cot_error error;
    cot_signature_shape s;
    assert_int_equal(cot_signature_shape_of(&s, 24, 32, 4, &error), COT_OK);
    assert_int_equal(s.every, 1);
    assert_int_equal(s.cells, 768);
    assert_int_equal(cot_signature_shape_of(&s, 58, 256, 8, &error), COT_OK);
    assert_int_equal(s.every, 3);
    assert_int_equal(s.cells, 20 * 256);
    assert_int_equal(cot_signature_shape_of(&s, 47, 261, 8, &error),
                     COT_OK); // every second one would be 6264 cells
    assert_int_equal(s.every, 3);
    for (int round = 0; round < 1000; round++) {
        const int L = 1 + (int)pad_draw(pad, 1024), E = 1 + (int)pad_draw(pad, 6144);
        assert_int_equal(cot_signature_shape_of(&s, L, E, 1, &error), COT_OK);
        assert_in_range(s.cells, E, COT_SIGNATURE_MOST_CELLS);
        assert_int_equal(s.kept, (L - 1) / s.every + 1);
        assert_true(s.every >= (L * E + 6143) / 6144);
    }
    assert_int_equal(cot_signature_shape_of(&s, 1, 6145, 1, &error), COT_UNSUPPORTED);
    assert_string_equal(error.message, "a signature has 6144 cells, a layer of the model 6145 experts");
    assert_int_equal(cot_signature_shape_of(&s, 1, 4, 5, &error), COT_INVALID_ARGUMENT);
}

/* The rule in its plainest words, and the largest cells by looking for each. */
static void signatures_count_and_halve(void **state)
{
    scratch_pad *pad = *state;
    for (int round = 0; round < 40; round++) {
        const int K = 1 + (int)pad_draw(pad, 4), E = K + (int)pad_draw(pad, round % 4 ? 20 : 300),
                  L = 1 + (int)pad_draw(pad, round % 3 ? 6 : 60), n = (int)pad_draw(pad, 600);
        cot_signature_shape s;
        cot_error error;
        assert_int_equal(cot_signature_shape_of(&s, L, E, K, &error), COT_OK);
        uint8_t *cells = calloc((size_t)s.cells, 1);
        int *want = calloc((size_t)s.cells, sizeof *want);
        uint16_t experts[60 * 6];
        const int stride = K + 2;
        for (int t = 0; t < n; t++) {
            bool full = false;
            for (int l = 0; l < L; l++) {
                draw_experts(pad, experts + l * stride, K, E);
                for (int k = 0; k < K && l % s.every == 0; k++)
                    full |= ++want[l / s.every * E + experts[l * stride + k]] == 127;
            }
            for (int i = 0; full && i < s.cells; i++) want[i] = want[i] / 2;
            cot_signature_add(cells, &s, experts, stride);
        }
        for (int i = 0; i < s.cells; i++) assert_int_equal(cells[i], want[i]);
        uint16_t number[COT_SIGNATURE_LARGEST];
        uint8_t count[COT_SIGNATURE_LARGEST];
        const int got = cot_signature_largest(number, count, cells, &s);
        for (int i = 0; i < COT_SIGNATURE_LARGEST; i++) {
            int best = -1;
            for (int c = 0; c < s.cells; c++)
                if (want[c] > 0 && (best < 0 || want[c] > want[best])) best = c;
            if (best < 0) {
                assert_int_equal(got, i);
                break;
            }
            assert_true(i < got);
            assert_int_equal(number[i], best);
            assert_int_equal(count[i], want[best]);
            want[best] = 0;
        }
        free(cells);
        free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts_halve),
                                       cmocka_unit_test(the_reservoir_halves_too),
                                       cmocka_unit_test(what_came_before_can_be_left_out),
                                       cmocka_unit_test(chance_is_told),
                                       cmocka_unit_test(bad_options_are_refused),
                                       cmocka_unit_test(shapes_keep_what_fits),
                                       cmocka_unit_test(signatures_count_and_halve)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
