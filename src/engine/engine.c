#include "base/error.h"
#include "engine/engine_state.h"
#include "engine/memory.h"
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
                                    .step_tokens = 512,
                                    .sequences = 16};
}

const char *const *cot_engine_operators(void)
{
    return cot_moe_operator_names();
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
    if (strcmp(o->precision, "bf16") != 0 && strcmp(o->precision, "fp32") != 0 &&
        strcmp(o->precision, "int8") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown precision '%s' (bf16, fp32 or int8)",
                        o->precision);
    if (strcmp(o->attention, "tp") != 0 && strcmp(o->attention, "dp") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown attention '%s' (tp or dp)", o->attention);
    if (o->op && !cot_moe_operator_find(o->op))
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown operator '%s' (%s or %s)", o->op,
                        cot_moe_operator_names()[0], cot_moe_operator_names()[1]);
    if (strcmp(o->combine, "exact") != 0 && strcmp(o->combine, "reduced") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown combine '%s' (exact or reduced)", o->combine);
    if (o->payload && strcmp(o->payload, "bf16") != 0 && strcmp(o->payload, "fp32") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown payload '%s' (bf16 or fp32)", o->payload);
    cot_status status = in_range("ranks", o->ranks, 1, COT_MAX_RANKS, error);
    if (status == COT_OK) status = in_range("threads", o->threads, 0, 1024, error);
    if (status == COT_OK) status = in_range("step tokens", o->step_tokens, 1, 65536, error);
    if (status == COT_OK) status = in_range("sequences", o->sequences, 1, 1024, error);
    if (status == COT_OK) status = in_range("kv tokens", o->kv_tokens, 0, (int64_t)1 << 40, error);
    return status;
}

static int thread_count(const cot_engine_options *o)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return o->threads ? o->threads : cores > 0 && cores < 1024 ? (int)cores : 1;
}

static cot_status fill_runner(cot_engine *e, const cot_engine_options *o, cot_error *error)
{
    const cot_config *c = e->config;
    cot_runner_options *r = &e->runner;
    int threads = thread_count(o);
    *r = (cot_runner_options){
        .checkpoint = e->checkpoint,
        .whole = &e->whole,
        .type = strcmp(o->precision, "fp32") == 0 ? COT_F32 : COT_BF16,
        .quantised = strcmp(o->precision, "int8") == 0,
        .data_parallel = strcmp(o->attention, "dp") == 0,
        .helpers = threads,
        .combine = strcmp(o->combine, "exact") == 0 ? COT_COMBINE_EXACT : COT_COMBINE_REDUCED,
        .payload = strcmp(o->payload ? o->payload : o->precision, "fp32") == 0 ? COT_F32 : COT_BF16,
        .op = cot_moe_operator_find(o->op ? o->op : cot_moe_operator_names()[0]),
        .step_tokens = o->step_tokens,
        .capture = o->capture_routing};
    enum {
        LOGITS_BYTES = 64 << 20
    }; // rank 0 holds this much of a step's logits at most, though at least a row a sequence
    int64_t rows = LOGITS_BYTES / ((int64_t)sizeof(float) * c->vocab);
    r->sequences = o->sequences < o->step_tokens ? o->sequences : o->step_tokens;
    r->step_logits = rows < r->sequences ? r->sequences : rows < o->step_tokens ? rows : o->step_tokens;
    int64_t kv_tokens = o->kv_tokens ? o->kv_tokens : c->max_context;
    if (kv_tokens / c->max_context >= r->sequences) // no more than all sequences at their longest
        kv_tokens = r->sequences * c->max_context;
    r->pages = (kv_tokens + COT_KV_PAGE - 1) / COT_KV_PAGE +
               r->sequences; // every sequence may leave a page part empty
    e->info.threads = threads;
    e->info.ranks = o->ranks;
    return cot_kernels_choose(&r->kernels, o->isa, error);
}

/* ---- memory ---- */

/* What opening will take, all ranks together; the weights among it. */
static cot_status measure(cot_engine *e, size_t whole, size_t *weights, size_t *total, cot_error *error)
{
    const cot_config *c = e->config;
    int ranks = e->info.ranks;
    cot_ffn_shape expert = cot_expert_shape(c, cot_runner_precision(&e->runner));
    *weights = whole + (size_t)(c->moe_layers * c->gate.experts) * cot_ffn_layout_of(&expert).bytes;
    *total = 0;
    cot_status status = COT_OK;
    for (int rank = 0; rank < ranks && status == COT_OK; rank++) {
        size_t own = 0, other = 0;
        status = cot_runner_private_bytes(&e->runner, rank, ranks, &own, &other, error);
        *weights += own;
        *total += other;
    }
    if (e->runner.data_parallel && ranks > 1) { // KV pages are touched on one rank each
        size_t own, other, page;
        cot_runner_options enough = e->runner,
                           one_more = e->runner; // for a context: what else grows with pages
        enough.pages = (c->max_context + COT_KV_PAGE - 1) / COT_KV_PAGE;
        one_more.pages = enough.pages + 1;
        if (status == COT_OK) status = cot_runner_private_bytes(&enough, 0, ranks, &own, &other, error);
        if (status == COT_OK) status = cot_runner_private_bytes(&one_more, 0, ranks, &own, &page, error);
        if (status == COT_OK) *total -= (size_t)(ranks - 1) * (size_t)e->runner.pages * (page - other);
    }
    *total += *weights;
    return status;
}

static cot_status check_memory(size_t needed, cot_error *error)
{
    size_t available = cot_memory_available();
    if (needed <= available) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "the model needs %.2f GB of memory, %.2f GB are available",
                    (double)needed / 1e9, (double)available / 1e9);
}

