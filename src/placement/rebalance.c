#include "placement/rebalance_layer.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cot_rebalance_mode_names[] = {"off", "load", "joint", NULL};
const char *const cot_rebalance_reason_names[COT_REBALANCE_REASONS + 1] = {
    [COT_REBALANCE_MOVES] = "experts move",       [COT_REBALANCE_FEW] = "too few calls counted",
    [COT_REBALANCE_LEAST] = "no move helps",      [COT_REBALANCE_COST] = "moves cost more than they save",
    [COT_REBALANCE_COOLING] = "moved too lately", [COT_REBALANCE_LIMIT] = "moves a cycle are used up"};

/* ---- intervals ---- */

/* One part, up to `end`; whether it is one, and the first of its unit. */
static bool read_part(int64_t *steps, int64_t *ns, const char *part, const char *end)
{
    const double most_steps = 1e12, most_s = 1e9;
    const char *unit = part + strspn(part, "0123456789.");
    char *behind;
    const double value = strtod(part, &behind);
    if (behind == part || behind != unit) return false;
    const size_t length = (size_t)(end - unit);
    if (length == 5 && !strncmp(unit, "steps", length)) {
        if (*steps || !(value >= 1 && value <= most_steps) || value != floor(value)) return false;
        *steps = (int64_t)value;
        return true;
    }
    if (length != 1 || *unit != 's' || *ns || !(value >= 1e-9 && value <= most_s)) return false;
    *ns = (int64_t)(value * 1e9);
    return true;
}

cot_status cot_rebalance_read_interval(int64_t *steps, int64_t *ns, const char *text, cot_error *error)
{
    const char *part = text;
    bool good = true;
    *steps = *ns = 0;
    while (good) {
        const char *end = part + strcspn(part, ",");
        good = read_part(steps, ns, part, end);
        if (!*end) break;
        part = end + 1;
    }
    return good ? COT_OK
                : cot_fail(
                      error, COT_INVALID_ARGUMENT,
                      "'%s' is no interval to rebalance: it is written as 4096steps, 60s or 4096steps,60s",
                      text);
}

/* ---- opening ---- */

static cot_status check_costs(const cot_rebalance_options *o, cot_error *error)
{
    const double ns[] = {o->row_ns, o->expert_ns, o->send_ns};
    bool good = o->row_ns + o->expert_ns > 0;
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) good &= ns[i] >= 0 && isfinite(ns[i]);
    for (int32_t l = 0; l < o->layers; l++) good &= o->copy_ns[l] >= 0 && isfinite(o->copy_ns[l]);
    for (int64_t i = 0; o->distance && i < (int64_t)o->ranks * o->ranks; i++)
        good &= o->distance[i] >= 0 && isfinite(o->distance[i]);
    return good ? COT_OK
                : cot_fail(error, COT_INVALID_ARGUMENT,
                           "rebalancing by times and distances that are not 0 or more");
}

static cot_status check(const cot_rebalance_options *o, cot_error *error)
{
    if (o->mode != COT_REBALANCE_LOAD && o->mode != COT_REBALANCE_JOINT)
        return cot_fail(error, COT_INVALID_ARGUMENT, "rebalancing that is off");
    if (o->ranks < 1 || o->ranks > COT_REBALANCE_MOST_RANKS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "rebalancing of %d ranks, expected 1 to %d",
                        (int)o->ranks, COT_REBALANCE_MOST_RANKS);
    if (o->layers < 1 || o->experts < 1 || o->top_k < 1 || o->top_k > o->experts || o->slots < 1 ||
        (int64_t)o->slots * o->ranks < o->experts)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "rebalancing of %d of %d experts in %d layers and %d slots of %d ranks",
                        (int)o->top_k, (int)o->experts, (int)o->layers, (int)o->slots, (int)o->ranks);
    if (o->interval_steps < 0 || o->interval_ns < 0 || (!o->interval_steps && !o->interval_ns))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "an interval of %lld steps and %lld ns to rebalance, expected one above 0",
                        (long long)o->interval_steps, (long long)o->interval_ns);
    if (o->cool_down < 1 || o->moves_a_cycle < 1 || !(o->margin > 0 && isfinite(o->margin)))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%lld moves a cycle, a cool-down of %d intervals and a margin of %g",
                        (long long)o->moves_a_cycle, (int)o->cool_down, o->margin);
    return check_costs(o, error);
}

