/* One step on one rank: DeepSpeed-MoE's pipeline when heads are split (allreduce, token slice, MoE,
 * allgather), the MoE operator alone when sequences stay at home. */
#include "base/error.h"
#include "kernels/pack.h"
#include "model/runner_state.h"
#include "model/stored.h"

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
            status = cot_embedding_read(&r->o.whole->embedding, r->o.kernels, s->x + s->rows * r->c->hidden,
                                        s->branch, step->ids[token + t], error);
        }
    }
    s->home0 = split ? cot_share_begin(s->rows, r->fabric->rank, r->fabric->ranks) : 0;
    s->home1 = split ? cot_share_begin(s->rows, r->fabric->rank + 1, r->fabric->ranks) : s->rows;
    return status;
}

/* ---- feed-forward ---- */

static void count_routing(cot_runner *r, const cot_expert_replicas *replicas, const uint16_t *experts,
                          int64_t rows)
{
    const int64_t k = r->c->gate.top_k;
    const int home = r->fabric->rank;
    for (int64_t t = 0; t < rows; t++) {
        uint64_t reached = 0;
        for (int64_t i = 0; i < k; i++) {
            const int64_t replica = cot_expert_replica(replicas, experts[t * k + i], home, t);
            reached |= cot_locality_call(&r->stats.locality, home, replicas->rank[replica]);
        }
        cot_locality_token(&r->stats.locality, reached);
    }
}

/* branch = the layer's network over the home rows. */
static cot_status feed_forward(cot_runner *r, int64_t layer, int64_t moe_layer, cot_error *error)
{
    cot_step_scratch *s = &r->s;
    const cot_layer_weights *w = &r->o.whole->layers[layer];
    int64_t h = r->c->hidden, rows = s->home1 - s->home0;
    cot_runner_norm(r, w->ffn_norm, s->home0, rows);
    float *y = s->branch + s->home0 * h;
    if (!w->dense) {
        int64_t place = moe_layer * r->o.step_tokens * r->c->gate.top_k;
        cot_moe_layer moe = {.gate = &w->gate,
                             .placement = cot_expert_layout_layer(r->o.layout, (int32_t)moe_layer),
                             .slots = r->experts_at +
                                      (size_t)(moe_layer * r->o.layout->slots_per_rank) * r->slot_bytes,
                             .shared = w->shared,
                             .shared_gate = w->shared_mix,
                             .unsound_pass = true};
        cot_status status = r->moe->op->forward(r->moe, &moe, y, s->experts + place, s->weights + place,
                                                s->normed + s->home0 * h, rows, error);
        if (status == COT_OK) count_routing(r, &moe.placement, s->experts + place, rows);
        return status;
    }
    int64_t began_ns = r->fabric->ops->now_ns(r->fabric);
    cot_ffn_shape shape = cot_model_dense_shape(r->c, r->o.type);
    cot_ffn_job job = {
        .weights = w->dense, .count = rows, .x = cot_runner_row(r, s->typed, s->home0, r->c->hidden), .y = y};
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
    r->o.kernels->scale(cot_runner_row(r, r->s.payload, row, r->c->hidden), r->o.type,
                        r->s.branch + row * r->c->hidden, 1.0f, r->c->hidden);
}

static void add_payload(cot_runner *r, int64_t row, const void *context)
{
    (void)context;
    r->o.kernels->add(r->s.x + row * r->c->hidden, cot_runner_row(r, r->s.payload, row, r->c->hidden),
                      r->o.type, r->c->hidden);
}

/* Every rank gets every slice's rows as they travelled, the own ones too, so that the residual stream stays
 * one. */
static cot_status gather_slices(cot_runner *r, cot_error *error)
{
    int64_t began_ns = r->fabric->ops->now_ns(r->fabric);
    size_t begin[COT_MAX_RANKS + 1], row_bytes = (size_t)r->c->hidden * cot_dtype_bytes(r->o.type);
    for (int p = 0; p <= r->fabric->ranks; p++)
        begin[p] = (size_t)cot_share_begin(r->s.rows, p, r->fabric->ranks) * row_bytes;
    cot_runner_rows(r, r->s.home1 - r->s.home0, narrow_branch, NULL);
    cot_status status = cot_allgather(r->collectives, r->s.payload, begin, COT_PHASE_ATTENTION, error);
    if (status == COT_OK) cot_runner_rows(r, r->s.rows, add_payload, NULL);
    r->stats.gather_ns += r->fabric->ops->now_ns(r->fabric) - began_ns;
    return status;
}

