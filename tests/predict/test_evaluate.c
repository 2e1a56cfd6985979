/* Figures of an evaluation against a slow count that shares nothing with it but the predictions. */
#include "base/rng.h"
#include "coterie/predict_evaluate.h"
#include "harness/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { L = 3, E = 10, K = 3, SEQUENCES = 12, MOST = 400, IDS = 15 };

typedef struct text {
    cot_trace trace;
    uint8_t chosen[SEQUENCES], others[SEQUENCES];
} text;

static uint64_t position;

static uint64_t draw(uint64_t below)
{
    return cot_random_bits(test_seed(), 1, position++) % below;
}

/* Sequences of drawn lengths whose tokens prefer some experts by id. */
static void make_text(text *x)
{
    cot_trace_builder *builder;
    *x = (text){0};
    assert_int_equal(cot_trace_builder_open(&builder, "drawn", L, NULL, E, K, NULL), COT_OK);
    for (int s = 0; s < SEQUENCES; s++) {
        const int length = s == 1 ? 0 : 1 + (int)draw(MOST / SEQUENCES);
        for (int t = 0; t < length; t++) {
            uint16_t experts[L * K];
            float weights[L * K];
            const int id = (int)draw(IDS);
            for (int l = 0; l < L; l++)
                for (int k = 0; k < K; k++) {
                    uint16_t e;
                    bool again;
                    do {
                        e = (uint16_t)(draw(3) ? (id * 7 + l + (int)draw(4)) % E : (int)draw(E));
                        again = false;
                        for (int i = 0; i < k; i++) again |= experts[l * K + i] == e;
                    } while (again);
                    experts[l * K + k] = e;
                    weights[l * K + k] = 0.25F;
                }
            assert_int_equal(cot_trace_builder_append(builder, s, id, experts, weights, NULL), COT_OK);
        }
        x->chosen[s] = s % 3 == 0;
        x->others[s] = s % 3 != 0;
    }
    assert_int_equal(cot_trace_builder_finish(&x->trace, builder, NULL), COT_OK);
    cot_trace_builder_close(builder);
}

/* One token's prediction, asked for alone. */
static void predict_one(float *score, int16_t *rank, uint16_t *confidence, const cot_predictor *predictor,
                        cot_predict_method method, const cot_trace *t, int64_t begin, int64_t at, int l)
{
    cot_predictor_info info;
    cot_predictor_describe(&info, predictor);
    uint16_t own[2][K], earlier[2][K];
    int16_t ranks[COT_PREDICT_MAX_ORDER];
    int32_t row, before = -1;
    cot_predict_rows(&row, predictor, &t->token_ids[at], 1);
    if (at > begin) cot_predict_rows(&before, predictor, &t->token_ids[at - 1], 1);
    for (int back = 1; back <= 2; back++)
        for (int k = 0; k < K; k++) {
            own[back - 1][k] = l >= back ? (uint16_t)cot_trace_expert(t, l - back, at, k) : UINT16_MAX;
            earlier[back - 1][k] =
                at - back >= begin ? (uint16_t)cot_trace_expert(t, l, at - back, k) : UINT16_MAX;
        }
    for (int back = 1; back <= info.order; back++) {
        int on[E] = {0}, best = 0;
        ranks[back - 1] = -1;
        if (l < back) continue;
        for (int k = 0; k < K; k++)
            on[info.expert_rank[(l - back) * E + cot_trace_expert(t, l - back, at, k)]]++;
        for (int d = 1; d < info.n_ranks; d++)
            if (on[d] > on[best]) best = d;
        ranks[back - 1] = (int16_t)best;
    }
    const cot_predict_batch batch = {.layer = l,
                                     .n_tokens = 1,
                                     .row = &row,
                                     .row_before = &before,
                                     .own_before = own[0],
                                     .earlier = earlier[0],
                                     .ranks_before = ranks};
    cot_predict_experts(score, predictor, method, &batch);
    cot_predict_ranks(rank, confidence, predictor, method, &batch);
}

typedef struct expected {
    double lar, gain, recall, oracle, dedup, remote, even, imbalance, expert_peak, home_peak, unknown;
    int64_t tokens;
} expected;

static bool has_room(const int *load, int n, int ranks, int d)
{
    int full = 0; // ranks that have one more than an even share
    for (int i = 0; i < ranks; i++) full += load[i] > n / ranks;
    return load[d] < n / ranks || (load[d] == n / ranks && full < n % ranks);
}

