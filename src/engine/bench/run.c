#include "base/clock.h"
#include "base/error.h"
#include "coterie/roof.h"
#include "engine/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The times of one operator's runs. */
struct runs {
    int64_t ns[COT_BENCH_MOST_REPEATS];
    int n;
};

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void summarise(double *median, double *p95, struct runs *runs)
{
    int n = runs->n;
    qsort(runs->ns, (size_t)n, sizeof *runs->ns, by_value);
    *median = (double)(runs->ns[(n - 1) / 2] + runs->ns[n / 2]) / 2;
    *p95 = (double)runs->ns[(95 * n + 99) / 100 - 1];
}

static cot_status check_case(const struct cot_bench_moe *bench, size_t *set, const cot_bench_case *c,
                             cot_error *error)
{
    if (c->size != sizeof *c)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a benchmark case of %zu bytes, expected %zu", c->size,
                        sizeof *c);
    if (c->repeats < COT_BENCH_LEAST_REPEATS || c->repeats > COT_BENCH_MOST_REPEATS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d runs, expected %d to %d", c->repeats,
                        COT_BENCH_LEAST_REPEATS, COT_BENCH_MOST_REPEATS);
    for (*set = 0; *set < bench->options.n_tokens; ++*set)
        if (bench->options.tokens[*set] == c->tokens) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "%lld tokens were not among those announced",
                    (long long)c->tokens);
}

static cot_status measure_roofs(struct cot_bench_moe *bench, cot_error *error)
{
    const int64_t fresh_ns = 20000000000;
    if (bench->roofs_ns && cot_now_ns() - bench->roofs_ns < fresh_ns) return COT_OK;
    cot_roof roof;
    cot_status status = cot_roof_measure(&roof, bench->options.threads, bench->options.isa, 0, error);
    if (status != COT_OK) return status;
    bench->roofs_ns = cot_now_ns();
    bench->roof_flops = bench->moe.expert.type == COT_F32 ? roof.f32_flops : roof.bf16_flops;
    bench->roof_read_bytes_per_second = roof.read_bytes_per_second;
    return COT_OK;
}

static void hold_against_roofs(cot_bench_load *load, const struct cot_bench_moe *bench)
{
    const cot_ffn_shape *s = &bench->moe.expert;
    load->flops = 2.0 * 3 * (double)load->rows * (double)s->hidden * (double)s->intermediate;
    load->weight_bytes = (uint64_t)load->touched * cot_ffn_layout_of(s).bytes;
    load->roof_flops = bench->roof_flops;
    load->roof_read_bytes_per_second = bench->roof_read_bytes_per_second;
    double multiply_s = load->flops / load->roof_flops,
           read_s = (double)load->weight_bytes / load->roof_read_bytes_per_second;
    load->reads_bound = read_s > multiply_s;
    load->floor_ns = 1e9 * fmax(multiply_s, read_s);
}

static void fill_cache(const struct cot_bench_moe *bench)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bench->flush_bytes; i += 64) sum += bench->flush[i];
    volatile uint64_t sink = sum;
    (void)sink;
}

static cot_status run_once(struct cot_bench_moe *bench, int64_t *ns, int op, cot_error *error)
{
    bench->op_now = op;
    fill_cache(bench);
    cot_status status = cot_bench_command_ranks(bench, COT_BENCH_RUN, error);
    int64_t begin_ns = INT64_MAX, end_ns = INT64_MIN;
    for (int r = 0; r < bench->options.ranks; r++) {
        const cot_bench_member *m = &bench->members[r];
        begin_ns = m->begin_ns < begin_ns ? m->begin_ns : begin_ns;
        end_ns = m->end_ns > end_ns ? m->end_ns : end_ns;
    }
    *ns = end_ns - begin_ns;
    return status;
}

static uint64_t egress(const cot_fabric *fabric)
{
    uint64_t bytes = 0;
    for (int to = 0; to < fabric->ranks; to++)
        for (int p = 0; p < COT_PHASES; p++) bytes += fabric->traffic[to][p].bytes;
    return bytes;
}

/* The operator did what was asked: its routing is the drawn one, its answer the first operator's, up to what
 * payloads are rounded. */
