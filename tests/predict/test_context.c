/* What the contexts learn, what it must not see, and that nothing but its input decides what it says. */
#include "harness/cmocka.h"
#include "harness/predict/samples.h"

#include "coterie/trace.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint8_t *half(int64_t sequences)
{
    uint8_t *chosen = calloc((size_t)sequences + 1, 1);
    for (int64_t s = 0; s < sequences; s++) chosen[s] = s % 2 == 0;
    return chosen;
}

/* Experts that follow the id and the layer before are predicted; experts at random are not, by anybody. */
static void test_learns(void **state)
{
    scratch_pad *pad = *state;
    for (int follows = 0; follows < 2; follows++)
        for (int ids = 0; ids <= 30; ids += 30) {
            const sample_shape shape = {4, 16, 2, 40, 2000, ids, follows};
            cot_trace trace = sample_trace(pad, &shape);
            uint8_t *chosen = half(trace.n_sequences);
            cot_predictor *p = sample_train(pad, &trace, 4, 2, chosen);
            const double chance = 2.0 / 16;
            for (int m = 0; m < COT_PREDICT_METHODS; m++) {
                const double recall = sample_recall(p, &trace, (cot_predict_method)m, chosen, false);
                // 8000 draws: five standard deviations are 0.02
                if (!follows && recall > chance + 0.025)
                    fail_msg("%s recalls %.3f of experts drawn at random", cot_predict_method_names[m],
                             recall);
                if (follows && m >= COT_PREDICT_CONTEXT_PREFILL && recall < (ids ? 0.6 : 0.45))
                    fail_msg("%s recalls %.3f of experts that follow, ids %d", cot_predict_method_names[m],
                             recall, ids);
            }
            if (follows && ids) {
                const double table = sample_recall(p, &trace, COT_PREDICT_TOKEN_TABLE, chosen, false);
                for (int m = COT_PREDICT_CONTEXT_PREFILL; m <= COT_PREDICT_CONTEXT_DECODE; m++)
                    assert_true(sample_recall(p, &trace, (cot_predict_method)m, chosen, false) > table + 0.1);
            }
            cot_predictor_close(p);
            cot_trace_close(&trace);
            free(chosen);
        }
}

/* What is known when a method is to speak of layer l for token t: of `context-decode`, whose tokens come one after the other, what the
 * tokens before have called there. All tokens of a prefill go through the layer together. */
static bool is_future(int method, int layer, int64_t token, int l, int64_t t)
{
    return token > t || (layer >= l && (token == t || method != COT_PREDICT_CONTEXT_DECODE));
}

/* Predictions of layer l do not change with what is called from l on, nor with later tokens, nor with their ids. */
static void test_no_future(void **state)
{
    scratch_pad *pad = *state;
    const sample_shape shape = {5, 10, 2, 3, 90, 12, true};
    cot_trace trace = sample_trace(pad, &shape);
    cot_predictor *p = sample_train(pad, &trace, 3, 3, NULL);
    const size_t cells = 5 * 90 * 2;
    uint8_t *experts = (uint8_t *)(uintptr_t)trace.experts_u8,
            *kept = malloc(cells); // built in memory of its own
    int32_t *ids = (int32_t *)(uintptr_t)trace.token_ids, kept_ids[90];
    memcpy(kept, experts, cells);
    memcpy(kept_ids, ids, sizeof kept_ids);
    int changed[COT_PREDICT_METHODS] = {0}, by_earlier = 0;
    for (int64_t t = 0; t < 90; t += 1 + pad_draw(pad, 5))
        for (int l = 0; l < 5; l++)
            for (int m = 0; m < COT_PREDICT_METHODS; m++) {
                int16_t rank[4];
                uint16_t sure[4];
                float score[4][10];
                /* as it is, with another future, with another past, with other experts of earlier tokens in this layer */
                for (int pass = 0; pass < 4; pass++) {
                    for (int j = 0; j < 5 && pass; j++)
                        for (int64_t i = 0; i < 90; i++)
                            for (int k = 0; k < 2; k++) {
                                const bool change =
                                    pass == 3 ? i < t && j == l : is_future(m, j, i, l, t) == (pass == 1);
                                if (change) experts[(j * 90 + i) * 2 + k] = (uint8_t)pad_draw(pad, 10);
                            }
                    for (int64_t i = t + 1; i < 90 && pass == 1; i++) ids[i] = (int32_t)pad_draw(pad, 40);
                    sample_batch b = sample_batch_of(p, &trace, l, &t, 1);
                    cot_predict_ranks(&rank[pass], &sure[pass], p, (cot_predict_method)m, &b.batch);
                    cot_predict_experts(score[pass], p, (cot_predict_method)m, &b.batch);
                    sample_batch_free(&b);
                    memcpy(experts, kept, cells);
                    memcpy(ids, kept_ids, sizeof kept_ids);
                }
                assert_int_equal(rank[0], rank[1]);
                assert_int_equal(sure[0], sure[1]);
                assert_memory_equal(score[0], score[1], sizeof score[0]);
                changed[m] += memcmp(score[0], score[2], sizeof score[0]) != 0;
                by_earlier += memcmp(score[0], score[3], sizeof score[0]) != 0;
                if (m != COT_PREDICT_CONTEXT_DECODE) assert_memory_equal(score[0], score[3], sizeof score[0]);
            }
    assert_true(changed[COT_PREDICT_CONTEXT_PREFILL] > 10 &&
                changed[COT_PREDICT_CONTEXT_DECODE] > 10); // the past does count
    assert_true(by_earlier > 10);                          // and of the one form the tokens before
    free(kept);
    cot_predictor_close(p);
    cot_trace_close(&trace);
}

