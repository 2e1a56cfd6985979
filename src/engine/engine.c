#include "base/error.h"
#include "base/integers.h"
#include "coterie/roof.h"
#include "engine/engine_state.h"
#include "engine/exchange.h"
#include "engine/likeness.h"
#include "engine/memory.h"
#include "engine/numbers.h"
#include "engine/pipeline.h"
#include "engine/replay.h"
#include "engine/tables.h"
#include "kernels/cores.h"
#include "kernels/pack.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void cot_engine_options_init(cot_engine_options *options)
{
    *options = (cot_engine_options){.size = sizeof *options,
                                    .ranks = 1,
                                    .precision = "bf16",
                                    .attention = "tp",
                                    .combine = "exact",
                                    .timeout_ns = 300LL * 1000000000,
                                    .step_tokens = 512,
                                    .sequences = 16,
                                    .max_wait_steps = 8};
}

const char *const *cot_engine_fabrics(void)
{
    return cot_fabric_backend_names();
}

/* ---- options ---- */

static cot_status in_range(const char *name, int64_t value, int64_t least, int64_t most, cot_error *error)
{
    if (value >= least && value <= most) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "%s %lld is not in [%lld, %lld]", name, (long long)value,
                    (long long)least, (long long)most);
}

static cot_status check_options(const cot_engine_options *o, cot_error *error)
{
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "engine options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (strcmp(o->attention, "tp") != 0 && strcmp(o->attention, "dp") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown attention '%s' (tp or dp)", o->attention);
    cot_engine_numbers numbers;
    cot_engine_exchange exchange;
    cot_status status = o->op ? cot_engine_find_operator(o->op, error) : COT_OK;
    if (status == COT_OK) status = cot_fabric_backend_check(o->fabric, error);
    if (status == COT_OK) status = cot_engine_exchange_of(&exchange, o->a2a, o->dedup, error);
    if (status == COT_OK)
        status = cot_engine_numbers_of(&numbers, o->precision, o->combine, o->payload, error);
    if (status == COT_OK) status = in_range("ranks", o->ranks, 1, COT_MAX_RANKS, error);
    if (status == COT_OK) status = in_range("threads", o->threads, 0, 1024, error);
    if (status == COT_OK)
        status = in_range("the time-out", o->timeout_ns, 100000000, 1000000000000000, error);
    if (status == COT_OK) status = in_range("multiprocessors in reserve", o->sms_reserve, 0, 4096, error);
    if (status == COT_OK) status = in_range("step tokens", o->step_tokens, 1, 65536, error);
    if (status == COT_OK) status = in_range("sequences", o->sequences, 1, 1024, error);
    if (status == COT_OK)
        status = in_range("expert slots", o->expert_slots, 0, COT_MAX_EXPERTS / o->ranks, error);
    if (status == COT_OK) status = in_range("layers with experts", o->expert_layers, 0, INT32_MAX, error);
    if (status == COT_OK) status = in_range("kv tokens", o->kv_tokens, 0, (int64_t)1 << 40, error);
    if (status == COT_OK)
        status = in_range("the time between tokens", o->tbt_ns, COT_TBT_AUTO, INT64_MAX, error);
    if (status == COT_OK) status = in_range("most steps to wait", o->max_wait_steps, 0, 1000000, error);
    if (status == COT_OK) status = in_range("tokens of a block", o->block_tokens, 0, COT_KV_PAGE, error);
    if (status == COT_OK && o->block_tokens & (o->block_tokens - 1))
        status = cot_fail(error, COT_INVALID_ARGUMENT, "tokens of a block %lld are no power of two",
                          (long long)o->block_tokens);
    return status;
}

static int thread_count(const cot_engine_options *o)
{
    const cot_launch_place place = cot_launch_started();
    if (o->threads) return o->threads;
    if (!cot_fabric_backend_find(o->fabric)->from_outside || !place.here) return cot_cores();
    // What starts ranks may bind each to its part of the host: all of that is theirs together, and as much on each host.
    const long cores = cot_larger(sysconf(_SC_NPROCESSORS_ONLN), 1);
    return (int)cot_smaller((cores * place.ranks + place.here - 1) / place.here, COT_CORES_MOST);
}

