#include "predict/window.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

enum { UNKNOWN = UINT16_MAX };

cot_status cot_window_open(cot_window *w, const cot_predictor *predictor, const cot_trace *trace,
                           const uint8_t *chosen, cot_error *error)
{
    *w = (cot_window){.trace = trace, .predictor = predictor};
    cot_predictor_describe(&w->info, predictor);
    for (int64_t s = 0; s < trace->n_sequences; s++)
        if (!chosen || chosen[s]) w->n_tokens += trace->sequence_offsets[s + 1] - trace->sequence_offsets[s];
    size_t n = (size_t)w->n_tokens + 1;
    w->position = malloc(n * sizeof *w->position);
    w->sequence = malloc(n * sizeof *w->sequence);
    w->begin = malloc(n * sizeof *w->begin);
    w->row = malloc(n * sizeof *w->row);
    int32_t *ids = malloc(n * sizeof *ids);
    bool good = w->position && w->sequence && w->begin && w->row && ids;
    int64_t at = 0;
    for (int64_t s = 0; good && s < trace->n_sequences; s++) {
        if (chosen && !chosen[s]) continue;
        int64_t first = at;
        for (int64_t t = trace->sequence_offsets[s]; t < trace->sequence_offsets[s + 1]; t++, at++) {
            w->position[at] = t;
            w->sequence[at] = w->n_sequences;
            w->begin[at] = first;
            ids[at] = trace->token_ids[t];
        }
        w->n_sequences++;
    }
    cot_status status = COT_OK;
    if (good) status = cot_rows_of_tokens(w->row, predictor, trace, ids, w->n_tokens, error);
    free(ids);
    if (status != COT_OK) return status;
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a trace's tokens");
}

void cot_window_close(cot_window *w)
{
    free(w->position);
    free(w->sequence);
    free(w->begin);
    free(w->row);
    *w = (cot_window){0};
}

void cot_window_batch_lay_out(cot_window_batch *b, cot_arena *arena, const cot_window *w, int64_t most)
{
    const size_t n = (size_t)most, k = (size_t)w->info.top_k;
    b->most = most;
    b->experts = cot_arena_take(arena, n * k, sizeof *b->experts);
    b->own_before = cot_arena_take(arena, COT_PREDICT_LOOK_BACK * n * k, sizeof *b->own_before);
    b->earlier = cot_arena_take(arena, COT_PREDICT_LOOK_BACK * n * k, sizeof *b->earlier);
    b->ranks_before = cot_arena_take(arena, (size_t)w->info.order * n, sizeof *b->ranks_before);
    b->row_before = cot_arena_take(arena, n, sizeof *b->row_before);
}

/* The experts of token t at layer l; unknown where there is none. */
static void experts_at(uint16_t *experts, const cot_trace *trace, int32_t l, int64_t t)
{
    for (int32_t k = 0; k < trace->top_k; k++)
        experts[k] = l < 0 || t < 0 ? UNKNOWN : (uint16_t)cot_trace_expert(trace, l, t, k);
}

void cot_window_batch_fill(cot_window_batch *b, const cot_window *w, int32_t l, int64_t first, int64_t n)
{
    const int64_t k = w->info.top_k;
    b->batch = (cot_predict_batch){.layer = l,
                                   .n_tokens = n,
                                   .row = w->row + first,
                                   .row_before = b->row_before,
                                   .own_before = b->own_before,
                                   .earlier = b->earlier,
                                   .ranks_before = b->ranks_before};
    for (int32_t back = 1; back <= w->info.order; back++) {
        int16_t *ranks = b->ranks_before + (back - 1) * n;
        for (int64_t i = 0; i < n; i++)
            experts_at(b->experts + i * k, w->trace, l - back, w->position[first + i]);
        cot_predict_home(ranks, w->predictor, l < back ? 0 : l - back, b->experts, n); // unknown experts: -1
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = first + i;
        experts_at(b->experts + i * k, w->trace, l, w->position[t]);
        b->row_before[i] = t > w->begin[t] ? w->row[t - 1] : -1;
        for (int32_t back = 1; back <= COT_PREDICT_LOOK_BACK; back++) {
            const int64_t at = ((back - 1) * n + i) * k;
            experts_at(b->own_before + at, w->trace, l - back, w->position[t]);
            experts_at(b->earlier + at, w->trace, l, t - back >= w->begin[t] ? w->position[t - back] : -1);
        }
    }
}
