/* One step on one rank: a pipeline when heads are split (pipeline.h), the MoE operator alone when sequences stay at
 * home. */
#include "base/error.h"
#include "model/runner_state.h"
#include "checkpoint/stored.h"

#include <math.h>
#include <string.h>

/* Sequences that go on from snapshots; and those that other ranks write from now on. */
static void resume_states(cot_runner *r, const cot_step *step)
{
    cot_state *state = &r->heads.state;
    for (int from = 1; from >= 0; from--) // none is written before it was read
        for (int32_t i = 0; i < step->states; i++) {
            const cot_state_copy *copy = &step->state[i];
            const bool here = !r->o.data_parallel || copy->home == r->fabric->rank;
            const int64_t row = cot_state_row(state, copy->snapshot);
            if (from && copy->from && here)
                cot_state_assign(state, copy->sequence, row, r->o.pool);
            else if (!from && !copy->from && !here)
                cot_state_give_up(state, row);
        }
}

/* The copies of a span's sequence, of those that are left. */
static cot_runner_copies copies_of(const cot_step *step, const cot_span *span, int32_t *at)
{
    while (*at < step->states && step->state[*at].sequence == span->sequence && step->state[*at].from) ++*at;
    cot_runner_copies copies = {.first = step->state + *at};
    while (*at < step->states && step->state[*at].sequence == span->sequence) copies.count++, ++*at;
    return copies;
}

/* Rows, runs, positions, RoPE angles and embeddings of the spans that this rank attends to. */
static cot_status begin_step(cot_runner *r, const cot_step *step, cot_error *error)
{
    cot_runner_step_rows *s = &r->rows;
    cot_runner_heads *heads = &r->heads;
    bool split = cot_runner_splits_heads(r);
    for (int32_t m = 0; m < step->maps; m++) {
        const cot_page_map *map = &step->map[m];
        if (!r->o.data_parallel || map->home == r->fabric->rank)
            cot_kv_map(&heads->kv, map->sequence, map->index, map->page, map->from, map->keep);
        else
            cot_kv_give_up(&heads->kv, map->page);
    }
    resume_states(r, step);
    s->count = heads->run_count = 0;
    int32_t copy = 0;
    int64_t half = r->c->rope_width / 2, token = 0;
    cot_status status = COT_OK;
    for (int32_t i = 0; i < step->spans && status == COT_OK; token += step->span[i++].tokens) {
        const cot_span *span = &step->span[i];
        const cot_runner_copies copies = copies_of(step, span, &copy);
        if (r->o.data_parallel && span->home != r->fabric->rank) {
            cot_state_give_up(&heads->state, span->sequence);
            continue;
        }
        heads->copies[heads->run_count] = copies;
        heads->runs[heads->run_count++] = (cot_run){span->sequence, span->position, s->count, span->tokens};
        for (int32_t t = 0; t < span->tokens && status == COT_OK; t++, s->count++) {
            s->sequence[s->count] = span->sequence;
            s->position[s->count] = span->position + t;
            for (int64_t f = 0; f < half; f++) {
                float angle = (float)(span->position + t) * r->c->inverse_frequency[f];
                heads->cosines[s->count * half + f] = cosf(angle) * r->c->rope_factor;
                heads->sines[s->count * half + f] = sinf(angle) * r->c->rope_factor;
            }
            if (s->recorded) s->recorded[s->count] = span->recorded;
            const int32_t id = step->ids[token + t];
            float *x = s->x + s->count * r->c->hidden;
            if (id < 0) // a trace's token that nobody knows
                memset(x, 0, (size_t)r->c->hidden * sizeof *x);
            else
                status = cot_embedding_read(&r->o.whole->embedding, r->o.kernels, x, s->branch, id, error);
            if (r->c->embedding_scale != 1)
                r->o.kernels->scale(x, COT_F32, x, r->c->embedding_scale, r->c->hidden);
        }
    }
    s->home0 = split ? cot_share_begin(s->count, r->fabric->rank, r->fabric->ranks) : 0;
    s->home1 = split ? cot_share_begin(s->count, r->fabric->rank + 1, r->fabric->ranks) : s->count;
    return status;
}

static void add_branch(cot_runner *r, int64_t row, const float *bias, const cot_norm *after)
{
    const int64_t h = r->c->hidden;
    float *branch = r->rows.branch + row * h;
    cot_runner_finish_branch(r, branch, bias, after);
    r->o.kernels->add(r->rows.x + row * h, branch, COT_F32, h);
}

static void add_attention(cot_runner *r, int64_t row, const void *context)
{
    const cot_layer_weights *w = context;
    add_branch(r, row, w->output_bias, &w->attention_after);
}

static void add_network(cot_runner *r, int64_t row, const void *context)
{
    const cot_layer_weights *w = context;
    add_branch(r, row, NULL, &w->ffn_after);
}