static cot_status fill_runner(cot_engine *e, const cot_engine_options *o, cot_error *error)
{
    const cot_config *c = e->config;
    cot_runner_options *r = &e->runner;
    int threads = thread_count(o);
    cot_engine_numbers numbers;
    cot_status status = cot_engine_numbers_of(&numbers, o->precision, o->combine, o->payload, error);
    if (status == COT_OK)
        status = cot_precision_set_weights(
            &numbers.precision, (cot_weight_words){o->weights, o->weights_attention, o->weights_head},
            cot_checkpoint_formats(e->checkpoint), error);
    if (status != COT_OK) return status;
    *r = (cot_runner_options){.checkpoint = e->checkpoint,
                              .whole = &e->whole,
                              .precision = numbers.precision,
                              .data_parallel = strcmp(o->attention, "dp") == 0,
                              .threads = threads,
                              .combine = numbers.combine,
                              .payload = numbers.payload,
                              .layout = &e->layout,
                              .expert_layers = o->expert_layers,
                              .op = cot_moe_operator_find(o->op ? o->op : cot_moe_operator_names()[0]),
                              .sms_reserve = o->sms_reserve,
                              .step_tokens = o->step_tokens,
                              .capture = o->capture_routing,
                              .count_exchanges = o->count_exchanges};
    enum {
        LOGITS_BYTES = 64 << 20
    }; // rank 0 holds this much of a step's logits at most, though at least a row a sequence
    int64_t rows = LOGITS_BYTES / ((int64_t)sizeof(float) * c->vocab);
    r->sequences = o->sequences < o->step_tokens ? o->sequences : o->step_tokens;
    r->step_logits = rows < r->sequences ? r->sequences : rows < o->step_tokens ? rows : o->step_tokens;
    int64_t kv_tokens = o->kv_tokens ? o->kv_tokens : c->max_context;
    if (!o->block_tokens &&
        kv_tokens / c->max_context >= r->sequences) // no more than all sequences at their longest
        kv_tokens = r->sequences * c->max_context;
    r->pages = cot_page_count(kv_tokens) + r->sequences; // every sequence may leave a page part empty
    r->step_maps = cot_scheduler_step_maps(r->step_tokens, r->sequences, c->max_context, o->block_tokens);
    e->block_tokens = o->block_tokens;
    e->tbt_ns = o->tbt_ns;
    e->max_wait_steps = o->max_wait_steps;
    e->info.threads = threads;
    e->info.ranks = o->ranks;
    return cot_kernels_choose(&r->kernels, o->isa, error);
}

/* As many pages as kv_bytes has room for, where that is given. */
static cot_status fill_pages(cot_engine *e, const cot_engine_options *o, cot_error *error)
{
    const int counted =
        e->runner.data_parallel ? 1 : o->ranks; // a page is on one rank, or a part of it on each
    size_t page_bytes = 0;
    cot_status status = COT_OK;
    if (!o->kv_bytes) return COT_OK;
    e->runner.pages = 1;
    for (int rank = 0; rank < counted && status == COT_OK; rank++) {
        cot_runner_sizes sizes;
        status = cot_runner_measure(&sizes, &e->runner, rank, o->ranks, error);
        page_bytes += sizes.cache;
    }
    if (status != COT_OK) return status;
    if (o->kv_bytes < page_bytes)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%zu bytes of KV cache hold no page, which has %zu",
                        o->kv_bytes, page_bytes);
    const size_t pages = o->kv_bytes / page_bytes;
    const int64_t filled = e->runner.sequences *
                           cot_page_count(e->config->max_context), // without blocks no more are filled
        most = o->block_tokens || filled > INT32_MAX ? INT32_MAX : filled;
    e->runner.pages = pages < (size_t)most ? (int64_t)pages : most;
    return COT_OK;
}