static cot_status run_layer(cot_runner *r, int64_t layer, int64_t moe_layer, cot_error *error)
{
    bool split = cot_runner_splits_heads(r);
    int64_t t0 = r->fabric->ops->now_ns(r->fabric);
    cot_status status = cot_runner_attention(r, layer, error);
    int64_t t1 = r->fabric->ops->now_ns(r->fabric);
    r->stats.attention_ns += t1 - t0;
    if (status == COT_OK && split) {
        status = cot_allreduce(r->collectives, r->s.branch, r->s.rows * r->c->hidden, r->o.type,
                               COT_PHASE_ATTENTION, error);
        r->stats.reduce_ns += r->fabric->ops->now_ns(r->fabric) - t1;
    }
    if (status == COT_OK) {
        cot_runner_rows(r, r->s.rows, add_attention, r->o.whole->layers[layer].output_bias);
        status = feed_forward(r, layer, moe_layer, error);
    }
    if (status != COT_OK) return status;
    if (split) return gather_slices(r, error);
    cot_runner_rows(r, r->s.rows, add_branch, NULL);
    return COT_OK;
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
    size_t begin[COT_MAX_RANKS + 1] = {0}, row_bytes = (size_t)r->c->hidden * cot_dtype_bytes(r->o.type);
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
            cot_runner_norm(r, r->o.whole->final_norm, first, span->logits);
            memcpy(cot_runner_row(r, s->hidden, next[home], r->c->hidden),
                   cot_runner_row(r, s->typed, first, r->c->hidden), (size_t)span->logits * row_bytes);
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
    int64_t panel = cot_panel_elements(r->c->hidden);
    bool root = r->fabric->rank == 0;
    cot_gemm gemm = {.type = r->o.type,
                     .m = step->logits,
                     .n = end - begin,
                     .k = r->c->hidden,
                     .a = s->hidden,
                     .a_stride = r->c->hidden,
                     .a_rows = s->hidden_row,
                     .b_panel_stride = panel,
                     .b = (const uint8_t *)r->o.whole->output +
                          (size_t)(begin / COT_PANEL * panel) * cot_dtype_bytes(r->o.type),
                     .c = root ? s->logits + begin : s->columns,
                     .c_stride = root ? r->c->vocab : end - begin};
    cot_matmul(r->o.kernels, r->o.pool, &gemm, 1);
}

static cot_sym logits_block(const cot_runner *r, int64_t column)
{
    return r->logits_at + (size_t)(column * r->o.step_logits) * sizeof(float);
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

static cot_status collect(cot_runner *r, const cot_step *step, cot_error *error)
{
    int64_t begin, end;
    r->calls++;
    if (r->o.capture) send_routing(r, step);
    tell_unsound(r, step);
    if (r->fabric->rank) {
        cot_runner_logit_columns(r, r->fabric->rank, &begin, &end);
        cot_put_signal(r->fabric, 0, logits_block(r, begin), r->s.columns,
                       (size_t)(step->logits * (end - begin)) * sizeof(float),
                       r->done_at + (size_t)r->fabric->rank * sizeof(uint64_t), r->calls, COT_PHASE_CONTROL);
        return COT_OK;
    }
    cot_status status = await_all(r, error);
    if (status == COT_OK) take_unsound(r, step);
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
    cot_status status = begin_step(r, step, error);
    int64_t moe_layer = 0;
    for (int64_t l = 0; l < r->c->layers && status == COT_OK; l++) {
        status = run_layer(r, l, moe_layer, error);
        moe_layer += r->c->layer[l].moe;
    }
    int64_t began_ns = r->fabric->ops->now_ns(r->fabric);
    if (status == COT_OK) status = gather_hidden(r, step, error);
    if (status == COT_OK) {
        compute_logits(r, step);
        status = collect(r, step, error);
    }
    r->stats.logits_ns += r->fabric->ops->now_ns(r->fabric) - began_ns;
    if (status != COT_OK) r->fabric->ops->fail(r->fabric);
    cot_turns_leave(r->fabric);
    *result = (cot_step_result){0};
    if (r->fabric->rank == 0)
        *result =
            (cot_step_result){.logits = r->s.logits,
                              .experts = r->o.capture ? cot_local(r->fabric, r->routed_experts_at) : NULL,
                              .weights = r->o.capture ? cot_local(r->fabric, r->routed_weights_at) : NULL,
                              .unsound = r->s.unsound,
                              .own_experts = r->s.experts,
                              .own_rows = r->s.home1 - r->s.home0};
    return status;
}

cot_status cot_runner_stats(cot_runner *r, cot_rank_stats *stats, cot_error *error)
{
    r->calls++;
    r->stats.moe = *r->moe->op->times(r->moe);
    memcpy(r->stats.traffic, r->fabric->traffic, (size_t)r->fabric->ranks * sizeof *r->stats.traffic);
    cot_put_signal(r->fabric, 0, r->stats_at + (size_t)r->fabric->rank * sizeof r->stats, &r->stats,
                   sizeof r->stats, r->done_at + (size_t)r->fabric->rank * sizeof(uint64_t), r->calls,
                   COT_PHASE_CONTROL);
    if (r->fabric->rank) return COT_OK;
    cot_status status = await_all(r, error);
    if (status == COT_OK)
        memcpy(stats, cot_local(r->fabric, r->stats_at), (size_t)r->fabric->ranks * sizeof *stats);
    return status;
}
