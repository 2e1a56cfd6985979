/* Loads, their spread, locality and warnings against figures computed another way. */
#include "harness/refused.h"
#include "harness/scratch.h"

#include "coterie/trace.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A random trace; some sequences are shorter than the ranks are many. */
static void make(scratch_pad *pad, cot_trace *trace, int L, int E, int K, int S)
{
    cot_error error = {0};
    cot_trace_builder *builder;
    assert_int_equal(cot_trace_builder_open(&builder, "random", L, NULL, E, K, &error), COT_OK);
    uint16_t *experts = malloc((size_t)(L * K) * sizeof *experts);
    float *weights = calloc((size_t)(L * K), sizeof *weights);
    for (int s = 0; s < S; s++)
        for (int t = (int)pad_draw(pad, pad_draw(pad, 4) ? 40 : 3); t > 0; t--) {
            for (int l = 0; l < L; l++) draw_experts(pad, experts + l * K, K, E);
            assert_int_equal(
                cot_trace_builder_append(builder, s, (int32_t)pad_draw(pad, 50), experts, weights, &error),
                COT_OK);
        }
    assert_int_equal(cot_trace_builder_finish(trace, builder, &error), COT_OK);
    cot_trace_builder_close(builder);
    free(experts);
    free(weights);
}

/* The rank r with floor(r n / P) <= i < floor((r + 1) n / P), by looking at all. */
static int owner(int64_t i, int64_t n, int P)
{
    int found = -1;
    for (int r = 0; r < P; r++)
        if (r * n / P <= i && i < (r + 1) * n / P) {
            assert_int_equal(found, -1);
            found = r;
        }
    return found;
}

static void test_locality(void **state)
{
    scratch_pad *pad = *state;
    for (int round = 0; round < 20; round++) {
        int E = 1 + (int)pad_draw(pad, round % 2 ? 300 : 20),
            K = 1 + (int)pad_draw(pad, (uint32_t)(E < 8 ? E : 8)), L = 1 + (int)pad_draw(pad, 3);
        int P = round < 3 ? 2 << round : 1 + (int)pad_draw(pad, 64);
        cot_trace trace;
        cot_error error = {0};
        make(pad, &trace, L, E, K, (int)pad_draw(pad, 12));
        for (int l = 0; l < L; l++) {
            cot_locality got;
            int64_t local = 0, remote = 0;
            memset(&got, 0x5a, sizeof got);
            assert_int_equal(cot_trace_locality_measure(&got, &trace, l, P, &error), COT_OK);
            for (int64_t t = 0, s = 0; t < trace.n_tokens; t++) {
                while (t >= trace.sequence_offsets[s + 1]) s++;
                int home = owner(t - trace.sequence_offsets[s],
                                 trace.sequence_offsets[s + 1] - trace.sequence_offsets[s], P);
                bool touched[64] = {0};
                for (int k = 0; k < K; k++) {
                    int at = owner(cot_trace_expert(&trace, l, t, k), E, P);
                    if (at == home)
                        local++;
                    else
                        touched[at] = true;
                }
                for (int r = 0; r < P; r++) remote += touched[r];
            }
            assert_int_equal(got.local, local);
            assert_int_equal(got.remote_ranks, remote);
            assert_int_equal(got.tokens, trace.n_tokens);
            assert_int_equal(got.activations, trace.n_tokens * K);
            if (P == 1) assert_int_equal(got.local, got.activations);
        }
        cot_locality nothing;
        assert_refused(cot_trace_locality_measure(&nothing, &trace, 0, 0, &error), &error, "0 ranks");
        assert_refused(cot_trace_locality_measure(&nothing, &trace, 0, 65, &error), &error, "65 ranks");
        assert_refused(cot_trace_locality_measure(&nothing, &trace, L, 2, &error), &error, "layer");
        cot_trace_close(&trace);
    }
}

