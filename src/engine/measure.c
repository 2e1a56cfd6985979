/* What opening an engine takes: its weights and caches laid out, and nothing loaded. */
#include "engine/measure.h"

#include "base/error.h"
#include "base/gguf.h"
#include "base/integers.h"
#include "coterie/roof.h"
#include "engine/memory.h"
#include "engine/pipeline.h"
#include "engine/replay.h"
#include "engine/tables.h"
#include "kernels/cores.h"
#include "kernels/pack.h"
#include "model/mixer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cot_engine_threads(const cot_engine_resolved *o)
{
    const cot_launch_place place = cot_launch_started();
    if (o->given.group.threads) return o->given.group.threads;
    if (!o->fabric->from_outside || !place.here) return cot_cores();
    // What starts ranks may bind each to its part of the host: all of that is theirs together, and as much on each host.
    const long cores = cot_larger(sysconf(_SC_NPROCESSORS_ONLN), 1);
    return (int)cot_smaller((cores * place.ranks + place.here - 1) / place.here, COT_CORES_MOST);
}

/* Every so manieth token's experts make a hundredth, at most, of what a step sends: of its rows alone, each of which goes once to each
 * rank that is asked, and comes back as one. */
static int32_t popular_every(const cot_runner_options *r, const cot_config *c, int ranks)
{
    const double P = ranks, K = (double)c->gate.top_k, asked = (P - 1) * (1 - pow(1 - 1 / P, K)),
                 row_bytes = (double)c->hidden * (double)cot_dtype_bytes(r->payload),
                 experts_bytes = K * sizeof(uint16_t) * (P - 1) / P;
    return ranks > 1 ? (int32_t)ceil(100 * experts_bytes / (2 * asked * row_bytes)) : 1;
}

static cot_status fill_runner(cot_engine *e, const cot_engine_resolved *resolved, cot_error *error)
{
    enum {
        LOGITS_BYTES = 64 << 20
    }; // what rank 0 holds of a step's logits at most, though at least a row a sequence
    const cot_config *c = e->config;
    const cot_engine_options *o = &resolved->given;
    cot_runner_options *r = &e->runner;
    cot_engine_numbers numbers;
    if (o->memory.sequence_tokens > c->max_context)
        return cot_fail(error, COT_INVALID_ARGUMENT, "max model length %lld is not in [0, %lld]",
                        (long long)o->memory.sequence_tokens, (long long)c->max_context);
    if (resolved->snapshots_said && cot_mixer_all_keep_pages(c))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "snapshots of states: the model's layers all have keys, and no states");
    cot_status status = cot_engine_numbers_of(&numbers, &resolved->choice, error);
    if (status == COT_OK)
        status =
            cot_networks_open(&e->networks, e->checkpoint, &numbers.precision, resolved->op->weights, error);
    if (status != COT_OK) return status;
    e->info.threads = cot_engine_threads(resolved);
    e->info.ranks = o->group.ranks;
    *r = (cot_runner_options){.checkpoint = e->checkpoint,
                              .whole = &e->whole,
                              .precision = numbers.precision,
                              .networks = &e->networks,
                              .data_parallel = resolved->choice.attention_mode,
                              .threads = e->info.threads,
                              .kernels = resolved->kernels,
                              .combine = numbers.combine,
                              .payload = numbers.payload,
                              .layout = &e->layout,
                              .movable = o->experts.movable,
                              .expert_layers = o->experts.layers,
                              .op = resolved->op,
                              .sms_reserve = o->experts.sms_reserve,
                              .context_tokens =
                                  o->memory.sequence_tokens ? o->memory.sequence_tokens : c->max_context,
                              .step_tokens = o->batch.step_tokens,
                              .capture = o->watch.capture_routing,
                              .count_exchanges = o->watch.count_exchanges};
    const int64_t rows = LOGITS_BYTES / ((int64_t)sizeof(float) * c->vocab), step_tokens = r->step_tokens,
                  context = r->context_tokens;
    r->sequences = cot_smaller(o->batch.sequences, step_tokens);
    r->step_logits = rows < r->sequences ? r->sequences : rows < step_tokens ? rows : step_tokens;
    int64_t kv_tokens = o->memory.kv_tokens ? o->memory.kv_tokens : context;
    e->block_tokens = o->memory.block_tokens;
    if (!e->block_tokens &&
        kv_tokens / context >= r->sequences) // no more than all sequences at their longest
        kv_tokens = r->sequences * context;
    r->pages = cot_page_count(kv_tokens) + r->sequences; // every sequence may leave a page part empty
    r->step_maps = cot_scheduler_step_maps(step_tokens, r->sequences, context, e->block_tokens);
    r->snapshots = e->block_tokens && !cot_mixer_all_keep_pages(c) ? o->memory.snapshots : 0;
    r->step_states = cot_scheduler_step_states(step_tokens, r->sequences, r->snapshots);
    e->tbt_ns = o->batch.tbt_ns;
    e->max_wait_steps = o->batch.max_wait_steps;
    if (c->moe_layers && (o->watch.popularity_half_life || o->watch.popularity_half_life_ns))
        e->profiles =
            (cot_profiles_options){.n_layers = (int32_t)c->moe_layers,
                                   .n_experts = (int32_t)c->gate.experts,
                                   .top_k = (int32_t)c->gate.top_k,
                                   .half_life_tokens = (double)o->watch.popularity_half_life,
                                   .half_life_seconds = (double)o->watch.popularity_half_life_ns / 1e9,
                                   .every = popular_every(r, c, o->group.ranks)};
    r->routed = e->profiles.n_layers;
    return COT_OK;
}

