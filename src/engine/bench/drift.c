#include "engine/bench/drift.h"

#include "base/error.h"
#include "coterie/place.h"
#include "engine/rebalancing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cot_bench_drift_names[COT_BENCH_DRIFT_ROWS] = {
    [COT_BENCH_DRIFT_BLOCKS] = "blocks",
    [COT_BENCH_DRIFT_FIRST] = "best of first half",
    [COT_BENCH_DRIFT_SECOND] = "best of second half",
    [COT_BENCH_DRIFT_EPLB] = "EPLB",
    [COT_BENCH_DRIFT_TOP] = "top-k replicated",
    [COT_BENCH_DRIFT_LOAD] = "load",
    [COT_BENCH_DRIFT_JOINT] = "joint"};

enum { RESERVOIR = 4096, FREELY = 1 << 30 };

/* What all rows see. */
typedef struct drift {
    const cot_bench_drift_options *o;
    cot_bench_drift *out;
    cot_bench_drift_steps steps;
    cot_bench_drift_judge judge;
    cot_expert_map blocks;
    double *calls;   // [L][E] scratch
    uint16_t *token; // [L][K] scratch
    double *copy_ns; // [L]
    int32_t L, E, K;
    int done;
} drift;

/* ---- what is counted ---- */

static void read_token(const drift *d, const cot_bench_drift_token *t)
{
    for (int32_t l = 0; l < d->L; l++)
        for (int32_t k = 0; k < d->K; k++)
            d->token[l * d->K + k] = (uint16_t)cot_bench_drift_expert(d->o, t, l, k);
}

static void count_step(cot_popularity *p, const drift *d, int64_t step)
{
    for (int64_t i = d->steps.begin[step]; i < d->steps.begin[step + 1]; i++) {
        read_token(d, &d->steps.token[i]);
        cot_popularity_add(p, d->steps.token[i].home, d->token, d->K);
    }
    cot_popularity_elapse(p, 1); // a step is a second
}

static cot_status open_popularity(cot_popularity *p, const drift *d, int64_t reservoir, cot_error *error)
{
    const cot_popularity_options options = {.n_layers = d->L,
                                            .n_experts = d->E,
                                            .top_k = d->K,
                                            .n_homes = d->o->ranks,
                                            .half_life_seconds = (double)d->o->interval,
                                            .reservoir = reservoir,
                                            .seed = d->o->seed};
    return cot_popularity_open(p, &options, error);
}

/* What popularity says before a step, in d->calls. */
static cot_rebalance_seen seen_before(const drift *d, const cot_popularity *p, int64_t step)
{
    const double tokens = (double)(d->steps.begin[step] - d->steps.begin[step - 1]),
                 counted = cot_popularity_lately(d->calls, p);
    return (cot_rebalance_seen){d->calls, counted / tokens, p->held, p->held_experts, p->held_home};
}

/* ---- rebalancing ---- */

static cot_status open_controller(cot_rebalance *r, const drift *d, cot_rebalance_mode mode, bool freely,
                                  cot_error *error)
{
    for (int32_t l = 0; l < d->L; l++) d->copy_ns[l] = freely ? 0 : d->o->costs.copy_ns;
    const cot_rebalance_options options = {.mode = mode,
                                           .layers = d->L,
                                           .experts = d->E,
                                           .ranks = d->o->ranks,
                                           .top_k = d->K,
                                           .slots = d->blocks.slots_per_rank,
                                           .interval_steps = d->o->interval,
                                           .cool_down = d->o->cool_down,
                                           .margin = 2,
                                           .moves_a_cycle = freely ? FREELY : d->o->moves_a_cycle,
                                           .row_ns = d->o->costs.row_ns,
                                           .expert_ns = d->o->costs.expert_ns,
                                           .send_ns = d->o->costs.send_ns,
                                           .copy_ns = d->copy_ns};
    return cot_rebalance_open(r, &options, (cot_rebalance_clock){0}, error);
}

/* The plan's placement instead of *map. */
static void take_plan(cot_expert_map *map, cot_rebalance_plan *plan)
{
    cot_expert_map_free(map);
    *map = plan->to;
    plan->to = (cot_expert_map){0};
}