/* ---- open ---- */

static cot_status load_whole(cot_engine *e, cot_load *load, cot_error *error)
{
    cot_pool *pool = NULL;
    cot_status status = cot_pool_open(&pool, e->info.threads - 1, error);
    if (status != COT_OK) return status;
    cot_whole_weights_walk(&e->whole, e->config, cot_runner_precision(&e->runner), e->runner.data_parallel,
                           &e->whole.arena, load);
    status = cot_load_run(load, pool, &e->progress, error);
    cot_pool_close(pool);
    return status;
}

static cot_status allocate(cot_engine *e, cot_error *error)
{
    const cot_config *c = e->config;
    size_t n = (size_t)e->runner.step_tokens, v = (size_t)c->vocab,
           routed = (size_t)(c->moe_layers * c->gate.top_k) + 1;
    e->free_pages = calloc((size_t)e->runner.pages, sizeof *e->free_pages);
    e->ids = calloc(n, sizeof *e->ids);
    e->spans = calloc(n, sizeof *e->spans);
    e->maps = calloc(2 * n, sizeof *e->maps);
    e->penalised = calloc(v, sizeof *e->penalised);
    e->candidates = calloc(v, sizeof *e->candidates);
    e->seen = calloc(v, 1);
    e->token_experts = calloc(routed, sizeof *e->token_experts);
    e->token_weights = calloc(routed, sizeof *e->token_weights);
    e->touched = calloc((size_t)c->gate.experts + 1, 1);
    if (!e->free_pages || !e->ids || !e->spans || !e->maps || !e->penalised || !e->candidates || !e->seen ||
        !e->token_experts || !e->token_weights || !e->touched)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the engine's tables");
    for (int64_t p = 0; p < e->runner.pages; p++) e->free_pages[p] = (int32_t)(e->runner.pages - 1 - p);
    e->free_page_count = e->runner.pages;
    return COT_OK;
}

static void describe(cot_engine *e, size_t weight_bytes)
{
    const cot_config *c = e->config;
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
    for (int64_t l = 0, m = 0; l < c->layers; l++)
        if (c->layer[l].moe) e->moe_layer[m++] = (int32_t)l;
}

static cot_status start(cot_engine *e, const cot_engine_options *options, cot_error *error)
{
    const cot_config *c = e->config;
    cot_load *load = NULL;
    cot_arena whole = {0};
    size_t weights = 0, total = 0;
    cot_status status = fill_runner(e, options, error);
    e->moe_layer = calloc((size_t)c->layers, sizeof *e->moe_layer);
    e->whole.layers = calloc((size_t)c->layers, sizeof *e->whole.layers);
    e->whole.attention = calloc((size_t)c->layers, sizeof *e->whole.attention);
    if (status == COT_OK && (!e->moe_layer || !e->whole.layers || !e->whole.attention))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld layers", (long long)c->layers);
    for (int64_t l = 0; l < c->layers && status == COT_OK; l++)
        cot_attention_heads(&e->whole.attention[l], c, 0, 1);
    if (status == COT_OK) status = cot_load_open(&load, e->checkpoint, error);
    if (status == COT_OK) {
        cot_whole_weights_walk(&e->whole, c, cot_runner_precision(&e->runner), e->runner.data_parallel,
                               &whole, load);
        status = measure(e, whole.used, &weights, &total, error);
    }
    if (status == COT_OK) status = check_memory(total, error);
    if (status == COT_OK) status = cot_arena_open(&e->whole.arena, whole.used, error);
    e->progress = (cot_load_progress){
        .total_bytes = weights, .report = options->progress, .context = options->progress_context};
    if (status == COT_OK) status = load_whole(e, load, error);
    cot_load_close(load);
    if (status == COT_OK) status = allocate(e, error);
    if (status != COT_OK) return status;
    cot_group_options group = {.runner = e->runner,
                               .ranks = options->ranks,
                               .threads = e->info.threads,
                               .processes = options->processes,
                               .progress = &e->progress};
    status = cot_group_open(&e->group, &group, error);
    if (status == COT_OK && options->progress) options->progress(options->progress_context, weights, weights);
    describe(e, weights);
    return status;
}

static cot_status open_engine(cot_engine **out, cot_checkpoint *checkpoint, const cot_engine_options *options,
                              cot_error *error)
{
    cot_engine *e = calloc(1, sizeof *e);
    if (!e) {
        cot_checkpoint_close(checkpoint);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an engine");
    }
    e->checkpoint = checkpoint;
    e->config = cot_checkpoint_config(checkpoint);
    cot_status status = start(e, options, error);
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
    cot_status status = check_options(options, error);
    if (status == COT_OK) status = cot_checkpoint_open(&checkpoint, folder, &own_notes, error);
    if (status == COT_OK) status = open_engine(engine, checkpoint, options, error);
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
    return status == COT_OK ? open_engine(engine, checkpoint, options, error) : status;
}

void cot_engine_close(cot_engine *e)
{
    if (!e) return;
    cot_group_close(e->group);
    cot_arena_close(&e->whole.arena);
    cot_checkpoint_close(e->checkpoint);
    void *owned[] = {
        e->whole.layers, e->whole.attention, e->moe_layer,  e->free_pages, e->ids,           e->spans,
        e->maps,         e->penalised,       e->candidates, e->seen,       e->token_experts, e->token_weights,
        e->touched};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(e);
}

const cot_engine_info *cot_engine_describe(const cot_engine *engine)
{
    return &engine->info;
}