/* Whether the split of memory that pages and spare slots share moves: replicas are made by rebalancing, in slots that the operator reads, and ranks give
 * memory back. */
static bool split_moves(const cot_engine_resolved *o)
{
    return o->given.memory.total_bytes && o->given.experts.spare_slots &&
           o->choice.experts_rebalance != COT_REBALANCE_OFF && !o->fabric->from_outside && !o->op->keep;
}

/* What all spare slots take, over all ranks, once replicas are in them. */
static size_t spare_bytes(const cot_engine *e, const cot_engine_options *o)
{
    size_t bytes = 0; // one slot of each layer
    for (int64_t l = 0; o->experts.movable && l < cot_runner_expert_layers(&e->runner); l++)
        bytes += (size_t)e->networks.slot_bytes[l];
    return bytes * (size_t)o->experts.spare_slots * (size_t)e->info.ranks;
}

/* What a sequence's most tokens are, in messages. */
static const char *context_name(const cot_engine_options *o)
{
    return o->memory.sequence_tokens ? "max model length" : "model's context";
}

/* Finds what of the options' memory is left for pages beside states, which never give theirs up, and slots. Errors: INVALID_ARGUMENT: not enough for a
 * sequence of the most tokens. */
static cot_status share_memory(size_t *kv_bytes, cot_budgeting *b, const cot_engine *e,
                               const cot_engine_options *o, cot_error *error)
{
    const size_t total = o->memory.total_bytes, spare = b->moves ? 0 : spare_bytes(e, o);
    const int64_t context = e->runner.context_tokens;
    char states[96] = "";
    b->bytes = total > b->states_bytes ? total - b->states_bytes : 0;
    *kv_bytes = b->bytes > spare ? b->bytes - spare : 0;
    if (*kv_bytes / b->page_bytes >= (size_t)cot_page_count(context)) return COT_OK;
    if (b->states_bytes)
        snprintf(states, sizeof states, " and %zu of states of %lld sequences and %lld snapshots",
                 b->states_bytes, (long long)e->runner.sequences, (long long)e->runner.snapshots);
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "%zu bytes of memory hold %zu KV pages of %zu bytes beside %zu bytes of spare slots%s, "
                    "the %s of %lld tokens needs %lld pages",
                    total, *kv_bytes / b->page_bytes, b->page_bytes, spare, states, context_name(o),
                    (long long)context, (long long)cot_page_count(context));
}