/* ---- memory ---- */

/* Threads that compute at once, over all processes of the group. */
static int threads_of_all(const cot_engine *e, const cot_fabric_backend *fabric)
{
    return !fabric->one_process && e->info.ranks > e->runner.threads ? e->info.ranks : e->runner.threads;
}

/* The experts on a rank; what huge pages add where slots are empty between them comes in `*rounding`. */
static size_t expert_bytes_on(const cot_engine *e, int rank, size_t *rounding)
{
    enum { TWO_PAGES = 4 << 20 };
    const cot_ffn_shape shape = cot_model_expert_shape(e->config, e->runner.precision);
    const size_t bytes = e->runner.op->weights->slot_bytes(&shape);
    const cot_expert_layout *layout = &e->layout;
    size_t all = 0, layers = 0;
    const int64_t own = cot_runner_expert_layers(&e->runner);
    for (int32_t l = 0; l < own; l++) {
        const size_t before = all;
        for (int64_t i = layout->first[l]; i < layout->first[l + 1]; i++) all += layout->rank[i] == rank;
        layers += all > before;
    }
    const size_t empty = ((size_t)own * (size_t)layout->slots_per_rank - all) * bytes;
    *rounding = empty < layers * TWO_PAGES ? empty : layers * TWO_PAGES;
    return all * bytes;
}

static cot_scheduler_limits limits_of(const cot_engine *e)
{
    return (cot_scheduler_limits){.sequences = e->runner.sequences,
                                  .pages = e->runner.pages,
                                  .step_tokens = e->runner.step_tokens,
                                  .step_logits = e->runner.step_logits,
                                  .step_maps = e->runner.step_maps,
                                  .homes = e->runner.data_parallel ? e->info.ranks : 1,
                                  .block = e->block_tokens,
                                  .max_wait_steps = e->max_wait_steps};
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
        if (!e->runner.data_parallel)
            cache += runner.cache;
        else { // a page is on one rank, between pages that the rank does not touch
            const size_t holes = runner.cache - runner.cache / (size_t)ranks;
            cache = runner.cache;
            other += holes < ROUND ? holes : ROUND;
        }
    }
    cot_runner_options all = e->runner;
    all.threads = threads_of_all(e, fabric);
    cot_arena attention = {0};
    cot_runner_lay_out_attention(&attention, &all);
    const cot_scheduler_limits limits = limits_of(e);
    const size_t embedding = cot_embedding_bytes(e->checkpoint);
    const size_t plans =
        2 * (size_t)ranks *
        cot_plan_bytes(e->runner.step_tokens, e->runner.step_maps, ranks); // two on each rank
    const size_t changes = (size_t)cot_expert_changes_room(&e->layout) * sizeof(int32_t),
                 epochs = (size_t)(ranks + 1) * (2 * cot_expert_epoch_bytes(&e->layout) + changes);
    sizes->weights = cot_format_row_of(e->runner.precision.experts)->name;
    sizes->weights_attention = cot_format_row_of(e->whole.attention[0].output.format)->name;
    sizes->weights_head = cot_format_row_of(e->whole.output.format)->name;
    sizes->total_bytes = sizes->weight_bytes + embedding + cache + other + attention.used +
                         cot_scheduler_bytes(&limits) + plans + epochs;
    sizes->here_bytes = bytes_here(sizes, embedding, fabric, ranks);
    return status;
}

static cot_status check_memory(const cot_engine_sizes *sizes, cot_error *error)
{
    if (sizes->total_bytes <= sizes->available_bytes) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "the model needs %.2f GB of memory, %.2f GB are available",
                    (double)sizes->total_bytes / 1e9, (double)sizes->available_bytes / 1e9);
}

/* ---- open ---- */

