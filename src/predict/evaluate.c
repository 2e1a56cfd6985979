#include "coterie/predict_evaluate.h"

#include "base/error.h"
#include "base/pool.h"
#include "predict/assign.h"
#include "predict/tally.h"
#include "predict/window.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_TOKENS = 512, BATCH_TOKENS = 4096, BATCH_CELLS = 1 << 22 }; // cells (token, expert)

typedef struct evaluation {
    const cot_predictor *predictor;
    cot_predictor_info info;
    cot_predict_method method;
    const cot_trace *trace;
    cot_window window; // of sequences
    int32_t *row;      // [N] of counts
    cot_tallies tallies;
    int64_t step_tokens, batch_tokens; // a batch is whole steps
    atomic_bool failed;                // out of memory
} evaluation;

/* One thread's memory for a batch of a layer. */
typedef struct scratch {
    cot_arena arena;
    cot_window_batch batch;
    float *score;      // [n][E]
    float *rank_score; // [n][D]
    int16_t *rank, *even;
    uint16_t *confidence;
    int32_t *order;
    bool *unknown;
    double load[COT_TRACE_MAX_RANKS], credit[COT_TRACE_MAX_RANKS]; // cot_spread_unknown's, over all batches
} scratch;

static void lay_out(scratch *s, const evaluation *e)
{
    const size_t n = (size_t)e->batch_tokens;
    cot_window_batch_lay_out(&s->batch, &s->arena, &e->window, e->batch_tokens);
    s->score = cot_arena_take(&s->arena, n * (size_t)e->info.n_experts, sizeof *s->score);
    s->rank_score = cot_arena_take(&s->arena, n * (size_t)e->info.n_ranks, sizeof *s->rank_score);
    s->rank = cot_arena_take(&s->arena, n, sizeof *s->rank);
    s->even = cot_arena_take(&s->arena, n, sizeof *s->even);
    s->confidence = cot_arena_take(&s->arena, n, sizeof *s->confidence);
    s->order = cot_arena_take(&s->arena, 2 * n, sizeof *s->order);
    s->unknown = cot_arena_take(&s->arena, n, sizeof *s->unknown);
}

static bool scratch_open(scratch *s, const evaluation *e)
{
    *s = (scratch){0};
    lay_out(s, e); // measures
    const size_t bytes = s->arena.used;
    *s = (scratch){0};
    if (cot_arena_open(&s->arena, bytes, NULL) != COT_OK) return false;
    lay_out(s, e);
    return true;
}

/* Marks the K largest scores in `top` [E], the lower expert of equal ones; returns the largest. */
static int32_t mark_top(bool *top, const float *score, int32_t E, int32_t K)
{
    int32_t best = -1;
    memset(top, 0, (size_t)E * sizeof *top);
    for (int32_t k = 0; k < K; k++) {
        int32_t most = -1;
        for (int32_t x = 0; x < E; x++)
            if (!top[x] && (most < 0 || score[x] > score[most])) most = x;
        top[most] = true;
        if (k == 0) best = most;
    }
    return best;
}

/* How right the predicted experts are: `called[x]` activations of expert x by `tokens` tokens. */
static void tally_experts(double *sum, const float *score, const double *called, double tokens,
                          const evaluation *e)
{
    const int32_t E = e->info.n_experts;
    bool top[COT_TRACE_MAX_EXPERTS];
    const int32_t best = mark_top(top, score, E, e->info.top_k);
    for (int32_t x = 0; x < E; x++) {
        if (top[x]) sum[COT_SUM_HITS] += called[x];
        if (x != best && score[x] < 0.5F) continue;
        sum[COT_SUM_PICKED] += tokens;
        sum[COT_SUM_RIGHT] += called[x];
    }
}

/* What a token says where it is at home, and its activations by rank: `on` [D]. `even`: its rank under the run-time rule. */
static void tally_ranks(double *sum, const cot_locality *token, const double *on, int32_t D, int32_t even,
                        bool unknown)
{
    double most = 0;
    for (int32_t d = 0; d < D; d++) most = fmax(most, on[d]);
    sum[COT_SUM_TOKENS]++;
    sum[COT_SUM_ACTIVATIONS] += (double)token->activations;
    sum[COT_SUM_LOCAL] += (double)token->local;
    sum[COT_SUM_EVEN] += on[even];
    sum[COT_SUM_REMOTE] += (double)token->remote_ranks;
    sum[COT_SUM_OWN] += token->local > 0;
    sum[COT_SUM_ORACLE] += most;
    if (!unknown) return;
    sum[COT_SUM_UNKNOWN]++;
    sum[COT_SUM_UNKNOWN_ACTIVATIONS] += (double)token->activations;
    sum[COT_SUM_UNKNOWN_LOCAL] += (double)token->local;
}