/* As many pages as there is room for, where their bytes are given. */
static cot_status fill_pages(cot_engine *e, const cot_engine_options *o, cot_error *error)
{
    const int counted =
        e->runner.data_parallel ? 1 : e->info.ranks; // a page is on one rank, or a part of it on each
    size_t page_bytes = 0, states_bytes = 0, kv_bytes = o->memory.kv_bytes;
    cot_status status = COT_OK;
    if (!kv_bytes && !o->memory.total_bytes) return COT_OK;
    e->runner.pages = 1;
    for (int rank = 0; rank < counted && status == COT_OK; rank++) {
        cot_runner_sizes sizes;
        status = cot_runner_measure(&sizes, &e->runner, rank, e->info.ranks, error);
        page_bytes += sizes.cache;
        states_bytes += sizes.states;
    }
    e->budgeting.page_bytes = page_bytes;
    e->budgeting.states_bytes = states_bytes;
    if (status == COT_OK && o->memory.total_bytes)
        status = share_memory(&kv_bytes, &e->budgeting, e, o, error);
    if (status != COT_OK) return status;
    if (kv_bytes < page_bytes)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%zu bytes of KV cache hold no page, which has %zu",
                        kv_bytes, page_bytes);
    const size_t pages = kv_bytes / page_bytes;
    const int64_t filled = e->runner.sequences *
                           cot_page_count(e->runner.context_tokens), // without blocks no more are filled
        most = e->block_tokens || filled > INT32_MAX ? INT32_MAX : filled;
    e->runner.pages = pages < (size_t)most ? (int64_t)pages : most;
    return COT_OK;
}

/* Where the options say how long a sequence may be, the KV cache has to hold one. */
static cot_status check_pages(const cot_engine *e, const cot_engine_options *o, cot_error *error)
{
    const int64_t needed = cot_page_count(e->runner.context_tokens);
    char bytes[32] = "";
    if (!o->memory.sequence_tokens || e->runner.pages >= needed) return COT_OK;
    if (e->budgeting.page_bytes) snprintf(bytes, sizeof bytes, " of %zu bytes", e->budgeting.page_bytes);
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "the KV cache has %lld pages%s, the max model length of %lld tokens needs %lld",
                    (long long)e->runner.pages, bytes, (long long)e->runner.context_tokens,
                    (long long)needed);
}

/* What is decided by the experts of requests. */
static cot_status choose_schedule(cot_engine *e, const cot_engine_resolved *options, cot_error *error)
{
    const int said = options->choice.batch_schedule;
    e->admits_by_experts = said == COT_UNSAID ? e->signatures.tables != NULL : said;
    e->homes_by_experts = options->choice.batch_home_by;
    if (e->homes_by_experts && !e->runner.data_parallel)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "home-by 'experts' needs attention 'dp': where heads are split all ranks hold a request");
    if (e->signatures.tables && !e->admits_by_experts && !e->homes_by_experts)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "signature tables are of no use with schedule 'fcfs' and home-by 'load': one of them must be "
            "'experts'");
    if (cot_engine_foretells(e) || (!e->admits_by_experts && !e->homes_by_experts)) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "%s 'experts' needs signature tables, or a prefix cache and a half-life of popularity, "
                    "which foretell the experts of requests",
                    e->admits_by_experts ? "schedule" : "home-by");
}

static cot_status lay_out_experts(cot_engine *e, const cot_engine_options *o, cot_error *error)
{
    const cot_expert_layout_shape shape = {.n_layers = (int32_t)e->config->moe_layers,
                                           .n_experts = (int32_t)e->config->gate.experts,
                                           .n_ranks = o->group.ranks,
                                           .layers = e->moe_layer,
                                           .slots_per_rank = o->experts.slots};
    const char *name = o->experts.placement_name ? o->experts.placement_name : "the placement";
    const cot_engine_known known = {o->experts.routing && o->experts.routing->trace ? o->experts.routing->name
                                                                                    : e->name,
                                    e->info.model_hash};
    cot_status status = COT_OK;
    cot_config_list_moe_layers(e->moe_layer, e->config);
    if (o->experts.routing)
        status = cot_engine_replay_of(&e->replay, o->experts.routing, e->config, e->moe_layer, error);
    if (o->experts.routing) e->runner.replay = &e->replay;
    if (status == COT_OK && o->experts.tables)
        status = cot_engine_tables_open(&e->tables, o->experts.tables, e->config, &shape, o->experts.routing,
                                        &known, error);
    if (status == COT_OK && o->batch.signature_tables)
        status = cot_engine_signatures_open(&e->signatures, o->batch.signature_tables, e->config,
                                            e->moe_layer, &known, error);
    if (status == COT_OK && o->experts.placement)
        status = cot_engine_placement_check(o->experts.placement, name, &known, error);
    if (status == COT_OK)
        status = cot_engine_replay_rows(&e->row_of_id, o->experts.routing, e->tables, error);
    if (status != COT_OK) return status;
    e->first_table = cot_engine_replay_first_layer(o->experts.routing);
    const int32_t *groups = cot_engine_tables_groups(e->tables, e->first_table);
    if (o->experts.placement)
        status = cot_expert_layout_of_map(&e->layout, &shape, o->experts.placement, name, error);
    else
        status = cot_expert_layout_of_ranks(&e->layout, &shape, groups, error);
    e->layout.slots_per_rank += o->experts.spare_slots + o->experts.movable; // empty ones, behind the others
    e->moving.movable = o->experts.movable;
    if (status == COT_OK && o->experts.placement && o->experts.tables)
        status = cot_engine_tables_agree(groups, o->experts.tables, &e->layout, name, error);
    if (status == COT_OK && o->experts.routing)
        status =
            cot_engine_replay_check_layout(&e->replay, &e->layout, (int32_t)e->config->gate.top_k, error);
    if (status != COT_OK || e->layout.slots_per_rank <= COT_MAX_EXPERTS / o->group.ranks) return status;
    const char *whose = o->experts.placement ? name : o->experts.tables ? o->experts.tables : "spare-slots";
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "'%s' uses %d slots of a rank, at most %d can be on %d ranks", whose,
                    (int)e->layout.slots_per_rank, COT_MAX_EXPERTS / o->group.ranks, o->group.ranks);
}