static cot_status check_answer(const struct cot_bench_moe *bench, int op, cot_error *error)
{
    int64_t choices = bench->tokens * bench->moe.top_k, n = bench->tokens * bench->moe.expert.hidden;
    for (int64_t i = 0; i < choices; i++)
        if (bench->experts[i] != bench->drawn[i])
            return cot_fail(error, COT_MALFORMED, "operator '%s' sent token %lld to expert %d, expected %d",
                            bench->op[op]->name, (long long)(i / bench->moe.top_k), bench->experts[i],
                            bench->drawn[i]);
    if (op == 0) memcpy(bench->y_first, bench->y, (size_t)n * sizeof *bench->y);
    double distance = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)bench->y[i] - (double)bench->y_first[i];
        distance += d * d;
        size += (double)bench->y_first[i] * (double)bench->y_first[i];
    }
    if (!(size > 0) || !(distance <= 0.02 * 0.02 * size))
        return cot_fail(error, COT_MALFORMED, "operator '%s' answers %.2g off '%s', expected at most 0.02",
                        bench->op[op]->name, sqrt(distance / size), bench->op[0]->name);
    return COT_OK;
}

/* The run that does not count: pages are touched, bytes counted, the answer checked. */
static cot_status warm_up(struct cot_bench_moe *bench, cot_bench_result *result, int64_t *ns, int op,
                          cot_error *error)
{
    uint64_t before[COT_MAX_RANKS];
    int ranks = bench->options.ranks;
    for (int r = 0; r < ranks; r++) before[r] = egress(bench->members[r].fabric);
    memset(bench->y, 0xff, (size_t)(bench->tokens * bench->moe.expert.hidden) * sizeof *bench->y); // NaN
    cot_status status = run_once(bench, ns, op, error);
    if (status != COT_OK) return status;
    result->bytes = 0;
    for (int r = 0; r < ranks; r++) {
        uint64_t bytes = egress(bench->members[r].fabric) - before[r];
        result->bytes = bytes > result->bytes ? bytes : result->bytes;
    }
    return check_answer(bench, op, error);
}

static cot_status prepare(struct cot_bench_moe *bench, cot_bench_load *load, const cot_bench_case *c,
                          cot_error *error)
{
    const cot_bench_moe_options *o = &bench->options;
    cot_status status = check_case(bench, &bench->set, c, error);
    if (status != COT_OK) return status;
    bench->tokens = c->tokens;
    size_t row_bytes = (size_t)o->shape.hidden * cot_dtype_bytes(bench->moe.expert.type);
    status = cot_bench_draw_routing(bench->drawn, &o->shape, c->tokens, o->ranks, c->routing, c->trace,
                                    o->seed, error);
    if (status == COT_OK)
        status = cot_bench_count(load, bench->drawn, &o->shape, c->tokens, o->ranks, bench->expert_rank,
                                 row_bytes, error);
    if (status != COT_OK) return status;
    cot_bench_draw_hidden(bench->x, bench->drawn, &o->shape, c->tokens, o->seed);
    if (!bench->members[0].moe[bench->set * (size_t)bench->ops])
        status = cot_bench_command_ranks(bench, COT_BENCH_OPEN, error);
    if (status == COT_OK) status = measure_roofs(bench, error);
    if (status == COT_OK) hold_against_roofs(load, bench);
    return status;
}

cot_status cot_bench_moe_run(cot_bench_moe *bench, cot_bench_load *load, cot_bench_result *results,
                             int *repeats, const cot_bench_case *c, cot_error *error)
{
    *load = (cot_bench_load){0};
    cot_status status = prepare(bench, load, c, error);
    if (status != COT_OK) return status;
    struct runs *runs = calloc((size_t)bench->ops, sizeof *runs);
    if (!runs) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the times of runs");
    int64_t round_ns = 0, ns;
    for (int op = 0; op < bench->ops && status == COT_OK; op++) {
        results[op] = (cot_bench_result){0};
        status = warm_up(bench, &results[op], &ns, op, error);
        round_ns += ns;
    }
    int64_t affordable = c->budget_ns ? c->budget_ns / (round_ns + 1) : c->repeats;
    *repeats = affordable >= c->repeats                ? c->repeats
               : affordable >= COT_BENCH_LEAST_REPEATS ? (int)affordable
                                                       : COT_BENCH_LEAST_REPEATS;
    for (int i = 0; i < *repeats * bench->ops && status == COT_OK; i++) {
        int round = i / bench->ops, op = i % bench->ops;
        if (round % 2) op = bench->ops - 1 - op; // no operator always follows the same one
        status = run_once(bench, &ns, op, error);
        runs[op].ns[runs[op].n++] = ns;
        if (c->progress) c->progress(c->context, i + 1, *repeats * bench->ops);
    }
    for (int op = 0; op < bench->ops && status == COT_OK; op++)
        summarise(&results[op].median_ns, &results[op].p95_ns, &runs[op]);
    free(runs);
    return status;
}
