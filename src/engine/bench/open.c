#include "base/error.h"
#include "engine/bench/bench.h"
#include "engine/memory.h"
#include "coterie/roof.h"
#include "kernels/pack.h"

#include <stdlib.h>
#include <string.h>

static const int64_t timeout_ns = 120LL * 1000000000;

static cot_status check(const cot_bench_moe_options *o, cot_error *error)
{
    enum { MOST_THREADS = 256 };
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "benchmark options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (o->ranks < 1 || o->ranks > COT_MAX_RANKS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d ranks, expected 1 to %d", o->ranks, COT_MAX_RANKS);
    if (o->threads < 1 || o->threads > MOST_THREADS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d threads, expected 1 to %d", o->threads,
                        MOST_THREADS);
    if (strcmp(o->precision, "bf16") != 0 && strcmp(o->precision, "fp32") != 0 &&
        strcmp(o->precision, "int8") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown precision '%s' (bf16, fp32 or int8)",
                        o->precision);
    if (strcmp(o->combine, "exact") != 0 && strcmp(o->combine, "reduced") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown combine '%s' (exact or reduced)", o->combine);
    cot_status status = COT_OK;
    for (size_t i = 0; i < o->n_tokens && status == COT_OK; i++)
        status = cot_bench_check(&o->shape, o->tokens[i], COT_BENCH_UNIFORM, NULL, error);
    if (status == COT_OK && (!o->n_tokens || !o->ops[0]))
        status = cot_fail(error, COT_INVALID_ARGUMENT, "a benchmark without %s",
                          o->n_tokens ? "operators" : "tokens");
    return status;
}

static cot_status find_operators(struct cot_bench_moe *bench, cot_error *error)
{
    for (const char *const *name = bench->options.ops; *name; name++) {
        if (bench->ops == COT_BENCH_MOST_OPS)
            return cot_fail(error, COT_INVALID_ARGUMENT, "more than %d operators", COT_BENCH_MOST_OPS);
        bench->op[bench->ops] = cot_moe_operator_find(*name);
        if (!bench->op[bench->ops++])
            return cot_fail(error, COT_INVALID_ARGUMENT, "unknown operator '%s'", *name);
    }
    return COT_OK;
}

static int64_t most_tokens(const cot_bench_moe_options *o)
{
    int64_t most = 0;
    for (size_t i = 0; i < o->n_tokens; i++) most = o->tokens[i] > most ? o->tokens[i] : most;
    return most;
}

/* Weights, hidden rows in and out, and what operators pass on: a row there and one back for each choice, each
 * kept twice. */
static cot_status check_memory(const struct cot_bench_moe *bench, cot_error *error)
{
    double tokens = (double)most_tokens(&bench->options), hidden = (double)bench->moe.expert.hidden;
    double rows =
        tokens * (double)bench->moe.top_k * hidden * (double)cot_dtype_bytes(bench->moe.expert.type);
    double bytes = (double)bench->moe.experts * (double)cot_ffn_layout_of(&bench->moe.expert).bytes +
                   3 * tokens * hidden * sizeof(float) + 4 * rows;
    double available = (double)cot_memory_available();
    if (bytes <= available) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY,
                    "weights and rows need %.1f GB of memory, %.1f GB are available", bytes / 1e9,
                    available / 1e9);
}

static cot_status make_gate(struct cot_bench_moe *bench, cot_error *error)
{
    const cot_bench_shape *s = &bench->options.shape;
    size_t bytes = (size_t)cot_packed_bytes(COT_F32, s->hidden, s->experts);
    float *column = calloc((size_t)s->hidden, sizeof *column);
    bench->gate_weight = aligned_alloc(64, bytes);
    if (!column || !bench->gate_weight) {
        free(column);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a gate of %zu bytes", bytes);
    }
    for (int64_t e = 0; e < s->experts; e++) {
        column[e] = 1;
        cot_pack_columns(bench->gate_weight, COT_F32, s->hidden, s->experts, e, 1, column, COT_F32,
                         s->hidden);
        column[e] = 0;
    }
    free(column);
    bench->gate = (cot_gate){.hidden = s->hidden,
                             .experts = s->experts,
                             .top_k = s->top_k,
                             .groups = 1,
                             .group_limit = 1,
                             .normalise = true,
                             .scaling = 1,
                             .weight = bench->gate_weight};
    return cot_gate_check(&bench->gate, error);
}

/* Arrays of the largest case. */
static cot_status make_arrays(struct cot_bench_moe *bench, cot_error *error)
{
    size_t tokens = (size_t)most_tokens(&bench->options), hidden = (size_t)bench->moe.expert.hidden;
    size_t choices = tokens * (size_t)bench->moe.top_k, experts = (size_t)bench->moe.experts;
    size_t cache = cot_last_level_cache_bytes(), most = (size_t)512 << 20;
    bench->flush_bytes = !cache ? (size_t)64 << 20 : 2 * cache < most ? 2 * cache : most;
    bench->expert_rank = malloc(experts * sizeof *bench->expert_rank);
    bench->expert_slot = malloc(experts * sizeof *bench->expert_slot);
    bench->drawn = malloc(choices * sizeof *bench->drawn);
    bench->experts = malloc(choices * sizeof *bench->experts);
    bench->weights = malloc(choices * sizeof *bench->weights);
    bench->x = malloc(tokens * hidden * sizeof *bench->x);
    bench->y = malloc(tokens * hidden * sizeof *bench->y);
    bench->y_first = malloc(tokens * hidden * sizeof *bench->y_first);
    bench->flush = malloc(bench->flush_bytes);
    bench->timeline.capacity = (int64_t)1 << 18;
    bench->timeline.events = malloc((size_t)bench->timeline.capacity * sizeof *bench->timeline.events);
    bench->moe.timeline = &bench->timeline;
    if (!bench->expert_rank || !bench->expert_slot || !bench->drawn || !bench->experts || !bench->weights ||
        !bench->x || !bench->y || !bench->y_first || !bench->flush || !bench->timeline.events)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %zu tokens", tokens);
    memset(bench->flush, 1, bench->flush_bytes);
    int ranks = bench->options.ranks;
    for (int64_t e = 0; e < bench->moe.experts; e++) {
        int owner = cot_share_owner(bench->moe.experts, e, ranks);
        bench->expert_rank[e] = owner;
        bench->expert_slot[e] = (int32_t)(e - cot_share_begin(bench->moe.experts, owner, ranks));
    }
    return COT_OK;
}

