/* Token tables and device sequences against counts made here, naively; batches of every size against one by one. */
#include "harness/cmocka.h"
#include "harness/predict/samples.h"
#include "harness/refused.h"

#include "coterie/trace.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct expected {
    int rank;
    int confidence;
} expected;

/* What `count` [E] says of ranks. */
static expected pair_of(const int64_t *count, int E, int D, const int32_t *expert_rank)
{
    int64_t sum[64] = {0}, total = 0;
    int best = 0;
    for (int e = 0; e < E; e++) {
        sum[expert_rank[e]] += count[e];
        total += count[e];
    }
    for (int d = 1; d < D; d++)
        if (sum[d] > sum[best]) best = d;
    if (!total) return (expected){-1, 0};
    return (expected){best, (int)(sum[best] * 65535 / total)};
}

/* Calls of the layer's experts by training tokens of that id (-1: any) whose last `n` homes are these. */
static int64_t count_like(int64_t *count, const cot_trace *trace, const uint8_t *chosen, int l, int32_t id,
                          bool any, const int16_t *homes, int64_t token, int n)
{
    const int64_t T = trace->n_tokens;
    int64_t found = 0;
    for (int e = 0; e < trace->n_experts; e++) count[e] = 0;
    for (int64_t s = 0; s < trace->n_sequences; s++)
        for (int64_t t = trace->sequence_offsets[s]; t < trace->sequence_offsets[s + 1] && chosen[s]; t++) {
            bool like = any || trace->token_ids[t] == id;
            for (int j = 0; j < n && like; j++)
                like = homes[(l - 1 - j) * T + t] == homes[(l - 1 - j) * T + token];
            for (int k = 0; k < trace->top_k && like; k++) count[cot_trace_expert(trace, l, t, k)]++;
            found += like;
        }
    return found;
}

static void compare(expected want, int rank, int confidence, const char *what, int l, int64_t t)
{
    if (want.rank != rank || abs(want.confidence - confidence) > 0)
        fail_msg("%s, layer %d, token %lld: rank %d (%d), expected %d (%d)", what, l, (long long)t, rank,
                 confidence, want.rank, want.confidence);
}