static cot_status load_whole(cot_engine *e, cot_loader *load, cot_error *error)
{
    cot_pool *pool = NULL;
    cot_status status = cot_pool_open(&pool, e->info.threads - 1, error);
    if (status != COT_OK) return status;
    cot_whole_weights_walk(&e->whole, e->checkpoint, e->runner.precision, e->runner.op->weights,
                           e->runner.data_parallel, &e->whole.arena, load);
    status = cot_loader_run(load, pool, &e->progress, NULL, error);
    cot_pool_close(pool);
    return status;
}

static cot_status open_loop(cot_engine *e, cot_error *error)
{
    const cot_config *c = e->config;
    cot_loop_options options = {.limits = limits_of(e),
                                .tbt_ns = e->tbt_ns,
                                .context_tokens = c->max_context,
                                .ranks = e->info.ranks,
                                .experts = c->gate.experts,
                                .chosen = c->moe_layers ? c->gate.top_k : 0};
    cot_executor ranks;
    cot_status status = cot_ranks_open(&ranks, e, error);
    cot_engine_cost_prior(e, options.prior);
    return status == COT_OK ? cot_loop_open(&e->loop, &options, &ranks, error) : status;
}

static const char *name_of_type(cot_dtype type)
{
    return type == COT_F32 ? "fp32" : "bf16";
}

static void describe(cot_engine *e, size_t weight_bytes)
{
    const cot_config *c = e->config;
    const cot_runner_options *r = &e->runner;
    cot_engine_info *i = &e->info;
    i->architecture = c->architecture;
    i->isa = e->runner.kernels->name;
    i->vocab = c->vocab;
    i->hidden = c->hidden;
    i->layers = c->layers;
    i->heads = c->heads;
    i->kv_heads = c->kv_heads;
    i->experts = c->gate.experts;
    i->top_k = c->gate.top_k;
    i->context_tokens = c->max_context;
    i->moe_layers = c->moe_layers;
    i->moe_layer = e->moe_layer;
    i->weight_bytes = weight_bytes;
    i->precision = r->precision.rounded ? "int8" : name_of_type(r->precision.type);
    i->weights = cot_format_row_of(r->precision.experts)->name;
    i->weights_attention = cot_format_row_of(e->whole.attention[0].output.format)->name;
    i->weights_head = cot_format_row_of(e->whole.output.format)->name;
    i->payload = name_of_type(r->payload);
    i->op = r->op->name;
    i->combine = r->combine == COT_COMBINE_EXACT ? "exact" : "reduced";
    i->a2a = cot_moe_a2a_name(r->a2a);
    i->dedup = r->dedup == COT_DEDUP_ON ? "on" : "off";
    i->attention = r->data_parallel ? "dp" : "tp";
    if (!r->data_parallel) {
        i->pipeline = cot_engine_pipeline_name(&r->pipeline);
        i->predict = cot_engine_predict_name(&r->pipeline);
        i->collective = cot_engine_collective_name(&r->pipeline);
    }
    i->eos = c->eos;
    i->eos_count = c->eos_count;
    i->kv_homes = r->data_parallel ? i->ranks : 1;
    i->block_tokens = e->block_tokens;
}

