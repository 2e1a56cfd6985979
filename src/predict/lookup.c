/* The hot path: a batch's predictions out of the tables. */
#include "predict/predictor.h"

#include <string.h>

/* A batch and its layer's int8 tables of a context, each of rows [E]. */
typedef struct context_rows {
    const cot_predictor *predictor;
    const cot_predict_batch *batch;
    const cot_predictor_context *context;
    const int8_t *tokens, *before, *own, *earlier; // earlier: NULL where the context reads none
} context_rows;

enum { MOST_ROWS = 2 + 4 * COT_CONTEXT_MAX_EXPERTS };

static context_rows rows_of(const cot_predictor *p, const cot_predictor_context *context,
                            const cot_predict_batch *batch)
{
    const int64_t l = batch->layer, E = p->n_experts, tokens = (p->n_tokens + 1) * E;
    return (context_rows){p,
                          batch,
                          context,
                          context->tokens + l * tokens,
                          context->before + l * tokens,
                          context->own + l * 2 * E * E,
                          context->earlier ? context->earlier + l * 2 * E * E : NULL};
}

/* Appends the rows of the experts, unknown ones left out, to row[n ..]; returns how many there are then. */
static int64_t add_experts(const int8_t **row, int64_t n, const int8_t *table, const uint16_t *experts,
                           int32_t K, int64_t E)
{
    for (int32_t k = 0; k < K; k++)
        if (experts[k] < E) row[n++] = table + experts[k] * E;
    return n;
}

/* Lists the rows of the tables that speak for token `t`; returns how many, at most MOST_ROWS. */
static int64_t list_rows(const int8_t **row, const context_rows *c, int64_t t)
{
    const cot_predict_batch *b = c->batch;
    const int64_t E = c->predictor->n_experts, N = c->predictor->n_tokens, T = b->n_tokens;
    const int32_t K = c->predictor->top_k;
    const int64_t here = b->row && b->row[t] >= 0 && b->row[t] < N ? b->row[t] : N;
    const int64_t before =
        b->row_before && b->row_before[t] >= 0 && b->row_before[t] < N ? b->row_before[t] : N;
    int64_t n = 0;
    row[n++] = c->tokens + here * E;
    row[n++] = c->before + before * E;
    for (int32_t j = 0; j < COT_PREDICT_LOOK_BACK; j++) {
        if (b->own_before && b->layer > j)
            n = add_experts(row, n, c->own + j * E * E, b->own_before + (j * T + t) * K, K, E);
        if (b->earlier && c->earlier)
            n = add_experts(row, n, c->earlier + j * E * E, b->earlier + (j * T + t) * K, K, E);
    }
    return n;
}

/* Expected activations [E] of token `t`. */
static void context_scores(float *score, const context_rows *c, int64_t t)
{
    const cot_predictor *p = c->predictor;
    const int8_t *row[MOST_ROWS];
    const int64_t l = c->batch->layer, n = list_rows(row, c, t);
    p->lookup->logistic_rows(score, row, n, c->context->bias + l * p->n_experts, c->context->scale[l],
                             p->n_experts);
}

static void context_ranks(int16_t *rank, uint16_t *confidence, const cot_predictor *p,
                          const cot_predictor_context *context, const cot_predict_batch *batch)
{
    const context_rows c = rows_of(p, context, batch);
    const int32_t E = p->n_experts, D = p->n_ranks;
    const uint16_t *experts = p->rank_experts + (int64_t)batch->layer * E;
    const int32_t *first = p->rank_first + (int64_t)batch->layer * (D + 1);
    float score[COT_CONTEXT_MAX_EXPERTS];
    for (int64_t t = 0; t < batch->n_tokens; t++) {
        context_scores(score, &c, t);
        float most = -1, total = 0;
        for (int32_t d = 0; d < D; d++) {
            float sum = 0;
            for (int32_t i = first[d]; i < first[d + 1]; i++) sum += score[experts[i]];
            if (sum > most) rank[t] = (int16_t)d;
            most = sum > most ? sum : most;
            total += sum;
        }
        if (confidence) confidence[t] = total > 0 ? (uint16_t)(65535 * (most / total)) : 0;
    }
}

