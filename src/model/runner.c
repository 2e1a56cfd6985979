/* A runner's memory: what a rank allocates, symmetric and private, and the loading of its weights. */
#include "base/error.h"
#include "base/integers.h"
#include "kernels/pack.h"
#include "model/runner_state.h"

#include <assert.h>
#include <stdlib.h>

/* Everything private of a step, and the pages; the arena may measure. */
static void lay_out_scratch(cot_runner *r, cot_arena *arena)
{
    cot_runner_lay_out_heads(r, arena);
    cot_runner_lay_out_rows(r, arena);
    cot_runner_lay_out_network(r, arena);
    if (cot_runner_goes_home(r)) cot_runner_lay_out_homes(r, arena);
    cot_runner_lay_out_results(r, arena);
}

/* ---- symmetric memory ---- */

static cot_collectives_options collectives_of(const cot_runner_options *o, int ranks)
{
    size_t n = (size_t)o->step_tokens, w = cot_dtype_bytes(o->precision.type);
    size_t h = (size_t)cot_checkpoint_config(o->checkpoint)->hidden;
    if (ranks == 1) return (cot_collectives_options){0};
    if (!o->data_parallel && o->pipeline.direct)
        return (cot_collectives_options){.exchange_bytes = cot_runner_exchange_bytes(o, (int64_t)h, ranks)};
    if (!o->data_parallel)
        return (cot_collectives_options){.reduce_elements = n * h,
                                         .gather_bytes = cot_runner_gathered_bytes(o, (int64_t)h, ranks)};
    return (cot_collectives_options){.gather_bytes = (size_t)o->step_logits * h * w};
}

/* Most tokens of a step that are at home on one rank. */
static int64_t home_tokens(const cot_runner_options *o, int ranks)
{
    return o->data_parallel ? o->step_tokens : cot_divide_up(o->step_tokens, ranks);
}

static cot_moe_options moe_of(const cot_runner_options *o, cot_fabric *fabric, int ranks)
{
    const cot_config *c = cot_checkpoint_config(o->checkpoint);
    const int64_t first = c->moe_layers ? o->layout->layers[0] : 0; // formats apart all are of its shapes
    return (cot_moe_options){.fabric = fabric,
                             .kernels = o->kernels,
                             .pool = o->pool,
                             .threads = o->threads,
                             .combine = o->combine,
                             .a2a = o->a2a,
                             .dedup = o->dedup,
                             .combine_type = o->payload,
                             .expert = *cot_networks_expert(o->networks, first, 0),
                             .shared = o->networks->shared[first],
                             .experts = c->gate.experts,
                             .top_k = c->gate.top_k,
                             .slots = o->layout->slots_per_rank,
                             .tokens = o->step_tokens,
                             .home_tokens = home_tokens(o, ranks),
                             .sms_reserve = o->sms_reserve};
}

/* The runner's own symmetric blocks, in order; the sizes that heap_bytes adds up and open allocates. */
struct block {
    cot_sym *at;
    size_t bytes;
};
enum { BLOCKS = 13 };

int64_t cot_runner_expert_layers(const cot_runner_options *o)
{
    const int64_t layers = o->layout->n_layers;
    return o->expert_layers && o->expert_layers < layers ? o->expert_layers : layers;
}

