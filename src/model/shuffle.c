/* The way of a step's rows to their homes and back, in one hop each, or shuffled on a ring: see pipeline.h. Rows travel in the order of (home,
 * index); what unpacks them knows the order too, so that nothing but rows goes over the wire. */
#include "base/integers.h"
#include "model/runner_state.h"

#include <math.h>
#include <string.h>

enum { LINE = 64 };

void cot_runner_lay_out_homes(cot_runner *r, cot_arena *arena)
{
    cot_runner_homes *s = &r->homes;
    const size_t n = (size_t)r->o.step_tokens, h = (size_t)r->c->hidden, layers = (size_t)r->c->moe_layers,
                 home = (size_t)cot_divide_up(r->o.step_tokens, r->fabric->ranks);
    s->x = cot_arena_take(arena, home * h, sizeof *s->x);
    s->update = cot_arena_take(arena, home * h, sizeof *s->update);
    s->token_row = cot_arena_take(arena, n, sizeof *s->token_row);
    s->home = cot_arena_take(arena, (layers + 1) * n, sizeof *s->home);
    s->held = cot_arena_take(arena, layers * n, sizeof *s->held);
    if (r->o.pipeline.foresight == COT_FORESIGHT_GATE) {
        const size_t k = (size_t)r->c->gate.top_k;
        s->guess = cot_arena_take(arena, n, sizeof *s->guess);
        s->sure = cot_arena_take(arena, n, sizeof *s->sure);
        s->asked_experts = cot_arena_take(arena, home * k, sizeof *s->asked_experts);
        s->asked_weights = cot_arena_take(arena, home * k, sizeof *s->asked_weights);
        s->asked_logits = cot_arena_take(arena, home * (size_t)r->c->gate.experts, sizeof *s->asked_logits);
    }
    s->ranks_before = cot_arena_take(arena, COT_PREDICT_MAX_ORDER * n, sizeof *s->ranks_before);
    s->order = cot_arena_take(arena, n, sizeof *s->order);
    cot_homes_scratch_lay_out(&s->scratch, arena, r->o.step_tokens, r->c->gate.experts);
}

static int64_t home_begin(const cot_runner *r, int rank)
{
    return r->homes.order_begin[rank];
}

static int64_t own_rows(const cot_runner *r)
{
    return home_begin(r, r->fabric->rank + 1) - home_begin(r, r->fabric->rank);
}

static size_t row_bytes(const cot_runner *r)
{
    return (size_t)r->c->hidden * cot_dtype_bytes(r->o.precision.type);
}

/* Bytes that follow each row of a gathered block, behind all of them. */
static size_t riding_bytes(const cot_runner *r, bool moe)
{
    return moe ? cot_pipeline_riding_bytes(&r->o.pipeline) : 0;
}

/* Where rank p's block of gathered rows arrives: every block begins on a line. */
static size_t gather_place(const cot_runner *r, int p, size_t riding)
{
    const size_t before = (size_t)home_begin(r, p) * (row_bytes(r) + riding);
    return (before + LINE - 1) / LINE * LINE + (size_t)p * LINE;
}

size_t cot_runner_gathered_bytes(const cot_runner_options *o, int64_t hidden, int ranks)
{
    const size_t row = (size_t)hidden * cot_dtype_bytes(o->precision.type);
    return (size_t)o->step_tokens * (row + cot_pipeline_riding_bytes(&o->pipeline)) +
           ((size_t)ranks + 1) * LINE;
}

size_t cot_runner_exchange_bytes(const cot_runner_options *o, int64_t hidden, int ranks)
{
    const size_t row = (size_t)hidden * cot_dtype_bytes(o->precision.type),
                 home = ((size_t)o->step_tokens + (size_t)ranks - 1) / (size_t)ranks;
    const size_t scattered = home * (size_t)ranks * row,
                 gathered = cot_runner_gathered_bytes(o, hidden, ranks),
                 sums = (size_t)ranks * 2 * (size_t)o->step_tokens * sizeof(float),
                 most = scattered > gathered ? scattered : gathered;
    return most > sums ? most : sums;
}

