#include "engine/bench/batching.h"

#include "base/error.h"
#include "schedule/overlap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_BACK = 64,
    PRIOR = 8
}; // tokens of a prompt that are looked at; as many tokens as the mean counts

static int64_t cells_of(const cot_trace *trace)
{
    return (int64_t)trace->n_layers * trace->n_experts;
}

cot_status cot_bench_foresight_open(cot_bench_foresight *f, const cot_trace *trace, const uint8_t *chosen,
                                    cot_error *error)
{
    const cot_predictor_options options = {
        .size = sizeof options, .ranks = 1, .chosen = chosen, .counts_only = true, .threads = 1};
    *f = (cot_bench_foresight){.trace = trace};
    f->mean = calloc((size_t)cells_of(trace), sizeof *f->mean);
    f->token = calloc((size_t)trace->n_experts, sizeof *f->token);
    if (!f->mean || !f->token)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the experts' shares");
    const cot_status status = cot_predictor_train(&f->tables, trace, &options, error);
    for (int32_t l = 0; l < trace->n_layers && status == COT_OK; l++) {
        const cot_predict_batch any = {.layer = l, .n_tokens = 1};
        cot_predict_experts(f->mean + (int64_t)l * trace->n_experts, f->tables, COT_PREDICT_GLOBAL, &any);
    }
    return status;
}

void cot_bench_foresight_close(cot_bench_foresight *f)
{
    cot_predictor_close(f->tables);
    free(f->mean);
    free(f->token);
    *f = (cot_bench_foresight){0};
}

/* What token t called becomes part of the history. */
static void learn(cot_bench_generation *g, const cot_bench_foresight *f, int64_t t)
{
    const cot_trace *trace = f->trace;
    const float part = fmaxf(1.0f / (float)(PRIOR + ++g->learnt), f->slowest);
    for (int64_t i = 0; i < cells_of(trace); i++) g->history[i] *= 1 - part;
    for (int32_t l = 0; l < trace->n_layers; l++)
        for (int32_t k = 0; k < trace->top_k; k++)
            g->history[(int64_t)l * trace->n_experts + cot_trace_expert(trace, l, t, k)] += part;
}

void cot_bench_generation_begin(cot_bench_generation *g, const cot_bench_foresight *f, int64_t sequence,
                                int64_t start)
{
    const cot_trace *trace = f->trace;
    g->first = trace->sequence_offsets[sequence];
    g->end = trace->sequence_offsets[sequence + 1];
    g->at = g->first + start;
    g->learnt = 0;
    memcpy(g->history, f->mean, (size_t)cells_of(trace) * sizeof *g->history);
    for (int64_t t = start > LOOK_BACK ? g->at - LOOK_BACK : g->first; t < g->at; t++) learn(g, f, t);
}

bool cot_bench_generation_go_on(cot_bench_generation *g, const cot_bench_foresight *f)
{
    learn(g, f, g->at++);
    return g->at < g->end;
}

void cot_bench_generation_expect(cot_bench_generation *g, const cot_bench_foresight *f, bool likely)
{
    const cot_trace *trace = f->trace;
    const int64_t experts = trace->n_experts;
    int32_t row = -1;
    if (likely) cot_predict_rows(&row, f->tables, &trace->token_ids[g->at], 1);
    for (int32_t l = 0; l < trace->n_layers; l++) {
        const float *mean = f->mean + l * experts, *token = mean;
        if (row >= 0) {
            const cot_predict_batch batch = {.layer = l, .n_tokens = 1, .row = &row};
            cot_predict_experts(f->token, f->tables, COT_PREDICT_TOKEN_TABLE, &batch);
            token = f->token;
        }
        cot_overlap_expect(g->share + l * experts, g->history + l * experts, token, mean, experts,
                           trace->top_k);
    }
}

void cot_bench_generation_know(cot_bench_generation *g, const cot_bench_foresight *f)
{
    const cot_trace *trace = f->trace;
    memset(g->share, 0, (size_t)cells_of(trace));
    for (int32_t l = 0; l < trace->n_layers; l++)
        for (int32_t k = 0; k < trace->top_k; k++)
            g->share[(int64_t)l * trace->n_experts + cot_trace_expert(trace, l, g->at, k)] = UINT8_MAX;
}
