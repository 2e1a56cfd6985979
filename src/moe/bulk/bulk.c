#include "moe/bulk/bulk.h"

#include "base/error.h"
#include "moe/bulk/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A batch of rows is enough to hide the reading of an expert's weights, and small enough that its
 * intermediate results stay a small share of memory when many ranks live in one process. */
static const int64_t batch_rows_most = 1024, batch_rows_least = 64, batch_bytes = 64 << 20;
static const int64_t dimension_most = 1 << 24; // of H and I: no product of sizes here overflows

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool right_shape(const cot_ffn_shape *shape, int64_t intermediate_least)
{
    return (shape->type == COT_F32 || shape->type == COT_BF16) && shape->hidden >= 1 &&
           shape->hidden <= dimension_most && shape->activation <= COT_FFN_RELU &&
           shape->intermediate >= intermediate_least && shape->intermediate <= dimension_most;
}

static cot_status check_options(const cot_moe_options *o, cot_error *error)
{
    long long experts = o->experts, top_k = o->top_k, tokens = o->tokens;
    if (experts < 1 || experts > COT_MAX_EXPERTS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld experts, expected 1 to %d", experts,
                        COT_MAX_EXPERTS);
    if (top_k < 1 || top_k > smaller(experts, COT_MAX_TOP_K))
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld experts a token, expected 1 to %lld", top_k,
                        (long long)smaller(experts, COT_MAX_TOP_K));
    if (tokens < 1 || tokens > INT32_MAX / top_k)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld tokens a pass, expected 1 to %lld", tokens,
                        INT32_MAX / top_k);
    if (!right_shape(&o->expert, 1))
        return cot_fail(error, COT_INVALID_ARGUMENT, "experts of %lld by %lld %s cannot be run",
                        (long long)o->expert.hidden, (long long)o->expert.intermediate,
                        cot_dtype_name(o->expert.type));
    if (o->shared.intermediate && (!right_shape(&o->shared, 1) || o->shared.hidden != o->expert.hidden))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "a shared expert of %lld by %lld %s cannot be run beside %lld",
                        (long long)o->shared.hidden, (long long)o->shared.intermediate,
                        cot_dtype_name(o->shared.type), (long long)o->expert.hidden);
    return COT_OK;
}

static cot_collectives_options collectives_options(const cot_moe_options *o, int ranks)
{
    size_t row_bytes = (size_t)o->expert.hidden * cot_dtype_bytes(o->expert.type);
    if (row_bytes < sizeof(float)) row_bytes = sizeof(float); // weights travel too
    return (cot_collectives_options){.gather_bytes = (size_t)(ranks * o->experts) * sizeof(int32_t),
                                     .exchange_bytes = (size_t)(o->tokens * o->top_k) * row_bytes};
}

static size_t heap_bytes(const cot_moe_options *options, int ranks)
{
    cot_collectives_options collectives = collectives_options(options, ranks);
    return cot_collectives_heap_bytes(&collectives, ranks);
}

static size_t scratch_bytes(const cot_moe_options *o, int64_t rows)
{
    size_t expert = cot_ffn_scratch_bytes(&o->expert, rows, smaller(rows, o->experts));
    size_t shared = o->shared.intermediate ? cot_ffn_scratch_bytes(&o->shared, rows, 1) : 0;
    return shared > expert ? shared : expert;
}

static int64_t choose_batch_rows(const cot_moe_options *o)
{
    int64_t row_bytes = (int64_t)scratch_bytes(o, 1) + o->expert.hidden * (int64_t)sizeof(float);
    int64_t rows = smaller(batch_bytes / row_bytes, batch_rows_most);
    return smaller(rows > batch_rows_least ? rows : batch_rows_least, o->tokens * o->top_k);
}

/* The next `bytes` of the arena; only counts where there is none yet. */
static void *carve(uint8_t *memory, size_t *used, size_t bytes)
{
    void *piece = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return piece;
}

