#include "base/clock.h"
#include "base/error.h"
#include "engine/bench/bench.h"
#include "engine/bench/times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The times of one operator's runs. */
struct runs {
    int64_t ns[COT_BENCH_MOST_REPEATS];
    int n;
};

static void add(struct runs *runs, int64_t ns)
{
    runs->ns[runs->n++] = ns;
}

static void summarise(double *median, double *p95, struct runs *runs)
{
    int n = runs->n;
    if (!n) return; // they stay 0
    *median = cot_bench_median(runs->ns, n);
    *p95 = (double)runs->ns[(95 * n + 99) / 100 - 1];
}

static cot_status check_case(const struct cot_bench_moe *bench, size_t *set, const cot_bench_case *c,
                             cot_error *error)
{
    if (c->size != sizeof *c)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a benchmark case of %zu bytes, expected %zu", c->size,
                        sizeof *c);
    if (!(c->roof.f32_flops > 0) || !(c->roof.bf16_flops > 0) || !(c->roof.int8_ops > 0) ||
        !(c->roof.read_bytes_per_second > 0))
        return cot_fail(error, COT_INVALID_ARGUMENT, "a benchmark case without roofs");
    if (!(c->link_bytes_per_s >= 0) || c->link_latency_ns < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a link of %g bytes/s and %lld ns, expected 0 or more",
                        c->link_bytes_per_s, (long long)c->link_latency_ns);
    if (!(c->uplink_bytes_per_s >= 0) || c->uplink_latency_ns < 0 || c->link_groups < 0 ||
        c->link_groups > bench->setup.options.ranks)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "links in %d groups of %d ranks, with uplinks of %g bytes/s and %lld ns: no more groups than "
            "ranks expected, and 0 or more",
            c->link_groups, bench->setup.options.ranks, c->uplink_bytes_per_s,
            (long long)c->uplink_latency_ns);
    if (c->repeats < COT_BENCH_LEAST_REPEATS || c->repeats > COT_BENCH_MOST_REPEATS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d runs, expected %d to %d", c->repeats,
                        COT_BENCH_LEAST_REPEATS, COT_BENCH_MOST_REPEATS);
    for (*set = 0; *set < bench->setup.options.n_tokens; ++*set)
        if (bench->setup.options.tokens[*set] == c->tokens) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "%lld tokens were not among those announced",
                    (long long)c->tokens);
}

static void hold_against_roofs(cot_bench_load *load, const cot_moe_weights *weights, const cot_ffn_shape *s,
                               const cot_roof *roof)
{
    load->flops =
        (cot_ffn_is_gated(s) ? 6.0 : 4.0) * (double)load->rows * (double)s->hidden * (double)s->intermediate;
    load->weight_bytes = (uint64_t)load->touched * weights->slot_bytes(s);
    load->roof_flops = s->rounded ? roof->int8_ops : s->type == COT_F32 ? roof->f32_flops : roof->bf16_flops;
    double multiply_s = load->flops / load->roof_flops,
           read_s = (double)load->weight_bytes / roof->read_bytes_per_second;
    load->reads_bound = read_s > multiply_s;
    load->floor_ns = 1e9 * fmax(multiply_s, read_s);
}

/* Unseen by the sanitizers, which take a second for so many reads. */
__attribute__((no_sanitize("thread", "address", "undefined"))) static void
fill_cache(const struct cot_bench_moe *bench)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bench->flush_bytes; i += 64) sum += bench->flush[i];
    volatile uint64_t sink = sum;
    (void)sink;
}

/* One run of one operator, over links or not. */
struct one_run {
    int op;
    bool linked, tells_answer, tells_events;
    int64_t wall_ns, begin_ns, workers_ns;
    const cot_bench_told *told; // [P], until the next run
};

static bool has_link(const cot_bench_case *c)
{
    return c->link_bytes_per_s > 0 || c->link_latency_ns > 0 || c->link_groups > 1;
}

static cot_status run_once(struct cot_bench_moe *bench, struct one_run *run, const cot_bench_case *c,
                           cot_error *error)
{
    const cot_rank *root = bench->root.rank;
    bench->now.op = run->op;
    bench->now.link = (cot_link){0};
    if (run->linked)
        bench->now.link = (cot_link){c->link_bytes_per_s, c->link_latency_ns, c->link_groups,
                                     c->uplink_bytes_per_s, c->uplink_latency_ns};
    bench->now.tells_answer = run->tells_answer;
    bench->now.tells_events = run->tells_events;
    fill_cache(bench);
    const int64_t busy_ns = cot_pool_busy_ns(root->pool);
    cot_status status = cot_bench_command_ranks(bench, COT_BENCH_RUN, error);
    if (status != COT_OK) return status;
    run->workers_ns = cot_pool_busy_ns(root->pool) - busy_ns;
    run->told = cot_local(root->fabric, bench->root.told);
    run->begin_ns = INT64_MAX;
    int64_t end_ns = INT64_MIN;
    for (int r = 0; r < root->fabric->ranks; r++) {
        const cot_bench_told *told = &run->told[r];
        run->begin_ns = told->begin_ns < run->begin_ns ? told->begin_ns : run->begin_ns;
        end_ns = told->end_ns > end_ns ? told->end_ns : end_ns;
        if (r && !bench->setup.fabric->one_process)
            run->workers_ns += told->tally.workers_ns; // others' pools
    }
    run->wall_ns = end_ns - run->begin_ns;
    return COT_OK;
}