static void against_counts(scratch_pad *pad, const sample_shape *shape, int D, int order, bool random_groups)
{
    cot_error error = {0};
    cot_trace trace = sample_trace(pad, shape);
    const int64_t T = trace.n_tokens, S = trace.n_sequences;
    const int L = shape->L, E = shape->E, K = shape->K;
    uint8_t *chosen = calloc((size_t)S + 1, 1);
    int32_t *groups = calloc((size_t)(L * E), sizeof *groups);
    for (int64_t s = 0; s < S; s++) chosen[s] = s == 0 || pad_draw(pad, 2);
    for (int i = 0; i < L * E; i++) groups[i] = (int32_t)pad_draw(pad, (uint32_t)D);
    // some ids have a rank, one of them was never seen
    int32_t given_ids[] = {3, 9, 1 << 20}, *given_ranks = calloc((size_t)L * 3, sizeof *given_ranks);
    for (int i = 0; i < L * 3; i++) given_ranks[i] = (int32_t)pad_draw(pad, (uint32_t)D);
    cot_predictor_options options = {.size = sizeof options,
                                     .ranks = D,
                                     .order = order,
                                     .chosen = chosen,
                                     .seed = pad->seed,
                                     .expert_rank = random_groups ? groups : NULL,
                                     .token_ids = given_ids,
                                     .token_rank = given_ranks,
                                     .n_tokens = random_groups ? 3 : 0};
    cot_predictor *p;
    if (cot_predictor_train(&p, &trace, &options, &error) != COT_OK) fail_msg("%s", error.message);
    cot_predictor_info info;
    cot_predictor_describe(&info, p);
    assert_int_equal(info.n_ranks, D);
    assert_int_equal(info.order, order);
    for (int i = 0; i < L * E; i++) { // contiguous: floor(rE/D) <= e < floor((r+1)E/D)
        const int e = i % E, r = info.expert_rank[i];
        assert_true(random_groups ? r == groups[i] : r * E / D <= e && e < (r + 1) * E / D);
    }
    int16_t *homes = calloc((size_t)(L * T) + 1, sizeof *homes);
    int64_t *count = calloc((size_t)E, sizeof *count);
    for (int l = 0; l < L; l++)
        for (int64_t t = 0; t < T; t++) {
            for (int e = 0; e < E; e++) count[e] = 0;
            for (int k = 0; k < K; k++) count[cot_trace_expert(&trace, l, t, k)]++;
            homes[l * T + t] = (int16_t)pair_of(count, E, D, info.expert_rank + l * E).rank;
        }
    float *score = calloc((size_t)E, sizeof *score);
    for (int l = 0; l < L; l++)
        for (int64_t t = 0; t < T; t++) {
            int16_t rank;
            uint16_t confidence;
            sample_batch b = sample_batch_of(p, &trace, l, &t, 1);
            for (int j = 0; j < order && j < l; j++) assert_int_equal(b.ranks[j], homes[(l - 1 - j) * T + t]);
            const int32_t id = trace.token_ids[t];
            const int32_t *expert_rank = info.expert_rank + l * E;
            int64_t seen = id < 0 ? 0 : count_like(count, &trace, chosen, l, id, false, homes, t, 0);
            expected token = seen ? pair_of(count, E, D, expert_rank) : (expected){-1, 0};
            for (int i = 0; i < 3 && random_groups; i++) {
                if (given_ids[i] != id) continue;
                int64_t there = 0;
                token.rank = given_ranks[l * 3 + i];
                for (int e = 0; e < E && seen; e++) there += expert_rank[e] == token.rank ? count[e] : 0;
                token.confidence = seen ? (int)(there * 65535 / (seen * K)) : 0;
            }
            cot_predict_ranks(&rank, &confidence, p, COT_PREDICT_TOKEN_TABLE, &b.batch);
            compare(token, rank, confidence, "token table", l, t);
            cot_predict_experts(score, p, COT_PREDICT_TOKEN_TABLE, &b.batch);
            for (int e = 0; e < E && seen; e++)
                assert_true(fabs(score[e] - (double)count[e] / (double)seen) < 1.0 / 65535 + 1e-5);

            int n = order < l ? order : l;
            while (n && !count_like(count, &trace, chosen, l, -1, true, homes, t, n)) n--;
            if (!n) count_like(count, &trace, chosen, l, -1, true, homes, t, 0);
            int64_t total = 0;
            for (int e = 0; e < E; e++) total += count[e];
            expected sequence = n ? pair_of(count, E, D, expert_rank) : (expected){-1, 0};
            cot_predict_ranks(&rank, &confidence, p, COT_PREDICT_DEVICE_SEQUENCE, &b.batch);
            compare(sequence, rank, confidence, "sequence", l, t);
            cot_predict_experts(score, p, COT_PREDICT_DEVICE_SEQUENCE, &b.batch);
            for (int e = 0; e < E; e++)
                assert_true(fabs(score[e] - (double)(count[e] * K) / (double)total) < 1.0 / 255);

            cot_predict_ranks(&rank, &confidence, p, COT_PREDICT_ALGORITHM_2, &b.batch);
            if (info.has[COT_PREDICT_ALGORITHM_2])
                compare(sequence.confidence > token.confidence ? sequence : token, rank, confidence,
                        "algorithm 2", l, t);
            else
                assert_int_equal(rank, -1);
            sample_batch_free(&b);
        }
    free(score);
    free(count);
    free(homes);
    free(groups);
    free(given_ranks);
    free(chosen);
    cot_predictor_close(p);
    cot_trace_close(&trace);
}

