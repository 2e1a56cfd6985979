/* Opening an engine, and closing it. */
#include "base/error.h"
#include "base/integers.h"
#include "engine/likeness.h"
#include "engine/measure.h"
#include "engine/pipeline.h"
#include "engine/rounded.h"

#include <stdio.h>
#include <stdlib.h>

const char *const *cot_engine_fabrics(void)
{
    return cot_fabric_backend_names();
}

static cot_status check_memory(const cot_engine *e, const cot_engine_options *o,
                               const cot_engine_sizes *sizes, cot_error *error)
{
    char shared[128] = "", states[160] = "";
    if (sizes->total_bytes <= sizes->available_bytes) return COT_OK;
    if (o->memory.total_bytes && o->memory.total_bytes < sizes->total_bytes)
        snprintf(shared, sizeof shared, ", %.2f GB of it for KV pages%s and spare slots",
                 (double)o->memory.total_bytes / 1e9, sizes->states_bytes ? ", states" : "");
    else if (o->memory.total_bytes) // more was given than pages can take
        snprintf(shared, sizeof shared, " with the most KV pages that it can use, %.2f GB were asked for",
                 (double)o->memory.total_bytes / 1e9);
    if (sizes->states_bytes)
        snprintf(states, sizeof states,
                 ", %.2f GB of %s for states of %lld sequences and %lld snapshots, %.1f MB each",
                 (double)sizes->states_bytes / 1e9, *shared ? "that" : "it", (long long)e->runner.sequences,
                 (long long)sizes->snapshots, (double)sizes->state_bytes / 1e6);
    return cot_fail(error, COT_OUT_OF_MEMORY, "the model needs %.2f GB of memory%s%s%c %.2f GB are available",
                    (double)sizes->total_bytes / 1e9, shared, states, *shared || *states ? ';' : ',',
                    (double)sizes->available_bytes / 1e9);
}

static cot_status load_whole(cot_engine *e, cot_loader *load, cot_error *error)
{
    cot_pool *pool = NULL;
    cot_status status = cot_pool_open(&pool, e->info.threads - 1, error);
    if (status != COT_OK) return status;
    cot_whole_weights_walk(&e->whole, e->checkpoint, e->runner.precision, &e->networks, e->runner.op->weights,
                           e->runner.data_parallel, &e->whole.arena, load);
    status = cot_loader_run(load, pool, &e->progress, NULL, error);
    cot_pool_close(pool);
    return status;
}

static cot_status open_loop(cot_engine *e, cot_error *error)
{
    const cot_config *c = e->config;
    cot_loop_options options = {.limits = cot_engine_limits(e),
                                .tbt_ns = e->tbt_ns,
                                .context_tokens = e->runner.context_tokens,
                                .ranks = e->info.ranks,
                                .experts = c->gate.experts,
                                .chosen = c->moe_layers ? c->gate.top_k : 0,
                                .at_once = cot_smaller(e->info.ranks, e->info.threads),
                                .profiles = e->profiles};
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
    i->context_tokens = r->context_tokens;
    i->moe_layers = c->moe_layers;
    i->moe_layer = e->moe_layer;
    i->weight_bytes = weight_bytes;
    i->precision = r->precision.rounded ? "int8" : name_of_type(r->precision.type);
    i->weights = cot_engine_weights_name(e);
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
    i->sequences = (int)r->sequences;
    i->movable = e->moving.movable;
    i->expert_slots = e->layout.slots_per_rank - i->movable;
    i->transit_places = cot_runner_transit_places(&e->runner);
}

