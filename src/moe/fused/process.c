#include "moe/fused/state.h"
#include "moe/shared.h"

#include <string.h>

static float *scratch_of(const cot_fused *moe, const cot_fused_task *task)
{
    return moe->scratch + task->worker * moe->scratch_floats;
}

/* Routes a chunk of the call's tokens, which the first pass alone does, and rounds the pass's tokens to what
 * experts read. */
static cot_status gate(cot_fused *moe, const cot_fused_task *task)
{
    const cot_moe_options *o = &moe->options;
    const int64_t hidden = o->expert.hidden, begin = task->begin, count = task->end - begin,
                  end = moe->first + moe->tokens;
    if (begin < end) {
        uint8_t *rows = cot_fused_own_rows(moe) + (begin - moe->first) * moe->layout.row_bytes;
        for (int64_t t = 0; t < count; t++)
            o->kernels->scale(rows + t * moe->layout.row_bytes, o->expert.type, moe->x + (begin + t) * hidden,
                              1, hidden);
    }
    if (moe->first > 0) return COT_OK;
    return cot_moe_route(&moe->routing, o, moe->layer, moe->x, begin, count, scratch_of(moe, task),
                         &moe->worker_error[task->worker]);
}

/* The second product's columns of a lane's rows, times their weights, to where they are read or sent. */
static void run_down(const cot_kernels *kernels, const cot_fused_task *task, float *out, int64_t out_stride)
{
    cot_ffn_down_tile(kernels, &(cot_ffn_tile){.shape = task->shape,
                                               .weights = task->b,
                                               .in = task->a,
                                               .in_stride = task->shape->intermediate,
                                               .m = task->rows,
                                               .c0 = task->begin,
                                               .c1 = task->end,
                                               .out = out,
                                               .out_stride = out_stride});
}

static void down(cot_fused *moe, const cot_fused_task *task)
{
    const cot_moe_options *o = &moe->options;
    const cot_fused_lane *lane = &moe->lane[task->lane];
    const cot_fused_tile *tile = &moe->tile[lane->tile];
    const int64_t hidden = o->expert.hidden, columns = task->end - task->begin,
                  first = (int64_t)lane->tile * COT_FFN_TILE_ROWS;
    if (tile->slot < 0) {
        run_down(o->kernels, task, moe->shared + tile->first * hidden + task->begin, hidden);
        return;
    }
    float *product = scratch_of(moe, task);
    run_down(o->kernels, task, product, columns);
    const bool exact = cot_fused_is_exact(moe);
    const cot_dtype type = exact ? o->combine_type : COT_F32;
    const size_t begin_bytes = (size_t)task->begin * cot_dtype_bytes(type);
    for (int64_t i = 0; i < task->rows; i++) {
        const cot_fused_target target = moe->tile_target[first + i];
        uint8_t *out = !exact                           ? (uint8_t *)(moe->partial + target.at * hidden)
                       : target.home == o->fabric->rank ? moe->replies + target.at * moe->layout.reply_bytes
                                                        : lane->out + i * moe->layout.reply_bytes;
        o->kernels->scale(out + begin_bytes, type, product + i * columns, moe->tile_weight[first + i],
                          columns);
    }
}

static void sum_replies(cot_fused *moe, float *y, int64_t t)
{
    const cot_moe_options *o = &moe->options;
    const cot_fused_layout *l = &moe->layout;
    const int64_t hidden = o->expert.hidden;
    memset(y, 0, (size_t)hidden * sizeof *y);
    if (cot_fused_is_exact(moe)) {
        for (int64_t k = 0; k < l->top_k; k++)
            o->kernels->add(y, moe->replies + moe->reply_row[t * l->top_k + k] * l->reply_bytes,
                            o->combine_type, hidden);
        return;
    }
    for (int64_t rank = 0; rank < l->ranks; rank++) {
        const int64_t row = moe->sent_row[t * l->ranks + rank];
        if (row >= 0)
            o->kernels->add(y, moe->replies + (rank * l->tokens + row) * l->reply_bytes, o->combine_type,
                            hidden);
    }
}

static void combine(cot_fused *moe, const cot_fused_task *task)
{
    const cot_moe_options *o = &moe->options;
    const int64_t hidden = o->expert.hidden;
    for (int64_t t = task->begin; t < task->end; t++) {
        float *y = moe->y + (moe->first + t) * hidden, *shared = moe->shared + t * hidden;
        sum_replies(moe, y, t);
        if (!moe->layer->shared) continue;
        if (moe->layer->shared_gate)
            cot_moe_shared_gate(o->kernels, shared, moe->x + (moe->first + t) * hidden,
                                moe->layer->shared_gate, hidden);
        o->kernels->add(y, shared, COT_F32, hidden);
    }
}

static void record(const cot_fused *moe, const cot_fused_task *task)
{
    static const cot_moe_work work_of[] = {
        [COT_FUSED_GATE] = COT_MOE_GATE,       [COT_FUSED_SEND] = COT_MOE_DISPATCH,
        [COT_FUSED_UP] = COT_MOE_UP,           [COT_FUSED_DOWN] = COT_MOE_DOWN,
        [COT_FUSED_REPLY] = COT_MOE_REPLY,     [COT_FUSED_SIGNAL] = COT_MOE_REPLY,
        [COT_FUSED_COMBINE] = COT_MOE_COMBINE,
    };
    const bool product = task->op == COT_FUSED_UP || task->op == COT_FUSED_DOWN;
    const int32_t slot = product ? moe->tile[moe->lane[task->lane].tile].slot : -1;
    const bool shared = product && slot < 0;
    cot_moe_record(moe->options.timeline,
                   (cot_moe_event){.begin_ns = task->begin_ns,
                                   .end_ns = task->end_ns,
                                   .rank = moe->options.fabric->rank,
                                   .work = (int32_t)(shared ? COT_MOE_SHARED : work_of[task->op]),
                                   .slot = slot,
                                   .rows = (int32_t)task->rows});
}

void cot_fused_run(cot_fused *moe, cot_fused_task *task)
{
    const cot_moe_options *o = &moe->options;
    task->begin_ns = o->fabric->ops->now_ns(o->fabric);
    switch (task->op) {
    case COT_FUSED_GATE:
        task->status = gate(moe, task);
        break;
    case COT_FUSED_SEND:
        cot_fused_send(moe, task);
        break;
    case COT_FUSED_UP:
        cot_ffn_up_tile(o->kernels,
                        &(cot_ffn_tile){.shape = task->shape,
                                        .weights = task->b,
                                        .in = task->a,
                                        .in_stride = o->expert.hidden,
                                        .rows = task->a_rows,
                                        .m = task->rows,
                                        .c0 = task->begin,
                                        .c1 = task->end,
                                        .out = task->c,
                                        .out_stride = task->shape->intermediate},
                        scratch_of(moe, task));
        break;
    case COT_FUSED_DOWN:
        down(moe, task);
        break;
    case COT_FUSED_REPLY:
        cot_fused_reply(moe, task);
        break;
    case COT_FUSED_SIGNAL:
        cot_fused_tell(moe, task);
        break;
    case COT_FUSED_COMBINE:
        combine(moe, task);
        break;
    }
    task->end_ns = o->fabric->ops->now_ns(o->fabric);
    record(moe, task);
}