/* How rows travel: what the operator does where nobody says. Tokens that s-moe foretells by tables go in one message, once to a
 * rank. */
static cot_status choose_exchange(cot_engine *e, const cot_engine_resolved *o, cot_error *error)
{
    cot_runner_options *r = &e->runner;
    cot_moe_options moe = {.combine = r->combine,
                           .a2a = (cot_moe_a2a)o->choice.experts_a2a,
                           .dedup = (cot_moe_dedup)o->choice.experts_dedup};
    const bool foretold = !r->data_parallel && r->pipeline.s_moe && e->tables;
    cot_error why;
    const cot_status status = cot_engine_check_reserve(r->op, r->sms_reserve, error);
    if (status != COT_OK) return status;
    if (foretold && moe.a2a == COT_A2A_AUTO) moe.a2a = COT_A2A_ONE_SHOT;
    if (foretold && moe.dedup == COT_DEDUP_AUTO && moe.a2a != COT_A2A_PADDED) moe.dedup = COT_DEDUP_ON;
    if (r->op->settle(&moe, &why) != COT_OK) return cot_fail(error, COT_INVALID_ARGUMENT, "%s", why.message);
    r->a2a = moe.a2a;
    r->dedup = moe.dedup;
    return COT_OK;
}

/* ---- memory ---- */

/* Threads that compute at once, over all processes of the group. */
static int threads_of_all(const cot_engine *e, const cot_fabric_backend *fabric)
{
    return !fabric->one_process && e->info.ranks > e->runner.threads ? e->info.ranks : e->runner.threads;
}

/* The experts on a rank; what huge pages add where slots are empty between them, or experts that come, in `*rounding`. */
static size_t expert_bytes_on(const cot_engine *e, int rank, size_t *rounding)
{
    enum { TWO_PAGES = 4 << 20 };
    const cot_expert_layout *layout = &e->layout;
    size_t all = 0, layers = 0;
    const int64_t own = cot_runner_expert_layers(&e->runner);
    for (int32_t l = 0; l < own; l++) {
        const size_t bytes = (size_t)e->networks.slot_bytes[l];
        size_t held = 0;
        for (int64_t i = layout->first[l]; i < layout->first[l + 1]; i++) held += layout->rank[i] == rank;
        layers += held > 0;
        all += held * bytes;
    }
    const size_t empty = cot_runner_pools_bytes(&e->runner) - all;
    *rounding = e->runner.movable || empty < layers * TWO_PAGES ? empty : layers * TWO_PAGES;
    return all;
}

const char *cot_engine_weights_name(const cot_engine *e)
{
    const int64_t first = e->config->moe_layers ? e->moe_layer[0] : 0;
    return cot_format_row_of(cot_networks_expert(&e->networks, first, 0)->up)->name;
}

