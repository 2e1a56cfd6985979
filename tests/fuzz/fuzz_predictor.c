/* A predictor's file in memory. What is accepted must look up, for any batch, ranks and scores within its tables. */
#include "coterie/predict.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void use(const cot_predictor *p)
{
    cot_predictor_info info;
    cot_predictor_describe(&info, p);
    enum { T = 3 };
    const int64_t E = info.n_experts, K = info.top_k;
    const int32_t ids[T] = {0, info.n_tokens ? info.token_ids[info.n_tokens - 1] : 9, INT32_MAX};
    int32_t row[T];
    int16_t before[COT_PREDICT_MAX_ORDER * T], rank[T];
    uint16_t sure[T], *experts = malloc((size_t)(2 * T * K) * sizeof *experts);
    float *score = malloc((size_t)(T * E) * sizeof *score);
    if (!experts || !score) abort();
    cot_predict_rows(row, p, ids, T);
    for (int64_t i = 0; i < 2 * T * K; i++) experts[i] = (uint16_t)(i * 12345);
    for (int i = 0; i < COT_PREDICT_MAX_ORDER * T; i++) before[i] = (int16_t)(i % (info.n_ranks + 2) - 1);
    const int32_t layers[] = {0, info.n_layers / 2, info.n_layers - 1};
    for (int i = 0; i < 3 * COT_PREDICT_METHODS; i++) {
        const cot_predict_method method = (cot_predict_method)(i % COT_PREDICT_METHODS);
        const cot_predict_batch batch = {.layer = layers[i / COT_PREDICT_METHODS],
                                         .n_tokens = T,
                                         .row = row,
                                         .row_before = row,
                                         .own_before = experts,
                                         .earlier = experts,
                                         .ranks_before = before};
        cot_predict_ranks(rank, sure, p, method, &batch);
        cot_predict_experts(score, p, method, &batch);
        for (int t = 0; t < T; t++)
            if (rank[t] < -1 || rank[t] >= info.n_ranks) abort();
        for (int64_t e = 0; e < T * E; e++)
            if (!(score[e] >= 0) || isinf(score[e])) abort();
    }
    if (info.token_strings && info.token_string_offsets[info.n_tokens])
        assert(memchr(info.token_strings, info.token_strings[0],
                      (size_t)info.token_string_offsets[info.n_tokens]));
    cot_error error;
    if (cot_predictor_write(p, "/dev/null", &error) != COT_OK) abort();
    free(experts);
    free(score);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cot_predictor *p;
    cot_error error = {0};
    const cot_status status = cot_predictor_parse(&p, data, bytes, "input", &error);
    if (status != COT_OK) {
        assert(error.status == status && error.message[0]);
        return 0;
    }
    use(p);
    cot_predictor_close(p);
    return 0;
}