static cot_status lay_out_experts(cot_engine *e, const cot_engine_options *o, cot_error *error)
{
    const cot_expert_layout_shape shape = {.n_layers = (int32_t)e->config->moe_layers,
                                           .n_experts = (int32_t)e->config->gate.experts,
                                           .n_ranks = o->ranks,
                                           .layers = e->moe_layer,
                                           .slots_per_rank = o->expert_slots};
    const char *name = o->placement_name ? o->placement_name : "the placement";
    const cot_engine_known known = {o->routing && o->routing->trace ? o->routing->name : e->name,
                                    e->info.model_hash};
    cot_status status = COT_OK;
    cot_config_list_moe_layers(e->moe_layer, e->config);
    if (o->routing) status = cot_engine_replay_of(&e->replay, o->routing, e->config, e->moe_layer, error);
    if (o->routing) e->runner.replay = &e->replay;
    if (status == COT_OK && o->tables)
        status = cot_engine_tables_open(&e->tables, o->tables, e->config, &shape, o->routing, &known, error);
    if (status == COT_OK && o->placement)
        status = cot_engine_placement_check(o->placement, name, &known, error);
    if (status == COT_OK) status = cot_engine_replay_rows(&e->row_of_id, o->routing, e->tables, error);
    if (status != COT_OK) return status;
    e->first_table = cot_engine_replay_first_layer(o->routing);
    const int32_t *groups = cot_engine_tables_groups(e->tables, e->first_table);
    if (o->placement)
        status = cot_expert_layout_of_map(&e->layout, &shape, o->placement, name, error);
    else
        status = cot_expert_layout_of_ranks(&e->layout, &shape, groups, error);
    if (status == COT_OK && o->placement && o->tables)
        status = cot_engine_tables_agree(groups, o->tables, &e->layout, name, error);
    if (status == COT_OK && o->routing)
        status =
            cot_engine_replay_check_layout(&e->replay, &e->layout, (int32_t)e->config->gate.top_k, error);
    if (status != COT_OK || e->layout.slots_per_rank <= COT_MAX_EXPERTS / o->ranks) return status;
    return cot_fail(
        error, COT_INVALID_ARGUMENT, "'%s' uses %d slots of a rank, at most %d can be on %d ranks",
        o->placement ? name : o->tables, (int)e->layout.slots_per_rank, COT_MAX_EXPERTS / o->ranks, o->ranks);
}

static cot_status choose_exchange(cot_engine *e, const cot_engine_options *o, cot_error *error)
{
    cot_engine_exchange exchange;
    cot_runner_options *r = &e->runner;
    const bool foretold = !r->data_parallel && r->pipeline.s_moe && e->tables;
    cot_status status = cot_engine_exchange_of(&exchange, o->a2a, o->dedup, error);
    if (status == COT_OK) status = cot_engine_check_reserve(r->op, o->sms_reserve, error);
    if (status == COT_OK) status = cot_engine_exchange_settle(&exchange, r->op, r->combine, foretold, error);
    r->a2a = exchange.a2a;
    r->dedup = exchange.dedup;
    return status;
}

/* Lays the weights out and measures them; nothing is loaded. */
static cot_status lay_out(cot_engine *e, const cot_engine_options *options, cot_loader *load,
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
    if (status == COT_OK) status = lay_out_experts(e, options, error);
    if (status == COT_OK)
        status = cot_engine_pipeline_of(&e->runner.pipeline, options, e->tables, &e->layout, error);
    if (status == COT_OK) e->runner.pipeline.row_of_id = e->row_of_id;
    if (status == COT_OK) status = choose_exchange(e, options, error);
    if (status == COT_OK) status = fill_pages(e, options, error);
    if (status != COT_OK) return status;
    for (int64_t l = 0; l < c->layers; l++) cot_attention_heads(&e->whole.attention[l], c, 0, 1);
    cot_arena all_heads = {0}; // what steps read is told by them, even where each rank has its own
    if (!e->runner.data_parallel)
        cot_attention_weights_walk(e->whole.attention, e->checkpoint, e->runner.precision, &all_heads, load);
    cot_whole_weights_walk(&e->whole, e->checkpoint, e->runner.precision, e->runner.op->weights,
                           e->runner.data_parallel, &whole, load);
    return measure(e, cot_fabric_backend_find(options->fabric), whole.used, sizes, error);
}

/* Ranks that were started from outside each have weights of their own, and find out together. */
static cot_status agree(cot_engine *e, const cot_engine_options *options, const cot_engine_sizes *sizes,
                        cot_error *error)
{
    const cot_fabric_backend *fabric = cot_fabric_backend_find(options->fabric);
    if (!fabric->from_outside) return check_memory(sizes, error);
    const cot_launch_account account = {.model = e->likeness,
                                        .options = cot_likeness_of_options(options),
                                        .placement = cot_likeness_of_layout(&e->layout),
                                        .needed_bytes = sizes->here_bytes /
                                                        (size_t)cot_larger(cot_launch_started().here, 1),
                                        .available_bytes = sizes->available_bytes};
    return cot_launch_agree(fabric, &account, COT_OK, error);
}

