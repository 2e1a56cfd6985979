#include "harness/predict/samples.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

static void sample_experts(scratch_pad *pad, uint16_t *experts, const sample_shape *s, int32_t id)
{
    for (int l = 0; l < s->L; l++) {
        uint16_t *here = experts + l * s->K;
        draw_experts(pad, here, s->K, s->E);
        if (!s->follows) continue;
        const int base = l ? here[-s->K] * 5 + 3 : (id + 1) * 7;
        for (int k = 0; k < s->K; k++) here[k] = (uint16_t)((base + k * (l + 1)) % s->E);
        for (int k = 1; k < s->K; k++)
            for (int j = 0; j < k; j++)
                if (here[j] == here[k]) draw_experts(pad, here, s->K, s->E);
        if (pad_draw(pad, 5) == 0) draw_experts(pad, here, s->K, s->E);
    }
}

cot_trace sample_trace(scratch_pad *pad, const sample_shape *s)
{
    cot_error error;
    cot_trace_builder *builder;
    cot_trace trace = {0};
    int32_t layers[64];
    uint16_t experts[1024];
    float weights[1024] = {0};
    assert_true(s->L <= 64 && s->L * s->K <= 1024);
    for (int l = 0; l < s->L; l++) layers[l] = 2 * l + 1;
    assert_int_equal(cot_trace_builder_open(&builder, "sample", s->L, layers, s->E, s->K, &error), COT_OK);
    for (int t = 0; t < s->T; t++) {
        // few ids are frequent, as in a text; some are unknown
        int32_t id = s->ids ? (int32_t)(pad_draw(pad, (uint32_t)s->ids) * pad_draw(pad, (uint32_t)s->ids) /
                                        (uint32_t)s->ids) *
                                  3
                            : -1;
        sample_experts(pad, experts, s, id);
        if (s->ids && pad_draw(pad, 20) == 0) id = -1;
        assert_int_equal(cot_trace_builder_append(builder, (int32_t)pad_draw(pad, (uint32_t)s->S), id,
                                                  experts, weights, &error),
                         COT_OK);
    }
    assert_int_equal(cot_trace_builder_finish(&trace, builder, &error), COT_OK);
    cot_trace_builder_close(builder);
    return trace;
}

cot_predictor *sample_train(scratch_pad *pad, const cot_trace *trace, int D, int order, const uint8_t *chosen)
{
    cot_error error = {0};
    cot_predictor *predictor;
    const cot_predictor_options options = {
        .size = sizeof options, .ranks = D, .order = order, .chosen = chosen, .seed = pad->seed};
    if (cot_predictor_train(&predictor, trace, &options, &error) != COT_OK) fail_msg("%s", error.message);
    return predictor;
}

void sample_batch_free(sample_batch *b)
{
    free(b->row);
    free(b->row_before);
    free(b->own);
    free(b->earlier);
    free(b->ranks);
}

static int64_t sequence_begin(const cot_trace *trace, int64_t token)
{
    int64_t s = 0;
    while (trace->sequence_offsets[s + 1] <= token) s++;
    return trace->sequence_offsets[s];
}

sample_batch sample_batch_of(const cot_predictor *p, const cot_trace *trace, int l, const int64_t *token,
                             int64_t n)
{
    cot_predictor_info info;
    cot_predictor_describe(&info, p);
    const int K = trace->top_k;
    const size_t room = (size_t)n + 1;
    sample_batch b = {.row = calloc(room, 4),
                      .row_before = calloc(room, 4),
                      .own = calloc(room * 2 * (size_t)K, 2),
                      .earlier = calloc(room * 2 * (size_t)K, 2),
                      .ranks = calloc(room * COT_PREDICT_MAX_ORDER, 2)};
    uint16_t experts[64];
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = token[i], begin = sequence_begin(trace, t);
        const int32_t none = -1;
        cot_predict_rows(&b.row[i], p, &trace->token_ids[t], 1);
        cot_predict_rows(&b.row_before[i], p, t > begin ? &trace->token_ids[t - 1] : &none, 1);
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < K; k++) {
                b.own[(j * n + i) * K + k] =
                    l > j ? (uint16_t)cot_trace_expert(trace, l - 1 - j, t, k) : UINT16_MAX;
                b.earlier[(j * n + i) * K + k] =
                    t - begin > j ? (uint16_t)cot_trace_expert(trace, l, t - 1 - j, k) : UINT16_MAX;
            }
        for (int j = 0; j < info.order; j++) {
            b.ranks[j * n + i] = -1;
            for (int k = 0; k < K && l > j; k++)
                experts[k] = (uint16_t)cot_trace_expert(trace, l - 1 - j, t, k);
            if (l > j) cot_predict_home(&b.ranks[j * n + i], p, l - 1 - j, experts, 1);
        }
    }
    b.batch = (cot_predict_batch){.layer = l,
                                  .n_tokens = n,
                                  .row = b.row,
                                  .row_before = b.row_before,
                                  .own_before = b.own,
                                  .earlier = b.earlier,
                                  .ranks_before = b.ranks};
    return b;
}

uint64_t sample_digest(const cot_predictor *p, const cot_trace *trace)
{
    const int64_t T = trace->n_tokens, E = trace->n_experts;
    int64_t *token = calloc((size_t)T + 1, sizeof *token);
    int16_t *rank = calloc((size_t)T + 1, sizeof *rank);
    uint16_t *confidence = calloc((size_t)T + 1, sizeof *confidence);
    float *score = calloc((size_t)(T * E) + 1, sizeof *score);
    uint64_t digest = 0;
    for (int64_t t = 0; t < T; t++) token[t] = t;
    for (int l = 0; l < trace->n_layers; l++) {
        sample_batch b = sample_batch_of(p, trace, l, token, T);
        for (int m = 0; m < COT_PREDICT_METHODS; m++) {
            cot_predict_ranks(rank, confidence, p, (cot_predict_method)m, &b.batch);
            cot_predict_experts(score, p, (cot_predict_method)m, &b.batch);
            for (int64_t t = 0; t < T; t++)
                digest = cot_mix64(digest ^ (uint64_t)(rank[t] * 65536 + confidence[t]));
            for (int64_t i = 0; i < T * E; i++) {
                uint32_t bits;
                memcpy(&bits, &score[i], 4);
                digest = cot_mix64(digest ^ bits);
            }
        }
        sample_batch_free(&b);
    }
    free(token);
    free(rank);
    free(confidence);
    free(score);
    return digest;
}

double sample_recall(const cot_predictor *p, const cot_trace *trace, cot_predict_method method,
                     const uint8_t *chosen, bool want)
{
    const int E = trace->n_experts, K = trace->top_k;
    int64_t hits = 0, all = 0;
    float *score = calloc((size_t)E, sizeof *score);
    for (int64_t s = 0; s < trace->n_sequences; s++)
        for (int64_t t = trace->sequence_offsets[s];
             t < trace->sequence_offsets[s + 1] && !!chosen[s] == want; t++)
            for (int l = 0; l < trace->n_layers; l++) {
                sample_batch b = sample_batch_of(p, trace, l, &t, 1);
                cot_predict_experts(score, p, method, &b.batch);
                sample_batch_free(&b);
                for (int k = 0; k < K; k++) {
                    int best = 0;
                    for (int e = 1; e < E; e++)
                        if (score[e] > score[best]) best = e;
                    for (int j = 0; j < K; j++) hits += cot_trace_expert(trace, l, t, j) == best;
                    score[best] = -1;
                    all++;
                }
            }
    free(score);
    return all ? (double)hits / (double)all : 0;
}