/* Scores of ranks [n][D] from those of experts. */
static void sum_by_rank(float *rank_score, const float *score, const int32_t *expert_rank, int64_t n,
                        int32_t E, int32_t D)
{
    memset(rank_score, 0, (size_t)(n * D) * sizeof *rank_score);
    for (int64_t i = 0; i < n; i++)
        for (int32_t x = 0; x < E; x++) rank_score[i * D + expert_rank[x]] += score[i * E + x];
}

/* One step's scores [n][D], as cot_assign_evenly asks for them. */
struct rank_scores {
    const float *score;
    int32_t ranks;
};

static void score_ranks(void *context, float *score, int64_t i)
{
    const struct rank_scores *s = context;
    memcpy(score, s->score + i * s->ranks, (size_t)s->ranks * sizeof *score);
}

/* Predicts a batch, and assigns its ranks without and with the run-time rule. */
static void assign(const evaluation *e, scratch *s, int32_t l, int64_t n)
{
    const int32_t D = e->info.n_ranks, E = e->info.n_experts;
    cot_predict_experts(s->score, e->predictor, e->method, &s->batch.batch);
    cot_predict_ranks(s->rank, s->confidence, e->predictor, e->method, &s->batch.batch);
    sum_by_rank(s->rank_score, s->score, e->info.expert_rank + (int64_t)l * E, n, E, D);
    for (int64_t at = 0, many; at < n; at += many) {
        many = n - at < e->step_tokens ? n - at : e->step_tokens;
        struct rank_scores scores = {s->rank_score + at * D, D};
        cot_assign_evenly(s->even + at, s->order, s->rank + at, s->confidence + at, many, D, score_ranks,
                          &scores);
    }
}

/* The busiest rank of a step over the mean. */
static double step_peak(const int16_t *rank, int64_t n, int32_t D)
{
    double load[COT_TRACE_MAX_RANKS] = {0};
    for (int64_t i = 0; i < n; i++) load[rank[i]]++;
    return cot_load_peak(load, D);
}

static void tally_batch(const evaluation *e, scratch *s, int32_t l, int64_t first, int64_t n)
{
    const int32_t D = e->info.n_ranks, E = e->info.n_experts, K = e->info.top_k;
    const int32_t *expert_rank = e->info.expert_rank + (int64_t)l * E;
    cot_tally *tally = &e->tallies.layer[l];
    double *called = tally->called;
    for (int64_t i = 0; i < n; i++) s->unknown[i] = s->rank[i] < 0;
    cot_spread_unknown(s->rank, n, s->load, s->credit, D);
    for (int64_t i = 0; i < n; i++) {
        const uint16_t *experts = s->batch.experts + i * K;
        const int64_t sequence = e->window.sequence[first + i];
        double *sum = tally->sum + sequence * COT_SUMS, on[COT_TRACE_MAX_RANKS] = {0};
        cot_locality token = {0};
        uint64_t reached = 0;
        for (int32_t k = 0; k < K; k++) {
            on[expert_rank[experts[k]]]++;
            called[experts[k]]++;
            reached |= cot_locality_call(&token, s->rank[i], expert_rank[experts[k]]);
        }
        cot_locality_token(&token, reached);
        for (int32_t d = 0; d < D; d++) tally->expert_load[sequence * D + d] += on[d];
        tally->token_load[sequence * D + s->rank[i]]++;
        tally_ranks(sum, &token, on, D, s->even[i], s->unknown[i]);
        tally_experts(sum, s->score + i * E, called, 1, e);
        for (int32_t k = 0; k < K; k++) called[experts[k]] = 0;
    }
    for (int64_t step = first / e->step_tokens; step < e->tallies.n_steps; step++) {
        const int64_t begin = step * e->step_tokens - first;
        if (begin >= n) break;
        const int64_t many = n - begin < e->step_tokens ? n - begin : e->step_tokens;
        tally->step_peak[step] = step_peak(s->rank + begin, many, D);
    }
}