static void list_blocks(cot_runner *r, int ranks, struct block block[BLOCKS])
{
    const cot_config *c = r->c;
    const size_t calls = (size_t)(c->moe_layers * r->o.step_tokens * c->gate.top_k);
    size_t logits = ranks > 1 ? (size_t)r->o.step_logits * (size_t)c->vocab * sizeof(float) : 0;
    const struct block all[] = {
        {&r->slots.at, cot_runner_pools_bytes(&r->o)},
        {&r->results.logits_at, logits},
        {&r->results.routed_experts_at, (r->o.capture || r->o.routed ? calls : 0) * sizeof(uint16_t)},
        {&r->results.routed_weights_at, (r->o.capture ? calls : 0) * sizeof(float)},
        {&r->results.stats_at, (size_t)ranks * sizeof(cot_rank_stats)},
        {&r->results.done_at, (size_t)ranks * sizeof(uint64_t)},
        {&r->results.unsound_at, (size_t)r->o.step_tokens},
        {&r->results.counts_at, (size_t)ranks * sizeof(cot_step_counts)},
        {&r->results.served_at, (size_t)ranks * sizeof(cot_runner_served)},
        {&r->results.calls_at, (size_t)ranks * cot_runner_calls(r) * sizeof(uint64_t)},
        {&r->slots.sums_at, (size_t)ranks * sizeof(uint64_t)},
        {&r->slots.sums_signals, (size_t)ranks * sizeof(uint64_t)},
        {&r->sent.at, (size_t)ranks * cot_runner_sent_words(r, ranks) * sizeof(uint64_t)}};
    static_assert(sizeof all == BLOCKS * sizeof *all, "all blocks are listed");
    memcpy(block, all, sizeof all);
}

size_t cot_runner_heap_bytes(const cot_runner_options *options, int ranks)
{
    enum { ALIGNMENT = 4 << 20 };
    cot_runner r = {.o = *options, .c = cot_checkpoint_config(options->checkpoint)};
    struct block block[BLOCKS];
    list_blocks(&r, ranks, block);
    cot_collectives_options collectives = collectives_of(options, ranks);
    cot_moe_options moe = moe_of(options, NULL, ranks);
    size_t bytes = cot_collectives_heap_bytes(&collectives, ranks) + options->op->heap_bytes(&moe, ranks);
    for (int b = 0; b < BLOCKS; b++) bytes += block[b].bytes + ALIGNMENT;
    return bytes + ALIGNMENT;
}

/* What steps touch of symmetric memory but experts, and of the operator's own. Results come to rank 0 alone; a rank counts
 * calls of experts in its own part. */
static size_t buffer_bytes(const cot_runner *r, int rank, int ranks)
{
    const cot_collectives_options collectives = collectives_of(&r->o, ranks);
    const cot_moe_options moe = moe_of(&r->o, NULL, ranks);
    size_t bytes = cot_collectives_heap_bytes(&collectives, ranks) +
                   r->o.op->touched_bytes(&moe, ranks, moe.home_tokens);
    struct block block[BLOCKS];
    cot_runner scratch = *r; // whose offsets nobody reads
    list_blocks(&scratch, ranks, block);
    for (int b = 1; b < BLOCKS && rank == 0; b++) bytes += block[b].bytes;
    if (rank) bytes += (cot_runner_calls(r) + cot_runner_sent_words(r, ranks)) * sizeof(uint64_t);
    return bytes;
}