static cot_predictor *train_with(const cot_trace *trace, uint64_t of, int threads)
{
    cot_error error = {0};
    cot_predictor *p;
    const cot_predictor_options options = {
        .size = sizeof options, .ranks = 4, .order = 2, .seed = of, .threads = threads};
    if (cot_predictor_train(&p, trace, &options, &error) != COT_OK) fail_msg("%s", error.message);
    return p;
}

static void test_deterministic(void **state)
{
    scratch_pad *pad = *state;
    const sample_shape shape = {5, 20, 3, 6, 400, 30, true};
    cot_trace trace = sample_trace(pad, &shape);
    cot_predictor *one = train_with(&trace, 7, 1), *three = train_with(&trace, 7, 3),
                  *other = train_with(&trace, 8, 2);
    const uint64_t digest = sample_digest(one, &trace);
    assert_int_equal(sample_digest(three, &trace), digest);
    assert_int_not_equal(sample_digest(other, &trace),
                         digest); // the order in which tokens are shown is the seed's
    cot_predictor_close(one);
    cot_predictor_close(three);
    cot_predictor_close(other);
    cot_trace_close(&trace);
}

/* Sizes at the edge: one expert, one rank, all experts called, one token, experts that repeat, a constant trace. */
static void test_edges(void **state)
{
    scratch_pad *pad = *state;
    const sample_shape shapes[] = {{2, 1, 1, 2, 20, 3, false},
                                   {3, 6, 6, 1, 9, 2, true},
                                   {1, 5, 2, 1, 1, 1, false},
                                   {2, 33, 3, 2, 40, 4, true}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int D = 1; D <= shapes[i].E; D += 2) {
            cot_trace trace = sample_trace(pad, &shapes[i]);
            if (pad_draw(pad, 2)) // one row for all, as recorders that warm up write; K times the same expert
                memset((uint8_t *)(uintptr_t)trace.experts_u8, 0,
                       (size_t)(shapes[i].L * shapes[i].K) * (size_t)trace.n_tokens);
            cot_predictor *p = sample_train(pad, &trace, D, 0, NULL);
            for (int l = 0; l < shapes[i].L; l++)
                for (int64_t t = 0; t < trace.n_tokens; t++) {
                    sample_batch b = sample_batch_of(p, &trace, l, &t, 1);
                    int16_t rank;
                    uint16_t sure;
                    float score[64];
                    for (int m = COT_PREDICT_CONTEXT_PREFILL; m <= COT_PREDICT_CONTEXT_DECODE; m++) {
                        cot_predict_ranks(&rank, &sure, p, (cot_predict_method)m, &b.batch);
                        cot_predict_experts(score, p, (cot_predict_method)m, &b.batch);
                        assert_true(rank >= 0 && rank < D && (D > 1 || sure == UINT16_MAX));
                        for (int e = 0; e < shapes[i].E; e++) assert_true(score[e] >= 0 && score[e] <= 1);
                    }
                    sample_batch_free(&b);
                }
            cot_predictor_close(p);
            cot_trace_close(&trace);
        }
}

/* The cells of expert rows grow with the square of E; without them the other methods are there. */
static void test_many_experts(void **state)
{
    scratch_pad *pad = *state;
    const sample_shape shape = {2, 1025, 2, 2, 30, 4, true};
    cot_trace trace = sample_trace(pad, &shape);
    cot_predictor *p = sample_train(pad, &trace, 64, 5, NULL);
    cot_predictor_info info;
    cot_predictor_describe(&info, p);
    assert_false(info.has[COT_PREDICT_CONTEXT_PREFILL] || info.has[COT_PREDICT_CONTEXT_DECODE]);
    assert_true(info.has[COT_PREDICT_ALGORITHM_2]);
    assert_int_not_equal(sample_digest(p, &trace), 0);
    cot_predictor_close(p);
    cot_trace_close(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns),        cmocka_unit_test(test_no_future),
        cmocka_unit_test(test_deterministic), cmocka_unit_test(test_edges),
        cmocka_unit_test(test_many_experts),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
