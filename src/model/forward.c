/* One step on one rank: a pipeline when heads are split (pipeline.h), the MoE operator alone when sequences stay at
 * home. */
#include "base/error.h"
#include "kernels/pack.h"
#include "model/runner_state.h"
#include "checkpoint/stored.h"

#include <math.h>
#include <string.h>

/* ---- what this rank works on ---- */

/* Rows, runs, positions, RoPE angles and embeddings of the spans that this rank attends to. */
static cot_status begin_step(cot_runner *r, const cot_step *step, cot_error *error)
{
    cot_step_scratch *s = &r->s;
    bool split = cot_runner_splits_heads(r);
    for (int32_t m = 0; m < step->maps; m++) {
        const cot_page_map *map = &step->map[m];
        if (!r->o.data_parallel || map->home == r->fabric->rank)
            cot_kv_map(&r->kv, map->sequence, map->index, map->page, map->from, map->keep);
        else
            cot_kv_give_up(&r->kv, map->page);
    }
    s->rows = s->run_count = 0;
    int64_t half = r->c->rope_width / 2, token = 0;
    cot_status status = COT_OK;
    for (int32_t i = 0; i < step->spans && status == COT_OK; token += step->span[i++].tokens) {
        const cot_span *span = &step->span[i];
        if (r->o.data_parallel && span->home != r->fabric->rank) continue;
        s->runs[s->run_count++] = (cot_run){span->sequence, span->position, s->rows, span->tokens};
        for (int32_t t = 0; t < span->tokens && status == COT_OK; t++, s->rows++) {
            s->sequence[s->rows] = span->sequence;
            s->position[s->rows] = span->position + t;
            for (int64_t f = 0; f < half; f++) {
                float angle = (float)(span->position + t) * r->c->inverse_frequency[f];
                s->cosines[s->rows * half + f] = cosf(angle) * r->c->rope_factor;
                s->sines[s->rows * half + f] = sinf(angle) * r->c->rope_factor;
            }
            if (s->recorded) s->recorded[s->rows] = span->recorded;
            const int32_t id = step->ids[token + t];
            float *x = s->x + s->rows * r->c->hidden;
            if (id < 0) // a trace's token that nobody knows
                memset(x, 0, (size_t)r->c->hidden * sizeof *x);
            else
                status = cot_embedding_read(&r->o.whole->embedding, r->o.kernels, x, s->branch, id, error);
        }
    }
    s->home0 = split ? cot_share_begin(s->rows, r->fabric->rank, r->fabric->ranks) : 0;
    s->home1 = split ? cot_share_begin(s->rows, r->fabric->rank + 1, r->fabric->ranks) : s->rows;
    return status;
}

/* ---- feed-forward ---- */

/* Out of line, so that a profiler tells what counting takes (docs/OPERATE.md). */
static __attribute__((noinline)) void count_routing(cot_runner *r, int64_t moe_layer,
                                                    const cot_expert_replicas *replicas,
                                                    const uint16_t *experts, int64_t rows)
{
    const int64_t k = r->c->gate.top_k;
    const int home = r->fabric->rank;
    uint64_t *calls = cot_runner_calls_of(r, home) + moe_layer * r->c->gate.experts;
    uint64_t called[COT_MAX_EXPERTS / 64 + 1]; // a bit an expert
    memset(called, 0, (size_t)(r->c->gate.experts / 64 + 1) * sizeof *called);
    for (int64_t t = 0; t < rows; t++) {
        uint64_t reached = 0;
        for (int64_t i = 0; i < k; i++) {
            const int64_t replica = cot_expert_replica(replicas, experts[t * k + i], home, t);
            const uint16_t expert = experts[t * k + i];
            calls[expert]++;
            r->stats.distinct += ~called[expert / 64] >> expert % 64 & 1;
            called[expert / 64] |= (uint64_t)1 << expert % 64;
            reached |= cot_locality_call(&r->stats.locality, home, replicas->rank[replica]);
        }
        cot_locality_token(&r->stats.locality, reached);
    }
}

/* The routing that takes the place of the gate's, of the rows at home. */
static void replay(cot_runner *r, int64_t moe_layer, cot_moe_layer *moe, int64_t rows)
{
    cot_step_scratch *s = &r->s;
    const int64_t k = r->c->gate.top_k;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = cot_runner_row_at_home(r, i);
        const cot_replay_token token = {.moe_layer = (int32_t)moe_layer,
                                        .sequence = s->sequence[row],
                                        .position = s->position[row],
                                        .recorded = s->recorded[row],
                                        .rank = r->fabric->rank,
                                        .place = i,
                                        .replicas = &moe->placement};
        r->o.replay->choose(s->replayed_experts + i * k, s->replayed_weights + i * k, r->o.replay, &token);
    }
    moe->replayed_experts = s->replayed_experts;
    moe->replayed_weights = s->replayed_weights;
}

