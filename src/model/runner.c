/* A runner's memory: what a rank allocates, symmetric and private, and the loading of its weights. */
#include "base/error.h"
#include "base/integers.h"
#include "kernels/pack.h"
#include "model/runner_state.h"

#include <assert.h>
#include <stdlib.h>

/* Everything private, in the order it is laid out; the arena may measure and `load` may then be NULL-like. */
static void lay_out_weights(cot_runner *r, int rank, int ranks, cot_arena *arena, cot_loader *load)
{
    const cot_config *c = r->c;
    if (r->o.data_parallel) {
        r->attention = r->o.whole->attention;
        return;
    }
    for (int64_t l = 0; l < c->layers; l++) cot_attention_heads(&r->own_attention[l], c, rank, ranks);
    cot_attention_weights_walk(r->own_attention, r->o.checkpoint, r->o.precision, arena, load);
    r->attention = r->own_attention;
}

static int64_t value_width(const cot_config *c)
{
    return c->attention == COT_ATTENTION_MLA ? c->kv_lora_rank : c->head_dim;
}

cot_attend_scratch *cot_runner_lay_out_attention(cot_arena *arena, const cot_runner_options *o)
{
    return cot_attend_scratch_lay_out(arena, o->precision.type,
                                      value_width(cot_checkpoint_config(o->checkpoint)), o->threads);
}

static void lay_out_homes(cot_runner *r, int ranks, cot_arena *arena)
{
    cot_step_scratch *s = &r->s;
    const size_t n = (size_t)r->o.step_tokens, h = (size_t)r->c->hidden, layers = (size_t)r->c->moe_layers,
                 home = (size_t)cot_divide_up(r->o.step_tokens, ranks);
    s->home_x = cot_arena_take(arena, home * h, sizeof *s->home_x);
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
    if (r->o.capture) s->routed = cot_arena_take(arena, n * (size_t)r->c->gate.top_k, sizeof *s->routed);
    cot_homes_scratch_lay_out(&s->homes, arena, r->o.step_tokens, r->c->gate.experts);
}

static void lay_out_rows(cot_runner *r, cot_arena *arena)
{
    const cot_config *c = r->c;
    cot_step_scratch *s = &r->s;
    const size_t row = (size_t)(r->o.step_tokens * c->hidden),
                 chosen = (size_t)(r->o.step_tokens * c->gate.top_k), routed = (size_t)c->moe_layers * chosen,
                 begin = arena->used;
    s->normed = cot_arena_take(arena, row, sizeof *s->normed);
    s->branch = cot_arena_take(arena, row, sizeof *s->branch);
    s->experts = cot_arena_take(arena, routed, sizeof *s->experts);
    s->weights = cot_arena_take(arena, routed, sizeof *s->weights);
    if (r->o.replay) {
        s->replayed_experts = cot_arena_take(arena, chosen, sizeof *s->replayed_experts);
        s->replayed_weights = cot_arena_take(arena, chosen, sizeof *s->replayed_weights);
    }
    s->rows_bytes = arena->used - begin;
}