/* The time between the first rank's end of what comes before combining and the last rank's. */
static int64_t straggling_ns(const struct one_run *run, int ranks)
{
    int64_t first_ns = INT64_MAX, last_ns = INT64_MIN;
    for (int r = 0; r < ranks; r++) {
        const int64_t worked_ns = run->told[r].worked_ns;
        first_ns = worked_ns < first_ns ? worked_ns : first_ns;
        last_ns = worked_ns > last_ns ? worked_ns : last_ns;
    }
    return last_ns - first_ns;
}

/* The operator did what was asked: its routing is the drawn one, its answer the first operator's, up to what
 * payloads are rounded. */
static cot_status check_answer(const struct cot_bench_moe *bench, int op, cot_error *error)
{
    const cot_bench_setup *s = &bench->setup;
    cot_fabric *fabric = bench->root.rank->fabric;
    const uint16_t *experts = cot_local(fabric, bench->root.all_experts);
    const float *y = cot_local(fabric, bench->root.all_y);
    int64_t choices = bench->now.tokens * s->moe.top_k, n = bench->now.tokens * s->moe.expert.hidden;
    for (int64_t i = 0; i < choices; i++)
        if (experts[i] != bench->drawn[i])
            return cot_fail(error, COT_MALFORMED, "operator '%s' sent token %lld to expert %d, expected %d",
                            s->op[op]->name, (long long)(i / s->moe.top_k), experts[i], bench->drawn[i]);
    if (op == 0) memcpy(bench->y_first, y, (size_t)n * sizeof *y);
    double distance = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)y[i] - (double)bench->y_first[i];
        distance += d * d;
        size += (double)bench->y_first[i] * (double)bench->y_first[i];
    }
    if (!(size > 0) || !(distance <= 0.02 * 0.02 * size))
        return cot_fail(error, COT_MALFORMED, "operator '%s' answers %.2g off '%s', expected at most 0.02",
                        s->op[op]->name, sqrt(distance / size), s->op[0]->name);
    return COT_OK;
}

/* The run that does not count: pages are touched, bytes counted, the answer checked. */
static cot_status warm_up(struct cot_bench_moe *bench, cot_bench_result *result, struct one_run *run,
                          const cot_bench_case *c, cot_error *error)
{
    run->tells_answer = true;
    cot_status status = run_once(bench, run, c, error);
    if (status != COT_OK) return status;
    for (int r = 0; r < bench->setup.options.ranks; r++) {
        const uint64_t bytes = run->told[r].tally.egress_bytes;
        result->bytes = bytes > result->bytes ? bytes : result->bytes;
    }
    return check_answer(bench, run->op, error);
}

static void tell_events(const struct cot_bench_moe *bench, const struct one_run *run, const cot_bench_case *c)
{
    const int ranks = bench->setup.options.ranks;
    const bool one_process = bench->setup.fabric->one_process;
    const cot_moe_event *events = cot_local(bench->root.rank->fabric, bench->root.events);
    for (int r = 0; r < ranks; r++, events += cot_bench_events(ranks))
        for (int64_t i = 0; i < run->told[r].events; i++) {
            const cot_moe_event *event = &events[i]; // threads are counted in each process
            c->on_event(c->context, (size_t)run->op, run->linked,
                        &(cot_bench_event){.begin_ns = event->begin_ns - run->begin_ns,
                                           .end_ns = event->end_ns - run->begin_ns,
                                           .thread = one_process ? event->thread : event->thread * ranks + r,
                                           .rank = event->rank,
                                           .work = cot_moe_work_name((cot_moe_work)event->work),
                                           .slot = event->slot,
                                           .rows = event->rows});
        }
}

/* To each rank its rows. */
static cot_status deal_out(struct cot_bench_moe *bench, cot_error *error)
{
    cot_fabric *fabric = bench->root.rank->fabric;
    const int64_t hidden = bench->setup.moe.expert.hidden, tokens = bench->now.tokens;
    cot_status status = COT_OK;
    for (int r = 0; r < fabric->ranks && status == COT_OK; r++) {
        const int64_t begin = cot_share_begin(tokens, r, fabric->ranks),
                      end = cot_share_begin(tokens, r + 1, fabric->ranks);
        cot_put(fabric, r, bench->root.x, bench->x + begin * hidden,
                (size_t)((end - begin) * hidden) * sizeof *bench->x, COT_PHASE_CONTROL);
        status = cot_bench_moe_check(bench, error);
    }
    return status;
}