cot_moe_layer cot_runner_moe_layer(const cot_runner *r, int64_t layer, int64_t moe_layer)
{
    const cot_layer_weights *w = &r->o.whole->layers[layer];
    const int64_t slot = moe_layer % cot_runner_expert_layers(&r->o) * r->layout->slots_per_rank;
    return (cot_moe_layer){.gate = &w->gate,
                           .placement = cot_expert_layout_layer(r->layout, (int32_t)moe_layer),
                           .slots = r->experts_at + (size_t)slot * r->slot_bytes,
                           .shared = w->shared,
                           .shared_gate = w->shared_mix,
                           .unsound_pass = true};
}

/* y [rows][H] = the layer's network over the rows of x at home. */
static cot_status feed_forward(cot_runner *r, int64_t layer, int64_t moe_layer, float *y, const float *x,
                               int64_t rows, cot_error *error)
{
    cot_step_scratch *s = &r->s;
    const cot_layer_weights *w = &r->o.whole->layers[layer];
    cot_runner_norm(r, w->ffn_norm, x, rows);
    if (!w->dense) {
        int64_t place = moe_layer * r->o.step_tokens * r->c->gate.top_k;
        cot_moe_layer moe = cot_runner_moe_layer(r, layer, moe_layer);
        if (r->o.replay) replay(r, moe_layer, &moe, rows);
        cot_status status = r->moe->op->forward(r->moe, &moe, y, s->experts + place, s->weights + place,
                                                s->normed, rows, error);
        cot_runner_exchanged(r, layer, COT_EXCHANGE_DISPATCH,
                             1u << COT_PHASE_DISPATCH | 1u << COT_PHASE_METADATA);
        cot_runner_exchanged(r, layer, COT_EXCHANGE_COMBINE, 1u << COT_PHASE_COMBINE);
        if (status == COT_OK) count_routing(r, moe_layer, &moe.placement, s->experts + place, rows);
        return status;
    }
    int64_t began_ns = r->fabric->ops->now_ns(r->fabric);
    cot_ffn_shape shape = cot_model_dense_shape(r->c, r->o.precision);
    cot_ffn_job job = {.weights = w->dense, .count = rows, .x = s->typed, .y = y};
    if (rows) cot_ffn_run(r->o.kernels, r->o.pool, &shape, &job, 1, s->dense_scratch);
    r->stats.dense_ns += r->fabric->ops->now_ns(r->fabric) - began_ns;
    return COT_OK;
}

static void add_branch(cot_runner *r, int64_t row, const void *context)
{
    (void)context;
    r->o.kernels->add(r->s.x + row * r->c->hidden, r->s.branch + row * r->c->hidden, COT_F32, r->c->hidden);
}

static void add_attention(cot_runner *r, int64_t row, const void *output_bias)
{
    add_branch(r, row, NULL);
    if (output_bias) r->o.kernels->add(r->s.x + row * r->c->hidden, output_bias, COT_F32, r->c->hidden);
}

static void narrow_branch(cot_runner *r, int64_t i, const void *context)
{
    (void)context;
    int64_t row = r->s.home0 + i;
    r->o.kernels->scale(cot_runner_row(r, r->s.payload, row, r->c->hidden), r->o.precision.type,
                        r->s.branch + row * r->c->hidden, 1.0f, r->c->hidden);
}

static void add_payload(cot_runner *r, int64_t row, const void *context)
{
    (void)context;
    r->o.kernels->add(r->s.x + row * r->c->hidden, cot_runner_row(r, r->s.payload, row, r->c->hidden),
                      r->o.precision.type, r->c->hidden);
}

/* Every rank gets every slice's rows as they travelled, the own ones too, so that the residual stream stays
 * one. */