/* One layer, in the plainest way. */
static expected count(const text *x, const cot_predictor *predictor, cot_predict_method method, int l,
                      int step)
{
    static float score[MOST][E];
    static int16_t rank[MOST], sent[MOST];
    static uint16_t confidence[MOST];
    static int64_t where[MOST];
    cot_predictor_info info;
    cot_predictor_describe(&info, predictor);
    const int D = info.n_ranks;
    const int32_t *of = info.expert_rank + l * E;
    expected sum = {0};
    double tokens[16] = {0}, experts[16] = {0}, credit[16] = {0}, known[16] = {0}, activations = 0,
           needed = 0;
    double own = 0;
    int n = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t t = x->trace.sequence_offsets[s]; x->others[s] && t < x->trace.sequence_offsets[s + 1];
             t++) {
            where[n] = t;
            predict_one(score[n], &rank[n], &confidence[n], predictor, method, &x->trace,
                        x->trace.sequence_offsets[s], t, l);
            n++;
        }
    for (int i = 0; i < n; i++) {
        double on[16] = {0}, best = 0, distinct = 0;
        sent[i] = rank[i];
        if (rank[i] < 0) {
            double all = 0;
            sum.unknown++;
            sent[i] = 0;
            for (int d = 0; d < D; d++) all += 1 / (1 + known[d]);
            for (int d = 0; d < D; d++) credit[d] += 1 / ((1 + known[d]) * all);
            for (int d = 1; d < D; d++)
                if (credit[d] > credit[sent[i]]) sent[i] = (int16_t)d;
            credit[sent[i]] -= 1;
        } else
            known[rank[i]]++;
        for (int k = 0; k < K; k++) {
            const int e = cot_trace_expert(&x->trace, l, where[i], k);
            int better = 0;
            on[of[e]]++;
            for (int other = 0; other < E; other++)
                better += score[i][other] > score[i][e] || (score[i][other] == score[i][e] && other < e);
            sum.recall += better < K;
        }
        for (int d = 0; d < D; d++) {
            experts[d] += on[d];
            distinct += on[d] > 0;
            best = on[d] > best ? on[d] : best;
        }
        activations += K;
        tokens[sent[i]]++;
        sum.lar += on[sent[i]];
        sum.oracle += best;
        needed += distinct;
        own += on[sent[i]] > 0;
    }
    int steps = 0;
    for (int begin = 0; begin < n; begin += step) {
        const int many = n - begin < step ? n - begin : step;
        int load[16] = {0}, homes[16] = {0}, most = 0;
        bool done[MOST] = {0};
        for (int turn = 0; turn < many; turn++) {
            int next = -1;
            for (int i = begin; i < begin + many; i++) {
                if (done[i]) continue;
                if (next < 0 || (rank[i] >= 0) > (rank[next] >= 0) ||
                    ((rank[i] >= 0) && (rank[next] >= 0) && confidence[i] > confidence[next]))
                    next = i;
            }
            done[next] = true;
            float worth[16] = {0};
            for (int e = 0; e < E; e++) worth[of[e]] += score[next][e];
            int to = -1;
            for (int d = 0; d < D; d++) {
                if (!has_room(load, many, D, d)) continue;
                if (to < 0 || (rank[next] < 0 ? load[d] < load[to] : worth[d] > worth[to])) to = d;
            }
            if (rank[next] >= 0 && has_room(load, many, D, rank[next])) to = rank[next];
            load[to]++;
            for (int k = 0; k < K; k++) sum.even += of[cot_trace_expert(&x->trace, l, where[next], k)] == to;
        }
        for (int i = begin; i < begin + many; i++) homes[sent[i]]++;
        for (int d = 0; d < D; d++) most = homes[d] > most ? homes[d] : most;
        if (many < step && steps) break;
        sum.home_peak += (double)most * D / many;
        steps++;
    }
    for (int d = 0; d < D; d++) {
        sum.imbalance = fmax(sum.imbalance, tokens[d] * D / n);
        sum.expert_peak = fmax(sum.expert_peak, experts[d] * D / activations);
    }
    for (int d = 0; d < D; d++) sum.gain -= tokens[d] / n * experts[d] / activations;
    sum.tokens = n;
    sum.unknown /= n;
    sum.lar /= activations;
    sum.gain += sum.lar;
    sum.recall /= activations;
    sum.oracle /= activations;
    sum.even /= activations;
    sum.dedup = own / needed;
    sum.remote = (needed - own) / n;
    sum.home_peak /= steps;
    return sum;
}

static void same(double got, double want, const char *what, int l)
{
    if (!(fabs(got - want) < 1e-9)) fail_msg("%s of layer %d: %.12g, not %.12g", what, l, got, want);
}