cot_status cot_runner_add_up(cot_runner *r, float *x, int64_t n, cot_error *error)
{
    const size_t bytes = (size_t)n * sizeof *x;
    const void *received;
    const cot_status status = cot_allgather_direct(
        r->collectives, &received, x, bytes, (size_t)r->fabric->rank * bytes, COT_PHASE_METADATA, error);
    if (status != COT_OK) return status;
    memcpy(x, received, bytes);
    for (int p = 1; p < r->fabric->ranks; p++)
        r->o.kernels->add(x, (const float *)received + p * n, COT_F32, n);
    return COT_OK;
}

/* ---- homes ---- */

void cot_runner_begin_homes(cot_runner *r, const int32_t *ids)
{
    const cot_pipeline *p = &r->o.pipeline;
    if (p->foresight == COT_FORESIGHT_GATE)
        for (int64_t i = 0; i < r->rows.count; i++) r->homes.guess[i] = -1;
    if (p->foresight != COT_FORESIGHT_TABLES) return;
    if (!p->row_of_id) {
        cot_predict_rows(r->homes.token_row, p->tables, ids, r->rows.count);
        return;
    }
    for (int64_t i = 0; i < r->rows.count; i++)
        r->homes.token_row[i] = ids[i] < 0 ? -1 : p->row_of_id[ids[i]];
}

/* [E] of a layer without replicas, as s_moe has none. */
static const int32_t *ranks_of_experts(const cot_runner *r, int64_t moe_layer)
{
    return cot_expert_layout_layer(r->slots.layout, (int32_t)moe_layer).rank;
}

/* The experts that the step's rows will call are on record: by them. */
static void choose_by_record(cot_runner *r, int16_t *home, int64_t moe_layer, bool worst)
{
    const int64_t k = r->c->gate.top_k;
    for (int64_t i = 0; i < r->rows.count; i++) {
        const cot_replay_token token = {.moe_layer = (int32_t)moe_layer,
                                        .position = r->rows.position[i],
                                        .recorded = r->rows.recorded[i]};
        r->o.replay->choose(r->network.replayed_experts + i * k, r->network.replayed_weights + i * k,
                            r->o.replay, &token);
    }
    cot_homes_by_experts(home, &r->homes.scratch, r->network.replayed_experts, (int32_t)k,
                         ranks_of_experts(r, moe_layer), r->rows.count, r->fabric->ranks, worst);
}

/* The ranks of most experts at the layers before, the nearest first; -1 before the first layer. */
static void look_back(cot_runner *r, int64_t moe_layer, int32_t order)
{
    const int64_t n = r->rows.count;
    for (int32_t back = 1; back <= order; back++) {
        int16_t *before = r->homes.ranks_before + (back - 1) * n;
        if (moe_layer >= back)
            memcpy(before, r->homes.held + (moe_layer - back) * r->o.step_tokens, (size_t)n * sizeof *before);
        else
            memset(before, 0xff, (size_t)n * sizeof *before);
    }
}

void cot_runner_choose_homes(cot_runner *r, int64_t moe_layer, bool moe)
{
    const cot_pipeline *p = &r->o.pipeline;
    cot_runner_homes *s = &r->homes;
    const int64_t n = r->rows.count;
    int16_t *home = s->home + (moe ? moe_layer : r->c->moe_layers) * r->o.step_tokens;
    if (moe && p->foresight == COT_FORESIGHT_TABLES) {
        if (cot_homes_look_back(p->method)) look_back(r, moe_layer, COT_PREDICT_MAX_ORDER);
        const cot_predict_batch batch = {.layer = p->first_layer + (int32_t)moe_layer,
                                         .n_tokens = n,
                                         .row = s->token_row,
                                         .ranks_before = s->ranks_before};
        cot_predict_homes(home, &s->scratch, p->tables, p->method, &batch);
    } else if (moe && p->foresight == COT_FORESIGHT_GATE)
        cot_homes_by_guess(home, &s->scratch, s->guess, s->sure, n, r->fabric->ranks);
    else if (moe && p->foresight != COT_FORESIGHT_NONE)
        choose_by_record(r, home, moe_layer, p->foresight == COT_FORESIGHT_WORST);
    else
        cot_homes_by_index(home, n, r->fabric->ranks);
    cot_homes_order(s->order, s->order_begin, home, n, r->fabric->ranks);
    s->home_of = home;
}

int64_t cot_runner_row_at_home(const cot_runner *r, int64_t i)
{
    return cot_runner_goes_home(r) ? r->homes.order[home_begin(r, r->fabric->rank) + i] : r->rows.home0 + i;
}