static cot_status gather_slices(cot_runner *r, int64_t layer, cot_error *error)
{
    int64_t began_ns = r->fabric->ops->now_ns(r->fabric);
    size_t begin[COT_MAX_RANKS + 1], row_bytes = (size_t)r->c->hidden * cot_dtype_bytes(r->o.precision.type);
    for (int p = 0; p <= r->fabric->ranks; p++)
        begin[p] = (size_t)cot_share_begin(r->s.rows, p, r->fabric->ranks) * row_bytes;
    cot_runner_rows(r, r->s.home1 - r->s.home0, narrow_branch, NULL);
    cot_status status = cot_allgather(r->collectives, r->s.payload, begin, COT_PHASE_ATTENTION, error);
    cot_runner_exchanged(r, layer, COT_EXCHANGE_GATHER, COT_ROWS_HOME);
    if (status == COT_OK) cot_runner_rows(r, r->s.rows, add_payload, NULL);
    r->stats.gather_ns += r->fabric->ops->now_ns(r->fabric) - began_ns;
    return status;
}

/* Everything after attention where it was computed whole, or comes together on a ring. */
static cot_status run_network(cot_runner *r, int64_t layer, int64_t moe_layer, cot_error *error)
{
    const bool split = cot_runner_splits_heads(r);
    const int64_t began_ns = r->fabric->ops->now_ns(r->fabric), home = r->s.home0 * r->c->hidden;
    cot_status status = COT_OK;
    if (split) {
        status = cot_allreduce(r->collectives, r->s.branch, r->s.rows * r->c->hidden, r->o.precision.type,
                               COT_PHASE_ATTENTION, error);
        cot_runner_exchanged(r, layer, COT_EXCHANGE_REDUCE, COT_ROWS_HOME);
        r->stats.reduce_ns += r->fabric->ops->now_ns(r->fabric) - began_ns;
    }
    if (status == COT_OK) {
        cot_runner_rows(r, r->s.rows, add_attention, r->o.whole->layers[layer].output_bias);
        status = feed_forward(r, layer, moe_layer, r->s.branch + home, r->s.x + home, r->s.home1 - r->s.home0,
                              error);
    }
    if (status != COT_OK) return status;
    if (split) return gather_slices(r, layer, error);
    cot_runner_rows(r, r->s.rows, add_branch, NULL);
    return COT_OK;
}

/* The same where rows go home in one hop. */
static cot_status run_network_at_home(cot_runner *r, int64_t layer, int64_t moe_layer, cot_error *error)
{
    const bool moe = r->c->layer[layer].moe;
    const int64_t t0 = r->fabric->ops->now_ns(r->fabric);
    int64_t rows;
    cot_runner_choose_homes(r, moe_layer, moe);
    cot_status status = cot_runner_go_home(r, layer, &rows, error);
    r->stats.reduce_ns += r->fabric->ops->now_ns(r->fabric) - t0;
    if (status == COT_OK) status = feed_forward(r, layer, moe_layer, r->s.branch, r->s.home_x, rows, error);
    const int64_t t1 = r->fabric->ops->now_ns(r->fabric);
    if (status == COT_OK) status = cot_runner_return(r, layer, moe_layer, error);
    r->stats.gather_ns += r->fabric->ops->now_ns(r->fabric) - t1;
    return status;
}

static cot_status run_layer(cot_runner *r, int64_t layer, int64_t moe_layer, cot_error *error)
{
    const int64_t t0 = r->fabric->ops->now_ns(r->fabric);
    const cot_status status = cot_runner_attention(r, layer, error);
    r->stats.attention_ns += r->fabric->ops->now_ns(r->fabric) - t0;
    if (status != COT_OK) return status;
    return cot_runner_goes_home(r) ? run_network_at_home(r, layer, moe_layer, error)
                                   : run_network(r, layer, moe_layer, error);
}

/* ---- logits ---- */

void cot_runner_logit_columns(const cot_runner *r, int rank, int64_t *begin, int64_t *end)
{
    int64_t panels = cot_panels(r->c->vocab);
    *begin = cot_share_begin(panels, rank, r->fabric->ranks) * COT_PANEL;
    *end = cot_share_begin(panels, rank + 1, r->fabric->ranks) * COT_PANEL;
    if (*end > r->c->vocab) *end = r->c->vocab;
}

/* Final-normed rows that want logits go to s.hidden, rank after rank under data-parallel attention (each rank
 * brings its own), and s.hidden_row says where the rows are in the order of the spans. */
static cot_status gather_hidden(cot_runner *r, const cot_step *step, cot_error *error)
{
    cot_step_scratch *s = &r->s;
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
            cot_runner_norm(r, r->o.whole->final_norm, s->x + first * r->c->hidden, span->logits);
            memcpy(cot_runner_row(r, s->hidden, next[home], r->c->hidden), s->typed,
                   (size_t)span->logits * row_bytes);
            row += span->tokens;
        }
        for (int32_t t = 0; t < span->logits; t++) s->hidden_row[wanted++] = (int32_t)next[home]++;
    }
    return ranks > 1 ? cot_allgather(r->collectives, s->hidden, begin, COT_PHASE_CONTROL, error) : COT_OK;
}

