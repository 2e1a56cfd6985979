#include "predict/predictor.h"

#include "base/error.h"
#include "coterie/roof.h"
#include "routing/ids.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static cot_status check(const cot_trace *trace, const cot_predictor_options *o, cot_error *error)
{
    const int32_t most = trace->n_experts < COT_TRACE_MAX_RANKS ? trace->n_experts : COT_TRACE_MAX_RANKS;
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "predictor options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (o->ranks < 1 || o->ranks > most)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%" PRId32 " ranks, expected 1 to %" PRId32, o->ranks,
                        most);
    if (o->order < 0 || o->order > COT_PREDICT_MAX_ORDER)
        return cot_fail(error, COT_INVALID_ARGUMENT, "sequences over %" PRId32 " layers, expected 1 to %d",
                        o->order, COT_PREDICT_MAX_ORDER);
    for (int64_t i = 0; o->expert_rank && i < (int64_t)trace->n_layers * trace->n_experts; i++)
        if (o->expert_rank[i] < 0 || o->expert_rank[i] >= o->ranks)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "expert %" PRId64 " of layer %" PRId64 " sits on rank %" PRId32
                            ", expected 0 to %" PRId32,
                            i % trace->n_experts, i / trace->n_experts, o->expert_rank[i], o->ranks - 1);
    if (o->n_tokens < 0 || o->n_tokens > INT32_MAX || (o->n_tokens && (!o->token_ids || !o->token_rank)))
        return cot_fail(error, COT_INVALID_ARGUMENT, "%" PRId64 " tokens of given rank, without ids or ranks",
                        o->n_tokens);
    for (int64_t i = 0; i < o->n_tokens; i++)
        if (o->token_ids[i] < 0 || (i && o->token_ids[i] <= o->token_ids[i - 1]))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "ids of tokens of given rank are not ascending at '%" PRId32 "'",
                            o->token_ids[i]);
    for (int64_t i = 0; i < o->n_tokens * trace->n_layers; i++)
        if (o->token_rank[i] < 0 || o->token_rank[i] >= o->ranks)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "token '%" PRId32 "' is given rank %" PRId32 ", expected 0 to %" PRId32,
                            o->token_ids[i % o->n_tokens], o->token_rank[i], o->ranks - 1);
    if (o->embedding && (!o->embedding->row || o->embedding->width < 1 || o->embedding->n_ids < 1 ||
                         o->embedding->n_ids > INT32_MAX))
        return cot_fail(error, COT_INVALID_ARGUMENT, "an embedding of %" PRId64 " ids by %" PRId64,
                        o->embedding->n_ids, o->embedding->width);
    return COT_OK;
}

/* Sizes, names and groups. */
static bool set_up(cot_predictor *p, const cot_trace *trace, const cot_predictor_options *o)
{
    const int64_t L = trace->n_layers, E = trace->n_experts, S = trace->n_sequences;
    p->n_layers = trace->n_layers;
    p->n_experts = trace->n_experts;
    p->top_k = trace->top_k;
    p->n_ranks = o->ranks;
    p->order = o->order ? o->order : 2;
    p->trace_hash = cot_trace_hash(trace);
    p->seed = o->seed;
    p->n_sequences = trace->kind == COT_TRACE_TOKENS ? S : 0;
    p->n_string_bytes = -1;
    char *model = cot_predictor_alloc(p, (int64_t)strlen(trace->model) + 1, 1);
    int32_t *layers = cot_predictor_alloc(p, L, sizeof *layers);
    uint8_t *rank = cot_predictor_alloc(p, L * E, 1);
    uint8_t *chosen = cot_predictor_alloc(p, S, 1);
    if (!model || !layers || !rank || !chosen) return false;
    strcpy(model, trace->model);
    memcpy(layers, trace->layers, (size_t)L * sizeof *layers);
    for (int64_t i = 0; i < L * E; i++)
        rank[i] = (uint8_t)(o->expert_rank ? o->expert_rank[i] : cot_trace_home(i % E, E, o->ranks));
    for (int64_t s = 0; s < S && o->chosen; s++) chosen[s] = o->chosen[s] != 0;
    p->model = model;
    p->model_hash = trace->model_hash;
    p->layers = layers;
    p->expert_rank_u8 = rank;
    if (o->chosen && trace->kind == COT_TRACE_TOKENS && S) p->chosen = chosen;
    return true;
}

