#include "moe/bulk/bulk.h"

#include "base/error.h"
#include "base/integers.h"
#include "moe/bulk/state.h"
#include "moe/check.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A batch of rows is enough to hide the reading of an expert's weights, and small enough that its
 * intermediate results stay a small share of memory when many ranks live in one process. */
static const int64_t batch_rows_most = 1024, batch_rows_least = 64, batch_bytes = 64 << 20;

/* Counts travel by replica: at most so many. */
static int64_t most_replicas(const cot_moe_options *o, int ranks)
{
    return o->slots ? o->slots * ranks : o->experts;
}

static size_t row_bytes(const cot_moe_options *o, cot_dtype type)
{
    return (size_t)o->expert.hidden * cot_dtype_bytes(type);
}

static cot_collectives_options collectives_options(const cot_moe_options *o, int ranks)
{
    size_t there = row_bytes(o, o->expert.type), back = row_bytes(o, o->combine_type);
    size_t most = there > back ? there : back;
    if (most < sizeof(float)) most = sizeof(float); // weights travel too
    return (cot_collectives_options){.gather_bytes =
                                         (size_t)(ranks * most_replicas(o, ranks)) * sizeof(int32_t),
                                     .exchange_bytes = (size_t)(o->tokens * o->top_k) * most};
}

static size_t heap_bytes(const cot_moe_options *options, int ranks)
{
    cot_collectives_options collectives = collectives_options(options, ranks);
    return cot_collectives_heap_bytes(&collectives, ranks);
}

static size_t scratch_bytes(const cot_moe_options *o, int64_t rows)
{
    size_t expert = cot_ffn_scratch_bytes(&o->expert, rows, rows);
    size_t shared = o->shared.intermediate ? cot_ffn_scratch_bytes(&o->shared, rows, 1) : 0;
    return shared > expert ? shared : expert;
}

static int64_t choose_batch_rows(const cot_moe_options *o)
{
    int64_t row_bytes = (int64_t)scratch_bytes(o, 1) + o->expert.hidden * (int64_t)sizeof(float);
    int64_t rows = cot_smaller(batch_bytes / row_bytes, batch_rows_most);
    return cot_smaller(rows > batch_rows_least ? rows : batch_rows_least, o->tokens * o->top_k);
}

static void lay_out(cot_bulk *moe, cot_arena *arena)
{
    const cot_moe_options *o = &moe->options;
    size_t ranks = (size_t)o->fabric->ranks, rows = (size_t)(o->tokens * o->top_k);
    int64_t most = most_replicas(o, o->fabric->ranks);
    size_t replicas = (size_t)most, jobs = (size_t)cot_smaller(moe->batch_rows, most);
    moe->counts = cot_arena_take(arena, ranks * replicas, sizeof *moe->counts);
    moe->totals = cot_arena_take(arena, replicas, sizeof *moe->totals);
    moe->positions = cot_arena_take(arena, rows, sizeof *moe->positions);
    moe->rows = cot_arena_take(arena, rows, sizeof *moe->rows);
    cot_moe_routing_lay_out(&moe->routing, arena, o);
    moe->sent = cot_arena_take(arena, rows, sizeof *moe->sent);
    moe->row_weights = cot_arena_take(arena, rows, sizeof *moe->row_weights);
    moe->logits = cot_arena_take(arena, (size_t)(o->tokens * o->experts), sizeof *moe->logits);
    moe->send =
        cot_arena_take(arena, rows, moe->row_bytes > moe->reply_bytes ? moe->row_bytes : moe->reply_bytes);
    moe->scratch = cot_arena_take(arena, 1, scratch_bytes(o, moe->batch_rows));
    moe->batch = cot_arena_take(arena, (size_t)(moe->batch_rows * o->expert.hidden), sizeof *moe->batch);
    moe->jobs = cot_arena_take(arena, jobs, sizeof *moe->jobs);
}

/* All rows may come to one rank; it sends those of its own tokens. */
static size_t touched_bytes(const cot_moe_options *options, int ranks, int64_t home)
{
    cot_fabric fabric = {.ranks = ranks};
    cot_arena measure = {0};
    cot_bulk moe = {.options = *options,
                    .row_bytes = row_bytes(options, options->expert.type),
                    .reply_bytes = row_bytes(options, options->combine_type),
                    .batch_rows = choose_batch_rows(options)};
    moe.options.fabric = &fabric;
    moe.options.tokens = home;
    lay_out(&moe, &measure);
    return measure.used + heap_bytes(options, ranks);
}

static void bulk_close(cot_moe *open)
{
    cot_bulk *moe = (cot_bulk *)open;
    if (!moe) return;
    cot_collectives_close(moe->collectives);
    cot_arena_close(&moe->arena);
    free(moe);
}