cot_scheduler_limits cot_engine_limits(const cot_engine *e)
{
    const bool by_experts = e->admits_by_experts || e->homes_by_experts;
    return (cot_scheduler_limits){
        .sequences = e->runner.sequences,
        .pages = e->runner.pages,
        .step_tokens = e->runner.step_tokens,
        .step_logits = e->runner.step_logits,
        .step_maps = e->runner.step_maps,
        .homes = e->runner.data_parallel ? e->info.ranks : 1,
        .block = e->block_tokens,
        .snapshots = e->runner.snapshots,
        .step_states = e->runner.step_states,
        .max_wait_steps = e->max_wait_steps,
        .foresight = {.cells = by_experts ? e->config->moe_layers * e->config->gate.experts : 0,
                      .admits = e->admits_by_experts,
                      .expect = cot_engine_expect,
                      .layout = e->homes_by_experts ? cot_engine_layout_now : NULL,
                      .context = e}};
}

/* Processes that were started from outside each have weights of their own, and an embedding. */
static size_t bytes_here(const cot_engine_sizes *s, size_t embedding, const cot_fabric_backend *fabric,
                         int ranks)
{
    const int here = cot_launch_started().here;
    if (!fabric->from_outside || !here) return s->total_bytes;
    return (size_t)here * (s->shared_bytes + s->rank_bytes + embedding +
                           (s->total_bytes - s->weight_bytes - embedding) / (size_t)ranks);
}

/* What opening and then running will take, with `whole` bytes of weights that all ranks share: all that a step at the
 * worst routing may touch. */
static cot_status measure(cot_engine *e, const cot_fabric_backend *fabric, size_t whole,
                          cot_engine_sizes *sizes, cot_error *error)
{
    enum {
        ROUND = 4 << 20,
        TABLES = 16 << 20
    }; // what huge pages and small things add: to a rank's, to the engine's
    const int ranks = e->info.ranks;
    *sizes = (cot_engine_sizes){
        .weight_bytes = whole, .shared_bytes = whole, .available_bytes = cot_memory_available()};
    cot_status status = COT_OK;
    size_t cache = 0, other = TABLES;
    for (int rank = 0; rank < ranks && status == COT_OK; rank++) {
        cot_runner_sizes runner;
        status = cot_runner_measure(&runner, &e->runner, rank, ranks, error);
        size_t rounding, own = runner.weights + expert_bytes_on(e, rank, &rounding);
        sizes->weight_bytes += own;
        sizes->rank_bytes = own > sizes->rank_bytes ? own : sizes->rank_bytes;
        other += runner.scratch + runner.buffers + rounding + ROUND;
        const size_t kept = runner.cache + runner.states;
        sizes->states_bytes = e->runner.data_parallel ? runner.states : sizes->states_bytes + runner.states;
        if (!e->runner.data_parallel)
            cache += kept;
        else { // a page, or a sequence's state, is on one rank, between those that the rank does not touch
            const size_t holes = kept - kept / (size_t)ranks;
            cache = kept;
            other += holes < ROUND ? holes : ROUND;
        }
    }
    sizes->snapshots = sizes->states_bytes ? e->runner.snapshots : 0;
    sizes->state_bytes = sizes->states_bytes / (size_t)(e->runner.sequences + e->runner.snapshots);
    cot_runner_options all = e->runner;
    all.threads = threads_of_all(e, fabric);
    cot_arena attention = {0};
    cot_runner_lay_out_attention(&attention, &all);
    const cot_scheduler_limits limits = cot_engine_limits(e);
    const size_t embedding = cot_embedding_bytes(e->checkpoint);
    const size_t plans = 2 * (size_t)ranks *
                         cot_plan_bytes(e->runner.step_tokens, e->runner.step_maps, e->runner.step_states,
                                        ranks); // two on each rank
    const size_t changes = (size_t)cot_expert_changes_room(&e->layout) * sizeof(int32_t),
                 epochs = (size_t)(ranks + 1) * (2 * cot_expert_epoch_bytes(&e->layout) + changes);
    sizes->weights = cot_engine_weights_name(e);
    sizes->weights_attention = cot_format_row_of(e->whole.attention[0].output.format)->name;
    sizes->weights_head = cot_format_row_of(e->whole.output.format)->name;
    sizes->total_bytes = sizes->weight_bytes + embedding + cache + other + attention.used +
                         cot_scheduler_bytes(&limits) + cot_profiles_bytes(&e->profiles, &limits) + plans +
                         epochs;
    sizes->here_bytes = bytes_here(sizes, embedding, fabric, ranks);
    return status;
}

