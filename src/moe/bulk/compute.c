#include "moe/bulk/state.h"
#include "moe/shared.h"

#include <string.h>

/* Rows of one batch, as the bodies of its loops see them. */
struct work {
    cot_bulk *moe;
    const cot_moe_layer *layer;
    const int32_t *order; // the batch's entries
    int64_t count;
    const float *x, *gate;
    float *y;
    const uint8_t *replies;
    int64_t tokens, tasks;
};

static void weigh_row(void *context, int64_t i)
{
    const struct work *work = context;
    cot_bulk *moe = work->moe;
    const int64_t hidden = moe->options.expert.hidden, entry = work->order[i];
    float *row = moe->batch + i * hidden;
    void *reply = moe->send + moe->entry_reply[entry] * moe->form.reply_bytes;
    const bool reduced = moe->form.reduced;
    moe->options.kernels->scale(reduced ? row : reply, reduced ? COT_F32 : moe->options.combine_type, row,
                                moe->entry_weight[entry], hidden);
}

/* A task adds up replies [begin, end) of those made: each sees its entries in the order of experts. */
static void add_weighed(void *context, int64_t task)
{
    const struct work *work = context;
    cot_bulk *moe = work->moe;
    const int64_t hidden = moe->options.expert.hidden, begin = task * work->tokens / work->tasks,
                  end = (task + 1) * work->tokens / work->tasks;
    for (int64_t i = 0; i < work->count; i++) {
        const int64_t reply = moe->entry_reply[work->order[i]];
        if (reply >= begin && reply < end)
            moe->options.kernels->add(moe->sums + reply * hidden, moe->batch + i * hidden, COT_F32, hidden);
    }
}

static void round_sum(void *context, int64_t reply)
{
    cot_bulk *moe = context;
    const int64_t hidden = moe->options.expert.hidden;
    moe->options.kernels->scale(moe->send + reply * moe->form.reply_bytes, moe->options.combine_type,
                                moe->sums + reply * hidden, 1, hidden);
}

static int64_t replies_made(const cot_bulk *moe)
{
    const int last = (int)moe->form.ranks - 1;
    return moe->layout.reply_send_at[last] + cot_bulk_reply_rows(&moe->form, moe->layout.from[last]);
}

static void run_batch(cot_bulk *moe, int64_t jobs, const int32_t *order, int64_t count)
{
    enum { TASKS = 32 };
    const cot_moe_options *o = &moe->options;
    const int64_t replies = replies_made(moe);
    struct work work = {.moe = moe, .order = order, .count = count, .tokens = replies};
    work.tasks = replies < TASKS ? replies : TASKS;
    cot_ffn_run(o->kernels, o->pool, &o->expert, moe->jobs, jobs, moe->scratch);
    cot_pool_run(o->pool, count, weigh_row, &work);
    moe->times.launches += COT_FFN_LAUNCHES + 1u;
    if (!moe->form.reduced) return;
    cot_pool_run(o->pool, work.tasks, add_weighed, &work);
    moe->times.launches++;
}

/* Experts share batches, so that few rows still make one loop over many experts' weights; one is cut only
 * where it has more rows than a batch, so that its weights are read once. */
void cot_bulk_experts(cot_bulk *moe, const cot_moe_layer *layer, const uint8_t *received)
{
    const cot_moe_options *o = &moe->options;
    const uint8_t *slots = cot_local(o->fabric, layer->slots);
    const int32_t *rows = moe->rows, *order = moe->order;
    int64_t jobs = 0, filled = 0; // of the batch in hand, whose rows begin at `rows`
    if (moe->form.reduced)
        memset(moe->sums, 0, (size_t)(replies_made(moe) * o->expert.hidden) * sizeof *moe->sums);
    for (int from = 0; from < moe->form.ranks; from++)
        if (from != o->fabric->rank) moe->times.received_rows += (uint64_t)moe->layout.from[from].rows;
    for (int64_t e = 0; e < moe->replicas; e++) {
        moe->times.served_experts += moe->totals[e] > 0;
        moe->times.served_rows += (uint64_t)moe->totals[e];
        for (int64_t left = moe->totals[e], count; left > 0; left -= count) {
            count = left < moe->batch_rows ? left : moe->batch_rows;
            if (filled + count > moe->batch_rows) {
                run_batch(moe, jobs, order, filled);
                rows += filled;
                order += filled;
                jobs = filled = 0;
            }
            moe->jobs[jobs++] = (cot_ffn_job){.weights = cot_moe_slot(layer, slots, layer->placement.slot[e]),
                                              .rows = rows + filled,
                                              .count = count,
                                              .x = received,
                                              .y = moe->batch + filled * o->expert.hidden};
            filled += count;
            moe->times.tile_passes++;
        }
    }
    if (filled) run_batch(moe, jobs, order, filled);
    if (moe->form.reduced) cot_pool_run(o->pool, replies_made(moe), round_sum, moe);
}