static cot_status bulk_open(cot_moe **out, const cot_moe_options *options, cot_error *error)
{
    *out = NULL;
    cot_status status = cot_moe_check(options, error);
    if (status == COT_OK && options->combine != COT_COMBINE_EXACT)
        status = cot_fail(error, COT_UNSUPPORTED, "'bulk' sends every expert's row: combine must be exact");
    if (status != COT_OK) return status;
    cot_bulk *moe = calloc(1, sizeof *moe);
    if (!moe) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an operator");
    moe->moe.op = &cot_moe_bulk;
    moe->options = *options;
    moe->row_bytes = row_bytes(options, options->expert.type);
    moe->reply_bytes = row_bytes(options, options->combine_type);
    moe->batch_rows = choose_batch_rows(options);
    cot_arena measure = {0};
    lay_out(moe, &measure);
    status = cot_arena_open(&moe->arena, measure.used, error);
    if (status == COT_OK) {
        lay_out(moe, &moe->arena);
        cot_collectives_options collectives = collectives_options(options, options->fabric->ranks);
        status = cot_collectives_open(&moe->collectives, options->fabric, &collectives, error);
    }
    if (status == COT_OK)
        *out = &moe->moe;
    else
        bulk_close(&moe->moe);
    return status;
}

static void lap(cot_bulk *moe, cot_moe_work work, int64_t *total_ns)
{
    const cot_moe_options *o = &moe->options;
    int64_t now_ns = o->fabric->ops->now_ns(o->fabric);
    *total_ns += now_ns - moe->lap_ns;
    cot_moe_record(o->timeline, (cot_moe_event){.begin_ns = moe->lap_ns,
                                                .end_ns = now_ns,
                                                .rank = o->fabric->rank,
                                                .work = (int32_t)work,
                                                .slot = -1});
    moe->lap_ns = now_ns;
}

/* Sends each rank its block of rows of `row_bytes`, laid out as the layout's offsets in rows say. */
static cot_status exchange(cot_bulk *moe, const void **received, const void *send, size_t row_bytes,
                           const int64_t *send_begin, const int64_t *place, cot_phase phase, cot_error *error)
{
    size_t begin_bytes[COT_MAX_RANKS + 1], place_bytes[COT_MAX_RANKS];
    int ranks = moe->options.fabric->ranks;
    for (int r = 0; r <= ranks; r++) begin_bytes[r] = (size_t)send_begin[r] * row_bytes;
    for (int r = 0; r < ranks; r++) place_bytes[r] = (size_t)place[r] * row_bytes;
    return cot_alltoallv(moe->collectives, received, send, begin_bytes, place_bytes, phase, error);
}

/* Tells all ranks how many rows of every rank go to every replica, or that this rank's routing is not sound,
 * by a count below zero; every rank then gives the call up, having done nothing. */
static cot_status exchange_counts(cot_bulk *moe, int64_t tokens, cot_status routed, cot_error *error)
{
    const cot_moe_options *o = &moe->options;
    const int64_t replicas = moe->replicas;
    int32_t *own = moe->counts + o->fabric->rank * replicas;
    memset(own, 0, (size_t)replicas * sizeof *own);
    if (routed != COT_OK) own[0] = -1;
    for (int64_t i = 0; i < tokens * o->top_k && routed == COT_OK; i++) own[moe->routing.chosen[i]]++;
    size_t begin[COT_MAX_RANKS + 1];
    for (int r = 0; r <= o->fabric->ranks; r++) begin[r] = (size_t)(r * replicas) * sizeof *own;
    cot_error network = {0};
    cot_status status = cot_allgather(moe->collectives, moe->counts, begin, COT_PHASE_METADATA, &network);
    if (status != COT_OK) {
        if (error) *error = network;
        return status;
    }
    if (routed != COT_OK) return routed;
    int64_t rows = 0;
    for (int r = 0; r < o->fabric->ranks; r++) {
        if (moe->counts[r * replicas] < 0) return cot_moe_fail_with(r, error);
        for (int64_t i = 0; i < replicas; i++) rows += moe->counts[r * replicas + i];
    }
    return rows ? COT_OK : cot_moe_fail_empty(error);
}

static void lay_out_rows(cot_bulk *moe, const cot_moe_layer *layer, int64_t tokens)
{
    const cot_moe_options *o = &moe->options;
    const int rank = o->fabric->rank, ranks = o->fabric->ranks;
    const int32_t *own = moe->counts + rank * moe->replicas, *replica_rank = layer->placement.rank;
    cot_bulk_layout_of(&moe->layout, moe->counts, replica_rank, moe->replicas, rank, ranks);
    assert(moe->layout.receive_begin[ranks] <= o->tokens * o->top_k);
    cot_bulk_positions(moe->positions, &moe->layout, own, replica_rank, moe->replicas, moe->routing.chosen,
                       tokens, o->top_k, moe->totals);
    cot_bulk_expert_rows(moe->rows, moe->totals, &moe->layout, moe->counts, replica_rank, moe->replicas, rank,
                         ranks);
}