static void lay_out_scratch(cot_runner *r, int rank, int ranks, cot_arena *arena)
{
    const cot_config *c = r->c;
    cot_step_scratch *s = &r->s;
    bool mla = c->attention == COT_ATTENTION_MLA;
    size_t n = (size_t)r->o.step_tokens, w = cot_dtype_bytes(r->o.precision.type), h = (size_t)c->hidden;
    cot_attention_weights heads; // of this rank
    cot_attention_heads(&heads, c, r->o.data_parallel ? 0 : rank, r->o.data_parallel ? 1 : ranks);
    size_t q = (size_t)heads.heads, qk = (size_t)(c->nope_dim + c->rope_dim), lora = (size_t)c->kv_lora_rank;
    size_t columns = mla ? (size_t)c->q_lora_rank + (c->q_lora_rank ? 0 : q * qk) + lora + (size_t)c->rope_dim
                         : (q + 2 * (size_t)heads.kv_heads) * (size_t)c->head_dim;
    r->kv = (cot_kv){.type = r->o.precision.type,
                     .layers = c->layers,
                     .heads = heads.kv_heads,
                     .key_width = mla ? c->kv_lora_rank + c->rope_dim : c->head_dim,
                     .value_width = value_width(c),
                     .pages = r->o.pages,
                     .sequences = r->o.sequences,
                     .pages_a_sequence = cot_page_count(c->max_context)};
    cot_kv_lay_out(&r->kv, arena);
    size_t key = (size_t)r->kv.key_width, value = (size_t)r->kv.value_width;
    r->attend =
        cot_attend_lay_out(arena, r->o.attention_scratch, heads.kv_heads, heads.heads, r->o.step_tokens);
    s->x = cot_arena_take(arena, n * h, sizeof(float));
    lay_out_rows(r, arena);
    s->typed = cot_arena_take(arena, n * h, w);
    s->payload = cot_arena_take(arena, 1, cot_runner_gathered_bytes(&r->o, c->hidden, ranks));
    s->input = cot_arena_take(arena, n * columns, sizeof(float));
    s->queries = cot_arena_take(arena, n * q * key, w);
    s->values = s->output = cot_arena_take(arena, n * q * value, w);
    if (mla) {
        s->q = cot_arena_take(arena, n * q * qk, sizeof(float));
        s->q_latent = cot_arena_take(arena, n * (size_t)c->q_lora_rank, w);
        s->q_nope = cot_arena_take(arena, n * q * (size_t)c->nope_dim, w);
        s->absorbed = cot_arena_take(arena, n * q * lora, sizeof(float));
        s->expanded = cot_arena_take(arena, n * q * (size_t)c->v_dim, sizeof(float));
        s->output = cot_arena_take(arena, n * q * (size_t)c->v_dim, w);
    }
    s->width_sums = cot_arena_take(arena, 2 * n, sizeof(float));
    s->cosines = cot_arena_take(arena, n * (size_t)c->rope_width / 2, sizeof(float));
    s->sines = cot_arena_take(arena, n * (size_t)c->rope_width / 2, sizeof(float));
    cot_ffn_shape dense = cot_model_dense_shape(c, r->o.precision);
    if (c->moe_layers < c->layers)
        s->dense_scratch = cot_arena_take(arena, 1, cot_ffn_scratch_bytes(&dense, r->o.step_tokens, 1));
    s->gemms = cot_arena_take(arena, (size_t)cot_larger(heads.heads, 1), sizeof(cot_gemm));
    if (!r->o.data_parallel && ranks > 1 && cot_pipeline_goes_home(&r->o.pipeline))
        lay_out_homes(r, ranks, arena);
    if (r->o.replay) s->recorded = cot_arena_take(arena, n, sizeof *s->recorded);
    s->position = cot_arena_take(arena, n, sizeof *s->position);
    s->sequence = cot_arena_take(arena, n, sizeof *s->sequence);
    s->runs = cot_arena_take(arena, n, sizeof *s->runs);
    size_t wanted = (size_t)r->o.step_logits;
    int64_t begin, end;
    cot_runner_logit_columns(r, rank, &begin, &end);
    s->hidden = cot_arena_take(arena, wanted * h, w);
    s->hidden_row = cot_arena_take(arena, wanted, sizeof *s->hidden_row);
    s->unsound = cot_arena_take(arena, n, sizeof *s->unsound);
    if (rank)
        s->columns = cot_arena_take(arena, wanted * (size_t)(end - begin), sizeof(float));
    else
        s->logits = cot_arena_take(arena, wanted * (size_t)c->vocab, sizeof(float));
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
    return (cot_moe_options){.fabric = fabric,
                             .kernels = o->kernels,
                             .pool = o->pool,
                             .threads = o->threads,
                             .combine = o->combine,
                             .a2a = o->a2a,
                             .dedup = o->dedup,
                             .combine_type = o->payload,
                             .expert = cot_model_expert_shape(c, o->precision),
                             .shared = cot_model_shared_shape(c, o->precision),
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
enum { BLOCKS = 12 };

int64_t cot_runner_expert_layers(const cot_runner_options *o)
{
    const int64_t layers = o->layout->n_layers;
    return o->expert_layers && o->expert_layers < layers ? o->expert_layers : layers;
}

static void list_blocks(cot_runner *r, int ranks, struct block block[BLOCKS])
{
    const cot_config *c = r->c;
    size_t routed = r->o.capture ? (size_t)(c->moe_layers * r->o.step_tokens * c->gate.top_k) : 0;
    size_t logits = ranks > 1 ? (size_t)r->o.step_logits * (size_t)c->vocab * sizeof(float) : 0;
    const struct block all[] = {
        {&r->experts_at,
         (size_t)(cot_runner_expert_layers(&r->o) * r->o.layout->slots_per_rank) * r->slot_bytes},
        {&r->logits_at, logits},
        {&r->routed_experts_at, routed * sizeof(uint16_t)},
        {&r->routed_weights_at, routed * sizeof(float)},
        {&r->stats_at, (size_t)ranks * sizeof(cot_rank_stats)},
        {&r->done_at, (size_t)ranks * sizeof(uint64_t)},
        {&r->unsound_at, (size_t)r->o.step_tokens},
        {&r->counts_at, (size_t)ranks * sizeof(cot_step_counts)},
        {&r->calls_at, (size_t)ranks * cot_runner_calls(r) * sizeof(uint64_t)},
        {&r->sums_at, (size_t)ranks * sizeof(uint64_t)},
        {&r->sums_signals, (size_t)ranks * sizeof(uint64_t)},
        {&r->sent_at, (size_t)ranks * cot_runner_sent_words(r, ranks) * sizeof(uint64_t)}};
    static_assert(sizeof all == BLOCKS * sizeof *all, "all blocks are listed");
    memcpy(block, all, sizeof all);
}

static size_t slot_bytes_of(const cot_runner_options *o)
{
    cot_ffn_shape expert = cot_model_expert_shape(cot_checkpoint_config(o->checkpoint), o->precision);
    return o->op->weights->slot_bytes(&expert);
}

size_t cot_runner_heap_bytes(const cot_runner_options *options, int ranks)
{
    enum { ALIGNMENT = 4 << 20 };
    cot_runner r = {
        .o = *options, .c = cot_checkpoint_config(options->checkpoint), .slot_bytes = slot_bytes_of(options)};
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
    r.own_attention = calloc((size_t)r.c->layers, sizeof *r.own_attention);
    if (!r.own_attention) {
        cot_loader_close(load);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    cot_arena measure = {0};
    lay_out_weights(&r, rank, ranks, &measure, load);
    sizes->weights = measure.used;
    lay_out_scratch(&r, rank, ranks, &measure);
    sizes->cache = (size_t)r.kv.pages * r.kv.page_bytes;
    sizes->scratch = measure.used - sizes->weights - sizes->cache;
    sizes->buffers = buffer_bytes(&r, rank, ranks);
    free(r.own_attention);
    cot_loader_close(load);
    return COT_OK;
}

/* ---- open ---- */

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
    if (status == COT_OK) status = r->o.op->open(&r->moe, &moe, error);
    cot_runner_sizes sizes;
    if (status == COT_OK) status = cot_runner_measure(&sizes, &r->o, rank, ranks, error);
    if (status == COT_OK)
        status = cot_arena_open(&r->arena, sizes.weights + sizes.cache + sizes.scratch, error);
    if (status != COT_OK) return status;
    lay_out_weights(r, rank, ranks, &r->arena, load);
    lay_out_scratch(r, rank, ranks, &r->arena);
    if (r->o.op->memory) status = r->o.op->memory->pin(r->s.normed, r->s.rows_bytes, error);
    r->pinned = r->o.op->memory && status == COT_OK;
    return status;
}

/* ---- slots ---- */

/* The slots of this rank: what is read into them is recorded. */
static void fill_slots(cot_runner *r, cot_loader *load)
{
    for (int32_t m = 0; m < cot_runner_expert_layers(&r->o); m++) {
        const cot_expert_replicas replicas = cot_expert_layout_layer(r->layout, m);
        for (int32_t e = 0; e < r->layout->n_experts; e++)
            for (int32_t i = replicas.begin[e]; i < replicas.begin[e + 1]; i++)
                if (replicas.rank[i] == r->fabric->rank)
                    cot_expert_walk(r->c, r->o.precision, r->o.op->weights, r->layout->layers[m], e,
                                    cot_local(r->fabric, cot_runner_slot_at(r, m, replicas.slot[i])), load);
    }
}

void cot_runner_place(cot_runner *r, const int32_t *words, int64_t count)
{
    const bool second = r->layout == &r->epoch[1].layout;
    cot_expert_epoch *next = &r->epoch[!second];
    cot_expert_epoch_follow(next, &r->epoch[second], words, count);
    r->layout = &next->layout;
}

/* Gives the operator all layers, where it keeps weights elsewhere than in the slots. */
static cot_status keep_layers(cot_runner *r, cot_error *error)
{
    cot_status status = COT_OK;
    for (int64_t l = 0, m = 0; l < r->c->layers && r->o.op->keep && status == COT_OK; l++) {
        if (!r->c->layer[l].moe) continue;
        const cot_moe_layer layer = cot_runner_moe_layer(r, l, m++);
        status = r->o.op->keep(r->moe, &layer, COT_MOE_ALL_SLOTS, error);
    }
    return status;
}

cot_status cot_runner_open(cot_runner **out, const cot_runner_options *options, cot_fabric *fabric,
                           cot_loader_progress *progress, cot_error *error)
{
    const cot_config *c = cot_checkpoint_config(options->checkpoint);
    cot_runner *r = *out = calloc(1, sizeof *r);
    if (!r) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for rank %d", fabric->rank);
    r->o = *options;
    r->c = c;
    r->fabric = fabric;
    r->slot_bytes = slot_bytes_of(options);
    r->own_attention = calloc((size_t)c->layers, sizeof *r->own_attention);
    cot_loader *load = NULL;
    cot_status status = cot_loader_open(&load, options->checkpoint, error);
    if (status == COT_OK && !r->own_attention)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for rank %d", fabric->rank);
    for (int i = 0; i < 2 && status == COT_OK; i++)
        status = cot_expert_epoch_open(&r->epoch[i], options->layout, error);
    r->layout = &r->epoch[0].layout;
    if (status == COT_OK) status = allocate(r, load, error);
    if (status == COT_OK) {
        fill_slots(r, load);
        cot_turns_enter(fabric);
        status = cot_loader_run(load, r->o.pool, progress, fabric, error);
        cot_turns_leave(fabric);
    }
    if (status == COT_OK) status = keep_layers(r, error);
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
    if (r->moe) r->moe->op->close(r->moe);
    if (r->pinned) r->o.op->memory->unpin(r->s.normed, r->s.rows_bytes);
    cot_collectives_close(r->collectives);
    cot_arena_close(&r->arena);
    for (int i = 0; i < 2; i++) cot_expert_epoch_close(&r->epoch[i]);
    free(r->own_attention);
    free(r);
}