/* What rebalancing comes to from *map where copies are for nothing. */
static cot_status settle(cot_expert_map *map, const drift *d, const cot_rebalance_seen *seen,
                         cot_error *error)
{
    cot_rebalance r;
    cot_rebalance_plan plan = {0};
    cot_expert_layout layout = {0};
    cot_status status = open_controller(&r, d, COT_REBALANCE_LOAD, true, error);
    if (status == COT_OK) status = cot_bench_drift_layout(&layout, map, error);
    if (status == COT_OK)
        status = cot_rebalance_plan_open(&plan, &r, &layout, seen, (cot_rebalance_clock){d->o->interval, 0},
                                         error);
    if (status == COT_OK) take_plan(map, &plan);
    cot_rebalance_plan_close(&plan);
    cot_expert_layout_free(&layout);
    cot_rebalance_close(&r);
    return status;
}

/* ---- rows ---- */

/* A way to place experts, as it runs. */
typedef struct runner {
    cot_bench_drift_kind kind;
    cot_expert_map map;
    cot_expert_layout layout;
    cot_popularity popularity;
    cot_rebalance controller; // of LOAD and JOINT
} runner;

static bool is_rebalancing(cot_bench_drift_kind kind)
{
    return kind == COT_BENCH_DRIFT_LOAD || kind == COT_BENCH_DRIFT_JOINT;
}

static bool counts(cot_bench_drift_kind kind)
{
    return is_rebalancing(kind) || kind == COT_BENCH_DRIFT_EPLB || kind == COT_BENCH_DRIFT_TOP;
}

static cot_status copy_map(cot_expert_map *to, const cot_expert_map *from, cot_error *error)
{
    const cot_status status =
        cot_expert_map_new(to, from->n_layers, from->n_experts, from->n_ranks, from->slots_per_rank, error);
    const size_t slots = (size_t)from->n_layers * (size_t)from->n_ranks * (size_t)from->slots_per_rank;
    if (status != COT_OK) return status;
    memcpy(to->layers, from->layers, (size_t)from->n_layers * sizeof *from->layers);
    memcpy(to->expert, from->expert, slots * sizeof *from->expert);
    return COT_OK;
}

/* Experts are where the map has them from now on; what has to be copied for it counts. */
static cot_status move_to(runner *r, cot_expert_map *map, const drift *d, cot_bench_drift_interval *sum,
                          cot_error *error)
{
    int64_t copies = 0;
    cot_status status = cot_place_moves(&copies, &r->map, map, error);
    cot_expert_map_free(&r->map);
    r->map = *map;
    *map = (cot_expert_map){0};
    cot_expert_layout_free(&r->layout);
    if (status == COT_OK) status = cot_bench_drift_layout(&r->layout, &r->map, error);
    sum->copies += copies;
    sum->gap_ns += (double)copies * d->o->costs.copy_ns;
    return status;
}

static cot_status run_cycle(cot_expert_map *map, runner *r, const cot_rebalance_seen *seen, int64_t step,
                            cot_bench_drift_row *row, cot_error *error)
{
    const cot_rebalance_clock now = {step, 0};
    cot_rebalance_plan plan = {0};
    const cot_status status = cot_rebalance_plan_open(&plan, &r->controller, &r->layout, seen, now, error);
    if (status == COT_OK) {
        for (int32_t l = 0; l < plan.layers; l++) row->reason[plan.layer[l].reason].layers++;
        cot_rebalance_adopt(&r->controller, &plan, now);
        take_plan(map, &plan);
    }
    cot_rebalance_plan_close(&plan);
    return status;
}

/* An interval is over. */
static cot_status act(runner *r, const drift *d, int64_t step, cot_bench_drift_row *row,
                      cot_bench_drift_interval *sum, cot_error *error)
{
    if (is_rebalancing(r->kind)) cot_rebalancing_look(&r->controller, &r->popularity);
    const cot_rebalance_seen seen = seen_before(d, &r->popularity, step);
    cot_expert_map map = {0};
    cot_status status;
    if (is_rebalancing(r->kind))
        status = run_cycle(&map, r, &seen, step, row, error);
    else if (r->kind == COT_BENCH_DRIFT_TOP)
        status = cot_bench_drift_top(&map, seen.calls, d->o, error);
    else {
        status = cot_bench_drift_eplb(&map, seen.calls, d->o, error);
        if (status == COT_OK) status = cot_bench_drift_rename(&map, &r->map, error);
    }
    if (status == COT_OK) status = move_to(r, &map, d, sum, error);
    cot_expert_map_free(&map);
    return status;
}

