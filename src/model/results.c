/* The end of a step: logits, and everything that rank 0 wants of the other ranks. */
#include "base/integers.h"
#include "kernels/pack.h"
#include "model/runner_state.h"
#include "checkpoint/stored.h"

#include <string.h>

/* The columns of the vocabulary whose logits a rank computes: whole panels. */
static void logit_columns(const cot_runner *r, int rank, int64_t *begin, int64_t *end)
{
    int64_t panels = cot_panels(r->c->vocab);
    *begin = cot_share_begin(panels, rank, r->fabric->ranks) * COT_PANEL;
    *end = cot_share_begin(panels, rank + 1, r->fabric->ranks) * COT_PANEL;
    if (*end > r->c->vocab) *end = r->c->vocab;
}

void cot_runner_lay_out_results(cot_runner *r, cot_arena *arena)
{
    cot_runner_results *s = &r->results;
    const size_t n = (size_t)r->o.step_tokens, wanted = (size_t)r->o.step_logits;
    int64_t begin, end;
    logit_columns(r, r->fabric->rank, &begin, &end);
    s->hidden = cot_arena_take(arena, wanted * (size_t)r->c->hidden, cot_dtype_bytes(r->o.precision.type));
    s->hidden_row = cot_arena_take(arena, wanted, sizeof *s->hidden_row);
    s->unsound = cot_arena_take(arena, n, sizeof *s->unsound);
    if (r->o.capture && cot_runner_goes_home(r))
        s->unordered = cot_arena_take(arena, n * (size_t)r->c->gate.top_k, sizeof *s->unordered);
    if (r->fabric->rank)
        s->columns = cot_arena_take(arena, wanted * (size_t)(end - begin), sizeof *s->columns);
    else
        s->logits = cot_arena_take(arena, wanted * (size_t)r->c->vocab, sizeof *s->logits);
}

/* ---- logits ---- */

/* Final-normed rows that want logits go to hidden, rank after rank under data-parallel attention (each rank
 * brings its own), and hidden_row says where the rows are in the order of the spans. */
static cot_status gather_hidden(cot_runner *r, const cot_step *step, cot_error *error)
{
    int ranks = r->o.data_parallel ? r->fabric->ranks : 1, own = r->o.data_parallel ? r->fabric->rank : 0;
    int64_t next[COT_MAX_RANKS + 1] = {0}, row = 0, wanted = 0;
    size_t begin[COT_MAX_RANKS + 1] = {0},
                                 row_bytes = (size_t)r->c->hidden * cot_dtype_bytes(r->o.precision.type);
    for (int32_t i = 0; i < step->spans; i++)
        next[(r->o.data_parallel ? step->span[i].home : 0) + 1] += step->span[i].logits;
    for (int p = 0; p < ranks; p++) {
        next[p + 1] += next[p];
        begin[p + 1] = (size_t)next[p + 1] * row_bytes;
    }
    for (int32_t i = 0; i < step->spans; i++) {
        const cot_span *span = &step->span[i];
        int home = r->o.data_parallel ? span->home : 0;
        if (home == own) {
            int64_t first = row + span->tokens - span->logits;
            cot_runner_norm(r, &r->o.whole->final_norm, r->rows.x + first * r->c->hidden, span->logits);
            memcpy(cot_runner_row(r, r->results.hidden, next[home], r->c->hidden), r->rows.typed,
                   (size_t)span->logits * row_bytes);
            row += span->tokens;
        }
        for (int32_t t = 0; t < span->logits; t++) r->results.hidden_row[wanted++] = (int32_t)next[home]++;
    }
    return ranks > 1 ? cot_allgather(r->collectives, r->results.hidden, begin, COT_PHASE_CONTROL, error)
                     : COT_OK;
}

/* A rank's columns of logits. */
struct finished {
    float *logits;
    const float *bias; // or NULL
    int64_t columns, stride;
};

static void finish_logits(cot_runner *r, int64_t row, const void *context)
{
    const struct finished *all = context;
    float *logits = all->logits + row * all->stride;
    if (all->bias) r->o.kernels->add(logits, all->bias, COT_F32, all->columns);
    r->o.kernels->scale(logits, COT_F32, logits, r->c->logits_scale, all->columns);
}