/* Every rank computes its columns of all rows; rank 0 puts them side by side. */
static void compute_logits(cot_runner *r, const cot_step *step)
{
    cot_step_scratch *s = &r->s;
    int64_t begin, end;
    cot_runner_logit_columns(r, r->fabric->rank, &begin, &end);
    if (!step->logits || begin == end) return;
    bool root = r->fabric->rank == 0;
    cot_gemm gemm =
        cot_packed_gemm(&r->o.whole->output, r->o.precision.type, step->logits, begin, end - begin);
    gemm.a = s->hidden;
    gemm.a_stride = r->c->hidden;
    gemm.a_rows = s->hidden_row;
    gemm.c = root ? s->logits + begin : s->columns;
    gemm.c_stride = root ? r->c->vocab : end - begin;
    cot_matmul(r->o.kernels, r->o.pool, &gemm, 1);
}

static cot_sym logits_block(const cot_runner *r, int64_t column)
{
    return r->logits_at + (size_t)(column * r->o.step_logits) * sizeof(float);
}

/* Where homes differ from layer to layer: each rank's routing side by side, in the order of the layer's homes. */
static void send_shuffled_routing(cot_runner *r)
{
    const int64_t k = r->c->gate.top_k, n = r->o.step_tokens;
    cot_step_scratch *s = &r->s;
    for (int64_t l = 0; l < r->c->moe_layers; l++) {
        cot_homes_order(s->order, s->order_begin, s->home + l * n, s->rows, r->fabric->ranks);
        const int64_t first = s->order_begin[r->fabric->rank],
                      count = (s->order_begin[r->fabric->rank + 1] - first) * k;
        const uint64_t to = (uint64_t)((l * n + first) * k);
        if (!count) continue;
        cot_put(r->fabric, 0, r->routed_experts_at + to * sizeof(uint16_t), s->experts + l * n * k,
                (size_t)count * sizeof(uint16_t), COT_PHASE_CONTROL);
        cot_put(r->fabric, 0, r->routed_weights_at + to * sizeof(float), s->weights + l * n * k,
                (size_t)count * sizeof(float), COT_PHASE_CONTROL);
    }
}

/* Rows of `bytes` that lie in the order of a layer's homes return to their own index. */
static void return_to_index(cot_runner *r, uint8_t *rows, size_t bytes)
{
    uint8_t *shuffled = (uint8_t *)r->s.routed;
    memcpy(shuffled, rows, (size_t)r->s.rows * bytes);
    for (int64_t at = 0; at < r->s.rows; at++)
        memcpy(rows + (size_t)r->s.order[at] * bytes, shuffled + (size_t)at * bytes, bytes);
}

static void order_routing(cot_runner *r)
{
    const int64_t k = r->c->gate.top_k, n = r->o.step_tokens;
    uint16_t *experts = cot_local(r->fabric, r->routed_experts_at);
    float *weights = cot_local(r->fabric, r->routed_weights_at);
    for (int64_t l = 0; l < r->c->moe_layers; l++) {
        cot_homes_order(r->s.order, r->s.order_begin, r->s.home + l * n, r->s.rows, r->fabric->ranks);
        return_to_index(r, (uint8_t *)(experts + l * n * k), (size_t)k * sizeof *experts);
        return_to_index(r, (uint8_t *)(weights + l * n * k), (size_t)k * sizeof *weights);
    }
}

/* Sends routing of the home rows to their places on rank 0. */
static void send_routing(cot_runner *r, const cot_step *step)
{
    int64_t k = r->c->gate.top_k, row = 0, token = 0;
    for (int32_t i = 0; i < step->spans; token += step->span[i++].tokens) {
        const cot_span *span = &step->span[i];
        if (r->o.data_parallel && span->home != r->fabric->rank) continue;
        int64_t first = row > r->s.home0 ? row : r->s.home0, last = row + span->tokens;
        if (last > r->s.home1) last = r->s.home1;
        for (int64_t l = 0; l < r->c->moe_layers && first < last; l++) {
            int64_t from = (l * r->o.step_tokens + first - r->s.home0) * k, n = (last - first) * k;
            uint64_t to = (uint64_t)((l * r->o.step_tokens + token + first - row) * k);
            cot_put(r->fabric, 0, r->routed_experts_at + to * sizeof(uint16_t), r->s.experts + from,
                    (size_t)n * sizeof(uint16_t), COT_PHASE_CONTROL);
            cot_put(r->fabric, 0, r->routed_weights_at + to * sizeof(float), r->s.weights + from,
                    (size_t)n * sizeof(float), COT_PHASE_CONTROL);
        }
        row += span->tokens;
    }
}