static cot_status open_runner(runner *r, const drift *d, const cot_expert_map *start, cot_error *error)
{
    cot_status status = copy_map(&r->map, start, error);
    if (status == COT_OK) status = cot_bench_drift_layout(&r->layout, &r->map, error);
    if (status == COT_OK && counts(r->kind))
        status = open_popularity(&r->popularity, d, r->kind == COT_BENCH_DRIFT_JOINT ? RESERVOIR : 0, error);
    if (status == COT_OK && is_rebalancing(r->kind))
        status = open_controller(&r->controller, d,
                                 r->kind == COT_BENCH_DRIFT_JOINT ? COT_REBALANCE_JOINT : COT_REBALANCE_LOAD,
                                 false, error);
    return status;
}

static void close_runner(runner *r)
{
    cot_expert_map_free(&r->map);
    cot_expert_layout_free(&r->layout);
    cot_popularity_close(&r->popularity);
    cot_rebalance_close(&r->controller);
}

/* ---- placing anew ---- */

/* A step's calls as if they had come a thousand times: a plan looks at their rate alone, and wants enough of them. */
static cot_rebalance_seen seen_in(const drift *d, int64_t from, int64_t to)
{
    const double often = 1000;
    memset(d->calls, 0, (size_t)d->L * (size_t)d->E * sizeof *d->calls);
    for (int64_t i = d->steps.begin[from]; i < d->steps.begin[to]; i++) {
        read_token(d, &d->steps.token[i]);
        for (int32_t l = 0; l < d->L; l++)
            for (int32_t k = 0; k < d->K; k++) d->calls[l * d->E + d->token[l * d->K + k]] += often;
    }
    return (cot_rebalance_seen){.calls = d->calls, .steps = often * (double)(to - from)};
}

/* One step, where the best is found for it alone, beside where row LOAD has experts. */
static cot_status place_anew(runner *anew, drift *d, const cot_expert_layout *beside, int64_t step,
                             cot_bench_drift_interval *sum, cot_bench_drift_interval *other, cot_error *error)
{
    const cot_rebalance_seen seen = seen_in(d, step, step + 1);
    cot_expert_map map = {0};
    cot_status status = copy_map(&map, &anew->map, error);
    if (status == COT_OK) status = settle(&map, d, &seen, error);
    if (status == COT_OK) status = move_to(anew, &map, d, sum, error);
    cot_expert_map_free(&map);
    if (status != COT_OK) return status;
    cot_bench_drift_judge_step(sum, &d->judge, step, &anew->layout);
    cot_bench_drift_judge_step(other, &d->judge, step, beside);
    return COT_OK;
}

static void tell_anew(cot_bench_drift_anew *out, const drift *d, int64_t steps,
                      const cot_bench_drift_interval *sum, const cot_bench_drift_interval *other)
{
    if (!steps) return;
    const double n = (double)steps, saved = (other->ns - sum->ns) / n;
    *out = (cot_bench_drift_anew){.steps = steps,
                                  .ns = sum->ns / n,
                                  .load_ns = other->ns / n,
                                  .copies = (double)sum->copies / n,
                                  .rows = (double)sum->tokens * d->K / n};
    if (saved > 0) out->break_even_rows = out->rows * sum->gap_ns / n / saved;
}

/* ---- all of it ---- */