/* Tokens one by one, wherever their experts are, as a running engine counts them; and peaks. */
static void test_counters(void **state)
{
    (void)state;
    const int32_t expert_rank[6] = {3, 3, 0, 63, 63, 1};
    const uint16_t tokens[3][4] = {{0, 1, 2, 5}, {3, 4, 3, 2}, {5, 5, 5, 5}};
    cot_locality all = {0};
    assert_true(cot_locality_lar(&all) == 0 && cot_locality_remote_ranks(&all) == 0);
    for (int t = 0; t < 3;
         t++) { // two at home, ranks 0 and 1; none at home, ranks 63 and 0; three of three at home
        uint64_t reached = 0;
        for (int k = 0; k < 4 - t / 2; k++)
            reached |= cot_locality_call(&all, 3 - t, expert_rank[tokens[t][k]]);
        cot_locality_token(&all, reached);
    }
    assert_int_equal(all.tokens, 3);
    assert_int_equal(all.activations, 11);
    assert_int_equal(all.local, 5);
    assert_int_equal(all.remote_ranks, 4);
    assert_true(cot_locality_lar(&all) == 5.0 / 11 && cot_locality_remote_ranks(&all) == 4.0 / 3);
    assert_true(cot_load_peak((const double[]){1, 6, 0, 1}, 4) == 3);
    assert_true(cot_load_peak((const double[]){0, 0}, 2) == 0 && cot_load_peak(NULL, 0) == 0);
    for (int64_t n = 1; n < 40; n++)
        for (int P = 1; P <= 64; P++)
            for (int64_t i = 0; i < n; i++) assert_int_equal(cot_trace_home(i, n, P), owner(i, n, P));
}

static void test_load(void **state)
{
    scratch_pad *pad = *state;
    for (int round = 0; round < 10; round++) {
        int E = 1 + (int)pad_draw(pad, 300), K = 1 + (int)pad_draw(pad, (uint32_t)(E < 6 ? E : 6)),
            L = 1 + (int)pad_draw(pad, 3);
        cot_trace trace, counts;
        cot_error error = {0};
        make(pad, &trace, L, E, K, 8);
        assert_int_equal(cot_trace_count(&counts, &trace, &error), COT_OK);
        uint64_t *expected = malloc((size_t)E * 8), *load = malloc((size_t)E * 8);
        for (int l = 0; l < L; l++) {
            memset(expected, 0, (size_t)E * 8);
            for (int64_t t = 0; t < trace.n_tokens; t++)
                for (int k = 0; k < K; k++) expected[cot_trace_expert(&trace, l, t, k)]++;
            memset(load, 0xee, (size_t)E * 8);
            cot_trace_load(load, &trace, l);
            assert_memory_equal(load, expected, (size_t)E * 8);
            memset(load, 0xee, (size_t)E * 8);
            cot_trace_load(load, &counts, l);
            assert_memory_equal(load, expected, (size_t)E * 8);
        }
        cot_locality nothing;
        assert_refused(cot_trace_locality_measure(&nothing, &counts, 0, 2, &error), &error, "counts");
        free(expected);
        free(load);
        cot_trace_close(&trace);
        cot_trace_close(&counts);
    }
}

static void test_spread(void **state)
{
    (void)state;
    cot_error error = {0};
    cot_load_spread s;
    const uint64_t equal[] = {7, 7, 7, 7}, none[] = {0, 0, 0};
    assert_int_equal(cot_load_measure(&s, equal, 4, &error), COT_OK);
    assert_true(s.total == 28 && s.unused == 0 && s.peak_over_mean == 1 && s.variation == 0 &&
                s.top_tenth_share == 0.25);
    assert_int_equal(cot_load_measure(&s, none, 3, &error), COT_OK);
    assert_true(s.total == 0 && s.unused == 3 && s.peak_over_mean == 0 && s.variation == 0 &&
                s.top_tenth_share == 0);
    assert_int_equal(cot_load_measure(&s, none, 0, &error), COT_OK);
    assert_true(s.total == 0 && s.unused == 0);
    // 1 .. 11: mean 6, variance 10, two things are the busiest tenth
    const uint64_t steps[] = {3, 11, 1, 9, 5, 7, 2, 10, 4, 8, 6};
    assert_int_equal(cot_load_measure(&s, steps, 11, &error), COT_OK);
    assert_true(s.total == 66 && s.unused == 0);
    assert_true(fabs(s.peak_over_mean - 11.0 / 6) < 1e-12);
    assert_true(fabs(s.variation - sqrt(10) / 6) < 1e-12);
    assert_true(fabs(s.top_tenth_share - 21.0 / 66) < 1e-12);
    assert_int_equal(cot_load_measure(&s, steps, 10, &error), COT_OK); // of ten, one
    assert_true(fabs(s.top_tenth_share - 11.0 / 60) < 1e-12);
}