/* Every rank computes its columns of all rows; rank 0 puts them side by side. */
static void compute_logits(cot_runner *r, const cot_step *step)
{
    int64_t begin, end;
    logit_columns(r, r->fabric->rank, &begin, &end);
    if (!step->logits || begin == end) return;
    bool root = r->fabric->rank == 0;
    cot_gemm gemm =
        cot_packed_gemm(&r->o.whole->output, r->o.precision.type, step->logits, begin, end - begin);
    gemm.a = r->results.hidden;
    gemm.a_stride = r->c->hidden;
    gemm.a_rows = r->results.hidden_row;
    gemm.c = root ? r->results.logits + begin : r->results.columns;
    gemm.c_stride = root ? r->c->vocab : end - begin;
    cot_matmul(r->o.kernels, r->o.pool, &gemm, 1);
    const float *bias = r->o.whole->output_bias;
    if (!bias && r->c->logits_scale == 1) return;
    struct finished all = {gemm.c, bias ? bias + begin : NULL, end - begin, gemm.c_stride};
    cot_runner_rows(r, step->logits, finish_logits, &all);
}

/* ---- what all ranks send ---- */

/* Which of the spans at home here have rows that are not finite: a row that once is stays so to the last layer. */
static void tell_unsound(cot_runner *r, const cot_step *step)
{
    const uint8_t yes = 1;
    int64_t row = 0;
    if (r->fabric->rank && !r->o.data_parallel) return; // every rank has all rows
    for (int32_t i = 0; i < step->spans; i++) {
        const cot_span *span = &step->span[i];
        if (r->o.data_parallel && span->home != r->fabric->rank) continue;
        if (!cot_all_finite(r->rows.x + row * r->c->hidden, COT_F32, span->tokens * r->c->hidden))
            cot_put(r->fabric, 0, r->results.unsound_at + (size_t)i, &yes, 1, COT_PHASE_CONTROL);
        row += span->tokens;
    }
}

/* Takes what all ranks told, and clears it before any of them can begin the next step. */
static void take_unsound(cot_runner *r, const cot_step *step)
{
    uint8_t *told = cot_local(r->fabric, r->results.unsound_at);
    memcpy(r->results.unsound, told, (size_t)step->spans);
    memset(told, 0, (size_t)step->spans);
}

/* Rank 0 waits until every other rank has sent what it owed for this call. */
static cot_status await_all(cot_runner *r, cot_error *error)
{
    cot_status status = COT_OK;
    for (int p = 1; p < r->fabric->ranks && status == COT_OK; p++)
        status = cot_wait(r->fabric, r->results.done_at + (size_t)p * sizeof(uint64_t), r->results.number, p,
                          COT_PHASE_CONTROL, error);
    return status;
}

static cot_step_counts count(const cot_runner *r)
{
    cot_step_counts counts = {.locality = r->results.stats.locality, .distinct = r->results.stats.distinct};
    for (int to = 0; to < r->fabric->ranks; to++)
        for (int phase = 0; phase < COT_PHASES; phase++)
            counts.bytes[phase] += r->fabric->traffic[to][phase].bytes;
    return counts;
}

/* In this step. */
static cot_runner_served count_served(const cot_runner *r)
{
    const cot_moe_times *before = &r->results.before, *now = r->network.moe->op->times(r->network.moe);
    return (cot_runner_served){.rows = now->served_rows - before->served_rows,
                               .experts = (uint32_t)(now->served_experts - before->served_experts),
                               .received = (uint32_t)(now->received_rows - before->received_rows)};
}

static cot_sym logits_block(const cot_runner *r, int64_t column)
{
    return r->results.logits_at + (size_t)(column * r->o.step_logits) * sizeof(float);
}

/* Puts what this rank sends behind its last results: counts of the step, with the signal. */
static void send_last(cot_runner *r, const cot_step *step)
{
    const cot_sym signal = r->results.done_at + (size_t)r->fabric->rank * sizeof(uint64_t);
    const cot_runner_served served = count_served(r);
    int64_t begin, end;
    logit_columns(r, r->fabric->rank, &begin, &end);
    const size_t bytes = (size_t)(step->logits * (end - begin)) * sizeof(float);
    if (bytes) cot_put(r->fabric, 0, logits_block(r, begin), r->results.columns, bytes, COT_PHASE_CONTROL);
    if (step->reports) {
        const cot_step_counts counts = count(r);
        cot_put(r->fabric, 0, r->results.counts_at + (size_t)r->fabric->rank * sizeof counts, &counts,
                sizeof counts, COT_PHASE_CONTROL);
    }
    cot_put_signal(r->fabric, 0, r->results.served_at + (size_t)r->fabric->rank * sizeof served, &served,
                   sizeof served, signal, r->results.number, COT_PHASE_CONTROL);
}