struct packing {
    cot_bulk *moe;
    const float *x;
};

static void pack_token(void *context, int64_t t)
{
    const struct packing *packing = context;
    cot_bulk *moe = packing->moe;
    const cot_moe_options *o = &moe->options;
    for (int64_t i = t * o->top_k; i < (t + 1) * o->top_k; i++)
        o->kernels->scale(moe->send + (size_t)moe->positions[i] * moe->row_bytes, o->expert.type,
                          packing->x + t * o->expert.hidden, 1, o->expert.hidden);
}

/* Rows and their weights to where their experts live. */
static cot_status dispatch(cot_bulk *moe, const void **received, const float *x, int64_t tokens,
                           cot_error *error)
{
    const cot_bulk_layout *layout = &moe->layout;
    for (int64_t i = 0; i < tokens * moe->options.top_k; i++)
        moe->sent[moe->positions[i]] = moe->routing.weights[i];
    const void *row_weights;
    cot_status status = exchange(moe, &row_weights, moe->sent, sizeof(float), layout->send_begin,
                                 layout->place, COT_PHASE_METADATA, error);
    if (status != COT_OK) return status;
    // The next exchange takes the receive buffer back.
    memcpy(moe->row_weights, row_weights,
           (size_t)layout->receive_begin[moe->options.fabric->ranks] * sizeof(float));
    cot_pool_run(moe->options.pool, tokens, pack_token, &(struct packing){moe, x});
    moe->times.launches++;
    return exchange(moe, received, moe->send, moe->row_bytes, layout->send_begin, layout->place,
                    COT_PHASE_DISPATCH, error);
}

/* Everything after the routing: only a network that fails can stop it. */
static cot_status mix(cot_bulk *moe, const cot_moe_layer *layer, float *y, const float *x, int64_t tokens,
                      cot_error *error)
{
    const void *received, *replies;
    lay_out_rows(moe, layer, tokens);
    cot_status status = dispatch(moe, &received, x, tokens, error);
    lap(moe, COT_MOE_DISPATCH, &moe->times.dispatch_ns);
    if (status != COT_OK) return status;
    cot_bulk_experts(moe, layer, received);
    lap(moe, COT_MOE_EXPERTS, &moe->times.expert_ns);
    if (layer->shared) {
        cot_bulk_shared(moe, layer, y, x, tokens);
        lap(moe, COT_MOE_SHARED, &moe->times.shared_ns);
    }
    status = exchange(moe, &replies, moe->send, moe->reply_bytes, moe->layout.receive_begin,
                      moe->layout.reply_place, COT_PHASE_COMBINE, error);
    if (status == COT_OK) cot_bulk_sum(moe, y, replies, tokens, layer->shared);
    lap(moe, COT_MOE_COMBINE, &moe->times.combine_ns);
    return status;
}

static cot_status bulk_forward(cot_moe *open, const cot_moe_layer *layer, float *y, uint16_t *experts,
                               float *weights, const float *x, int64_t tokens, cot_error *error)
{
    cot_bulk *moe = (cot_bulk *)open;
    const cot_moe_options *o = &moe->options;
    cot_moe_routing_begin(&moe->routing, o, layer, experts, weights, tokens);
    moe->lap_ns = o->fabric->ops->now_ns(o->fabric);
    moe->times.passes++;
    moe->replicas = layer->placement.begin[o->experts];
    assert(moe->replicas <= most_replicas(o, o->fabric->ranks));
    cot_status routed = cot_moe_route(&moe->routing, o, layer, x, 0, tokens, moe->logits, error);
    lap(moe, COT_MOE_GATE, &moe->times.gate_ns);
    cot_status status = exchange_counts(moe, tokens, routed, error);
    if (status == COT_INVALID_ARGUMENT)
        return status; // all ranks return it, and the group is as good as before
    if (status == COT_OK) status = mix(moe, layer, y, x, tokens, error);
    if (status != COT_OK) {
        o->fabric->ops->fail(o->fabric);
        return status;
    }
    cot_moe_routing_tell(&moe->routing, o, layer, experts, weights, tokens);
    return COT_OK;
}

static const cot_moe_times *bulk_times(const cot_moe *open)
{
    return &((const cot_bulk *)open)->times;
}

const cot_moe_operator cot_moe_bulk = {.name = COT_MOE_BULK,
                                       .heap_bytes = heap_bytes,
                                       .touched_bytes = touched_bytes,
                                       .open = bulk_open,
                                       .forward = bulk_forward,
                                       .close = bulk_close,
                                       .times = bulk_times};
