#include "predict/homes.h"

#include "predict/assign.h"
#include "predict/predictor.h"

#include <string.h>

void cot_homes_scratch_lay_out(cot_homes_scratch *s, cot_arena *arena, int64_t most, int64_t experts)
{
    s->rank = cot_arena_take(arena, (size_t)most, sizeof *s->rank);
    s->confidence = cot_arena_take(arena, (size_t)most, sizeof *s->confidence);
    s->order = cot_arena_take(arena, 2 * (size_t)most, sizeof *s->order);
    s->experts = cot_arena_take(arena, (size_t)experts, sizeof *s->experts);
}

bool cot_homes_read_ids(cot_predict_method method)
{
    return method == COT_PREDICT_TOKEN_TABLE || method == COT_PREDICT_ALGORITHM_2;
}

bool cot_homes_look_back(cot_predict_method method)
{
    return method == COT_PREDICT_DEVICE_SEQUENCE || method == COT_PREDICT_ALGORITHM_2;
}

/* A batch whose tokens look for a second rank. */
typedef struct choice {
    const cot_predictor *predictor;
    const cot_predict_batch *batch;
    cot_predict_method method;
    float *experts;
} choice;

static void score_ranks(void *context, float *score, int64_t i)
{
    const choice *c = context;
    const int32_t E = c->predictor->n_experts;
    const int32_t *expert_rank = c->predictor->expert_rank + (int64_t)c->batch->layer * E;
    int16_t before[COT_PREDICT_MAX_ORDER];
    for (int32_t j = 0; j < c->predictor->order && c->batch->ranks_before; j++)
        before[j] = c->batch->ranks_before[j * c->batch->n_tokens + i];
    const cot_predict_batch one = {.layer = c->batch->layer,
                                   .n_tokens = 1,
                                   .row = c->batch->row ? c->batch->row + i : NULL,
                                   .ranks_before = c->batch->ranks_before ? before : NULL};
    cot_predict_experts(c->experts, c->predictor, c->method, &one);
    memset(score, 0, (size_t)c->predictor->n_ranks * sizeof *score);
    for (int32_t e = 0; e < E; e++) score[expert_rank[e]] += c->experts[e];
}

void cot_predict_homes(int16_t *home, cot_homes_scratch *s, const cot_predictor *p, cot_predict_method method,
                       const cot_predict_batch *batch)
{
    choice c = {p, batch, method, s->experts};
    cot_predict_ranks(s->rank, s->confidence, p, method, batch);
    cot_assign_evenly(home, s->order, s->rank, s->confidence, batch->n_tokens, p->n_ranks, score_ranks, &c);
}

/* Tokens whose experts are known. */
typedef struct known {
    const uint16_t *experts; // [n][K]
    const int32_t *expert_rank;
    int32_t top_k, ranks;
    bool worst;
} known;

static void score_known(void *context, float *score, int64_t i)
{
    const known *k = context;
    memset(score, 0, (size_t)k->ranks * sizeof *score);
    for (int32_t j = 0; j < k->top_k; j++)
        score[k->expert_rank[k->experts[i * k->top_k + j]]] += k->worst ? -1 : 1;
}

void cot_homes_by_experts(int16_t *home, cot_homes_scratch *s, const uint16_t *experts, int32_t top_k,
                          const int32_t *expert_rank, int64_t n, int32_t ranks, bool worst)
{
    known k = {experts, expert_rank, top_k, ranks, worst};
    float score[COT_TRACE_MAX_RANKS];
    for (int64_t i = 0; i < n; i++) {
        int16_t best = 0;
        score_known(&k, score, i);
        for (int16_t d = 1; d < ranks; d++)
            if (score[d] > score[best]) best = d;
        s->rank[i] = best;
        s->confidence[i] = (uint16_t)(score[best] + (worst ? (float)top_k : 0));
    }
    cot_assign_evenly(home, s->order, s->rank, s->confidence, n, ranks, score_known, &k);
}

static void score_alike(void *ranks, float *score, int64_t i)
{
    (void)i;
    memset(score, 0, (size_t) * (const int32_t *)ranks * sizeof *score);
}

void cot_homes_by_guess(int16_t *home, cot_homes_scratch *s, const int16_t *rank, const uint16_t *confidence,
                        int64_t n, int32_t ranks)
{
    cot_assign_evenly(home, s->order, rank, confidence, n, ranks, score_alike, &ranks);
}

void cot_homes_by_index(int16_t *home, int64_t n, int32_t ranks)
{
    for (int32_t r = 0; r < ranks; r++)
        for (int64_t i = r * n / ranks; i < (r + 1) * n / ranks; i++) home[i] = (int16_t)r;
}

void cot_homes_order(int32_t *token, int32_t *begin, const int16_t *home, int64_t n, int32_t ranks)
{
    int32_t next[COT_TRACE_MAX_RANKS];
    memset(begin, 0, (size_t)(ranks + 1) * sizeof *begin);
    for (int64_t i = 0; i < n; i++) begin[home[i] + 1]++;
    for (int32_t r = 0; r < ranks; r++) {
        next[r] = begin[r];
        begin[r + 1] += begin[r];
    }
    for (int64_t i = 0; i < n; i++) token[next[home[i]]++] = (int32_t)i;
}
