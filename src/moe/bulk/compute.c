#include "moe/bulk/state.h"
#include "moe/shared.h"

#include <string.h>

/* Rows of one batch, as the bodies of its loops see them. */
struct work {
    cot_bulk *moe;
    const int32_t *rows; // of the batch, among the rows received
    const float *x, *gate;
    float *y;
    bool has_shared;
    const uint8_t *replies;
    int64_t tokens, tasks;
};

static void weigh_row(void *context, int64_t i)
{
    const struct work *work = context;
    cot_bulk *moe = work->moe;
    int64_t hidden = moe->options.expert.hidden, row = work->rows[i];
    moe->options.kernels->scale(moe->send + (size_t)row * moe->reply_bytes, moe->options.combine_type,
                                moe->batch + i * hidden, moe->row_weights[row], hidden);
}

static void run_batch(cot_bulk *moe, int64_t jobs, const int32_t *rows, int64_t count)
{
    const cot_moe_options *o = &moe->options;
    cot_ffn_run(o->kernels, o->pool, &o->expert, moe->jobs, jobs, moe->scratch);
    cot_pool_run(o->pool, count, weigh_row, &(struct work){.moe = moe, .rows = rows});
    moe->times.launches += COT_FFN_LAUNCHES + 1u;
}

/* Experts share batches, so that few rows still make one loop over many experts' weights; one is cut only
 * where it has more rows than a batch, so that its weights are read once. */
void cot_bulk_experts(cot_bulk *moe, const cot_moe_layer *layer, const uint8_t *received)
{
    const cot_moe_options *o = &moe->options;
    const uint8_t *slots = cot_local(o->fabric, layer->slots);
    size_t slot_bytes = cot_ffn_layout_of(&o->expert).bytes;
    const int32_t *rows = moe->rows;
    int64_t jobs = 0, filled = 0; // of the batch in hand, whose rows begin at `rows`
    for (int64_t e = 0; e < moe->replicas; e++)
        for (int64_t left = moe->totals[e], count; left > 0; left -= count) {
            count = left < moe->batch_rows ? left : moe->batch_rows;
            if (filled + count > moe->batch_rows) {
                run_batch(moe, jobs, rows, filled);
                rows += filled;
                jobs = filled = 0;
            }
            moe->jobs[jobs++] =
                (cot_ffn_job){.weights = slots + (size_t)layer->placement.slot[e] * slot_bytes,
                              .rows = rows + filled,
                              .count = count,
                              .x = received,
                              .y = moe->batch + filled * o->expert.hidden};
            filled += count;
            moe->times.tile_passes++;
        }
    if (filled) run_batch(moe, jobs, rows, filled);
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

/* Where y holds the shared expert's rows, a task sums in a row of `batch`, which is free by now. */
static void sum_some(void *context, int64_t task)
{
    const struct work *work = context;
    cot_bulk *moe = work->moe;
    const cot_moe_options *o = &moe->options;
    int64_t hidden = o->expert.hidden;
    for (int64_t t = task * work->tokens / work->tasks; t < (task + 1) * work->tokens / work->tasks; t++) {
        float *y = work->y + t * hidden, *sum = work->has_shared ? moe->batch + task * hidden : y;
        memset(sum, 0, (size_t)hidden * sizeof *sum);
        for (int64_t i = t * o->top_k; i < (t + 1) * o->top_k; i++)
            o->kernels->add(sum, work->replies + (size_t)moe->positions[i] * moe->reply_bytes,
                            o->combine_type, hidden);
        if (sum != y) o->kernels->add(y, sum, COT_F32, hidden);
    }
}

void cot_bulk_sum(cot_bulk *moe, float *y, const uint8_t *replies, int64_t tokens, bool has_shared)
{
    struct work work = {.moe = moe,
                        .y = y,
                        .has_shared = has_shared,
                        .replies = replies,
                        .tokens = tokens,
                        .tasks = tokens < moe->batch_rows ? tokens : moe->batch_rows};
    cot_pool_run(moe->options.pool, work.tasks, sum_some, &work);
    moe->times.launches++;
}