static void figures_are_right(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++) {
        text x;
        make_text(&x);
        const int D = 1 + (int)draw(5), step = round == 0 ? 1000 : 1 + (int)draw(40);
        const cot_predictor_options options = {
            .size = sizeof options, .ranks = D, .order = 1 + (int)draw(3), .chosen = x.chosen};
        cot_predictor *predictor;
        cot_predictor_info info;
        assert_int_equal(cot_predictor_train(&predictor, &x.trace, &options, NULL), COT_OK);
        cot_predictor_describe(&info, predictor);
        for (int m = 0; m < COT_PREDICT_METHODS; m++) {
            cot_predict_evaluation got;
            const cot_predict_evaluate_options how = {.size = sizeof how,
                                                      .chosen = x.others,
                                                      .step_tokens = step,
                                                      .resamples = 30,
                                                      .threads = 1 + round % 3};
            assert_true(info.has[m]);
            assert_int_equal(cot_predict_evaluate(&got, predictor, m, &x.trace, &how, NULL), COT_OK);
            for (int l = 0; l < L; l++) {
                const expected want = count(&x, predictor, m, l, step);
                const double *figure = got.layer + l * COT_FIGURES;
                assert_int_equal(got.n_tokens, want.tokens);
                same(figure[COT_FIGURE_LAR], want.lar, "LAR", l);
                same(figure[COT_FIGURE_LAR_GAIN], want.gain, "gain", l);
                same(figure[COT_FIGURE_RECALL], want.recall, "recall", l);
                same(figure[COT_FIGURE_ORACLE_LAR], want.oracle, "oracle", l);
                same(figure[COT_FIGURE_LAR_DEDUP], want.dedup, "dedup", l);
                same(figure[COT_FIGURE_REMOTE_RANKS], want.remote, "remote ranks", l);
                same(figure[COT_FIGURE_LAR_EVEN], want.even, "even LAR", l);
                same(figure[COT_FIGURE_TOKEN_IMBALANCE], want.imbalance, "token imbalance", l);
                same(figure[COT_FIGURE_EXPERT_PEAK], want.expert_peak, "expert peak", l);
                same(figure[COT_FIGURE_HOME_PEAK], want.home_peak, "home peak", l);
                same(figure[COT_FIGURE_UNKNOWN], want.unknown, "unknown", l);
                assert_true(figure[COT_FIGURE_LAR] <= figure[COT_FIGURE_ORACLE_LAR] + 1e-12);
            }
            for (int i = 0; i < COT_FIGURES; i++)
                if (!isnan(got.low[i])) assert_true(got.low[i] <= got.high[i]);
            cot_predict_evaluation_free(&got);
        }
        cot_predictor_close(predictor);
        cot_trace_close(&x.trace);
    }
}

/* Few sequences make wide intervals, a single one none. */
static void intervals_know_how_little_they_know(void **state)
{
    (void)state;
    text x;
    make_text(&x);
    const cot_predictor_options options = {.size = sizeof options, .ranks = 4};
    cot_predictor *predictor;
    cot_predict_evaluation got;
    uint8_t chosen[SEQUENCES] = {0};
    assert_int_equal(cot_predictor_train(&predictor, &x.trace, &options, NULL), COT_OK);
    const cot_predict_evaluate_options how = {.size = sizeof how, .chosen = chosen, .resamples = 500};
    int64_t s = 0, longest = 0;
    for (; s < SEQUENCES; s++)
        if (x.trace.sequence_offsets[s + 1] - x.trace.sequence_offsets[s] >
            x.trace.sequence_offsets[longest + 1] - x.trace.sequence_offsets[longest])
            longest = s;
    chosen[longest] = 1;
    assert_int_equal(cot_predict_evaluate(&got, predictor, COT_PREDICT_GLOBAL, &x.trace, &how, NULL), COT_OK);
    for (int i = 0; i < COT_FIGURES; i++) assert_true(isnan(got.low[i]) && isnan(got.high[i]));
    cot_predict_evaluation_free(&got);
    for (s = 0; s == longest || x.trace.sequence_offsets[s + 1] == x.trace.sequence_offsets[s];) s++;
    chosen[s] = 1;
    assert_int_equal(cot_predict_evaluate(&got, predictor, COT_PREDICT_GLOBAL, &x.trace, &how, NULL), COT_OK);
    // Half of the samples are one sequence or the other, between whose figures lies that of both.
    double one[2];
    for (int i = 0; i < 2; i++) {
        cot_predict_evaluation alone;
        memset(chosen, 0, sizeof chosen);
        chosen[i ? s : longest] = 1;
        assert_int_equal(cot_predict_evaluate(&alone, predictor, COT_PREDICT_GLOBAL, &x.trace, &how, NULL),
                         COT_OK);
        one[i] = alone.all[COT_FIGURE_LAR];
        cot_predict_evaluation_free(&alone);
    }
    assert_true(got.high[COT_FIGURE_LAR] - got.low[COT_FIGURE_LAR] >= 7 * fabs(one[0] - one[1]));
    cot_predict_evaluation_free(&got);
    cot_predictor_close(predictor);
    cot_trace_close(&x.trace);
}