static void convert_row(void *context, int64_t i)
{
    const struct work *work = context;
    const cot_moe_options *o = &work->moe->options;
    int64_t hidden = o->shared.hidden;
    uint8_t *out = (uint8_t *)work->moe->batch + (size_t)(i * hidden) * cot_dtype_bytes(o->shared.type);
    o->kernels->scale(out, o->shared.type, work->x + i * hidden, 1, hidden);
}

static void gate_row(void *context, int64_t i)
{
    const struct work *work = context;
    const cot_moe_options *o = &work->moe->options;
    const int64_t at = i * o->shared.hidden;
    cot_moe_shared_gate(o->kernels, work->y + at, work->x + at, work->gate, o->shared.hidden);
}

void cot_bulk_shared(cot_bulk *moe, const cot_moe_layer *layer, float *y, const float *x, int64_t tokens)
{
    const cot_moe_options *o = &moe->options;
    for (int64_t t = 0, count; t < tokens; t += count) {
        count = tokens - t < moe->batch_rows ? tokens - t : moe->batch_rows;
        struct work work = {.moe = moe,
                            .x = x + t * o->shared.hidden,
                            .y = y + t * o->shared.hidden,
                            .gate = layer->shared_gate};
        cot_pool_run(o->pool, count, convert_row, &work);
        cot_ffn_job job = {.weights = layer->shared, .count = count, .x = moe->batch, .y = work.y};
        cot_ffn_run(o->kernels, o->pool, &o->shared, &job, 1, moe->scratch);
        if (work.gate) cot_pool_run(o->pool, count, gate_row, &work);
        moe->times.launches += COT_FFN_LAUNCHES + (work.gate ? 2u : 1u);
    }
}

/* Where the reply to a choice lies among those got. */
static const uint8_t *reply_to(const struct work *work, int64_t choice, int32_t rank)
{
    const cot_bulk *moe = work->moe;
    const int64_t own = moe->form.reduced ? moe->row_of[choice] : moe->entry_of[choice];
    return work->replies + (moe->layout.reply_receive_at[rank] + own) * moe->form.reply_bytes;
}

static void sum_token(const struct work *work, float *sum, int64_t t)
{
    const cot_moe_options *o = &work->moe->options;
    const uint8_t *of_rank[COT_MAX_RANKS];
    cot_rank_set there = 0;
    memset(sum, 0, (size_t)o->expert.hidden * sizeof *sum);
    for (int64_t i = t * o->top_k; i < (t + 1) * o->top_k; i++) {
        const int32_t rank = work->layer->placement.rank[work->moe->routing.chosen[i]];
        of_rank[rank] = reply_to(work, i, rank);
        there |= (cot_rank_set)1 << rank;
        if (!work->moe->form.reduced) o->kernels->add(sum, of_rank[rank], o->combine_type, o->expert.hidden);
    }
    for (int rank = 0; rank < work->moe->form.ranks && work->moe->form.reduced; rank++)
        if (there >> rank & 1) o->kernels->add(sum, of_rank[rank], o->combine_type, o->expert.hidden);
}

/* Where y holds the shared expert's rows, a task sums in a row of `batch`, which is free by now. */
static void sum_some(void *context, int64_t task)
{
    const struct work *work = context;
    cot_bulk *moe = work->moe;
    int64_t hidden = moe->options.expert.hidden;
    for (int64_t t = task * work->tokens / work->tasks; t < (task + 1) * work->tokens / work->tasks; t++) {
        float *y = work->y + t * hidden, *sum = work->layer->shared ? moe->batch + task * hidden : y;
        sum_token(work, sum, t);
        if (sum != y) moe->options.kernels->add(y, sum, COT_F32, hidden);
    }
}

void cot_bulk_sum(cot_bulk *moe, const cot_moe_layer *layer, float *y, const uint8_t *replies, int64_t tokens)
{
    struct work work = {.moe = moe,
                        .layer = layer,
                        .y = y,
                        .replies = replies,
                        .tokens = tokens,
                        .tasks = tokens < moe->batch_rows ? tokens : moe->batch_rows};
    cot_pool_run(moe->options.pool, work.tasks, sum_some, &work);
    moe->times.launches++;
}