/* Which of the spans at home here have rows that are not finite: a row that once is stays so to the last layer. */
static void tell_unsound(cot_runner *r, const cot_step *step)
{
    const uint8_t yes = 1;
    int64_t row = 0;
    if (r->fabric->rank && !r->o.data_parallel) return; // every rank has all rows
    for (int32_t i = 0; i < step->spans; i++) {
        const cot_span *span = &step->span[i];
        if (r->o.data_parallel && span->home != r->fabric->rank) continue;
        if (!cot_all_finite(r->s.x + row * r->c->hidden, COT_F32, span->tokens * r->c->hidden))
            cot_put(r->fabric, 0, r->unsound_at + (size_t)i, &yes, 1, COT_PHASE_CONTROL);
        row += span->tokens;
    }
}

/* Takes what all ranks told, and clears it before any of them can begin the next step. */
static void take_unsound(cot_runner *r, const cot_step *step)
{
    uint8_t *told = cot_local(r->fabric, r->unsound_at);
    memcpy(r->s.unsound, told, (size_t)step->spans);
    memset(told, 0, (size_t)step->spans);
}

/* Rank 0 waits until every other rank has sent what it owed for this call. */
static cot_status await_all(cot_runner *r, cot_error *error)
{
    cot_status status = COT_OK;
    for (int p = 1; p < r->fabric->ranks && status == COT_OK; p++)
        status = cot_wait(r->fabric, r->done_at + (size_t)p * sizeof(uint64_t), r->calls, p,
                          COT_PHASE_CONTROL, error);
    return status;
}

static cot_step_counts count(const cot_runner *r)
{
    cot_step_counts counts = {.locality = r->stats.locality, .distinct = r->stats.distinct};
    for (int to = 0; to < r->fabric->ranks; to++)
        for (int phase = 0; phase < COT_PHASES; phase++)
            counts.bytes[phase] += r->fabric->traffic[to][phase].bytes;
    return counts;
}

/* Puts what this rank sends behind its last results, where the step reports, in the place of its logits' signal. */
static void send_last(cot_runner *r, const cot_step *step)
{
    const cot_sym signal = r->done_at + (size_t)r->fabric->rank * sizeof(uint64_t);
    int64_t begin, end;
    cot_runner_logit_columns(r, r->fabric->rank, &begin, &end);
    const size_t bytes = (size_t)(step->logits * (end - begin)) * sizeof(float);
    if (!step->reports) {
        cot_put_signal(r->fabric, 0, logits_block(r, begin), r->s.columns, bytes, signal, r->calls,
                       COT_PHASE_CONTROL);
        return;
    }
    if (bytes) cot_put(r->fabric, 0, logits_block(r, begin), r->s.columns, bytes, COT_PHASE_CONTROL);
    const cot_step_counts counts = count(r);
    cot_put_signal(r->fabric, 0, r->counts_at + (size_t)r->fabric->rank * sizeof counts, &counts,
                   sizeof counts, signal, r->calls, COT_PHASE_CONTROL);
}

static cot_status collect(cot_runner *r, const cot_step *step, cot_error *error)
{
    int64_t begin, end;
    r->calls++;
    const bool shuffled = cot_runner_goes_home(r) && r->o.pipeline.s_moe;
    if (r->o.capture && shuffled)
        send_shuffled_routing(r);
    else if (r->o.capture)
        send_routing(r, step);
    tell_unsound(r, step);
    if (r->fabric->rank) {
        send_last(r, step);
        return COT_OK;
    }
    cot_status status = await_all(r, error);
    if (status == COT_OK) take_unsound(r, step);
    if (step->reports) *(cot_step_counts *)cot_local(r->fabric, r->counts_at) = count(r);
    if (status == COT_OK && r->o.capture && shuffled) order_routing(r);
    for (int p = 1; p < r->fabric->ranks && status == COT_OK; p++) {
        cot_runner_logit_columns(r, p, &begin, &end);
        const float *block = cot_local(r->fabric, logits_block(r, begin));
        for (int64_t row = 0; row < step->logits; row++)
            memcpy(r->s.logits + row * r->c->vocab + begin, block + row * (end - begin),
                   (size_t)(end - begin) * sizeof(float));
    }
    return status;
}

