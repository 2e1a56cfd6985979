#include "base/error.h"
#include "coterie/engine.h"
#include "engine/bench/bench.h"
#include "engine/memory.h"
#include "coterie/roof.h"
#include "engine/likeness.h"
#include "engine/options.h"

#include <stdlib.h>
#include <string.h>

static const int64_t default_timeout_ns = 300LL * 1000000000, least_timeout_ns = 100000000,
                     most_timeout_ns = 1000000000000000;

static cot_status check(const cot_bench_moe_options *o, cot_error *error)
{
    enum { MOST_THREADS = 256, MOST_RESERVE = 4096 };
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "benchmark options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (o->ranks < 1 || o->ranks > COT_MAX_RANKS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d ranks, expected 1 to %d", o->ranks, COT_MAX_RANKS);
    if (o->threads < 1 || o->threads > MOST_THREADS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d threads, expected 1 to %d", o->threads,
                        MOST_THREADS);
    if (o->sms_reserve < 0 || o->sms_reserve > MOST_RESERVE)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d multiprocessors in reserve, expected 0 to %d",
                        o->sms_reserve, MOST_RESERVE);
    if (o->timeout_ns && (o->timeout_ns < least_timeout_ns || o->timeout_ns > most_timeout_ns))
        return cot_fail(error, COT_INVALID_ARGUMENT, "a time-out of %lld ns, expected %lld to %lld",
                        (long long)o->timeout_ns, (long long)least_timeout_ns, (long long)most_timeout_ns);
    cot_status status = cot_fabric_backend_check(o->fabric, error);
    for (size_t i = 0; i < o->n_tokens && status == COT_OK; i++)
        status = cot_bench_check(&o->shape, o->tokens[i], COT_BENCH_UNIFORM, NULL, error);
    if (status == COT_OK && (!o->n_tokens || !o->ops[0]))
        status = cot_fail(error, COT_INVALID_ARGUMENT, "a benchmark without %s",
                          o->n_tokens ? "operators" : "tokens");
    return status;
}

static cot_status find_operators(cot_bench_setup *s, cot_error *error)
{
    cot_status reserve = COT_INVALID_ARGUMENT; // until one operator can leave that
    for (const char *const *name = s->options.ops; *name; name++) {
        if (s->ops == COT_BENCH_MOST_OPS)
            return cot_fail(error, COT_INVALID_ARGUMENT, "more than %d operators", COT_BENCH_MOST_OPS);
        const cot_status status = cot_engine_find_operator(*name, error);
        if (status != COT_OK) return status;
        const cot_moe_operator *op = cot_moe_operator_find(*name);
        int kind = 0;
        while (kind < s->kinds && s->weights[kind] != op->weights) kind++;
        if (kind == s->kinds) s->weights[s->kinds++] = op->weights;
        s->kind[s->ops] = kind;
        s->op[s->ops++] = op;
        if (reserve != COT_OK) reserve = cot_engine_check_reserve(op, s->options.sms_reserve, error);
    }
    return reserve;
}

/* Asks every operator for all that was asked, or else for its own way of sending rows, or else for exact ones. What was named
 * must be done by one of them. */
static cot_status settle_operators(cot_bench_setup *s, cot_error *error)
{
    const bool named = s->moe.a2a != COT_A2A_AUTO || s->moe.dedup != COT_DEDUP_AUTO;
    bool done = !named;
    cot_error first = {0};
    for (int i = 0; i < s->ops; i++) {
        cot_moe_options *o = &s->settled[i];
        *o = s->moe;
        cot_status status = s->op[i]->settle(o, &first);
        done |= status == COT_OK;
        if (status == COT_OK) continue;
        *o = s->moe;
        o->a2a = COT_A2A_AUTO;
        o->dedup = COT_DEDUP_AUTO;
        status = s->op[i]->settle(o, NULL);
        if (status == COT_OK) continue;
        o->combine = COT_COMBINE_EXACT;
        status = s->op[i]->settle(o, error);
        if (status != COT_OK) return status;
    }
    return done ? COT_OK : cot_fail(error, COT_INVALID_ARGUMENT, "%s", first.message);
}

static int64_t most_tokens(const cot_bench_moe_options *o)
{
    int64_t most = 0;
    for (size_t i = 0; i < o->n_tokens; i++) most = o->tokens[i] > most ? o->tokens[i] : most;
    return most;
}

/* What is read between runs, so that the last-level cache holds nothing else. */
static size_t flush_bytes(void)
{
    const size_t cache = cot_last_level_cache_bytes(), most = (size_t)512 << 20;
    return !cache ? (size_t)64 << 20 : 2 * cache < most ? 2 * cache : most;
}

/* Of all ranks alike: weights, hidden rows in and out, and what operators pass on: a row there and one back for each choice, each
 * kept twice by each operator for each number of tokens, all of which stay open. */