/* Ranks that are processes inherit it, each its own copy of what it touches. */
static cot_status open_attention_scratch(cot_engine *e, cot_error *error)
{
    cot_arena measure = {0};
    cot_runner_lay_out_attention(&measure, &e->runner);
    const cot_status status = cot_arena_open(&e->attention, measure.used, error);
    if (status == COT_OK)
        e->runner.attention_scratch = cot_runner_lay_out_attention(&e->attention, &e->runner);
    return status;
}

/* Of ranks that were started from outside each would count its own host's cores and ranks: the first tells all. */
static cot_status share_threads(cot_engine_options *o, cot_error *error)
{
    if (o->threads || !cot_fabric_backend_find(o->fabric)->from_outside) return COT_OK;
    o->threads = thread_count(o);
    return cot_launch_share(&o->threads, sizeof o->threads, error);
}

static cot_status start(cot_engine *e, const cot_engine_options *given, cot_error *error)
{
    cot_loader *load = NULL;
    cot_engine_sizes sizes = {0};
    cot_engine_options own = *given, *const options = &own;
    cot_status status = cot_loader_open(&load, e->checkpoint, error);
    if (status == COT_OK) status = share_threads(&own, error);
    if (status == COT_OK) status = lay_out(e, options, load, &sizes, error);
    if (status == COT_OK) status = agree(e, options, &sizes, error);
    if (status == COT_OK) status = cot_arena_open(&e->whole.arena, sizes.shared_bytes, error);
    const size_t weights = sizes.weight_bytes;
    e->progress = (cot_loader_progress){
        .total_bytes = weights, .report = options->progress, .context = options->progress_context};
    if (status == COT_OK) status = load_whole(e, load, error);
    if (status == COT_OK) status = cot_embedding_open(&e->whole.embedding, e->checkpoint, error);
    cot_loader_close(load);
    if (status == COT_OK) status = open_loop(e, error);
    if (status == COT_OK) status = open_attention_scratch(e, error);
    if (status == COT_OK) status = cot_placing_open(&e->placing, &e->layout, error);
    if (status != COT_OK) return status;
    cot_engine_group_options group = {.runner = e->runner,
                                      .ranks = options->ranks,
                                      .threads = e->info.threads,
                                      .fabric = cot_fabric_backend_find(options->fabric),
                                      .timeout_ns = options->timeout_ns,
                                      .progress = &e->progress};
    status = cot_engine_group_open(&e->group, &group, error);
    if (status == COT_OK && options->progress) options->progress(options->progress_context, weights, weights);
    describe(e, weights);
    return status;
}

/* An engine that has the checkpoint, and nothing else; on failure the checkpoint is closed. */
static cot_status new_engine(cot_engine **out, cot_checkpoint *checkpoint, cot_error *error)
{
    cot_engine *e = *out = calloc(1, sizeof *e);
    if (!e) {
        cot_checkpoint_close(checkpoint);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an engine");
    }
    e->checkpoint = checkpoint;
    e->config = cot_checkpoint_config(checkpoint);
    return COT_OK;
}

/* What routes: the model's gates, a trace, or dice. */
static cot_status find_model_hash(cot_engine *e, const cot_engine_routing *routing, cot_error *error)
{
    if (!routing) return cot_checkpoint_hash(&e->info.model_hash, e->checkpoint, error);
    e->info.model_hash = routing->trace ? routing->trace->model_hash : 0;
    return COT_OK;
}