static size_t lay_out(cot_moe *moe, void *memory)
{
    const cot_moe_options *o = &moe->options;
    size_t used = 0, experts = (size_t)o->experts, rows = (size_t)(o->tokens * o->top_k);
    size_t jobs = (size_t)smaller(moe->batch_rows, o->experts);
    moe->memory = memory;
    moe->counts = carve(memory, &used, (size_t)o->fabric->ranks * experts * sizeof *moe->counts);
    moe->totals = carve(memory, &used, experts * sizeof *moe->totals);
    moe->positions = carve(memory, &used, rows * sizeof *moe->positions);
    moe->rows = carve(memory, &used, rows * sizeof *moe->rows);
    moe->weights = carve(memory, &used, rows * sizeof *moe->weights);
    moe->row_weights = carve(memory, &used, rows * sizeof *moe->row_weights);
    moe->logits = carve(memory, &used, (size_t)o->tokens * experts * sizeof *moe->logits);
    moe->send = carve(memory, &used, rows * moe->row_bytes);
    moe->scratch = carve(memory, &used, scratch_bytes(o, moe->batch_rows));
    moe->batch = carve(memory, &used, (size_t)(moe->batch_rows * o->expert.hidden) * sizeof *moe->batch);
    moe->jobs = carve(memory, &used, jobs * sizeof *moe->jobs);
    return used;
}

static void bulk_close(cot_moe *moe)
{
    if (!moe) return;
    cot_collectives_close(moe->collectives);
    free(moe->memory);
    free(moe);
}

static cot_status bulk_open(cot_moe **out, const cot_moe_options *options, cot_error *error)
{
    *out = NULL;
    cot_status status = check_options(options, error);
    if (status != COT_OK) return status;
    cot_moe *moe = calloc(1, sizeof *moe);
    if (!moe) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an operator");
    moe->options = *options;
    moe->row_bytes = (size_t)options->expert.hidden * cot_dtype_bytes(options->expert.type);
    moe->batch_rows = choose_batch_rows(options);
    size_t bytes = lay_out(moe, NULL);
    void *memory = aligned_alloc(64, bytes);
    if (memory) {
        lay_out(moe, memory);
        cot_collectives_options collectives = collectives_options(options, options->fabric->ranks);
        status = cot_collectives_open(&moe->collectives, options->fabric, &collectives, error);
    } else {
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the %zu bytes of an operator", bytes);
    }
    if (status == COT_OK)
        *out = moe;
    else
        bulk_close(moe);
    return status;
}

static void lap(cot_moe *moe, int64_t *total_ns)
{
    int64_t now_ns = moe->options.fabric->ops->now_ns(moe->options.fabric);
    *total_ns += now_ns - moe->lap_ns;
    moe->lap_ns = now_ns;
}

/* Sends each rank its block of rows of `row_bytes`, laid out as the layout's offsets in rows say. */
static cot_status exchange(cot_moe *moe, const void **received, const void *send, size_t row_bytes,
                           const int64_t *send_begin, const int64_t *place, cot_phase phase, cot_error *error)
{
    size_t begin_bytes[COT_MAX_RANKS + 1], place_bytes[COT_MAX_RANKS];
    int ranks = moe->options.fabric->ranks;
    for (int r = 0; r <= ranks; r++) begin_bytes[r] = (size_t)send_begin[r] * row_bytes;
    for (int r = 0; r < ranks; r++) place_bytes[r] = (size_t)place[r] * row_bytes;
    return cot_alltoallv(moe->collectives, received, send, begin_bytes, place_bytes, phase, error);
}

/* Tells all ranks how many rows of every rank go to every expert, and lays all of them out. */
static cot_status lay_out_rows(cot_moe *moe, const cot_moe_layer *layer, const uint16_t *experts,
                               int64_t tokens, cot_error *error)
{
    const cot_moe_options *o = &moe->options;
    int rank = o->fabric->rank, ranks = o->fabric->ranks;
    int32_t *own = moe->counts + rank * o->experts;
    memset(own, 0, (size_t)o->experts * sizeof *own);
    for (int64_t i = 0; i < tokens * o->top_k; i++) own[experts[i]]++;
    size_t begin[COT_MAX_RANKS + 1];
    for (int r = 0; r <= ranks; r++) begin[r] = (size_t)(r * o->experts) * sizeof *own;
    cot_status status = cot_allgather(moe->collectives, moe->counts, begin, COT_PHASE_METADATA, error);
    if (status != COT_OK) return status;
    const int32_t *expert_rank = layer->placement.rank;
    cot_bulk_layout_of(&moe->layout, moe->counts, expert_rank, o->experts, rank, ranks);
    assert(moe->layout.receive_begin[ranks] <= o->tokens * o->top_k);
    cot_bulk_positions(moe->positions, &moe->layout, own, expert_rank, o->experts, experts, tokens, o->top_k,
                       moe->totals);
    cot_bulk_expert_rows(moe->rows, moe->totals, &moe->layout, moe->counts, expert_rank, o->experts, rank,
                         ranks);
    return COT_OK;
}