static double ranks_bytes(const cot_bench_setup *s)
{
    const double hidden = (double)s->moe.expert.hidden;
    const size_t choice = (size_t)s->moe.top_k * cot_dtype_bytes(s->moe.expert.type);
    double bytes = 2 * (double)s->most_tokens * hidden * sizeof(float);
    for (size_t i = 0; i < s->options.n_tokens; i++)
        bytes += 4 * (double)s->ops * (double)s->options.tokens[i] * hidden * (double)choice;
    for (int w = 0; w < s->kinds; w++)
        bytes += (double)s->moe.experts * (double)s->weights[w]->slot_bytes(&s->moe.expert);
    return bytes;
}

/* Of rank 0: all hidden rows, three times, what is read between runs, and what the caller reads to measure roofs meanwhile. */
static double root_bytes(const cot_bench_setup *s)
{
    return 3 * (double)s->most_tokens * (double)s->moe.expert.hidden * sizeof(float) + (double)flush_bytes() +
           (double)cot_roof_buffer_bytes();
}

/* Ranks that were started from outside find out together. */
static cot_status check_memory(const cot_bench_setup *s, cot_error *error)
{
    const double bytes = ranks_bytes(s) + root_bytes(s), available = (double)cot_memory_available();
    if (s->fabric->from_outside || bytes <= available) return COT_OK;
    return cot_fail(
        error, COT_OUT_OF_MEMORY,
        "weights, rows and what is read between runs and to measure roofs need %.2f GB of memory, "
        "%.2f GB are available",
        bytes / 1e9, available / 1e9);
}

/* The gate that chooses expert e for what has its greatest value in column e, as one kind of operators keeps it. */
static cot_status make_gate(cot_bench_setup *setup, int kind, cot_error *error)
{
    const cot_bench_shape *s = &setup->options.shape;
    const cot_moe_weights *weights = setup->weights[kind];
    const size_t bytes = (weights->gate_bytes(s->hidden, s->experts) + 63) / 64 * 64;
    float *row = calloc((size_t)s->hidden, sizeof *row), *gate = aligned_alloc(64, bytes);
    setup->gate_weight[kind] = gate;
    if (!row || !gate) {
        free(row);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a gate of %zu bytes", bytes);
    }
    for (int64_t e = 0; e < s->experts; e++) {
        const cot_moe_rows rows = {e, 1, {.numbers = row, .type = COT_F32, .stride = s->hidden}};
        row[e] = 1;
        weights->store_gate(gate, s->hidden, s->experts, &rows);
        row[e] = 0;
    }
    free(row);
    setup->gate[kind] = (cot_gate){.hidden = s->hidden,
                                   .experts = s->experts,
                                   .top_k = s->top_k,
                                   .groups = 1,
                                   .group_limit = 1,
                                   .normalise = true,
                                   .scaling = 1,
                                   .weight = gate};
    return cot_gate_check(&setup->gate[kind], error);
}

/* Rank 0's arrays of the largest case. */
static cot_status make_arrays(struct cot_bench_moe *bench, cot_error *error)
{
    const cot_bench_setup *s = &bench->setup;
    size_t tokens = (size_t)s->most_tokens, hidden = (size_t)s->moe.expert.hidden;
    bench->flush_bytes = flush_bytes();
    bench->drawn = malloc(tokens * (size_t)s->moe.top_k * sizeof *bench->drawn);
    bench->x = malloc(tokens * hidden * sizeof *bench->x);
    bench->y_first = malloc(tokens * hidden * sizeof *bench->y_first);
    bench->flush = malloc(bench->flush_bytes);
    if (!bench->drawn || !bench->x || !bench->y_first || !bench->flush)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %zu tokens", tokens);
    memset(bench->flush, 1, bench->flush_bytes);
    return COT_OK;
}

/* What all ranks have to be told alike, but for threads and time-outs, which the launch compares. */
static uint64_t likeness(const cot_bench_moe_options *o)
{
    const cot_bench_shape *s = &o->shape;
    const int64_t numbers[] = {s->hidden, s->intermediate, s->experts,     s->top_k,
                               s->expert, o->ranks,        o->sms_reserve, (int64_t)o->seed};
    const char *const words[] = {o->precision, o->weights, o->combine, o->a2a, o->dedup, o->isa};
    uint64_t hash = cot_likeness_of_text((const char *)numbers, sizeof numbers, o->n_tokens);
    hash = cot_likeness_of_text((const char *)o->tokens, o->n_tokens * sizeof *o->tokens, hash);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = cot_likeness_of_text(words[i] ? words[i] : "", words[i] ? strlen(words[i]) + 1 : 0, hash + 1);
    for (const char *const *op = o->ops; *op; op++) hash = cot_likeness_of_text(*op, strlen(*op) + 1, hash);
    return hash;
}