static cot_status open_engine(cot_engine **out, cot_checkpoint *checkpoint, const char *name,
                              const cot_engine_options *options, uint64_t likeness, cot_error *error)
{
    cot_engine *e;
    cot_status status = new_engine(&e, checkpoint, error);
    if (status != COT_OK) return status;
    e->likeness = likeness;
    e->name = name;
    status = find_model_hash(e, options->routing, error);
    if (status == COT_OK) status = start(e, options, error);
    e->name = NULL;
    if (status == COT_OK)
        *out = e;
    else
        cot_engine_close(e);
    return status;
}

static cot_status measure_with(cot_engine_sizes *sizes, cot_checkpoint *checkpoint,
                               const cot_engine_options *options, cot_error *error)
{
    cot_engine *e = calloc(1, sizeof *e);
    cot_loader *load = NULL;
    if (!e) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an engine");
    e->checkpoint = checkpoint;
    e->config = cot_checkpoint_config(checkpoint);
    cot_status status = cot_loader_open(&load, checkpoint, error);
    if (status == COT_OK) status = lay_out(e, options, load, sizes, error);
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
    cot_status status = COT_OK;
    if (count) memset(sizes, 0, count * sizeof *sizes);
    for (size_t i = 0; i < count && status == COT_OK; i++) status = check_options(&options[i], error);
    if (status == COT_OK && cot_checkpoint_open(&checkpoint, folder, &notes, NULL) != COT_OK)
        status = cot_checkpoint_of_config(&checkpoint, folder, error);
    free(notes);
    for (size_t i = 0; i < count && status == COT_OK; i++)
        status = measure_with(&sizes[i], checkpoint, &options[i], error);
    cot_checkpoint_close(checkpoint);
    return status;
}

cot_status cot_engine_open(cot_engine **engine, const char *folder, const cot_engine_options *options,
                           char **notes, cot_error *error)
{
    cot_checkpoint *checkpoint;
    char *own_notes = NULL;
    *engine = NULL;
    if (notes) *notes = NULL;
    cot_status status = check_options(options, error);
    if (status == COT_OK && options->expert_layers)
        status = cot_fail(error, COT_INVALID_ARGUMENT, "layers share experts in random models alone");
    if (status == COT_OK) status = cot_checkpoint_open(&checkpoint, folder, &own_notes, error);
    if (status == COT_OK)
        status = open_engine(engine, checkpoint, folder, options, cot_likeness_of_folder(folder), error);
    if (status == COT_OK && notes)
        *notes = own_notes;
    else
        free(own_notes);
    return status;
}

cot_status cot_engine_open_random(cot_engine **engine, const char *config_json, size_t bytes, uint64_t seed,
                                  const cot_engine_options *options, cot_error *error)
{
    cot_checkpoint *checkpoint;
    *engine = NULL;
    cot_status status = check_options(options, error);
    if (status == COT_OK) status = cot_checkpoint_random(&checkpoint, config_json, bytes, seed, error);
    return status == COT_OK ? open_engine(engine, checkpoint, "the random model", options,
                                          cot_likeness_of_text(config_json, bytes, seed), error)
                            : status;
}

bool cot_engine_lives(const cot_engine *e)
{
    return cot_engine_group_lives(e->group);
}

void cot_engine_end_ranks(cot_engine *e)
{
    cot_engine_group_close(e->group);
    e->group = NULL;
}

void cot_engine_close(cot_engine *e)
{
    if (!e) return;
    cot_engine_group_close(e->group);
    cot_arena_close(&e->whole.arena);
    cot_arena_close(&e->attention);
    cot_embedding_close(&e->whole.embedding);
    cot_checkpoint_close(e->checkpoint);
    cot_placing_close(&e->placing);
    cot_expert_layout_free(&e->layout);
    cot_predictor_close(e->tables);
    cot_loop_close(&e->loop);
    cot_ranks_close(&e->ranks);
    void *owned[] = {e->whole.layers, e->whole.attention, e->moe_layer, e->row_of_id};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(e);
}

const cot_engine_info *cot_engine_describe(const cot_engine *engine)
{
    return &engine->info;
}