cot_status cot_rebalance_open(cot_rebalance *r, const cot_rebalance_options *o, cot_rebalance_clock now,
                              cot_error *error)
{
    *r = (cot_rebalance){0};
    const cot_status status = check(o, error);
    if (status != COT_OK) return status;
    const size_t L = (size_t)o->layers, n = L * (size_t)o->experts,
                 pairs = (size_t)o->ranks * (size_t)o->ranks;
    *r = (cot_rebalance){.o = *o,
                         .last = now,
                         .copy_ns = malloc(L * sizeof *r->copy_ns),
                         .distance = o->distance ? malloc(pairs * sizeof *r->distance) : NULL,
                         .changed = calloc(n, sizeof *r->changed),
                         .has_changed = calloc(n, sizeof *r->has_changed)};
    if (!r->copy_ns || (o->distance && !r->distance) || !r->changed || !r->has_changed)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for rebalancing");
    memcpy(r->copy_ns, o->copy_ns, L * sizeof *r->copy_ns);
    if (r->distance) memcpy(r->distance, o->distance, pairs * sizeof *r->distance);
    r->o.copy_ns = r->copy_ns;
    r->o.distance = r->distance;
    return COT_OK;
}

cot_status cot_rebalance_learn(cot_rebalance *r, const cot_rebalance_costs *costs, cot_error *error)
{
    cot_rebalance_options o = r->o;
    o.row_ns = costs->row_ns;
    o.expert_ns = costs->expert_ns;
    o.send_ns = costs->send_ns;
    o.copy_ns = costs->copy_ns;
    const cot_status status = check_costs(&o, error);
    if (status != COT_OK) return status;
    memcpy(r->copy_ns, costs->copy_ns, (size_t)o.layers * sizeof *r->copy_ns);
    r->o = o;
    r->o.copy_ns = r->copy_ns;
    return COT_OK;
}

void cot_rebalance_close(cot_rebalance *r)
{
    free(r->copy_ns);
    free(r->distance);
    free(r->changed);
    free(r->has_changed);
    *r = (cot_rebalance){0};
}

/* ---- the clock ---- */

/* Whether so many intervals have gone by between two times. */
static bool passed(const cot_rebalance_options *o, cot_rebalance_clock from, cot_rebalance_clock to,
                   int64_t intervals)
{
    return (o->interval_steps && to.steps - from.steps >= intervals * o->interval_steps) ||
           (o->interval_ns && to.ns - from.ns >= intervals * o->interval_ns);
}

bool cot_rebalance_due(const cot_rebalance *r, cot_rebalance_clock now)
{
    return passed(&r->o, r->last, now, 1);
}

bool cot_rebalance_turns(cot_rebalance *r, double change, double chance)
{
    static const double far = 2; // times the usual
    enum { OF_LATE = 8 };
    if (!(change > 0)) return false;
    if (r->changes && change > far * r->usual_change && change > far * chance) return true;
    if (r->changes < OF_LATE) r->changes++;
    r->usual_change += (change - r->usual_change) / r->changes;
    return false;
}

/* Steps that an expert will stay where it comes to, as fast as steps have been since the last cycle. */
static double horizon_steps(const cot_rebalance *r, cot_rebalance_clock now)
{
    const cot_rebalance_options *o = &r->o;
    const double steps = (double)(now.steps - r->last.steps), ns = (double)(now.ns - r->last.ns);
    double interval = o->interval_steps ? (double)o->interval_steps : INFINITY;
    if (o->interval_ns && ns > 0) interval = fmin(interval, steps * (double)o->interval_ns / ns);
    return isfinite(interval) ? o->cool_down * interval : 0;
}

/* ---- a cycle ---- */

/* What changes of a layer come to: the marks of its search, kept. */
typedef struct layer_plan {
    cot_rebalance_mark *mark; // [marks]
    int32_t marks, taken;
    double before_ns;
    bool few, cooling; // too little is counted; changes of experts that cool down would pay
} layer_plan;