void cot_predict_ranks(int16_t *rank, uint16_t *confidence, const cot_predictor *p, cot_predict_method method,
                       const cot_predict_batch *batch)
{
    const int64_t l = batch->layer, T = batch->n_tokens;
    const bool both = method == COT_PREDICT_ALGORITHM_2 && p->has_tokens && p->has_sequences;
    const cot_predictor_context *context = cot_predictor_context_of(p, method);
    if (context) {
        context_ranks(rank, confidence, p, context, batch);
        return;
    }
    if (method == COT_PREDICT_GLOBAL) {
        const uint16_t *pair = p->layer_ranks + 2 * l;
        for (int64_t t = 0; t < T; t++) rank[t] = (int16_t)pair[0];
        for (int64_t t = 0; confidence && t < T; t++) confidence[t] = pair[1];
        return;
    }
    cot_rank_tables tables = {.ranks = p->n_ranks, .before_stride = T};
    if (p->has_tokens && (both || method == COT_PREDICT_TOKEN_TABLE)) {
        tables.token = p->token_ranks + 2 * l;
        tables.row_pairs = p->n_layers;
        tables.n_rows = p->n_tokens;
        tables.row = batch->row;
    }
    if (p->has_sequences && (both || method == COT_PREDICT_DEVICE_SEQUENCE)) {
        tables.sequence = p->sequence_ranks + 2 * p->sequence_first[l];
        tables.order = cot_sequence_order(p, batch->layer);
        tables.before = batch->ranks_before;
    }
    p->lookup->look_up_ranks(rank, confidence, &tables, T);
}

static void layer_scores(float *score, const cot_predictor *p, int64_t l)
{
    for (int32_t e = 0; e < p->n_experts; e++)
        score[e] = (float)p->layer_shares[l * p->n_experts + e] / 65535;
}

/* The token's own share of the prediction; what it was never seen to call follows by the layer's counts, so that ties
 * are not broken by number. */
static void token_scores(float *score, const cot_predictor *p, int64_t l, int32_t row)
{
    enum { BEHIND = 1 << 17 }; // puts the layer's shares below the least of a token's
    layer_scores(score, p, l);
    if (row < 0 || row >= p->n_tokens) return;
    const int64_t at = l * p->n_tokens + row;
    if (p->token_offsets[at] == p->token_offsets[at + 1]) return;
    for (int32_t e = 0; e < p->n_experts; e++) score[e] /= BEHIND;
    for (int64_t i = p->token_offsets[at]; i < p->token_offsets[at + 1]; i++)
        score[p->token_experts[i]] += (float)p->token_shares[i] / 65535;
}

static void sequence_scores(float *score, const cot_predictor *p, const cot_predict_batch *batch, int64_t t)
{
    const int32_t order = cot_sequence_order(p, batch->layer);
    int64_t row = 0, power = 1;
    for (int32_t j = 0; j < order; j++, power *= p->n_ranks) {
        const int16_t r = batch->ranks_before[j * batch->n_tokens + t];
        if (r < 0 || r >= p->n_ranks) break;
        row += (r + 1) * power;
    }
    const uint8_t *share = p->sequence_shares + (p->sequence_first[batch->layer] + row) * p->n_experts;
    for (int32_t e = 0; e < p->n_experts; e++) score[e] = (float)share[e] / 255;
}

/* Whose table has the more confident rank, so that experts and rank come from the same one. */
static void algorithm_2_scores(float *score, const cot_predictor *p, const cot_predict_batch *batch,
                               int64_t t)
{
    int16_t before[COT_PREDICT_MAX_ORDER], rank;
    uint16_t token, sequence;
    for (int32_t j = 0; j < p->order && batch->ranks_before; j++)
        before[j] = batch->ranks_before[j * batch->n_tokens + t];
    const cot_predict_batch one = {
        .layer = batch->layer, .n_tokens = 1, .row = batch->row + t, .ranks_before = before};
    cot_predict_ranks(&rank, &token, p, COT_PREDICT_TOKEN_TABLE, &one);
    cot_predict_ranks(&rank, &sequence, p, COT_PREDICT_DEVICE_SEQUENCE, &one);
    if (sequence > token)
        sequence_scores(score, p, batch, t);
    else
        token_scores(score, p, batch->layer, batch->row[t]);
}

void cot_predict_experts(float *score, const cot_predictor *p, cot_predict_method method,
                         const cot_predict_batch *batch)
{
    const int64_t l = batch->layer;
    const cot_predictor_context *context = cot_predictor_context_of(p, method);
    const context_rows c = context ? rows_of(p, context, batch) : (context_rows){0};
    for (int64_t t = 0; t < batch->n_tokens; t++, score += p->n_experts) {
        if (context)
            context_scores(score, &c, t);
        else if (method == COT_PREDICT_TOKEN_TABLE && p->has_tokens)
            token_scores(score, p, l, batch->row[t]);
        else if (method == COT_PREDICT_DEVICE_SEQUENCE && p->has_sequences)
            sequence_scores(score, p, batch, t);
        else if (method == COT_PREDICT_ALGORITHM_2 && p->has_tokens && p->has_sequences)
            algorithm_2_scores(score, p, batch, t);
        else
            layer_scores(score, p, l);
    }
}