/* ---- to the homes ---- */

static void pack_partial(cot_runner *r, int64_t i, const void *context)
{
    (void)context;
    const int64_t h = r->c->hidden;
    r->o.kernels->scale(cot_runner_row(r, r->rows.payload, i, h), r->o.precision.type,
                        r->rows.branch + r->homes.order[i] * h, 1.0f, h);
}

/* What all ranks sent of the i-th row at home, added up and rounded, is its update; payload has it typed. */
static void sum_partials(cot_runner *r, int64_t i, const void *received)
{
    const int64_t h = r->c->hidden, n = own_rows(r);
    const cot_dtype type = r->o.precision.type;
    float *sum = r->homes.update + i * h;
    for (int p = 0; p < r->fabric->ranks; p++) {
        const uint8_t *part = (const uint8_t *)received + (size_t)(p * n + i) * row_bytes(r);
        if (p)
            r->o.kernels->add(sum, part, type, h);
        else
            r->o.kernels->to_f32(sum, part, type, h);
    }
    void *typed = cot_runner_row(r, r->rows.payload, i, h);
    r->o.kernels->scale(typed, type, sum, 1.0f, h);
    r->o.kernels->to_f32(sum, typed, type, h);
}

static void order_partial(cot_runner *r, int64_t i, const void *context)
{
    (void)context;
    const int64_t h = r->c->hidden;
    memcpy(r->rows.normed + i * h, r->rows.branch + r->homes.order[i] * h,
           (size_t)h * sizeof *r->rows.normed);
}

/* The sum has come home: rounded as the sum of a scatter in one hop is. */
static void round_sum(cot_runner *r, int64_t i, const void *context)
{
    (void)context;
    const int64_t h = r->c->hidden, at = home_begin(r, r->fabric->rank) + i;
    void *typed = cot_runner_row(r, r->rows.payload, i, h);
    r->o.kernels->scale(typed, r->o.precision.type, r->rows.normed + at * h, 1.0f, h);
    r->o.kernels->to_f32(r->homes.update + i * h, typed, r->o.precision.type, h);
}

/* s.normed is free between attention and what the layer's network reads. */
static cot_status scatter_on_ring(cot_runner *r, cot_error *error)
{
    size_t begin[COT_MAX_RANKS + 1];
    for (int p = 0; p <= r->fabric->ranks; p++) begin[p] = (size_t)(home_begin(r, p) * r->c->hidden);
    cot_runner_rows(r, r->rows.count, order_partial, NULL);
    const cot_status status = cot_reduce_scatter(r->collectives, r->rows.normed, begin, r->o.precision.type,
                                                 COT_PHASE_ATTENTION, error);
    if (status == COT_OK) cot_runner_rows(r, own_rows(r), round_sum, NULL);
    return status;
}

static cot_status scatter(cot_runner *r, cot_error *error)
{
    if (!r->o.pipeline.direct) return scatter_on_ring(r, error);
    const int rank = r->fabric->rank, ranks = r->fabric->ranks;
    size_t begin[COT_MAX_RANKS + 1], place[COT_MAX_RANKS];
    for (int p = 0; p <= ranks; p++) begin[p] = (size_t)home_begin(r, p) * row_bytes(r);
    for (int p = 0; p < ranks; p++) place[p] = (size_t)rank * (begin[p + 1] - begin[p]);
    const void *received;
    cot_runner_rows(r, r->rows.count, pack_partial, NULL);
    const cot_status status =
        cot_alltoallv(r->collectives, &received, r->rows.payload, begin, place, COT_PHASE_ATTENTION, error);
    if (status == COT_OK) cot_runner_rows(r, own_rows(r), sum_partials, received);
    return status;
}

/* ---- from the homes ---- */

/* Rows as they were gathered, with what rides behind them. */
struct gathered {
    const uint8_t *received;
    size_t riding;
};

static const uint8_t *gathered_block(const cot_runner *r, const struct gathered *g, int home)
{
    return g->received + gather_place(r, home, g->riding);
}

static const uint8_t *gathered_row(const cot_runner *r, const struct gathered *g, int64_t at, int home)
{
    return gathered_block(r, g, home) + (size_t)(at - home_begin(r, home)) * row_bytes(r);
}