static cot_status collect(cot_runner *r, const cot_step *step, cot_error *error)
{
    int64_t begin, end;
    r->results.number++;
    if (r->o.capture)
        cot_runner_send_routing(r, step);
    else if (step->routed_every)
        cot_runner_send_popular(r, step);
    tell_unsound(r, step);
    if (r->fabric->rank) {
        send_last(r, step);
        return COT_OK;
    }
    cot_status status = await_all(r, error);
    if (status == COT_OK) take_unsound(r, step);
    if (step->reports) *(cot_step_counts *)cot_local(r->fabric, r->results.counts_at) = count(r);
    *(cot_runner_served *)cot_local(r->fabric, r->results.served_at) = count_served(r);
    if (status == COT_OK && r->o.capture) cot_runner_order_routing(r);
    for (int p = 1; p < r->fabric->ranks && status == COT_OK; p++) {
        logit_columns(r, p, &begin, &end);
        const float *block = cot_local(r->fabric, logits_block(r, begin));
        for (int64_t row = 0; row < step->logits; row++)
            memcpy(r->results.logits + row * r->c->vocab + begin, block + row * (end - begin),
                   (size_t)(end - begin) * sizeof(float));
    }
    return status;
}

cot_status cot_runner_send_results(cot_runner *r, const cot_step *step, cot_error *error)
{
    const cot_status status = gather_hidden(r, step, error);
    if (status != COT_OK) return status;
    compute_logits(r, step);
    return collect(r, step, error);
}

cot_step_result cot_runner_result(const cot_runner *r, const cot_step *step)
{
    const cot_runner_results *s = &r->results;
    if (r->fabric->rank) return (cot_step_result){0};
    return (cot_step_result){.logits = s->logits,
                             .experts = r->o.capture ? cot_local(r->fabric, s->routed_experts_at) : NULL,
                             .weights = r->o.capture ? cot_local(r->fabric, s->routed_weights_at) : NULL,
                             .unsound = s->unsound,
                             .routed = step->routed_every ? cot_local(r->fabric, s->routed_experts_at) : NULL,
                             .counts = step->reports ? cot_local(r->fabric, s->counts_at) : NULL,
                             .served = cot_local(r->fabric, s->served_at),
                             .own_experts = r->network.experts,
                             .own_rows = cot_runner_splits_heads(r) ? r->rows.count / r->fabric->ranks
                                                                    : r->rows.count};
}

cot_status cot_runner_stats(cot_runner *r, cot_rank_stats *stats, cot_error *error)
{
    r->results.number++;
    r->results.stats.moe = *r->network.moe->op->times(r->network.moe);
    memcpy(r->results.stats.traffic, r->fabric->traffic,
           (size_t)r->fabric->ranks * sizeof *r->results.stats.traffic);
    memcpy(r->results.stats.rounds, r->fabric->rounds, sizeof r->results.stats.rounds);
    const size_t calls = cot_runner_calls(r) * sizeof(uint64_t);
    if (r->fabric->rank && calls)
        cot_put(r->fabric, 0, r->results.calls_at + (size_t)r->fabric->rank * calls,
                cot_runner_calls_of(r, r->fabric->rank), calls, COT_PHASE_CONTROL);
    const size_t words = cot_runner_sent_words(r, r->fabric->ranks);
    if (r->fabric->rank && words) {
        const size_t own = (size_t)r->fabric->rank * words;
        const cot_sym at = r->sent.at + own * sizeof(uint64_t);
        cot_put(r->fabric, 0, at, cot_local(r->fabric, at), words * sizeof(uint64_t), COT_PHASE_CONTROL);
    }
    cot_put_signal(r->fabric, 0, r->results.stats_at + (size_t)r->fabric->rank * sizeof r->results.stats,
                   &r->results.stats, sizeof r->results.stats,
                   r->results.done_at + (size_t)r->fabric->rank * sizeof(uint64_t), r->results.number,
                   COT_PHASE_CONTROL);
    if (r->fabric->rank) return COT_OK;
    cot_status status = await_all(r, error);
    if (status == COT_OK)
        memcpy(stats, cot_local(r->fabric, r->results.stats_at), (size_t)r->fabric->ranks * sizeof *stats);
    return status;
}

void cot_runner_add_calls(const cot_runner *r, uint64_t *calls)
{
    for (int rank = 0; rank < r->fabric->ranks; rank++) {
        const uint64_t *theirs = cot_runner_calls_of(r, rank);
        for (size_t i = 0; i < cot_runner_calls(r); i++) calls[i] += theirs[i];
    }
}