static void evaluate_tokens(void *context, int64_t layer)
{
    evaluation *e = context;
    const int32_t l = (int32_t)layer;
    scratch s;
    if (!scratch_open(&s, e)) {
        atomic_store(&e->failed, true);
        return;
    }
    for (int64_t first = 0, n; first < e->window.n_tokens; first += n) {
        n = e->window.n_tokens - first < e->batch_tokens ? e->window.n_tokens - first : e->batch_tokens;
        cot_window_batch_fill(&s.batch, &e->window, l, first, n);
        assign(e, &s, l, n);
        tally_batch(e, &s, l, first, n);
    }
    cot_arena_close(&s.arena);
}

/* Counts: a row is all occurrences of a token id, which have one prediction. */
static void evaluate_counts(void *context, int64_t layer)
{
    evaluation *e = context;
    const int32_t l = (int32_t)layer, D = e->info.n_ranks, E = e->info.n_experts;
    const int32_t *expert_rank = e->info.expert_rank + (int64_t)l * E;
    cot_tally *tally = &e->tallies.layer[l];
    double load[COT_TRACE_MAX_RANKS] = {0}, unknown = 0;
    float *score = malloc((size_t)E * sizeof *score);
    if (!score) {
        atomic_store(&e->failed, true);
        return;
    }
    for (int64_t i = 0; i < e->trace->n_tokens; i++) {
        const uint32_t *counts = e->trace->counts + (layer * e->trace->n_tokens + i) * E;
        double *called = tally->called, on[COT_TRACE_MAX_RANKS] = {0}, all = 0;
        int16_t rank;
        for (int32_t x = 0; x < E; x++) {
            called[x] = counts[x];
            on[expert_rank[x]] += counts[x];
            all += counts[x];
        }
        if (all == 0) continue; // not in this layer
        const cot_predict_batch batch = {.layer = l, .n_tokens = 1, .row = &e->row[i]};
        cot_predict_experts(score, e->predictor, e->method, &batch);
        cot_predict_ranks(&rank, NULL, e->predictor, e->method, &batch);
        const double tokens = all / e->info.top_k;
        tally->sum[COT_SUM_TOKENS] += tokens;
        tally->sum[COT_SUM_ACTIVATIONS] += all;
        tally_experts(tally->sum, score, called, tokens, e);
        for (int32_t d = 0; d < D; d++) tally->expert_load[d] += on[d];
        if (rank < 0) { // its tokens are spread below, as shares of it
            tally->sum[COT_SUM_UNKNOWN] += tokens;
            tally->sum[COT_SUM_UNKNOWN_ACTIVATIONS] += all;
            for (int32_t d = 0; d < D; d++) tally->unknown_on[d] += on[d];
            unknown += tokens;
            continue;
        }
        tally->sum[COT_SUM_LOCAL] += on[rank];
        load[rank] += tokens;
    }
    double shares = 0;
    for (int32_t d = 0; d < D; d++) shares += 1 / (load[d] + 1);
    for (int32_t d = 0; d < D; d++) {
        const double share = 1 / ((load[d] + 1) * shares);
        tally->sum[COT_SUM_UNKNOWN_LOCAL] += share * tally->unknown_on[d];
        tally->sum[COT_SUM_LOCAL] += share * tally->unknown_on[d];
        tally->token_load[d] = load[d] + share * unknown;
    }
    free(score);
}

/* Of counts: tokens of the layer that has most. */
static int64_t most_tokens(const cot_tallies *t)
{
    double most = 0;
    for (int32_t l = 0; l < t->n_layers; l++) most = fmax(most, t->layer[l].sum[COT_SUM_TOKENS]);
    return llround(most);
}

static bool knows_ids(const cot_trace *trace)
{
    for (int64_t t = 0; t < trace->n_tokens; t++)
        if (trace->token_ids[t] >= 0) return true;
    return false;
}