static cot_status start(struct cot_bench_moe *bench, cot_error *error)
{
    const cot_bench_setup *s = &bench->setup;
    const cot_launch_options launch = {.ranks = s->options.ranks,
                                       .threads = s->options.threads,
                                       .heap_bytes = cot_bench_heap_bytes(s),
                                       .timeout_ns =
                                           s->options.timeout_ns ? s->options.timeout_ns : default_timeout_ns,
                                       .main = cot_bench_serve,
                                       .argument = s};
    const double own = ranks_bytes(s) / s->options.ranks + (cot_launch_started().rank ? 0 : root_bytes(s));
    const cot_launch_account account = {.options = likeness(&s->options),
                                        .needed_bytes = (size_t)own,
                                        .available_bytes = cot_memory_available()};
    const cot_rank *root;
    cot_status status = cot_launch_agree(s->fabric, &account, COT_OK, error);
    if (status == COT_OK) status = cot_launch_open(&bench->launch, &root, s->fabric, &launch, error);
    if (status == COT_OK) status = cot_bench_open_end(&bench->root, root, error);
    return status == COT_OK ? cot_bench_command_ranks(bench, COT_BENCH_DRAW, error) : status;
}

/* What every rank is given. */
static cot_status make_setup(cot_bench_setup *s, const cot_bench_moe_options *options, cot_error *error)
{
    const cot_engine_options words = {
        .weights = {.precision = options->precision, .networks = options->weights},
        .experts = {.combine = options->combine, .a2a = options->a2a, .dedup = options->dedup}};
    cot_engine_choices choices;
    cot_engine_numbers numbers;
    cot_status status = cot_engine_choose(&choices, &words, error);
    if (status == COT_OK) status = cot_engine_numbers_of(&numbers, &choices, error);
    if (status != COT_OK) return status;
    const int group =
        numbers.precision.networks.other == COT_FORMAT_MXFP4 ? 32 : 0; // it is drawn in whole groups
    if (status == COT_OK && group && (options->shape.hidden % group || options->shape.intermediate % group))
        status = cot_fail(error, COT_INVALID_ARGUMENT,
                          "experts of %lld by %lld are not whole groups of %d, as weights in %s must be",
                          (long long)options->shape.hidden, (long long)options->shape.intermediate, group,
                          options->weights);
    if (status != COT_OK) return status;
    int64_t *tokens = malloc(options->n_tokens * sizeof *tokens);
    s->options = *options;
    s->options.tokens = tokens;
    if (!tokens) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a benchmark");
    memcpy(tokens, options->tokens, options->n_tokens * sizeof *tokens);
    s->most_tokens = most_tokens(options);
    s->fabric = cot_fabric_backend_find(options->fabric);
    s->moe = (cot_moe_options){.threads = options->threads,
                               .combine = numbers.combine,
                               .a2a = (cot_moe_a2a)choices.experts_a2a,
                               .dedup = (cot_moe_dedup)choices.experts_dedup,
                               .combine_type = numbers.payload,
                               .expert = cot_bench_ffn_of(&options->shape, &numbers.precision),
                               .experts = options->shape.experts,
                               .top_k = options->shape.top_k,
                               .sms_reserve = options->sms_reserve};
    status = find_operators(s, error);
    if (status == COT_OK) status = cot_kernels_choose(&s->moe.kernels, options->isa, error);
    if (status == COT_OK) status = settle_operators(s, error);
    if (status == COT_OK) status = check_memory(s, error);
    for (int w = 0; w < s->kinds && status == COT_OK; w++) status = make_gate(s, w, error);
    const cot_expert_layout_shape shape = {.n_layers = 1,
                                           .n_experts = (int32_t)s->moe.experts,
                                           .n_ranks = options->ranks,
                                           .layers = &(int32_t){0}};
    return status == COT_OK ? cot_expert_layout_of_ranks(&s->layout, &shape, NULL, error) : status;
}

cot_status cot_bench_moe_open(cot_bench_moe **out, const cot_bench_moe_options *options, cot_error *error)
{
    *out = NULL;
    cot_status status = check(options, error);
    if (status != COT_OK) return status;
    struct cot_bench_moe *bench = calloc(1, sizeof *bench);
    if (!bench) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a benchmark");
    status = make_setup(&bench->setup, options, error);
    if (status == COT_OK) status = start(bench, error);
    if (status == COT_OK) status = make_arrays(bench, error);
    if (status == COT_OK)
        *out = bench;
    else
        cot_bench_moe_close(bench);
    return status;
}

cot_status cot_bench_moe_check(cot_bench_moe *bench, cot_error *error)
{
    return cot_fabric_check(bench->root.rank->fabric, error);
}

void cot_bench_moe_close(cot_bench_moe *bench)
{
    if (!bench) return;
    cot_bench_setup *s = &bench->setup;
    cot_bench_end *root = &bench->root;
    if (bench->launch && cot_launch_is_copy(bench->launch))
        ; // the ranks are another process's
    else if (root->moe)
        cot_bench_command_ranks(bench, COT_BENCH_STOP, NULL);
    else if (root->rank)
        root->rank->fabric->ops->fail(root->rank->fabric);
    cot_bench_close_end(root);
    cot_launch_close(bench->launch);
    for (int w = 0; w < s->kinds; w++) free(s->gate_weight[w]);
    cot_expert_layout_free(&s->layout);
    free((int64_t *)s->options.tokens);
    free(bench->drawn);
    free(bench->x);
    free(bench->y_first);
    free(bench->flush);
    free(bench);
}