typedef struct cycle {
    const cot_rebalance *r;
    const cot_rebalance_seen *seen;
    cot_rebalance_clock now;
    double horizon;
    cot_rebalance_search search;
    uint64_t *was;     // [L][E]
    double *rate;      // [E] calls a step
    bool *cooling;     // [E]
    layer_plan *layer; // [L]
} cycle;

static double ns_at(const layer_plan *p, int32_t marks)
{
    return marks ? p->mark[marks - 1].ns : p->before_ns;
}

static int32_t moves_at(const layer_plan *p, int32_t marks)
{
    return marks ? p->mark[marks - 1].moves : 0;
}

/* What changes from one mark to another save for a move, 0 where they are not worth it. Changes that copy nothing come before all that
 * save less than a hundred times as much. */
static double worth(const cycle *c, int32_t l, const layer_plan *p, int32_t from, int32_t to)
{
    const double saving = ns_at(p, from) - ns_at(p, to);
    const int32_t moves = moves_at(p, to) - moves_at(p, from);
    const bool pays = saving > 0 && saving * c->horizon >= c->r->o.margin * moves * c->r->copy_ns[l];
    return pays ? saving / (moves > 0 ? moves : 0.01) : 0;
}

/* The changes of one layer, or of all together, that pay most for a move among those that take at most `left` moves: where they end,
 * 0: none. */
static int32_t best_of(const cycle *c, int32_t l, const layer_plan *p, int64_t left, double *rate)
{
    int32_t best = 0;
    for (int32_t to = p->taken + 1; to <= p->marks; to++) {
        const double here = worth(c, l, p, p->taken, to);
        if (moves_at(p, to) - moves_at(p, p->taken) > left || here <= *rate) continue;
        *rate = here;
        best = to;
    }
    return best;
}

static void take_changes(cycle *c)
{
    int64_t left = c->r->o.moves_a_cycle + c->r->saved_moves;
    for (;;) {
        double rate = 0;
        int32_t which = -1, upto = 0;
        for (int32_t l = 0; l < c->r->o.layers; l++) {
            const int32_t to = best_of(c, l, &c->layer[l], left, &rate);
            if (!to) continue;
            which = l;
            upto = to;
        }
        if (which < 0) return;
        layer_plan *p = &c->layer[which];
        left -= moves_at(p, upto) - moves_at(p, p->taken);
        p->taken = upto;
    }
}

/* Which experts of a layer changed less than a cool-down ago. */
static bool find_cooling(cycle *c, int32_t l)
{
    const int32_t E = c->r->o.experts;
    bool any = false;
    for (int32_t e = 0; e < E; e++) {
        const size_t at = (size_t)l * (size_t)E + (size_t)e;
        c->cooling[e] =
            c->r->has_changed[at] && !passed(&c->r->o, c->r->changed[at], c->now, c->r->o.cool_down);
        any |= c->cooling[e];
    }
    return any;
}

static cot_status search_layer(cycle *c, int32_t l, layer_plan *p, const bool *fixed, cot_error *error)
{
    cot_rebalance_search *s = &c->search;
    memcpy(s->was, c->was + (size_t)l * (size_t)c->r->o.experts, (size_t)c->r->o.experts * sizeof *s->was);
    cot_rebalance_search_begin(s, c->rate, c->seen, l, fixed);
    p->before_ns = s->ns;
    const cot_status status = cot_rebalance_search_run(s, error);
    if (status != COT_OK || !s->marks) return status;
    p->mark = malloc((size_t)s->marks * sizeof *p->mark);
    if (!p->mark) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for changes of a layer");
    memcpy(p->mark, s->mark, (size_t)s->marks * sizeof *p->mark);
    p->marks = s->marks;
    return COT_OK;
}