static cot_status run_row(drift *d, cot_bench_drift_kind kind, const cot_expert_map *start, cot_error *error)
{
    cot_bench_drift_row *row = &d->out->row[kind];
    cot_bench_drift_interval sum = {0}, other = {0}, begun = {0};
    runner r = {.kind = kind}, anew = {.kind = COT_BENCH_DRIFT_BLOCKS};
    int64_t steps = 0;
    cot_status status = open_runner(&r, d, start, error);
    if (status == COT_OK && kind == COT_BENCH_DRIFT_LOAD) status = open_runner(&anew, d, start, error);
    for (int i = 0; is_rebalancing(kind) && i < COT_REBALANCE_REASONS; i++)
        row->reason[i].text = cot_rebalance_reason_names[i];
    for (int64_t step = 0; status == COT_OK && step < d->steps.steps; step++) {
        cot_bench_drift_interval *interval = &row->interval[step / d->o->interval];
        if (counts(kind) && step && step % d->o->interval == 0)
            status = act(&r, d, step, row, interval, error);
        if (status != COT_OK) break;
        cot_bench_drift_judge_step(interval, &d->judge, step, &r.layout);
        if (counts(kind)) count_step(&r.popularity, d, step);
        if (kind != COT_BENCH_DRIFT_LOAD || step % d->o->interval) continue;
        status = place_anew(&anew, d, &r.layout, step, steps ? &sum : &begun, steps ? &other : &begun, error);
        steps++;
    }
    for (int64_t i = 0; i < d->out->intervals; i++) row->interval[i].peak /= (double)d->o->interval;
    if (status == COT_OK && kind == COT_BENCH_DRIFT_LOAD)
        tell_anew(&d->out->anew, d, steps - 1, &sum, &other);
    close_runner(&r);
    close_runner(&anew);
    if (status == COT_OK && d->o->progress) d->o->progress(d->o->context, ++d->done, COT_BENCH_DRIFT_ROWS);
    return status;
}

/* Takes *map, where a half's steps take less than in the best so far. */
static cot_status compare(cot_expert_map *best, double *best_ns, const char **found_by, cot_expert_map *map,
                          const char *by, drift *d, int half, cot_error *error)
{
    cot_expert_layout layout;
    cot_bench_drift_interval sum = {0};
    const cot_status status = cot_bench_drift_layout(&layout, map, error);
    if (status != COT_OK) return status;
    for (int64_t step = half * d->o->steps; step < (half + 1) * d->o->steps; step++)
        cot_bench_drift_judge_step(&sum, &d->judge, step, &layout);
    cot_expert_layout_free(&layout);
    if (best->expert && sum.ns >= *best_ns) return COT_OK;
    *best_ns = sum.ns;
    *found_by = by;
    cot_expert_map_free(best);
    return copy_map(best, map, error);
}

/* The best of several placements for all that a half calls. */
static cot_status find_best(cot_expert_map *best, drift *d, int half, cot_error *error)
{
    static const struct {
        const char *by;
        bool eplb;
        bool settles;
    } ways[] = {{"EPLB", true, false}, {"load, from EPLB", true, true}, {"load, from blocks", false, true}};
    const cot_rebalance_seen seen = seen_in(d, half * d->o->steps, (half + 1) * d->o->steps);
    double ns = 0;
    cot_status status = COT_OK;
    for (size_t i = 0; status == COT_OK && i < sizeof ways / sizeof *ways; i++) {
        cot_expert_map map = {0};
        status = ways[i].eplb ? cot_bench_drift_eplb(&map, seen.calls, d->o, error)
                              : copy_map(&map, &d->blocks, error);
        if (status == COT_OK && ways[i].settles) status = settle(&map, d, &seen, error);
        if (status == COT_OK)
            status = compare(best, &ns, &d->out->found_by[half], &map, ways[i].by, d, half, error);
        cot_expert_map_free(&map);
    }
    return status;
}

static cot_status run_rows(drift *d, cot_error *error)
{
    cot_expert_map best[2] = {{0}, {0}};
    cot_status status = find_best(&best[0], d, 0, error);
    if (status == COT_OK) status = find_best(&best[1], d, 1, error);
    for (int kind = 0; status == COT_OK && kind < COT_BENCH_DRIFT_ROWS; kind++)
        status = run_row(d, (cot_bench_drift_kind)kind,
                         kind == COT_BENCH_DRIFT_FIRST    ? &best[0]
                         : kind == COT_BENCH_DRIFT_SECOND ? &best[1]
                                                          : &d->blocks,
                         error);
    cot_expert_map_free(&best[0]);
    cot_expert_map_free(&best[1]);
    return status;
}

/* ---- what is asked ---- */

