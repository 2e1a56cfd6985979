#include "coterie/predict.h"

int64_t cot_predict_text_rows(int32_t rows[COT_PREDICT_TEXT_TOKENS], const cot_predictor *p,
                              const int32_t *ids, int64_t n)
{
    const int64_t last = n < COT_PREDICT_TEXT_TOKENS ? n : COT_PREDICT_TEXT_TOKENS;
    int64_t known = 0;
    cot_predict_rows(rows, p, ids + n - last, last);
    for (int64_t t = 0; t < last; t++)
        if (rows[t] >= 0) rows[known++] = rows[t];
    return known;
}

void cot_predict_text_shares(float *share, float *scratch, const cot_predictor *p, int32_t layer,
                             const int32_t *rows, int64_t known)
{
    const cot_predict_batch batch = {.layer = layer, .n_tokens = known, .row = rows};
    cot_predictor_info info;
    cot_predictor_describe(&info, p);
    const int64_t E = info.n_experts;
    cot_predict_experts(scratch, p, COT_PREDICT_TOKEN_TABLE, &batch);
    for (int64_t e = 0; e < E; e++) {
        float sum = 0;
        for (int64_t t = 0; t < known; t++) sum += scratch[t * E + e];
        const float mean = sum / (float)known;
        share[e] = mean < 1 ? mean : 1;
    }
}