static void narrow_branch(cot_runner *r, int64_t i, const void *context)
{
    const cot_layer_weights *w = context;
    int64_t row = r->rows.home0 + i;
    cot_runner_finish_branch(r, r->rows.branch + row * r->c->hidden, NULL, &w->ffn_after);
    r->o.kernels->scale(cot_runner_row(r, r->rows.payload, row, r->c->hidden), r->o.precision.type,
                        r->rows.branch + row * r->c->hidden, 1.0f, r->c->hidden);
}

static void add_payload(cot_runner *r, int64_t row, const void *context)
{
    (void)context;
    r->o.kernels->add(r->rows.x + row * r->c->hidden, cot_runner_row(r, r->rows.payload, row, r->c->hidden),
                      r->o.precision.type, r->c->hidden);
}

/* Every rank gets every slice's rows as they travelled, the own ones too, so that the residual stream stays
 * one. */
static cot_status gather_slices(cot_runner *r, int64_t layer, cot_error *error)
{
    int64_t began_ns = r->fabric->ops->now_ns(r->fabric);
    size_t begin[COT_MAX_RANKS + 1], row_bytes = (size_t)r->c->hidden * cot_dtype_bytes(r->o.precision.type);
    for (int p = 0; p <= r->fabric->ranks; p++)
        begin[p] = (size_t)cot_share_begin(r->rows.count, p, r->fabric->ranks) * row_bytes;
    cot_runner_rows(r, r->rows.home1 - r->rows.home0, narrow_branch, &r->o.whole->layers[layer]);
    cot_status status = cot_allgather(r->collectives, r->rows.payload, begin, COT_PHASE_ATTENTION, error);
    cot_runner_exchanged(r, layer, COT_EXCHANGE_GATHER, COT_ROWS_HOME);
    if (status == COT_OK) cot_runner_rows(r, r->rows.count, add_payload, NULL);
    r->results.stats.gather_ns += r->fabric->ops->now_ns(r->fabric) - began_ns;
    return status;
}

/* Everything after attention where it was computed whole, or comes together on a ring. */
static cot_status run_network(cot_runner *r, int64_t layer, int64_t moe_layer, cot_error *error)
{
    const bool split = cot_runner_splits_heads(r);
    const int64_t began_ns = r->fabric->ops->now_ns(r->fabric), home = r->rows.home0 * r->c->hidden;
    cot_status status = COT_OK;
    if (split) {
        status = cot_allreduce(r->collectives, r->rows.branch, r->rows.count * r->c->hidden,
                               r->o.precision.type, COT_PHASE_ATTENTION, error);
        cot_runner_exchanged(r, layer, COT_EXCHANGE_REDUCE, COT_ROWS_HOME);
        r->results.stats.reduce_ns += r->fabric->ops->now_ns(r->fabric) - began_ns;
    }
    if (status == COT_OK) {
        cot_runner_rows(r, r->rows.count, add_attention, &r->o.whole->layers[layer]);
        status = cot_runner_feed_forward(r, layer, moe_layer, r->rows.branch + home, r->rows.x + home,
                                         r->rows.home1 - r->rows.home0, error);
    }
    if (status != COT_OK) return status;
    if (split) return gather_slices(r, layer, error);
    cot_runner_rows(r, r->rows.count, add_network, &r->o.whole->layers[layer]);
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
    r->results.stats.reduce_ns += r->fabric->ops->now_ns(r->fabric) - t0;
    if (status == COT_OK)
        status = cot_runner_feed_forward(r, layer, moe_layer, r->rows.branch, r->homes.x, rows, error);
    const int64_t t1 = r->fabric->ops->now_ns(r->fabric);
    if (status == COT_OK) status = cot_runner_return(r, layer, moe_layer, error);
    r->results.stats.gather_ns += r->fabric->ops->now_ns(r->fabric) - t1;
    return status;
}

static cot_status run_layer(cot_runner *r, int64_t layer, int64_t moe_layer, cot_error *error)
{
    const int64_t t0 = r->fabric->ops->now_ns(r->fabric);
    const cot_status status = cot_runner_attention(r, layer, error);
    r->results.stats.attention_ns += r->fabric->ops->now_ns(r->fabric) - t0;
    if (status != COT_OK) return status;
    return cot_runner_goes_home(r) ? run_network_at_home(r, layer, moe_layer, error)
                                   : run_network(r, layer, moe_layer, error);
}

cot_status cot_runner_step(cot_runner *r, const cot_step *step, cot_step_result *result, cot_error *error)
{
    cot_turns_enter(r->fabric);
    cot_runner_begin_exchanges(r);
    r->results.before = *r->network.moe->op->times(r->network.moe);
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
    if (status == COT_OK) status = cot_runner_send_results(r, step, error);
    cot_runner_exchanged(r, r->c->layers, 0, 1u << COT_PHASE_CONTROL);
    r->results.stats.logits_ns += r->fabric->ops->now_ns(r->fabric) - began_ns;
    if (status != COT_OK) r->fabric->ops->fail(r->fabric);
    cot_turns_leave(r->fabric);
    if (status == COT_OK) cot_stage_enter(r->fabric, COT_STAGE_IDLE, 0);
    *result = cot_runner_result(r, step);
    return status;
}