static cot_status check_half(const cot_bench_drift_options *o, int which, cot_error *error)
{
    const cot_bench_drift_half *h = &o->half[which];
    const cot_trace *t = h->trace, *first = o->half[0].trace;
    const char *name = which ? "second" : "first";
    if (t->kind != COT_TRACE_TOKENS)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the trace of the %s half has counts, no token's routing", name);
    if (t->n_layers != first->n_layers || t->n_experts != first->n_experts || t->top_k != first->top_k)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the traces are of %d and %d layers, %d of %d and %d of %d experts a token",
                        (int)first->n_layers, (int)t->n_layers, (int)first->top_k, (int)first->n_experts,
                        (int)t->top_k, (int)t->n_experts);
    if (h->width < 1 || h->sequences < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%d sequences at a time of %d in the %s half, expected 1 or more", (int)h->width,
                        (int)h->sequences, name);
    for (int32_t i = 0; i < h->sequences; i++) {
        const int32_t s = h->sequence[i];
        if (s < 0 || s >= t->n_sequences)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "there is no sequence %d in the %s half, there are %lld", (int)s, name,
                            (long long)t->n_sequences);
        if (t->sequence_offsets[s] == t->sequence_offsets[s + 1])
            return cot_fail(error, COT_INVALID_ARGUMENT, "sequence %d of the %s half is empty", (int)s, name);
    }
    return COT_OK;
}

static cot_status check(const cot_bench_drift_options *o, cot_error *error)
{
    const double ns[] = {o->costs.layer_ns, o->costs.expert_ns, o->costs.row_ns, o->costs.send_ns,
                         o->costs.copy_ns};
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "benchmark options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (o->ranks < 1 || o->ranks > COT_REBALANCE_MOST_RANKS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d ranks, expected 1 to %d", (int)o->ranks,
                        COT_REBALANCE_MOST_RANKS);
    if (o->spare < 0 || o->spare % o->ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d spare slots, expected a multiple of %d ranks",
                        (int)o->spare, (int)o->ranks);
    if (o->interval < 1 || o->steps < 1 || o->steps % o->interval)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%lld steps a half, expected a multiple of an interval of %lld", (long long)o->steps,
                        (long long)o->interval);
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
        if (!(ns[i] >= 0 && isfinite(ns[i])))
            return cot_fail(error, COT_INVALID_ARGUMENT, "a cost of %g ns", ns[i]);
    const cot_status status = check_half(o, 0, error);
    return status == COT_OK ? check_half(o, 1, error) : status;
}

static cot_status open_drift(drift *d, cot_error *error)
{
    const cot_trace *t = d->o->half[0].trace;
    d->L = t->n_layers;
    d->E = t->n_experts;
    d->K = t->top_k;
    d->calls = malloc((size_t)d->L * (size_t)d->E * sizeof *d->calls);
    d->token = malloc((size_t)d->L * (size_t)d->K * sizeof *d->token);
    d->copy_ns = malloc((size_t)d->L * sizeof *d->copy_ns);
    d->out->intervals = 2 * d->o->steps / d->o->interval;
    d->out->change = d->out->intervals / 2;
    bool good = d->calls && d->token && d->copy_ns;
    for (int kind = 0; kind < COT_BENCH_DRIFT_ROWS; kind++) {
        cot_bench_drift_row *row = &d->out->row[kind];
        row->interval = calloc((size_t)d->out->intervals, sizeof *row->interval);
        good &= row->interval != NULL;
    }
    if (!good) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a benchmark");
    cot_status status = cot_bench_drift_steps_make(&d->steps, d->o, error);
    if (status == COT_OK) status = cot_bench_drift_judge_open(&d->judge, d->o, &d->steps, error);
    return status == COT_OK ? cot_bench_drift_blocks(&d->blocks, d->o, error) : status;
}

cot_status cot_bench_drift_run(cot_bench_drift *out, const cot_bench_drift_options *o, cot_error *error)
{
    *out = (cot_bench_drift){0};
    drift d = {.o = o, .out = out};
    cot_status status = check(o, error);
    if (status == COT_OK) status = open_drift(&d, error);
    if (status == COT_OK) status = run_rows(&d, error);
    cot_bench_drift_steps_free(&d.steps);
    cot_bench_drift_judge_close(&d.judge);
    cot_expert_map_free(&d.blocks);
    free(d.calls);
    free(d.token);
    free(d.copy_ns);
    return status;
}

void cot_bench_drift_free(cot_bench_drift *out)
{
    for (int kind = 0; kind < COT_BENCH_DRIFT_ROWS; kind++) free(out->row[kind].interval);
    *out = (cot_bench_drift){0};
}