cot_status cot_runner_measure(cot_runner_sizes *sizes, const cot_runner_options *options, int rank, int ranks,
                              cot_error *error)
{
    cot_fabric shape = {.rank = rank, .ranks = ranks};
    cot_runner r = {.o = *options, .c = cot_checkpoint_config(options->checkpoint), .fabric = &shape};
    cot_loader *load;
    *sizes = (cot_runner_sizes){0};
    cot_status status = cot_loader_open(&load, options->checkpoint, error);
    if (status != COT_OK) return status;
    r.heads.own_weights = calloc((size_t)r.c->layers, sizeof *r.heads.own_weights);
    if (!r.heads.own_weights) {
        cot_loader_close(load);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    cot_arena measure = {0};
    cot_runner_lay_out_head_weights(&r, &measure, load);
    sizes->weights = measure.used;
    lay_out_scratch(&r, &measure);
    sizes->cache = (size_t)r.heads.kv.pages * r.heads.kv.page_bytes;
    sizes->states =
        (size_t)(r.heads.state.sequences + r.heads.state.snapshots) * cot_state_bytes(&r.heads.state);
    sizes->scratch = measure.used - sizes->weights - sizes->cache - sizes->states;
    sizes->buffers = buffer_bytes(&r, rank, ranks);
    free(r.heads.own_weights);
    cot_loader_close(load);
    return COT_OK;
}

static cot_status allocate(cot_runner *r, cot_loader *load, cot_error *error)
{
    int rank = r->fabric->rank, ranks = r->fabric->ranks;
    struct block block[BLOCKS];
    list_blocks(r, ranks, block);
    cot_status status = COT_OK;
    for (int b = 0; b < BLOCKS && status == COT_OK; b++)
        status = cot_alloc(r->fabric, block[b].at, block[b].bytes ? block[b].bytes : 1, error);
    cot_collectives_options collectives = collectives_of(&r->o, ranks);
    cot_moe_options moe = moe_of(&r->o, r->fabric, ranks);
    if (status == COT_OK) status = cot_collectives_open(&r->collectives, r->fabric, &collectives, error);
    if (status == COT_OK) status = r->o.op->open(&r->network.moe, &moe, error);
    cot_runner_sizes sizes;
    if (status == COT_OK) status = cot_runner_measure(&sizes, &r->o, rank, ranks, error);
    if (status == COT_OK)
        status = cot_arena_open(&r->arena, sizes.weights + sizes.cache + sizes.states + sizes.scratch, error);
    if (status != COT_OK) return status;
    cot_runner_lay_out_head_weights(r, &r->arena, load);
    lay_out_scratch(r, &r->arena);
    if (r->o.op->memory) status = r->o.op->memory->pin(r->rows.normed, r->network.operator_bytes, error);
    if (r->o.gives_back) cot_runner_use_small_pages(r);
    r->network.pinned = r->o.op->memory && status == COT_OK;
    return status;
}

/* ---- open ---- */

cot_status cot_runner_open(cot_runner **out, const cot_runner_options *options, cot_fabric *fabric,
                           cot_loader_progress *progress, cot_error *error)
{
    const cot_config *c = cot_checkpoint_config(options->checkpoint);
    cot_runner *r = *out = calloc(1, sizeof *r);
    if (!r) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for rank %d", fabric->rank);
    r->o = *options;
    r->c = c;
    r->fabric = fabric;
    r->heads.own_weights = calloc((size_t)c->layers, sizeof *r->heads.own_weights);
    cot_loader *load = NULL;
    cot_status status = cot_loader_open(&load, options->checkpoint, error);
    if (status == COT_OK && !r->heads.own_weights)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for rank %d", fabric->rank);
    for (int i = 0; i < 2 && status == COT_OK; i++)
        status = cot_expert_epoch_open(&r->slots.epoch[i], options->layout, error);
    r->slots.layout = &r->slots.epoch[0].layout;
    if (status == COT_OK) status = cot_runner_open_slots(r, error);
    if (status == COT_OK) status = allocate(r, load, error);
    if (status == COT_OK) {
        cot_runner_fill_slots(r, load);
        cot_turns_enter(fabric);
        status = cot_loader_run(load, r->o.pool, progress, fabric, error);
        cot_turns_leave(fabric);
    }
    if (status == COT_OK) status = cot_runner_keep_layers(r, error);
    cot_loader_close(load);
    if (status != COT_OK) {
        cot_runner_close(r);
        *out = NULL;
    }
    return status;
}

void cot_runner_close(cot_runner *r)
{
    if (!r) return;
    if (r->network.moe) r->network.moe->op->close(r->network.moe);
    if (r->network.pinned) r->o.op->memory->unpin(r->rows.normed, r->network.operator_bytes);
    cot_collectives_close(r->collectives);
    cot_arena_close(&r->arena);
    for (int i = 0; i < 2; i++) cot_expert_epoch_close(&r->slots.epoch[i]);
    free(r->slots.pool);
    free(r->slots.place);
    free(r->slots.used);
    free(r->heads.own_weights);
    free(r);
}