/* Ranks that were started from outside each have weights of their own, and find out together. */
static cot_status agree(cot_engine *e, const cot_engine_resolved *options, const cot_engine_sizes *sizes,
                        cot_error *error)
{
    if (!options->fabric->from_outside) return check_memory(e, &options->given, sizes, error);
    const cot_launch_account account = {.model = e->likeness,
                                        .options = cot_likeness_of_options(&options->given),
                                        .placement = cot_likeness_of_layout(&e->layout),
                                        .needed_bytes = sizes->here_bytes /
                                                        (size_t)cot_larger(cot_launch_started().here, 1),
                                        .available_bytes = sizes->available_bytes};
    return cot_launch_agree(options->fabric, &account, COT_OK, error);
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
static cot_status share_threads(cot_engine_resolved *o, cot_error *error)
{
    int *threads = &o->given.group.threads;
    if (*threads || !o->fabric->from_outside) return COT_OK;
    *threads = cot_engine_threads(o);
    return cot_launch_share(threads, sizeof *threads, error);
}

static cot_status start(cot_engine *e, cot_engine_resolved *options, cot_error *error)
{
    cot_loader *load = NULL;
    cot_engine_sizes sizes = {0};
    const cot_engine_options *given = &options->given;
    cot_status status = cot_loader_open(&load, e->checkpoint, error);
    if (status == COT_OK) status = share_threads(options, error);
    if (status == COT_OK) status = cot_engine_lay_out(e, options, load, &sizes, error);
    if (status == COT_OK) status = agree(e, options, &sizes, error);
    if (status == COT_OK) status = cot_arena_open(&e->whole.arena, sizes.shared_bytes, error);
    const size_t weights = sizes.weight_bytes;
    e->progress = (cot_loader_progress){
        .total_bytes = weights, .report = given->watch.progress, .context = given->watch.progress_context};
    if (status == COT_OK) status = load_whole(e, load, error);
    if (status == COT_OK) status = cot_embedding_open(&e->whole.embedding, e->checkpoint, error);
    cot_loader_close(load);
    if (status == COT_OK) status = open_loop(e, error);
    if (status == COT_OK) status = open_attention_scratch(e, error);
    if (status == COT_OK) status = cot_placing_open(&e->placing, &e->runner, error);
    if (status == COT_OK) status = cot_rebalancing_open(e, options, error);
    if (status == COT_OK) status = cot_budgeting_open(e, error);
    if (status != COT_OK) return status;
    e->moving.usual = (cot_engine_moves_options){given->experts.migration_share,
                                                 (double)given->experts.migration_bandwidth};
    e->moving.timeout_ns = given->group.timeout_ns;
    cot_engine_group_options group = {.runner = e->runner,
                                      .ranks = given->group.ranks,
                                      .threads = e->info.threads,
                                      .fabric = options->fabric,
                                      .timeout_ns = given->group.timeout_ns,
                                      .progress = &e->progress};
    status = cot_engine_group_open(&e->group, &group, error);
    if (status == COT_OK && given->watch.progress)
        given->watch.progress(given->watch.progress_context, weights, weights);
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
                              cot_engine_resolved *options, uint64_t likeness, cot_error *error)
{
    cot_engine *e;
    cot_status status = new_engine(&e, checkpoint, error);
    if (status != COT_OK) return status;
    e->likeness = likeness;
    e->name = name;
    status = find_model_hash(e, options->given.experts.routing, error);
    if (status == COT_OK) status = start(e, options, error);
    e->name = NULL;
    if (status == COT_OK)
        *out = e;
    else
        cot_engine_close(e);
    return status;
}

cot_status cot_engine_open(cot_engine **engine, const char *folder, const cot_engine_options *options,
                           char **notes, cot_error *error)
{
    cot_checkpoint *checkpoint;
    char *own_notes = NULL;
    *engine = NULL;
    if (notes) *notes = NULL;
    cot_engine_resolved resolved;
    cot_status status = cot_engine_resolve(&resolved, options, error);
    if (status == COT_OK && options->experts.layers)
        status = cot_fail(error, COT_INVALID_ARGUMENT, "layers share experts in random models alone");
    if (status == COT_OK) status = cot_checkpoint_open(&checkpoint, folder, &own_notes, error);
    if (status == COT_OK)
        status = open_engine(engine, checkpoint, folder, &resolved, cot_likeness_of_folder(folder), error);
    if (status == COT_OK && notes) {
        status = cot_engine_note_rounded(&own_notes, *engine, error);
        if (status != COT_OK) {
            cot_engine_close(*engine);
            *engine = NULL;
        }
    }
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
    cot_engine_resolved resolved;
    cot_status status = cot_engine_resolve(&resolved, options, error);
    if (status == COT_OK) status = cot_checkpoint_random(&checkpoint, config_json, bytes, seed, error);
    return status == COT_OK ? open_engine(engine, checkpoint, "the random model", &resolved,
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
    cot_networks_close(&e->networks);
    cot_checkpoint_close(e->checkpoint);
    cot_moving_close(&e->moving);
    cot_rebalancing_close(&e->rebalancing);
    cot_budgeting_close(&e->budgeting);
    cot_placing_close(&e->placing);
    cot_expert_layout_free(&e->layout);
    cot_predictor_close(e->tables);
    cot_engine_signatures_close(&e->signatures);
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