static cot_status check(const evaluation *e, const cot_predict_evaluate_options *o, cot_error *error)
{
    const cot_predictor_info *info = &e->info;
    const cot_trace *t = e->trace;
    if (o->size != sizeof *o || o->step_tokens < 0 || o->resamples < 0 || o->threads < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "the options of an evaluation make no sense");
    if (t->n_layers != info->n_layers ||
        memcmp(t->layers, info->layers, (size_t)t->n_layers * sizeof *t->layers))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the trace has %d layers from %d to %d, the tables %d from %d to %d",
                        (int)t->n_layers, (int)t->layers[0], (int)t->layers[t->n_layers - 1],
                        (int)info->n_layers, (int)info->layers[0], (int)info->layers[info->n_layers - 1]);
    if (t->n_experts != info->n_experts || t->top_k != info->top_k)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the trace has %d of %d experts a token, the tables %d of %d", (int)t->top_k,
                        (int)t->n_experts, (int)info->top_k, (int)info->n_experts);
    if (info->has[COT_PREDICT_TOKEN_TABLE] && t->n_strings > 0 && !info->token_strings)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the trace knows tokens by their strings, the tables by ids of a vocabulary");
    if (t->n_strings == 0 && info->token_strings && knows_ids(t))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the trace knows tokens by ids of a vocabulary, the tables by their strings");
    if (!info->has[e->method])
        return cot_fail(error, COT_INVALID_ARGUMENT, "the tables have nothing for method '%s'",
                        cot_predict_method_names[e->method]);
    const bool ordered = e->method != COT_PREDICT_GLOBAL && e->method != COT_PREDICT_TOKEN_TABLE;
    if (t->kind == COT_TRACE_COUNTS && ordered)
        return cot_fail(error, COT_INVALID_ARGUMENT, "counts have no order, which method '%s' needs",
                        cot_predict_method_names[e->method]);
    return COT_OK;
}

static cot_status open_counts(evaluation *e, cot_error *error)
{
    const int64_t n = e->trace->n_tokens;
    if (!(e->row = malloc(((size_t)n + 1) * sizeof *e->row)))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld token ids", (long long)n);
    const cot_status status =
        cot_rows_of_tokens(e->row, e->predictor, e->trace, e->trace->token_ids, n, error);
    return status == COT_OK ? cot_tallies_open(&e->tallies, &e->info, 1, 0, false, error) : status;
}

static cot_status open_window(evaluation *e, const cot_predict_evaluate_options *o, cot_error *error)
{
    cot_status status = cot_window_open(&e->window, e->predictor, e->trace, o->chosen, error);
    if (status == COT_OK && !e->window.n_tokens)
        status = cot_fail(error, COT_INVALID_ARGUMENT, "no token is left to evaluate");
    if (status != COT_OK) return status;
    // Whole steps to a batch, so that a step never straddles two.
    e->step_tokens = o->step_tokens ? o->step_tokens : STEP_TOKENS;
    const int64_t cells = BATCH_CELLS / e->info.n_experts, most = cells < BATCH_TOKENS ? cells : BATCH_TOKENS;
    e->batch_tokens = e->step_tokens < most ? most / e->step_tokens * e->step_tokens : e->step_tokens;
    const int64_t steps = e->window.n_tokens / e->step_tokens;
    return cot_tallies_open(&e->tallies, &e->info, e->window.n_sequences, steps ? steps : 1, true, error);
}

cot_status cot_predict_evaluate(cot_predict_evaluation *evaluation_out, const cot_predictor *predictor,
                                cot_predict_method method, const cot_trace *trace,
                                const cot_predict_evaluate_options *options, cot_error *error)
{
    const cot_predict_evaluate_options none = {.size = sizeof none}, *o = options ? options : &none;
    evaluation e = {.predictor = predictor, .method = method, .trace = trace};
    cot_predictor_describe(&e.info, predictor);
    *evaluation_out = (cot_predict_evaluation){.n_layers = trace->n_layers};
    const bool ordered = trace->kind == COT_TRACE_TOKENS;
    cot_status status = check(&e, o, error);
    if (status == COT_OK && ordered) status = open_window(&e, o, error);
    if (status == COT_OK && !ordered) status = open_counts(&e, error);
    cot_pool *pool = NULL;
    if (status == COT_OK && o->threads > 1) status = cot_pool_open(&pool, o->threads - 1, error);
    if (status == COT_OK)
        cot_pool_run(pool, trace->n_layers, ordered ? evaluate_tokens : evaluate_counts, &e);
    cot_pool_close(pool);
    if (status == COT_OK) {
        evaluation_out->n_tokens = ordered ? e.window.n_tokens : most_tokens(&e.tallies);
        evaluation_out->layer = malloc((size_t)trace->n_layers * COT_FIGURES * sizeof *evaluation_out->layer);
        if (!evaluation_out->layer || atomic_load(&e.failed))
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an evaluation");
    }
    if (status == COT_OK)
        status = cot_tallies_figure(evaluation_out, &e.tallies, o->resamples, o->seed, error);
    cot_window_close(&e.window);
    free(e.row);
    cot_tallies_close(&e.tallies);
    if (status != COT_OK) cot_predict_evaluation_free(evaluation_out);
    return status;
}

void cot_predict_evaluation_free(cot_predict_evaluation *evaluation_out)
{
    free(evaluation_out->layer);
    *evaluation_out = (cot_predict_evaluation){0};
}