/* Which tokens are learnt from, and where their sequences begin. */
static bool choose_tokens(cot_training *t)
{
    const cot_trace *trace = t->trace;
    t->token = malloc(((size_t)trace->n_tokens + 1) * sizeof *t->token);
    t->row = malloc(((size_t)trace->n_tokens + 1) * sizeof *t->row);
    if (!t->token || !t->row) return false;
    if (trace->kind == COT_TRACE_COUNTS) {
        for (int64_t i = 0; i < trace->n_tokens; i++) t->token[t->n++] = i;
        return true;
    }
    if (!(t->begin = malloc(((size_t)trace->n_tokens + 1) * sizeof *t->begin))) return false;
    for (int64_t s = 0; s < trace->n_sequences; s++)
        for (int64_t i = trace->sequence_offsets[s]; i < trace->sequence_offsets[s + 1]; i++) {
            t->begin[i] = trace->sequence_offsets[s];
            if (!t->options->chosen || t->options->chosen[s]) t->token[t->n++] = i;
        }
    return true;
}

/* Ids that were seen or are of given rank, ascending, and each token's row among them. */
static bool number_ids(cot_training *t)
{
    cot_predictor *p = t->predictor;
    const cot_predictor_options *o = t->options;
    int32_t *ids = cot_predictor_alloc(p, t->n + o->n_tokens, sizeof *ids);
    int64_t n = 0;
    if (!ids) return false;
    for (int64_t i = 0; i < t->n; i++)
        if (t->trace->token_ids[t->token[i]] >= 0) ids[n++] = t->trace->token_ids[t->token[i]];
    for (int64_t i = 0; i < o->n_tokens; i++) ids[n++] = o->token_ids[i];
    p->n_tokens = cot_ids_sort(ids, n);
    p->token_ids = ids;
    p->has_tokens = p->n_tokens > 0;
    cot_predict_rows(t->row, p, t->trace->token_ids, t->trace->n_tokens);
    return true;
}

static bool keep_strings(cot_predictor *p, const cot_trace *trace)
{
    if (!trace->n_strings || !p->has_tokens) return true;
    int64_t *offsets = cot_predictor_alloc(p, p->n_tokens + 1, sizeof *offsets), bytes = 0;
    if (!offsets) return false;
    for (int64_t r = 0; r < p->n_tokens; r++) { // an id of given rank need not be the trace's
        const int32_t id = p->token_ids[r];
        if (id < trace->n_strings) bytes += trace->string_offsets[id + 1] - trace->string_offsets[id];
        offsets[r + 1] = bytes;
    }
    uint8_t *strings = cot_predictor_alloc(p, bytes, 1);
    if (!strings) return false;
    for (int64_t r = 0; r < p->n_tokens; r++)
        if (offsets[r + 1] > offsets[r])
            memcpy(strings + offsets[r], trace->strings + trace->string_offsets[p->token_ids[r]],
                   (size_t)(offsets[r + 1] - offsets[r]));
    p->n_string_bytes = bytes;
    p->token_string_offsets = offsets;
    p->token_strings = strings;
    return true;
}

static cot_status train(cot_training *t, cot_error *error)
{
    cot_predictor *p = t->predictor;
    if (!set_up(p, t->trace, t->options) || !choose_tokens(t) || !number_ids(t) || !keep_strings(p, t->trace))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a predictor of %" PRId64 " tokens",
                        t->trace->n_tokens);
    if (!t->n)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no token to learn from: no sequence is chosen, or all are empty");
    cot_status status = cot_predictor_finish(p, error);
    if (status == COT_OK) status = cot_train_tokens(t, error);
    if (status == COT_OK && t->trace->kind == COT_TRACE_TOKENS) {
        p->has_sequences = true;
        status = cot_train_sequences(t, error);
        const bool contexts = !t->options->counts_only && p->n_experts <= COT_CONTEXT_MAX_EXPERTS;
        for (int form = 0; form < COT_CONTEXT_FORMS && contexts && status == COT_OK; form++)
            status = cot_train_context(t, form, error);
    }
    if (status == COT_OK && t->options->embedding && p->has_tokens) status = cot_train_neighbours(t, error);
    return status;
}

cot_status cot_predictor_train(cot_predictor **predictor, const cot_trace *trace,
                               const cot_predictor_options *options, cot_error *error)
{
    *predictor = NULL;
    cot_status status = check(trace, options, error);
    if (status != COT_OK) return status;
    cot_training t = {.trace = trace, .options = options};
    const int threads = options->threads > 0 ? options->threads : cot_cores();
    if (!(t.predictor = calloc(1, sizeof *t.predictor)))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a predictor");
    if (threads > 1) status = cot_pool_open(&t.pool, threads - 1, error);
    if (status == COT_OK) status = train(&t, error);
    cot_pool_close(t.pool);
    free(t.token);
    free(t.row);
    free(t.begin);
    if (status == COT_OK)
        *predictor = t.predictor;
    else
        cot_predictor_close(t.predictor);
    return status;
}