/* Counts of the very tokens give the figures that do not need an order. */
static void counts_agree(void **state)
{
    (void)state;
    text x;
    cot_trace counts;
    make_text(&x);
    assert_int_equal(cot_trace_count(&counts, &x.trace, NULL), COT_OK);
    const cot_predictor_options options = {.size = sizeof options, .ranks = 4};
    cot_predictor *predictor;
    cot_predict_evaluation of_tokens, of_counts;
    assert_int_equal(cot_predictor_train(&predictor, &x.trace, &options, NULL), COT_OK);
    assert_int_equal(
        cot_predict_evaluate(&of_tokens, predictor, COT_PREDICT_TOKEN_TABLE, &x.trace, NULL, NULL), COT_OK);
    assert_int_equal(
        cot_predict_evaluate(&of_counts, predictor, COT_PREDICT_TOKEN_TABLE, &counts, NULL, NULL), COT_OK);
    const int both[] = {COT_FIGURE_RECALL,      COT_FIGURE_LAR,       COT_FIGURE_TOKEN_IMBALANCE,
                        COT_FIGURE_EXPERT_PEAK, COT_FIGURE_PRECISION, COT_FIGURE_F1,
                        COT_FIGURE_UNKNOWN};
    for (size_t i = 0; i < sizeof both / sizeof *both; i++)
        same(of_counts.all[both[i]], of_tokens.all[both[i]], cot_figure_names[both[i]], -1);
    cot_error error;
    cot_predict_evaluation none;
    assert_int_equal(
        cot_predict_evaluate(&none, predictor, COT_PREDICT_DEVICE_SEQUENCE, &counts, NULL, &error),
        COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "counts have no order, which method 'device-sequence' needs");
    assert_true(isnan(of_counts.all[COT_FIGURE_ORACLE_LAR]) && isnan(of_counts.all[COT_FIGURE_LAR_EVEN]) &&
                isnan(of_counts.all[COT_FIGURE_REMOTE_RANKS]) && isnan(of_counts.all[COT_FIGURE_HOME_PEAK]));
    cot_predict_evaluation_free(&of_tokens);
    cot_predict_evaluation_free(&of_counts);
    cot_predictor_close(predictor);
    cot_trace_close(&counts);
    cot_trace_close(&x.trace);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    text x, y;
    make_text(&x);
    make_text(&y);
    y.trace.top_k = K - 1; // only looked at
    const cot_predictor_options options = {.size = sizeof options, .ranks = 2};
    const uint8_t none[SEQUENCES] = {0};
    const cot_predict_evaluate_options empty = {.size = sizeof empty, .chosen = none}, wrong = {.size = 1};
    cot_predictor *predictor;
    cot_predict_evaluation got;
    cot_error error;
    assert_int_equal(cot_predictor_train(&predictor, &x.trace, &options, NULL), COT_OK);
    assert_int_equal(cot_predict_evaluate(&got, predictor, 0, &y.trace, NULL, &error), COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "the trace has 2 of 10 experts a token, the tables 3 of 10");
    assert_null(got.layer);
    assert_int_equal(cot_predict_evaluate(&got, predictor, 0, &x.trace, &empty, &error),
                     COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "no token is left to evaluate");
    assert_int_equal(cot_predict_evaluate(&got, predictor, 0, &x.trace, &wrong, &error),
                     COT_INVALID_ARGUMENT);
    y.trace.top_k = K;
    cot_predictor_close(predictor);
    cot_trace_close(&x.trace);
    cot_trace_close(&y.trace);
}

static void splits_have_their_share(void **state)
{
    (void)state;
    uint8_t a[1000], b[1000];
    for (int n = 0; n < 1000; n += 1 + (int)draw(60)) {
        const double share = (double)draw(11) / 10;
        int taken = 0, differ = 0;
        cot_trace_split(a, n, share, 5);
        cot_trace_split(b, n, share, 6);
        for (int s = 0; s < n; s++) {
            taken += a[s];
            differ += a[s] != b[s];
        }
        assert_int_equal(taken, llround(share * n));
        if (n > 100 && share > 0.15 && share < 0.85) assert_true(differ > 0);
        cot_trace_split(b, n, share, 5);
        assert_memory_equal(a, b, (size_t)n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(figures_are_right), cmocka_unit_test(counts_agree),
                                       cmocka_unit_test(intervals_know_how_little_they_know),
                                       cmocka_unit_test(what_does_not_fit_is_refused),
                                       cmocka_unit_test(splits_have_their_share)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