static void test_counts(void **state)
{
    scratch_pad *pad = *state;
    const sample_shape shapes[] = {
        {4, 8, 2, 5, 200, 20, true}, {3, 7, 3, 3, 60, 5, false}, {6, 4, 1, 2, 120, 9, true},
        {2, 1, 1, 2, 20, 3, false},  {3, 6, 6, 2, 30, 4, false}, {4, 9, 2, 3, 80, 0, true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int round = 0; round < 4; round++) {
            const int D = round == 0 ? 1 : 1 + (int)pad_draw(pad, (uint32_t)shapes[i].E);
            against_counts(pad, &shapes[i], D, 1 + (int)pad_draw(pad, 5), shapes[i].ids && round % 2);
        }
}

/* One call for all tokens and calls for pieces say the same, and write nothing else. */
static void test_batches(void **state)
{
    scratch_pad *pad = *state;
    const sample_shape shape = {5, 12, 3, 4, 700, 40, true};
    cot_trace trace = sample_trace(pad, &shape);
    cot_predictor *p = sample_train(pad, &trace, 4, 3, NULL);
    int64_t token[700];
    for (int64_t t = 0; t < 700; t++) token[t] = (int64_t)pad_draw(pad, 700);
    enum { POISON = 0x5a5a };
    static int16_t all[701], some[701];
    static uint16_t all_sure[701], some_sure[701];
    float *scores = calloc(701 * 12, sizeof *scores), *few = calloc(701 * 12, sizeof *few);
    for (int l = 0; l < 5; l++)
        for (int m = 0; m < COT_PREDICT_METHODS; m++) {
            sample_batch b = sample_batch_of(p, &trace, l, token, 700);
            cot_predict_ranks(all, all_sure, p, (cot_predict_method)m, &b.batch);
            cot_predict_experts(scores, p, (cot_predict_method)m, &b.batch);
            sample_batch_free(&b);
            for (int64_t at = 0, n = 0; at < 700; at += n, n = 1 + pad_draw(pad, m & 1 ? 9 : 300)) {
                n = at + n > 700 ? 700 - at : n;
                for (int i = 0; i <= 700; i++) some[i] = POISON, some_sure[i] = POISON;
                for (int i = 0; i < 701 * 12; i++) few[i] = POISON;
                b = sample_batch_of(p, &trace, l, token + at, n);
                cot_predict_ranks(some, some_sure, p, (cot_predict_method)m, &b.batch);
                cot_predict_experts(few, p, (cot_predict_method)m, &b.batch);
                assert_memory_equal(some, all + at, (size_t)n * sizeof *some);
                assert_memory_equal(some_sure, all_sure + at, (size_t)n * sizeof *some_sure);
                assert_memory_equal(few, scores + at * 12, (size_t)n * 12 * sizeof *few);
                assert_true(some[n] == POISON && some_sure[n] == POISON && few[n * 12] == POISON);
                cot_predict_ranks(some, NULL, p, (cot_predict_method)m, &b.batch);
                assert_memory_equal(some, all + at, (size_t)n * sizeof *some);
                sample_batch_free(&b);
            }
        }
    free(scores);
    free(few);
    cot_predictor_close(p);
    cot_trace_close(&trace);
}

/* A trace of counts says of its ids what the trace of tokens that it was counted from says. */
static void test_kind_counts(void **state)
{
    scratch_pad *pad = *state;
    cot_error error = {0};
    const sample_shape shape = {4, 8, 2, 5, 300, 20, true};
    cot_trace trace = sample_trace(pad, &shape), counts;
    assert_int_equal(cot_trace_count(&counts, &trace, &error), COT_OK);
    cot_predictor *a = sample_train(pad, &trace, 4, 2, NULL), *b = sample_train(pad, &counts, 4, 2, NULL);
    cot_predictor_info from_tokens, from_counts;
    cot_predictor_describe(&from_tokens, a);
    cot_predictor_describe(&from_counts, b);
    assert_true(from_counts.has[COT_PREDICT_GLOBAL] && from_counts.has[COT_PREDICT_TOKEN_TABLE]);
    assert_false(from_counts.has[COT_PREDICT_DEVICE_SEQUENCE] || from_counts.has[COT_PREDICT_ALGORITHM_2] ||
                 from_counts.has[COT_PREDICT_CONTEXT_PREFILL] || from_counts.has[COT_PREDICT_CONTEXT_DECODE]);
    assert_int_equal(from_counts.n_sequences, 0);
    assert_int_equal(from_counts.n_tokens, from_tokens.n_tokens);
    const size_t n = (size_t)from_counts.n_tokens;
    assert_memory_equal(from_counts.token_ids, from_tokens.token_ids, n * 4);
    assert_memory_equal(from_counts.token_frequency, from_tokens.token_frequency, n * 2);
    int32_t *row = calloc(n, sizeof *row);
    float *x = calloc(n * 8, sizeof *x), *y = calloc(n * 8, sizeof *y);
    int16_t *rank = calloc(2 * n, sizeof *rank);
    for (size_t i = 0; i < n; i++) row[i] = (int32_t)i;
    for (int l = 0; l < 4; l++) {
        const cot_predict_batch batch = {.layer = l, .n_tokens = (int64_t)n, .row = row};
        for (int m = COT_PREDICT_GLOBAL; m <= COT_PREDICT_TOKEN_TABLE; m++) {
            cot_predict_ranks(rank, NULL, a, (cot_predict_method)m, &batch);
            cot_predict_ranks(rank + n, NULL, b, (cot_predict_method)m, &batch);
            assert_memory_equal(rank, rank + n, n * sizeof *rank);
            cot_predict_experts(x, a, (cot_predict_method)m, &batch);
            cot_predict_experts(y, b, (cot_predict_method)m, &batch);
            assert_memory_equal(x, y, n * 8 * sizeof *x);
        }
    }
    free(row);
    free(x);
    free(y);
    free(rank);
    cot_predictor_close(a);
    cot_predictor_close(b);
    cot_trace_close(&trace);
    cot_trace_close(&counts);
}

/* A layer that a token was never counted in knows nothing of it; one that nobody was counted in knows nothing. */
static void test_empty_layers(void **state)
{
    scratch_pad *pad = *state;
    const int32_t layers[] = {0, 1, 2}, ids[] = {4, 7};
    const uint32_t counts[3][2][3] = {{{2, 0, 0}, {0, 1, 1}}, {{0, 0, 0}, {0, 0, 2}}, {{0, 0, 0}, {0, 0, 0}}};
    const cot_trace trace = {.kind = COT_TRACE_COUNTS,
                             .model = "",
                             .n_layers = 3,
                             .n_experts = 3,
                             .top_k = 1,
                             .layers = layers,
                             .n_tokens = 2,
                             .token_ids = ids,
                             .counts = counts[0][0]};
    cot_predictor *p = sample_train(pad, &trace, 3, 2, NULL);
    const int32_t row[] = {0, 1, -1, 2};
    const int16_t want[3][4] = {{0, 1, -1, -1}, {-1, 2, -1, -1}, {-1, -1, -1, -1}}, global[] = {0, 2, -1};
    for (int l = 0; l < 3; l++) {
        int16_t rank[4];
        uint16_t sure[4];
        float score[4][3];
        const cot_predict_batch batch = {.layer = l, .n_tokens = 4, .row = row};
        cot_predict_ranks(rank, sure, p, COT_PREDICT_TOKEN_TABLE, &batch);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(rank[i], want[l][i]);
            if (rank[i] < 0) assert_int_equal(sure[i], 0);
        }
        cot_predict_ranks(rank, sure, p, COT_PREDICT_GLOBAL, &batch);
        for (int i = 0; i < 4; i++) assert_int_equal(rank[i], global[l]);
        cot_predict_experts(score[0], p, COT_PREDICT_TOKEN_TABLE, &batch);
        if (l == 1) // unknown there: as the layer
            for (int i = 0; i < 4; i++) assert_true(fabs(score[i][2] - 1) < 1e-4 && score[i][0] == 0);
        if (l == 2)
            for (int i = 0; i < 4; i++) assert_true(score[i][0] == 0 && score[i][1] == 0 && score[i][2] == 0);
    }
    cot_predictor_info info;
    cot_predictor_describe(&info, p);
    assert_int_equal(info.token_frequency[0], 2);
    assert_int_equal(info.token_frequency[1], 2);
    cot_predictor_close(p);
}