static cot_status prepare(struct cot_bench_moe *bench, cot_bench_load *load, const cot_bench_case *c,
                          cot_error *error)
{
    const cot_bench_setup *s = &bench->setup;
    const cot_bench_moe_options *o = &s->options;
    cot_status status = check_case(bench, &bench->now.set, c, error);
    if (status != COT_OK) return status;
    bench->now.tokens = c->tokens;
    size_t row_bytes = (size_t)o->shape.hidden *
                       (cot_dtype_bytes(s->moe.expert.type) + cot_dtype_bytes(s->moe.combine_type));
    status = cot_bench_draw_routing(bench->drawn, &o->shape, c->tokens, o->ranks, c->routing, c->trace,
                                    o->seed, error);
    if (status == COT_OK)
        status = cot_bench_count(load, bench->drawn, &o->shape, c->tokens, o->ranks, s->layout.rank,
                                 row_bytes, error);
    if (status == COT_OK) status = cot_bench_moe_check(bench, error);
    if (status != COT_OK) return status;
    cot_bench_draw_hidden(bench->x, bench->drawn, &o->shape, c->tokens, o->seed);
    status = deal_out(bench, error);
    if (status == COT_OK && !bench->root.moe[bench->now.set * (size_t)s->ops])
        status = cot_bench_command_ranks(bench, COT_BENCH_OPEN, error);
    hold_against_roofs(load, s->weights[s->kind[0]], &s->moe.expert, &c->roof);
    return status;
}

/* Everything about one operator that is put together run by run. */
struct record {
    struct runs plain, linked, straggling;
};

static cot_status measure(struct cot_bench_moe *bench, struct record *records, cot_bench_result *results,
                          int repeats, const cot_bench_case *c, cot_error *error)
{
    const int modes = has_link(c) ? 2 : 1, ops = bench->setup.ops, each = ops * modes,
              ranks = bench->setup.options.ranks;
    cot_status status = COT_OK;
    for (int i = 0; i < repeats * each && status == COT_OK; i++) {
        struct one_run run = {.op = i % each / modes,
                              .linked = i % modes,
                              .tells_events = c->on_event && i / each == repeats - 1};
        if (i / each % 2) run.op = ops - 1 - run.op; // none always follows the same one
        struct record *record = &records[run.op];
        status = run_once(bench, &run, c, error);
        if (status != COT_OK) break;
        add(run.linked ? &record->linked : &record->plain, run.wall_ns);
        if (!run.linked) {
            add(&record->straggling, straggling_ns(&run, ranks));
            cot_bench_add_run(&results[run.op], run.told, ranks, bench->setup.options.threads, run.workers_ns,
                              run.wall_ns, repeats);
        }
        if (run.tells_events) tell_events(bench, &run, c);
        if (c->progress) c->progress(c->context, i + 1, repeats * each);
    }
    return status;
}

/* Every operator once, without and with links; *round_ns is what that takes. */
static cot_status warm_all(struct cot_bench_moe *bench, cot_bench_result *results, int64_t *round_ns,
                           const cot_bench_case *c, cot_error *error)
{
    const int modes = has_link(c) ? 2 : 1;
    cot_status status = COT_OK;
    *round_ns = 0;
    for (int i = 0; i < bench->setup.ops * modes && status == COT_OK; i++) {
        struct one_run run = {.op = i / modes, .linked = i % modes};
        if (!run.linked) results[run.op] = (cot_bench_result){0};
        const int64_t begin_ns = cot_now_ns();
        status = warm_up(bench, &results[run.op], &run, c, error);
        *round_ns += cot_now_ns() - begin_ns;
    }
    return status;
}

cot_status cot_bench_moe_run(cot_bench_moe *bench, cot_bench_load *load, cot_bench_result *results,
                             int *repeats, const cot_bench_case *c, cot_error *error)
{
    *load = (cot_bench_load){0};
    int64_t round_ns;
    cot_status status = prepare(bench, load, c, error);
    if (status == COT_OK) status = warm_all(bench, results, &round_ns, c, error);
    if (status != COT_OK) return status;
    const int64_t affordable = c->budget_ns ? c->budget_ns / (round_ns + 1) : c->repeats;
    *repeats = affordable >= c->repeats                ? c->repeats
               : affordable >= COT_BENCH_LEAST_REPEATS ? (int)affordable
                                                       : COT_BENCH_LEAST_REPEATS;
    struct record *records = calloc((size_t)bench->setup.ops, sizeof *records);
    if (!records) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the times of runs");
    status = measure(bench, records, results, *repeats, c, error);
    for (int op = 0; op < bench->setup.ops && status == COT_OK; op++) {
        cot_bench_result *result = &results[op];
        summarise(&result->median_ns, &result->p95_ns, &records[op].plain);
        summarise(&result->linked_median_ns, &result->linked_p95_ns, &records[op].linked);
        summarise(&result->straggler_median_ns, &result->straggler_p95_ns, &records[op].straggling);
        result->idle_share = fmax(result->idle_share, 0); // ranks that look for work beyond the threads
        const cot_moe_options *settled = &bench->setup.settled[op];
        result->combine = settled->combine == COT_COMBINE_EXACT ? "exact" : "reduced";
        result->a2a = cot_moe_a2a_name(settled->a2a);
        result->dedup = settled->dedup == COT_DEDUP_ON ? "on" : "off";
    }
    free(records);
    return status;
}