struct packing {
    cot_moe *moe;
    const float *x;
};

static void pack_token(void *context, int64_t t)
{
    const struct packing *packing = context;
    cot_moe *moe = packing->moe;
    const cot_moe_options *o = &moe->options;
    for (int64_t i = t * o->top_k; i < (t + 1) * o->top_k; i++)
        o->kernels->scale(moe->send + (size_t)moe->positions[i] * moe->row_bytes, o->expert.type,
                          packing->x + t * o->expert.hidden, 1, o->expert.hidden);
}

/* Rows and their weights to where their experts live. */
static cot_status dispatch(cot_moe *moe, const void **received, const float *weights, const float *x,
                           int64_t tokens, cot_error *error)
{
    const cot_bulk_layout *layout = &moe->layout;
    for (int64_t i = 0; i < tokens * moe->options.top_k; i++) moe->weights[moe->positions[i]] = weights[i];
    const void *row_weights;
    cot_status status = exchange(moe, &row_weights, moe->weights, sizeof(float), layout->send_begin,
                                 layout->place, COT_PHASE_METADATA, error);
    if (status != COT_OK) return status;
    // The next exchange takes the receive buffer back.
    memcpy(moe->row_weights, row_weights,
           (size_t)layout->receive_begin[moe->options.fabric->ranks] * sizeof(float));
    cot_pool_run(moe->options.pool, tokens, pack_token, &(struct packing){moe, x});
    return exchange(moe, received, moe->send, moe->row_bytes, layout->send_begin, layout->place,
                    COT_PHASE_DISPATCH, error);
}

static cot_status pass(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts, float *weights,
                       const float *x, int64_t tokens, cot_error *error)
{
    const cot_moe_options *o = &moe->options;
    const void *received, *replies;
    moe->lap_ns = o->fabric->ops->now_ns(o->fabric);
    cot_status status =
        cot_gate_route(experts, weights, o->kernels, o->pool, layer->gate, x, tokens, moe->logits, error);
    lap(moe, &moe->times.gate_ns);
    if (status == COT_OK) status = lay_out_rows(moe, layer, experts, tokens, error);
    if (status == COT_OK) status = dispatch(moe, &received, weights, x, tokens, error);
    lap(moe, &moe->times.dispatch_ns);
    if (status != COT_OK) return status;
    cot_bulk_experts(moe, layer, received);
    lap(moe, &moe->times.expert_ns);
    if (layer->shared) cot_bulk_shared(moe, layer, y, x, tokens);
    lap(moe, &moe->times.shared_ns);
    status = exchange(moe, &replies, moe->send, moe->row_bytes, moe->layout.receive_begin,
                      moe->layout.reply_place, COT_PHASE_COMBINE, error);
    if (status == COT_OK) cot_bulk_sum(moe, y, replies, tokens, layer->shared);
    lap(moe, &moe->times.combine_ns);
    return status;
}

static cot_status bulk_forward(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                               float *weights, const float *x, int64_t tokens, cot_error *error)
{
    assert(tokens >= 0 && tokens <= moe->options.tokens);
    assert(layer->gate->hidden == moe->options.expert.hidden &&
           layer->gate->experts == moe->options.experts && layer->gate->top_k == moe->options.top_k);
    assert(!layer->shared || moe->options.shared.intermediate);
    cot_status status = pass(moe, layer, y, experts, weights, x, tokens, error);
    if (status != COT_OK) moe->options.fabric->ops->fail(moe->options.fabric);
    return status;
}

static const cot_moe_times *bulk_times(const cot_moe *moe)
{
    return &moe->times;
}

const cot_moe_operator cot_moe_bulk = {.name = COT_MOE_BULK,
                                       .heap_bytes = heap_bytes,
                                       .open = bulk_open,
                                       .forward = bulk_forward,
                                       .close = bulk_close,
                                       .times = bulk_times};