cot_status cot_runner_step(cot_runner *r, const cot_step *step, cot_step_result *result, cot_error *error)
{
    cot_turns_enter(r->fabric);
    cot_runner_begin_exchanges(r);
    cot_status status = begin_step(r, step, error);
    cot_count_rounds(r->fabric, COT_PHASE_CONTROL, 2); // the plan that has come, the results that will go
    if (status == COT_OK && cot_runner_goes_home(r)) cot_runner_begin_homes(r, step->ids);
    int64_t moe_layer = 0;
    for (int64_t l = 0; l < r->c->layers && status == COT_OK; l++) {
        cot_stage_enter(r->fabric, COT_STAGE_LAYER, l);
        status = run_layer(r, l, moe_layer, error);
        moe_layer += r->c->layer[l].moe;
    }
    int64_t began_ns = r->fabric->ops->now_ns(r->fabric);
    if (status == COT_OK) cot_stage_enter(r->fabric, COT_STAGE_LOGITS, 0);
    if (status == COT_OK) status = gather_hidden(r, step, error);
    if (status == COT_OK) {
        compute_logits(r, step);
        status = collect(r, step, error);
    }
    cot_runner_exchanged(r, r->c->layers, 0, 1u << COT_PHASE_CONTROL);
    r->stats.logits_ns += r->fabric->ops->now_ns(r->fabric) - began_ns;
    if (status != COT_OK) r->fabric->ops->fail(r->fabric);
    cot_turns_leave(r->fabric);
    if (status == COT_OK) cot_stage_enter(r->fabric, COT_STAGE_IDLE, 0);
    *result = (cot_step_result){0};
    if (r->fabric->rank == 0)
        *result = (cot_step_result){
            .logits = r->s.logits,
            .experts = r->o.capture ? cot_local(r->fabric, r->routed_experts_at) : NULL,
            .weights = r->o.capture ? cot_local(r->fabric, r->routed_weights_at) : NULL,
            .unsound = r->s.unsound,
            .counts = step->reports ? cot_local(r->fabric, r->counts_at) : NULL,
            .own_experts = r->s.experts,
            .own_rows = cot_runner_splits_heads(r) ? r->s.rows / r->fabric->ranks : r->s.rows};
    return status;
}

cot_status cot_runner_stats(cot_runner *r, cot_rank_stats *stats, cot_error *error)
{
    r->calls++;
    r->stats.moe = *r->moe->op->times(r->moe);
    memcpy(r->stats.traffic, r->fabric->traffic, (size_t)r->fabric->ranks * sizeof *r->stats.traffic);
    memcpy(r->stats.rounds, r->fabric->rounds, sizeof r->stats.rounds);
    const size_t calls = cot_runner_calls(r) * sizeof(uint64_t);
    if (r->fabric->rank && calls)
        cot_put(r->fabric, 0, r->calls_at + (size_t)r->fabric->rank * calls,
                cot_runner_calls_of(r, r->fabric->rank), calls, COT_PHASE_CONTROL);
    const size_t words = cot_runner_sent_words(r, r->fabric->ranks);
    if (r->fabric->rank && words) {
        const size_t own = (size_t)r->fabric->rank * words;
        const cot_sym at = r->sent_at + own * sizeof(uint64_t);
        cot_put(r->fabric, 0, at, cot_local(r->fabric, at), words * sizeof(uint64_t), COT_PHASE_CONTROL);
    }
    cot_put_signal(r->fabric, 0, r->stats_at + (size_t)r->fabric->rank * sizeof r->stats, &r->stats,
                   sizeof r->stats, r->done_at + (size_t)r->fabric->rank * sizeof(uint64_t), r->calls,
                   COT_PHASE_CONTROL);
    if (r->fabric->rank) return COT_OK;
    cot_status status = await_all(r, error);
    if (status == COT_OK)
        memcpy(stats, cot_local(r->fabric, r->stats_at), (size_t)r->fabric->ranks * sizeof *stats);
    return status;
}

void cot_runner_add_calls(const cot_runner *r, uint64_t *calls)
{
    for (int rank = 0; rank < r->fabric->ranks; rank++) {
        const uint64_t *theirs = cot_runner_calls_of(r, rank);
        for (size_t i = 0; i < cot_runner_calls(r); i++) calls[i] += theirs[i];
    }
}