cot_status cot_engine_lay_out(cot_engine *e, const cot_engine_resolved *options, cot_loader *load,
                              cot_engine_sizes *sizes, cot_error *error)
{
    const cot_config *c = e->config;
    cot_arena whole = {0};
    cot_status status = fill_runner(e, options, error);
    e->moe_layer = calloc((size_t)c->layers, sizeof *e->moe_layer);
    e->whole.layers = calloc((size_t)c->layers, sizeof *e->whole.layers);
    e->whole.attention = calloc((size_t)c->layers, sizeof *e->whole.attention);
    if (status == COT_OK && (!e->moe_layer || !e->whole.layers || !e->whole.attention))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld layers", (long long)c->layers);
    if (status == COT_OK) status = lay_out_experts(e, &options->given, error);
    if (status == COT_OK) status = choose_schedule(e, options, error);
    if (status == COT_OK)
        status = cot_engine_pipeline_of(&e->runner.pipeline, options, e->tables, &e->layout, error);
    if (status == COT_OK) status = cot_rebalancing_check(e, options, error);
    if (status == COT_OK) e->runner.pipeline.row_of_id = e->row_of_id;
    if (status == COT_OK) status = choose_exchange(e, options, error);
    e->budgeting.moves = e->runner.gives_back = split_moves(options);
    e->runner.spare = options->given.experts.spare_slots;
    if (status == COT_OK) status = fill_pages(e, &options->given, error);
    if (status == COT_OK) status = check_pages(e, &options->given, error);
    if (status != COT_OK) return status;
    for (int64_t l = 0; l < c->layers; l++) cot_attention_heads(&e->whole.attention[l], c, l, 0, 1);
    cot_arena all_heads = {0}; // what steps read is told by them, even where each rank has its own
    if (!e->runner.data_parallel)
        cot_attention_weights_walk(e->whole.attention, e->checkpoint, e->runner.precision, &all_heads, load);
    cot_whole_weights_walk(&e->whole, e->checkpoint, e->runner.precision, &e->networks, e->runner.op->weights,
                           e->runner.data_parallel, &whole, load);
    status = measure(e, options->fabric, whole.used, sizes, error);
    if (e->budgeting.moves) { // slots take what pages leave
        sizes->total_bytes -= spare_bytes(e, &options->given);
        sizes->total_bytes += cot_page_worth_bytes(e->runner.pages, e->block_tokens) +
                              (size_t)e->runner.pages * 2 * sizeof(int32_t);
        sizes->here_bytes = sizes->total_bytes;
    }
    return status;
}

static cot_status measure_with(cot_engine_sizes *sizes, cot_checkpoint *checkpoint,
                               const cot_engine_options *options, cot_error *error)
{
    cot_engine_resolved resolved;
    cot_loader *load = NULL;
    cot_status status = cot_engine_resolve(&resolved, options, error);
    if (status != COT_OK) return status;
    cot_engine *e = calloc(1, sizeof *e);
    if (!e) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an engine");
    e->checkpoint = checkpoint;
    e->config = cot_checkpoint_config(checkpoint);
    status = cot_loader_open(&load, checkpoint, error);
    if (status == COT_OK) status = cot_engine_lay_out(e, &resolved, load, sizes, error);
    cot_loader_close(load);
    e->checkpoint = NULL; // the caller's
    cot_engine_close(e);
    return status;
}

cot_status cot_engine_measure(cot_engine_sizes *sizes, const char *folder, const cot_engine_options *options,
                              size_t count, cot_error *error)
{
    cot_checkpoint *checkpoint = NULL;
    char *notes = NULL;
    cot_status status;
    if (count) memset(sizes, 0, count * sizeof *sizes);
    status = cot_checkpoint_open(&checkpoint, folder, &notes, error);
    if (status != COT_OK && !cot_gguf_is_file(folder))
        status = cot_checkpoint_of_config(&checkpoint, folder, error);
    free(notes);
    for (size_t i = 0; i < count && status == COT_OK; i++)
        status = measure_with(&sizes[i], checkpoint, &options[i], error);
    if (status != COT_OK && count) memset(sizes, 0, count * sizeof *sizes);
    cot_checkpoint_close(checkpoint);
    return status;
}