/* Where the own block is packed: on a ring, among all that is gathered. */
static uint8_t *own_block(const cot_runner *r, size_t riding)
{
    return (uint8_t *)r->rows.payload + (r->o.pipeline.direct ? 0 : gather_place(r, r->fabric->rank, riding));
}

static cot_status gather_on_ring(cot_runner *r, struct gathered *g, cot_error *error)
{
    size_t begin[COT_MAX_RANKS], end[COT_MAX_RANKS];
    for (int p = 0; p < r->fabric->ranks; p++) {
        begin[p] = gather_place(r, p, g->riding);
        end[p] = begin[p] + (size_t)(home_begin(r, p + 1) - home_begin(r, p)) * (row_bytes(r) + g->riding);
    }
    g->received = r->rows.payload;
    return cot_allgather_parts(r->collectives, r->rows.payload, begin, end, COT_PHASE_ATTENTION, error);
}

static cot_status gather(cot_runner *r, struct gathered *g, cot_error *error)
{
    if (!r->o.pipeline.direct) return gather_on_ring(r, g, error);
    const void *received;
    const cot_status status = cot_allgather_direct(
        r->collectives, &received, r->rows.payload, (size_t)own_rows(r) * (row_bytes(r) + g->riding),
        gather_place(r, r->fabric->rank, g->riding), COT_PHASE_ATTENTION, error);
    g->received = received;
    return status;
}

static void take_sum(cot_runner *r, int64_t at, const void *context)
{
    const int64_t row = r->homes.order[at], h = r->c->hidden;
    r->o.kernels->to_f32(r->rows.branch + row * h, gathered_row(r, context, at, r->homes.home_of[row]),
                         r->o.precision.type, h);
}

static void take_update(cot_runner *r, int64_t at, const void *context)
{
    const int64_t row = r->homes.order[at], h = r->c->hidden;
    r->o.kernels->add(r->rows.x + row * h, gathered_row(r, context, at, r->homes.home_of[row]),
                      r->o.precision.type, h);
}

struct packing {
    const cot_norm *after;
    size_t riding;
};

static void pack_update(cot_runner *r, int64_t i, const void *context)
{
    const struct packing *p = context;
    const int64_t h = r->c->hidden;
    float *update = r->homes.update + i * h;
    cot_runner_finish_branch(r, r->rows.branch + i * h, NULL, p->after);
    r->o.kernels->add(update, r->rows.branch + i * h, COT_F32, h);
    r->o.kernels->scale(own_block(r, p->riding) + (size_t)i * row_bytes(r), r->o.precision.type, update, 1.0f,
                        h);
}

/* ---- the whole way ---- */

/* What attention gives a row at home, and the row with it. */
static void arrive(cot_runner *r, int64_t i, const void *context)
{
    const cot_layer_weights *w = context;
    const int64_t h = r->c->hidden, row = cot_runner_row_at_home(r, i);
    float *update = r->homes.update + i * h, *x = r->homes.x + i * h;
    cot_runner_finish_branch(r, update, w->output_bias, &w->attention_after);
    memcpy(x, r->rows.x + row * h, (size_t)h * sizeof *x);
    r->o.kernels->add(x, update, COT_F32, h);
}

cot_status cot_runner_go_home(cot_runner *r, int64_t layer, int64_t *rows, cot_error *error)
{
    cot_status status = scatter(r, error);
    cot_runner_exchanged(r, layer, COT_EXCHANGE_REDUCE, COT_ROWS_HOME);
    if (status == COT_OK && !r->o.pipeline.s_moe) { // the other half of the allreduce
        struct gathered g = {.riding = 0};
        status = gather(r, &g, error);
        cot_runner_exchanged(r, layer, COT_EXCHANGE_SPREAD, COT_ROWS_HOME);
        if (status == COT_OK) cot_runner_rows(r, r->rows.count, take_sum, &g);
    }
    *rows = own_rows(r);
    if (status == COT_OK) cot_runner_rows(r, *rows, arrive, &r->o.whole->layers[layer]);
    return status;
}

/* ---- what rides with the rows ---- */

static void pack_held(cot_runner *r, int64_t moe_layer, uint8_t *riding, int64_t rows)
{
    const cot_pipeline *p = &r->o.pipeline;
    cot_predict_home(r->homes.ranks_before, p->tables, p->first_layer + (int32_t)moe_layer,
                     r->network.experts + moe_layer * r->o.step_tokens * r->c->gate.top_k, rows);
    for (int64_t i = 0; i < rows; i++) riding[i] = (uint8_t)r->homes.ranks_before[i];
}