static cot_status plan_layer(cycle *c, int32_t l, cot_error *error)
{
    const int32_t E = c->r->o.experts;
    layer_plan *p = &c->layer[l], free_plan = {0};
    double calls = 0;
    for (int32_t e = 0; e < E; e++) {
        const double counted = c->seen->calls[(size_t)l * (size_t)E + (size_t)e];
        calls += counted;
        c->rate[e] = c->seen->steps > 0 ? counted / c->seen->steps : 0;
    }
    p->few = !(calls >= COT_REBALANCE_LEAST_CALLS * (double)E && c->seen->steps > 0);
    if (p->few) return COT_OK;
    const bool cooling = find_cooling(c, l);
    cot_status status = search_layer(c, l, p, cooling ? c->cooling : NULL, error);
    double rate = 0;
    if (status != COT_OK || !cooling || best_of(c, l, p, INT64_MAX, &rate)) return status;
    status = search_layer(c, l, &free_plan, NULL, error); // to say what the matter is
    p->cooling = best_of(c, l, &free_plan, INT64_MAX, &rate) > 0;
    free(free_plan.mark);
    return status;
}

static cot_rebalance_layer tell_layer(const cycle *c, int32_t l)
{
    const layer_plan *p = &c->layer[l];
    double rate = 0;
    const int32_t refused = best_of(c, l, p, INT64_MAX, &rate);
    const int32_t to = p->taken ? p->taken : refused ? refused : p->marks;
    return (cot_rebalance_layer){.reason = p->few       ? COT_REBALANCE_FEW
                                           : p->taken   ? COT_REBALANCE_MOVES
                                           : refused    ? COT_REBALANCE_LIMIT
                                           : p->cooling ? COT_REBALANCE_COOLING
                                           : p->marks   ? COT_REBALANCE_COST
                                                        : COT_REBALANCE_LEAST,
                                 .moves = moves_at(p, to),
                                 .before_ns = p->before_ns,
                                 .after_ns = ns_at(p, to)};
}

/* A layer's row of the map: each rank's experts ascending, in its first slots. */
static void write_layer(cot_rebalance_plan *plan, const cycle *c, int32_t l)
{
    const cot_rebalance_options *o = &c->r->o;
    const uint64_t *was = c->was + (size_t)l * (size_t)o->experts, *now = c->search.now;
    int32_t *row = plan->to.expert + (size_t)l * (size_t)o->ranks * (size_t)o->slots;
    int32_t used[COT_REBALANCE_MOST_RANKS] = {0};
    for (int32_t e = 0; e < o->experts; e++) {
        plan->changes[(size_t)l * (size_t)o->experts + (size_t)e] = now[e] != was[e];
        plan->copies += __builtin_popcountll(now[e] & ~was[e]);
        plan->drops += __builtin_popcountll(was[e] & ~now[e]);
        for (uint64_t ranks = now[e]; ranks; ranks &= ranks - 1) {
            const int rank = __builtin_ctzll(ranks);
            row[rank * o->slots + used[rank]++] = e;
        }
    }
}

static void write_plan(cot_rebalance_plan *plan, cycle *c)
{
    const cot_rebalance_options *o = &c->r->o;
    for (int32_t l = 0; l < o->layers; l++) {
        const size_t row = (size_t)l * (size_t)o->experts;
        memcpy(c->search.now, c->was + row, (size_t)o->experts * sizeof *c->search.now);
        for (int32_t i = 0; i < c->layer[l].taken; i++) {
            const cot_rebalance_change *change = &c->layer[l].mark[i].change;
            for (int k = 0; k < change->n; k++) c->search.now[change->expert[k]] = change->ranks[k];
        }
        write_layer(plan, c, l);
        plan->layer[l] = tell_layer(c, l);
        plan->before_ns += plan->layer[l].before_ns;
        if (c->layer[l].taken) plan->saving_ns += plan->layer[l].before_ns - plan->layer[l].after_ns;
    }
}