static void append(void *context, const char *line)
{
    strcat(context, line);
    strcat(context, "\n");
}

static void test_warnings(void **state)
{
    (void)state;
    // layer 4: token 0 names expert 1 twice, expert 3 is never used; layer 6: none is
    const int32_t layers[] = {4, 6}, ids[] = {-1, 0, -1};
    const int64_t offsets[] = {0, 3};
    const uint8_t experts[] = {1, 1, 0, 2, 2, 0, 0, 1, 2, 3, 3, 2};
    cot_trace trace = {.model = "m",
                       .n_layers = 2,
                       .n_experts = 4,
                       .top_k = 2,
                       .layers = layers,
                       .n_tokens = 3,
                       .token_ids = ids,
                       .n_sequences = 1,
                       .sequence_offsets = offsets,
                       .experts_u8 = experts};
    char text[2048] = "";
    cot_error error = {0};
    assert_int_equal(cot_trace_warn(&trace, append, text, &error), COT_OK);
    assert_string_equal(text, "2 of 3 tokens have an unknown id\n"
                              "the trace has no weights\n"
                              "1 (layer, expert) pairs are never used, in layers 4\n"
                              "1 times a token names one expert more than once in a layer\n");
    trace.n_tokens = 0;
    text[0] = 0;
    assert_int_equal(cot_trace_warn(&trace, append, text, &error), COT_OK);
    assert_string_equal(text, "the trace holds no tokens\n");

    int32_t many[10];
    uint32_t counts[10 * 2 * 2] = {0};
    for (int l = 0; l < 10; l++) many[l] = l;
    counts[0] = 3, counts[1] = 1, counts[2] = 2, counts[3] = 1; // layer 0: 4 of id 3, 3 of id 5
    const int32_t known[] = {3, 5};
    cot_trace table = {.kind = COT_TRACE_COUNTS,
                       .model = "m",
                       .n_layers = 10,
                       .n_experts = 2,
                       .top_k = 2,
                       .layers = many,
                       .n_tokens = 2,
                       .token_ids = known,
                       .counts = counts};
    text[0] = 0;
    assert_int_equal(cot_trace_warn(&table, append, text, &error), COT_OK);
    assert_string_equal(text, "no load in layers 1, 2, 3, 4, 5, 6 and 3 more\n"
                              "counts of 1 token ids sum to no multiple of 2 in some layer\n"
                              "2 token ids are counted more often in some layers than in others\n");

    // a sound trace is met with silence
    const uint8_t all[] = {0, 1, 2, 3};
    const uint16_t weights[4] = {0};
    const int64_t two[] = {0, 2};
    cot_trace sound = {.model = "m",
                       .n_layers = 1,
                       .n_experts = 4,
                       .top_k = 2,
                       .layers = layers,
                       .n_tokens = 2,
                       .token_ids = known,
                       .n_sequences = 1,
                       .sequence_offsets = two,
                       .experts_u8 = all,
                       .weights = weights};
    text[0] = 0;
    assert_int_equal(cot_trace_warn(&sound, append, text, &error), COT_OK);
    assert_string_equal(text, "");
}

/* Eight tokens in a row with the same experts in every layer are a recorder's warm-up, where there are eight choices to tell tokens apart
 * by: seven are not, nor are such that differ in the last layer alone. */