static cot_status make_group(struct cot_bench_moe *bench, cot_error *error)
{
    const cot_bench_moe_options *o = &bench->options;
    size_t slots = (size_t)((bench->moe.experts + o->ranks - 1) / o->ranks);
    cot_fabric_group_options group = {.ranks = o->ranks,
                                      .running = o->threads < o->ranks ? o->threads : o->ranks,
                                      .timeout_ns = timeout_ns};
    group.heap_bytes = cot_alloc_bytes(slots * cot_ffn_layout_of(&bench->moe.expert).bytes);
    cot_moe_options options = bench->moe;
    for (size_t i = 0; i < o->n_tokens; i++)
        for (int op = 0; op < bench->ops; op++) {
            options.tokens = o->tokens[i];
            if (__builtin_add_overflow(group.heap_bytes, bench->op[op]->heap_bytes(&options, o->ranks),
                                       &group.heap_bytes))
                group.heap_bytes = SIZE_MAX; // more than can be mapped
        }
    cot_status status = cot_fabric_group_open(&bench->fabric, &group, error);
    if (status != COT_OK) return status;
    bench->members = calloc((size_t)o->ranks, sizeof *bench->members);
    if (!bench->members) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d ranks", o->ranks);
    for (int r = 0; r < o->ranks; r++) {
        cot_bench_member *m = &bench->members[r];
        *m = (cot_bench_member){.bench = bench, .fabric = cot_fabric_group_rank(bench->fabric, r)};
        m->moe = calloc(o->n_tokens * (size_t)bench->ops, sizeof(cot_moe *));
        if (!m->moe) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d ranks", o->ranks);
    }
    status = cot_pool_open(&bench->pool, o->threads > o->ranks ? o->threads - o->ranks : 0, error);
    if (status != COT_OK) return status;
    bench->moe.pool = bench->pool;
    status = cot_bench_start_ranks(bench, error);
    return status == COT_OK ? cot_bench_command_ranks(bench, COT_BENCH_DRAW, error) : status;
}

cot_status cot_bench_moe_open(cot_bench_moe **out, const cot_bench_moe_options *options, cot_error *error)
{
    *out = NULL;
    cot_status status = check(options, error);
    if (status != COT_OK) return status;
    struct cot_bench_moe *bench = calloc(1, sizeof *bench);
    int64_t *tokens = malloc(options->n_tokens * sizeof *tokens);
    if (!bench || !tokens) {
        free(bench);
        free(tokens);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a benchmark");
    }
    bench->options = *options;
    bench->options.tokens = memcpy(tokens, options->tokens, options->n_tokens * sizeof *tokens);
    pthread_mutex_init(&bench->mutex, NULL);
    pthread_cond_init(&bench->commanded, NULL);
    pthread_cond_init(&bench->done, NULL);
    cot_dtype type = options->precision[0] == 'f' ? COT_F32 : COT_BF16;
    bench->moe =
        (cot_moe_options){.threads = options->threads,
                          .combine = options->combine[0] == 'r' ? COT_COMBINE_REDUCED : COT_COMBINE_EXACT,
                          .combine_type = type,
                          .expert = cot_bench_ffn_of(&options->shape, type, options->precision[0] == 'i'),
                          .experts = options->shape.experts,
                          .top_k = options->shape.top_k};
    status = find_operators(bench, error);
    if (status == COT_OK) status = cot_kernels_choose(&bench->moe.kernels, options->isa, error);
    if (status == COT_OK) status = check_memory(bench, error);
    if (status == COT_OK) status = make_gate(bench, error);
    if (status == COT_OK) status = make_arrays(bench, error);
    if (status == COT_OK) status = make_group(bench, error);
    if (status == COT_OK)
        *out = bench;
    else
        cot_bench_moe_close(bench);
    return status;
}

void cot_bench_moe_close(cot_bench_moe *bench)
{
    if (!bench) return;
    cot_bench_stop_ranks(bench);
    cot_pool_close(bench->pool);
    cot_fabric_group_close(bench->fabric);
    pthread_cond_destroy(&bench->done);
    pthread_cond_destroy(&bench->commanded);
    pthread_mutex_destroy(&bench->mutex);
    free(bench->members);
    free(bench->gate_weight);
    free(bench->expert_rank);
    free(bench->expert_slot);
    free(bench->drawn);
    free(bench->experts);
    free(bench->weights);
    free(bench->x);
    free(bench->y);
    free(bench->y_first);
    free(bench->flush);
    free(bench->timeline.events);
    free((int64_t *)bench->options.tokens);
    free(bench);
}