/* The ranks of each expert, as bits. */
static cot_status read_layout(uint64_t *was, const cot_rebalance_options *o, const cot_expert_layout *layout,
                              cot_error *error)
{
    if (layout->n_layers != o->layers || layout->n_experts != o->experts || layout->n_ranks != o->ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "a layout of %d layers, %d experts and %d ranks, rebalancing is of %d, %d and %d",
                        (int)layout->n_layers, (int)layout->n_experts, (int)layout->n_ranks, (int)o->layers,
                        (int)o->experts, (int)o->ranks);
    memset(was, 0, (size_t)o->layers * (size_t)o->experts * sizeof *was);
    for (int32_t l = 0; l < o->layers; l++) {
        const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
        int32_t used[COT_REBALANCE_MOST_RANKS] = {0};
        for (int32_t e = 0; e < o->experts; e++)
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++) {
                uint64_t *ranks = &was[(size_t)l * (size_t)o->experts + (size_t)e];
                const uint64_t had = *ranks;
                *ranks |= (uint64_t)1 << r.rank[i];
                if (*ranks != had && ++used[r.rank[i]] > o->slots)
                    return cot_fail(error, COT_INVALID_ARGUMENT,
                                    "rank %d has more than %d experts of layer %d", (int)r.rank[i],
                                    (int)o->slots, (int)layout->layers[l]);
            }
    }
    return COT_OK;
}

static cot_status run_cycle(cot_rebalance_plan *plan, cycle *c, const cot_expert_layout *layout,
                            cot_error *error)
{
    const cot_rebalance_options *o = &c->r->o;
    cot_status status = read_layout(c->was, o, layout, error);
    for (int32_t l = 0; status == COT_OK && l < o->layers; l++) status = plan_layer(c, l, error);
    if (status != COT_OK) return status;
    take_changes(c);
    memcpy(plan->to.layers, layout->layers, (size_t)o->layers * sizeof *layout->layers);
    write_plan(plan, c);
    return COT_OK;
}

cot_status cot_rebalance_plan_open(cot_rebalance_plan *plan, const cot_rebalance *r,
                                   const cot_expert_layout *layout, const cot_rebalance_seen *seen,
                                   cot_rebalance_clock now, cot_error *error)
{
    const cot_rebalance_options *o = &r->o;
    const size_t L = (size_t)o->layers, E = (size_t)o->experts;
    cycle c = {.r = r,
               .seen = seen,
               .now = now,
               .horizon = horizon_steps(r, now),
               .was = malloc(L * E * sizeof *c.was),
               .rate = malloc(E * sizeof *c.rate),
               .cooling = malloc(E * sizeof *c.cooling),
               .layer = calloc(L, sizeof *c.layer)};
    *plan = (cot_rebalance_plan){.layer = calloc(L, sizeof *plan->layer),
                                 .changes = calloc(L * E, sizeof *plan->changes),
                                 .layers = o->layers,
                                 .experts = o->experts,
                                 .horizon_steps = c.horizon};
    cot_status status = c.was && c.rate && c.cooling && c.layer && plan->layer && plan->changes
                            ? cot_rebalance_search_open(&c.search, o, r->distance, seen->tokens, error)
                            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to rebalance");
    if (status == COT_OK)
        status = cot_expert_map_new(&plan->to, o->layers, o->experts, o->ranks, o->slots, error);
    if (status == COT_OK) status = run_cycle(plan, &c, layout, error);
    for (size_t l = 0; c.layer && l < L; l++) free(c.layer[l].mark);
    cot_rebalance_search_close(&c.search);
    free(c.was);
    free(c.rate);
    free(c.cooling);
    free(c.layer);
    return status;
}

void cot_rebalance_plan_close(cot_rebalance_plan *plan)
{
    cot_expert_map_free(&plan->to);
    free(plan->layer);
    free(plan->changes);
    *plan = (cot_rebalance_plan){0};
}

void cot_rebalance_adopt(cot_rebalance *r, const cot_rebalance_plan *plan, cot_rebalance_clock now)
{
    const size_t E = (size_t)plan->experts;
    int64_t left = r->o.moves_a_cycle + r->saved_moves;
    for (size_t l = 0; l < (size_t)plan->layers; l++) {
        bool changes = false;
        for (size_t i = l * E; i < (l + 1) * E; i++) {
            if (!plan->changes[i]) continue;
            r->changed[i] = now;
            r->has_changed[i] = changes = true;
        }
        if (changes) left -= plan->layer[l].moves;
    }
    r->saved_moves = left < r->o.moves_a_cycle ? left : r->o.moves_a_cycle;
    r->last = now;
    r->cycles++;
}