static void test_warm_ups(void **state)
{
    (void)state;
    enum { LAYERS = 2, TOP_K = 4, EXPERTS = 4, TOKENS = 40 };
    static const struct {
        int begin, tokens, second, more; // runs that begin at token `begin` and `second`
        const char *says;
    } cases[] = {
        {5, 7, 20, 7, ""},
        {5, 8, 20, 7,
         "8 tokens are in constant rows, the same experts in every layer (first: 8 tokens from token 5): a "
         "recorder's warm-up?\n"},
        {0, 9, 31, 9,
         "18 tokens are in constant rows, the same experts in every layer (first: 9 tokens from token 0): a "
         "recorder's warm-up?\n"}};
    static const int32_t layers[] = {1, 3};
    static const int64_t offsets[] = {0, TOKENS};
    int32_t ids[TOKENS];
    uint16_t weights[LAYERS * TOKENS * TOP_K] = {0};
    uint8_t experts[LAYERS][TOKENS][TOP_K];
    for (int c = 0; c < 3; c++)
        for (int top_k = TOP_K; top_k >= TOP_K - 1; top_k--) {
            char text[2048] = "";
            for (int t = 0; t < TOKENS; t++) {
                const bool constant = (t >= cases[c].begin && t < cases[c].begin + cases[c].tokens) ||
                                      (t >= cases[c].second && t < cases[c].second + cases[c].more);
                ids[t] = t;
                for (int l = 0; l < LAYERS; l++)
                    for (int k = 0; k < TOP_K; k++) experts[l][t][k] = (uint8_t)k;
                if (constant) continue; // others differ from their neighbours in the last layer alone
                experts[LAYERS - 1][t][TOP_K - 1] = (uint8_t)(t % 2);
                experts[LAYERS - 1][t][t % 2] = TOP_K - 1;
            }
            uint8_t rows[LAYERS * TOKENS * TOP_K], *at = rows;
            for (int l = 0; l < LAYERS; l++)
                for (int t = 0; t < TOKENS; t++)
                    for (int k = 0; k < top_k; k++) *at++ = experts[l][t][k];
            const cot_trace trace = {.model = "m",
                                     .n_layers = LAYERS,
                                     .n_experts = EXPERTS,
                                     .top_k = top_k,
                                     .layers = layers,
                                     .n_tokens = TOKENS,
                                     .token_ids = ids,
                                     .n_sequences = 1,
                                     .sequence_offsets = offsets,
                                     .experts_u8 = rows,
                                     .weights = weights};
            assert_int_equal(cot_trace_warn(&trace, append, text, NULL), COT_OK);
            const char *said = strstr(text, "tokens are in constant"), *line = said;
            while (line && line > text && line[-1] != '\n') line--;
            assert_string_equal(line ? line : "", top_k == TOP_K ? cases[c].says : "");
        }
}

/* As many ranks as there are bits, and every layer of the trace; none beyond. */
static void test_bounds_of_locality(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace;
    cot_locality found;
    cot_error error = {0};
    make(pad, &trace, 3, 70, 2, 8);
    for (int32_t l = -1; l <= 3; l++)
        for (int ranks = 0; ranks <= COT_TRACE_MAX_RANKS + 1; ranks++)
            if (l >= 0 && l < 3 && ranks >= 1 && ranks <= COT_TRACE_MAX_RANKS) {
                assert_int_equal(cot_trace_locality_measure(&found, &trace, l, ranks, &error), COT_OK);
                assert_int_equal(found.tokens, trace.n_tokens);
            } else {
                assert_refused(cot_trace_locality_measure(&found, &trace, l, ranks, &error), &error,
                               "no locality for layer");
            }
    cot_trace_close(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warm_ups), cmocka_unit_test(test_bounds_of_locality),
        cmocka_unit_test(test_locality), cmocka_unit_test(test_counters),
        cmocka_unit_test(test_load),     cmocka_unit_test(test_spread),
        cmocka_unit_test(test_warnings),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