/* An expert that counts say was called more often than once a token is as sure as one that each token called. */
static void test_more_calls_than_tokens(void **state)
{
    enum { E = 9, K = 8 };
    scratch_pad *pad = *state;
    const int32_t layers[] = {0}, ids[] = {4};
    const uint32_t counts[E] = {[2] = 5};
    const cot_trace trace = {.kind = COT_TRACE_COUNTS,
                             .model = "",
                             .n_layers = 1,
                             .n_experts = E,
                             .top_k = K,
                             .layers = layers,
                             .n_tokens = 1,
                             .token_ids = ids,
                             .counts = counts};
    cot_predictor *p = sample_train(pad, &trace, 3, 2, NULL);
    const int32_t row = 0;
    const cot_predict_batch batch = {.n_tokens = 1, .row = &row};
    for (int m = COT_PREDICT_GLOBAL; m <= COT_PREDICT_TOKEN_TABLE; m++) {
        float score[E];
        cot_predict_experts(score, p, (cot_predict_method)m, &batch);
        for (int e = 0; e < E; e++) // behind a token's own share comes a trace of the layer's
            assert_true(e == 2 ? score[e] >= 1 && score[e] < 1 + 1e-5 : score[e] == 0);
    }
    cot_predictor_close(p);
}

static void refuse(cot_predictor_options options, const cot_trace *trace, const char *words)
{
    cot_error error = {0};
    cot_predictor *p = (cot_predictor *)&error;
    options.size = options.size ? options.size : sizeof options;
    assert_refused(cot_predictor_train(&p, trace, &options, &error), &error, words);
    assert_int_equal(error.status, COT_INVALID_ARGUMENT);
    assert_null(p);
}