/* The rank with most of the experts that a gate chose, of equal ones that with more of their weight; and how sure that is. */
static void guess_of(const cot_runner *r, const int32_t *expert_rank, int64_t i, uint8_t guess[2])
{
    const int64_t k = r->c->gate.top_k;
    const uint16_t *experts = r->homes.asked_experts + i * k;
    const float *weights = r->homes.asked_weights + i * k;
    float score[COT_MAX_RANKS] = {0}, sum = 0;
    int best = 0;
    for (int64_t j = 0; j < k; j++) sum += weights[j];
    const bool sound = isfinite(sum) && sum > 0;
    for (int64_t j = 0; j < k; j++) score[expert_rank[experts[j]]] += 1 + (sound ? weights[j] / sum : 0);
    for (int p = 1; p < r->fabric->ranks; p++)
        if (score[p] > score[best]) best = p;
    guess[0] = (uint8_t)best;
    guess[1] = (uint8_t)(score[best] * UINT8_MAX / (float)(k + 1));
}

/* What the next MoE layer's gate says of the rows at home, as they are when this layer has added its own. */
static cot_status ask_next_gate(cot_runner *r, int64_t layer, int64_t moe_layer, uint8_t *riding,
                                int64_t rows, cot_error *error)
{
    cot_runner_homes *s = &r->homes;
    int64_t next = layer + 1;
    while (next < r->c->layers && !r->c->layer[next].moe) next++;
    memset(riding, 0, 2 * (size_t)rows);
    if (next == r->c->layers || !rows) return COT_OK;
    const cot_layer_weights *w = &r->o.whole->layers[next];
    r->o.kernels->add(s->x, r->rows.branch, COT_F32, rows * r->c->hidden);
    cot_runner_norm(r, &w->ffn_norm, s->x, rows);
    const cot_gate_tokens asked = {.x = r->rows.normed,
                                   .tokens = rows,
                                   .experts = s->asked_experts,
                                   .weights = s->asked_weights,
                                   .logits = s->asked_logits,
                                   .unsound_pass = true};
    const cot_status status = cot_gate_route(&asked, &w->gate, r->o.kernels, r->o.pool, error);
    for (int64_t i = 0; i < rows && status == COT_OK; i++)
        guess_of(r, ranks_of_experts(r, moe_layer + 1), i, riding + 2 * i);
    return status;
}

static void take_riding(cot_runner *r, int64_t moe_layer, int64_t row, const uint8_t *riding)
{
    if (r->o.pipeline.foresight == COT_FORESIGHT_GATE) {
        r->homes.guess[row] = riding[0];
        r->homes.sure[row] = riding[1];
    } else
        r->homes.held[moe_layer * r->o.step_tokens + row] = riding[0];
}

cot_status cot_runner_return(cot_runner *r, int64_t layer, int64_t moe_layer, cot_error *error)
{
    const int64_t rows = own_rows(r);
    struct gathered g = {.riding = riding_bytes(r, r->c->layer[layer].moe)};
    uint8_t *riding = own_block(r, g.riding) + (size_t)rows * row_bytes(r);
    cot_status status = COT_OK;
    cot_runner_rows(r, rows, pack_update, &(struct packing){&r->o.whole->layers[layer].ffn_after, g.riding});
    if (g.riding && r->o.pipeline.foresight == COT_FORESIGHT_GATE)
        status = ask_next_gate(r, layer, moe_layer, riding, rows, error);
    else if (g.riding)
        pack_held(r, moe_layer, riding, rows);
    if (status == COT_OK) status = gather(r, &g, error);
    cot_runner_exchanged(r, layer, COT_EXCHANGE_GATHER, COT_ROWS_HOME);
    if (status != COT_OK) return status;
    cot_runner_rows(r, r->rows.count, take_update, &g);
    for (int p = 0; p < r->fabric->ranks && g.riding; p++) {
        const int64_t first = home_begin(r, p), count = home_begin(r, p + 1) - first;
        const uint8_t *came = gathered_block(r, &g, p) + (size_t)count * row_bytes(r);
        for (int64_t i = 0; i < count; i++)
            take_riding(r, moe_layer, r->homes.order[first + i], came + (size_t)i * g.riding);
    }
    return COT_OK;
}