static void test_options(void **state)
{
    scratch_pad *pad = *state;
    const sample_shape shape = {2, 4, 2, 3, 30, 5, true};
    cot_trace trace = sample_trace(pad, &shape);
    const uint8_t none[3] = {0};
    const int32_t beyond[] = {0, 1, 2, 3, 0, 1, 2, 4}, falling[] = {3, 3}, negative[] = {-1, 3},
                  ids[] = {1, 2}, ranks[] = {0, 3, 0, 4};
    const float row[4] = {1};
    const cot_predict_embedding empty = {row, 0, 4};
    refuse((cot_predictor_options){.size = 8, .ranks = 4}, &trace, "bytes");
    refuse((cot_predictor_options){.ranks = 0}, &trace, "0 ranks");
    refuse((cot_predictor_options){.ranks = 5}, &trace, "5 ranks, expected 1 to 4");
    refuse((cot_predictor_options){.ranks = 4, .order = 6}, &trace, "6 layers");
    refuse((cot_predictor_options){.ranks = 4, .order = -1}, &trace, "-1 layers");
    refuse((cot_predictor_options){.ranks = 4, .expert_rank = beyond}, &trace, "rank 4");
    refuse((cot_predictor_options){.ranks = 4, .n_tokens = 2, .token_ids = falling, .token_rank = ranks},
           &trace, "'3'");
    refuse((cot_predictor_options){.ranks = 4, .n_tokens = 2, .token_ids = negative, .token_rank = ranks},
           &trace, "'-1'");
    refuse((cot_predictor_options){.ranks = 4, .n_tokens = 2, .token_ids = ids, .token_rank = ranks}, &trace,
           "given rank 4");
    refuse((cot_predictor_options){.ranks = 4, .n_tokens = 2, .token_ids = ids}, &trace, "without");
    refuse((cot_predictor_options){.ranks = 4, .embedding = &empty}, &trace, "embedding");
    refuse((cot_predictor_options){.ranks = 4, .chosen = none}, &trace, "no token to learn from");
    cot_trace_close(&trace);
}

static void test_hash(void **state)
{
    scratch_pad *pad = *state;
    const sample_shape shape = {3, 5, 2, 4, 50, 6, true};
    cot_trace trace = sample_trace(pad, &shape);
    const uint64_t hash = cot_trace_hash(&trace);
    assert_int_equal(cot_trace_hash(&trace), hash);
    uint8_t *experts = (uint8_t *)(uintptr_t)trace.experts_u8; // built in memory of its own
    const int at = (int)pad_draw(pad, 3 * 50 * 2);
    experts[at] ^= 1;
    assert_int_not_equal(cot_trace_hash(&trace), hash);
    experts[at] ^= 1;
    ((int32_t *)(uintptr_t)trace.token_ids)[pad_draw(pad, 50)] +=
        1; // another tokenizer's ids: the same routing
    assert_int_equal(cot_trace_hash(&trace), hash);
    uint16_t wide[3 * 50 * 2]; // as another program may have written them
    for (int i = 0; i < 3 * 50 * 2; i++) wide[i] = experts[i];
    cot_trace same = trace;
    same.experts_u8 = NULL;
    same.experts_u16 = wide;
    assert_int_equal(cot_trace_hash(&same), hash);
    cot_trace counts;
    assert_int_equal(cot_trace_count(&counts, &trace, NULL), COT_OK);
    const uint64_t of_counts = cot_trace_hash(&counts);
    ((int32_t *)(uintptr_t)counts.token_ids)[counts.n_tokens - 1] += 1;
    assert_int_not_equal(cot_trace_hash(&counts), of_counts);
    cot_trace_close(&counts);
    cot_trace_close(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_kind_counts),
        cmocka_unit_test(test_empty_layers),
        cmocka_unit_test(test_more_calls_than_tokens),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_hash),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
