#include "placement/rebalance_layer.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cot_rebalance_reason_names[COT_REBALANCE_REASONS + 1] = {
    [COT_REBALANCE_MOVES] = "experts move",       [COT_REBALANCE_FEW] = "too few calls counted",
    [COT_REBALANCE_LEAST] = "no move helps",      [COT_REBALANCE_COST] = "moves cost more than they save",
    [COT_REBALANCE_COOLING] = "moved too lately", [COT_REBALANCE_LIMIT] = "moves a cycle are used up",
    [COT_REBALANCE_SLOTS] = "no slot is open"};

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
    int32_t spare; // slots with an expert, before
    bool few, cooling,
        bound; // too little is counted; changes of experts that cool down would pay; those that need slots
} layer_plan;

typedef struct cycle {
    const cot_rebalance *r;
    const cot_rebalance_seen *seen;
    cot_rebalance_clock now;
    double horizon;
    cot_rebalance_search search;
    uint64_t *was;       // [L][E]
    double *rate;        // [E] calls a step
    bool *cooling;       // [E]
    layer_plan *layer;   // [L]
    int64_t moves, room; // that are left: moves, bytes of spare slots
    bool empties;        // changes empty spare slots
    bool over;           // a rank has one expert more than slots
} cycle;

static double ns_at(const layer_plan *p, int32_t marks)
{
    return marks ? p->mark[marks - 1].ns : p->before_ns;
}

static int32_t moves_at(const layer_plan *p, int32_t marks)
{
    return marks ? p->mark[marks - 1].moves : 0;
}

/* What spare slots take more with the changes of so many marks than with those of others. */
static int64_t more_bytes(const cycle *c, int32_t l, const layer_plan *p, int32_t from, int32_t to)
{
    const int32_t before = from ? p->mark[from - 1].spare : p->spare;
    return (p->mark[to - 1].spare - before) * c->r->slot_bytes[l];
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

/* The changes of one layer, or of all together, that pay most for a move among those that take at most so many moves, and of spare slots so
 * many bytes more: where they end, 0: none. */
static int32_t best_of(const cycle *c, int32_t l, const layer_plan *p, int64_t moves, int64_t room,
                       double *rate)
{
    int32_t best = 0;
    for (int32_t to = p->taken + 1; to <= p->marks; to++) {
        const double here = worth(c, l, p, p->taken, to);
        if (moves_at(p, to) - moves_at(p, p->taken) > moves || here <= *rate) continue;
        const int64_t bytes = more_bytes(c, l, p, p->taken, to);
        if (bytes > 0 && bytes > room) continue;
        *rate = here;
        best = to;
    }
    return best;
}

static void take_changes(cycle *c)
{
    for (;;) {
        double rate = 0;
        int32_t which = -1, upto = 0;
        for (int32_t l = 0; l < c->r->o.layers; l++) {
            const int32_t to = best_of(c, l, &c->layer[l], c->moves, c->room, &rate);
            if (!to) continue;
            which = l;
            upto = to;
        }
        if (which < 0) return;
        layer_plan *p = &c->layer[which];
        c->moves -= moves_at(p, upto) - moves_at(p, p->taken);
        c->room -= more_bytes(c, which, p, p->taken, upto);
        p->taken = upto;
    }
}

/* The layer whose next spare slot costs least to empty for its bytes, and what that is; NULL: none has one. */
static layer_plan *cheapest_emptying(const cycle *c, double *ns)
{
    layer_plan *best = NULL;
    double least = INFINITY;
    for (int32_t l = 0; l < c->r->o.layers; l++) {
        layer_plan *p = &c->layer[l];
        if (p->taken == p->marks) continue;
        const double more = ns_at(p, p->taken + 1) - ns_at(p, p->taken),
                     rate = more / (double)c->r->slot_bytes[l];
        if (best && rate >= least) continue;
        best = p;
        least = rate;
        if (ns) *ns = more;
    }
    return best;
}

/* Which experts of a layer changed less than a cool-down ago. */
static bool find_cooling(cycle *c, int32_t l)
{
    const int32_t E = c->r->o.experts;
    bool any = false;
    for (int32_t e = 0; e < E; e++) {
        const size_t at = (size_t)l * (size_t)E + (size_t)e;
        c->cooling[e] = c->r->has_changed[at] &&
                        !cot_rebalance_passed(&c->r->o, c->r->changed[at], c->now, c->r->o.cool_down);
        any |= c->cooling[e];
    }
    return any;
}

/* What a layer is searched for. */
typedef enum search_for { ANY_CHANGE, NO_MORE_SLOTS, EMPTYING, RETURNS } search_for;

static cot_status search_layer(cycle *c, int32_t l, layer_plan *p, search_for what, const bool *fixed,
                               cot_error *error)
{
    cot_rebalance_search *s = &c->search;
    memcpy(s->was, c->was + (size_t)l * (size_t)c->r->o.experts, (size_t)c->r->o.experts * sizeof *s->was);
    cot_rebalance_search_begin(s, c->rate, c->seen, l, fixed);
    p->before_ns = s->ns;
    p->spare = s->spare;
    p->marks = 0;
    if (what == NO_MORE_SLOTS) cot_rebalance_search_keep_slots(s);
    const cot_status status = what == EMPTYING  ? cot_rebalance_search_emptying(s, c->r->o.base, error)
                              : what == RETURNS ? cot_rebalance_search_emptying(s, c->r->o.slots, error)
                                                : cot_rebalance_search_run(s, error);
    if (status != COT_OK || !s->marks) return status;
    free(p->mark);
    p->mark = malloc((size_t)s->marks * sizeof *p->mark);
    if (!p->mark) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for changes of a layer");
    memcpy(p->mark, s->mark, (size_t)s->marks * sizeof *p->mark);
    p->marks = s->marks;
    return COT_OK;
}

/* Calls a step of a layer's experts; whether enough are counted. */
static bool find_rates(cycle *c, int32_t l)
{
    const int32_t E = c->r->o.experts;
    double calls = 0;
    for (int32_t e = 0; e < E; e++) {
        const double counted = c->seen->calls[(size_t)l * (size_t)E + (size_t)e];
        calls += counted;
        c->rate[e] = c->seen->steps > 0 ? counted / c->seen->steps : 0;
    }
    return calls >= COT_REBALANCE_LEAST_CALLS * (double)E && c->seen->steps > 0;
}

static cot_status plan_layer(cycle *c, int32_t l, cot_error *error)
{
    layer_plan *p = &c->layer[l], free_plan = {0};
    p->few = !find_rates(c, l);
    if (p->few) return COT_OK;
    const bool cooling = find_cooling(c, l);
    cot_status status = search_layer(c, l, p, ANY_CHANGE, cooling ? c->cooling : NULL, error);
    double rate = 0;
    if (status != COT_OK || !cooling || best_of(c, l, p, INT64_MAX, INT64_MAX, &rate)) return status;
    status = search_layer(c, l, &free_plan, ANY_CHANGE, NULL, error); // to say what the matter is
    p->cooling = best_of(c, l, &free_plan, INT64_MAX, INT64_MAX, &rate) > 0;
    free(free_plan.mark);
    return status;
}

/* Layers whose changes would all fill slots for which there is no room are searched for such as do not. */
static cot_status search_bound_layers(cycle *c, cot_error *error)
{
    cot_status status = COT_OK;
    for (int32_t l = 0; l < c->r->o.layers && status == COT_OK; l++) {
        layer_plan *p = &c->layer[l];
        double rate = 0;
        if (p->few || p->taken || best_of(c, l, p, INT64_MAX, c->room, &rate) ||
            !best_of(c, l, p, INT64_MAX, INT64_MAX, &rate))
            continue;
        p->bound = true;
        find_rates(c, l);
        status = search_layer(c, l, p, NO_MORE_SLOTS, find_cooling(c, l) ? c->cooling : NULL, error);
    }
    return status;
}

static cot_rebalance_layer tell_layer(const cycle *c, int32_t l)
{
    const layer_plan *p = &c->layer[l];
    double rate = 0;
    const int32_t refused = best_of(c, l, p, INT64_MAX, INT64_MAX, &rate);
    const int32_t to = p->taken ? p->taken : refused ? refused : p->marks;
    return (cot_rebalance_layer){.reason = p->few       ? COT_REBALANCE_FEW
                                           : p->taken   ? COT_REBALANCE_MOVES
                                           : p->bound   ? COT_REBALANCE_SLOTS
                                           : refused    ? COT_REBALANCE_LIMIT
                                           : p->cooling ? COT_REBALANCE_COOLING
                                           : p->marks   ? COT_REBALANCE_COST
                                                        : COT_REBALANCE_LEAST,
                                 .moves = moves_at(p, to),
                                 .before_ns = p->before_ns,
                                 .after_ns = ns_at(p, to)};
}

/* ---- slots that a budget holds ---- */

/* Experts of each rank in a layer of the layout. */
static void count_layout(int32_t used[COT_REBALANCE_MOST_RANKS], const cot_expert_layout *layout, int32_t l)
{
    const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
    memset(used, 0, COT_REBALANCE_MOST_RANKS * sizeof *used);
    for (int32_t i = 0; i < r.begin[layout->n_experts]; i++) used[r.rank[i]]++;
}

int64_t cot_rebalance_spare_bytes(const cot_rebalance *r, const cot_expert_layout *layout,
                                  const cot_expert_layout *other)
{
    int32_t used[COT_REBALANCE_MOST_RANKS], too[COT_REBALANCE_MOST_RANKS] = {0};
    int64_t bytes = 0;
    for (int32_t l = 0; l < r->o.layers; l++) {
        count_layout(used, layout, l);
        if (other) count_layout(too, other, l);
        for (int32_t rank = 0; rank < r->o.ranks; rank++) {
            const int32_t most = too[rank] > used[rank] ? too[rank] : used[rank];
            if (most > r->o.base) bytes += (most - r->o.base) * r->slot_bytes[l];
        }
    }
    return bytes;
}

/* Experts of each rank, by where each expert is. */
static void count_ranks(int32_t used[COT_REBALANCE_MOST_RANKS], const uint64_t *ranks, int32_t experts)
{
    memset(used, 0, COT_REBALANCE_MOST_RANKS * sizeof *used);
    for (int32_t e = 0; e < experts; e++)
        for (uint64_t left = ranks[e]; left; left &= left - 1) used[__builtin_ctzll(left)]++;
}

/* Of a layer's changes, from `was` to `now`, those stay that take a replica out of a spare slot, of an expert that keeps another. */
static void keep_drops(uint64_t *now, const uint64_t *was, const cot_rebalance_options *o)
{
    int32_t used[COT_REBALANCE_MOST_RANKS];
    count_ranks(used, was, o->experts);
    for (int32_t e = 0; e < o->experts; e++) {
        uint64_t goes = was[e] & ~now[e];
        now[e] = was[e];
        for (; goes && now[e] & (now[e] - 1); goes &= goes - 1) {
            const int rank = __builtin_ctzll(goes);
            if (used[rank] <= o->base) continue;
            used[rank]--;
            now[e] &= ~((uint64_t)1 << rank);
        }
    }
}

/* Where the changes taken have a layer's experts, in search.now; *bytes: what spare slots of the layer take at most on the way there. */
static void change_layer(cycle *c, int32_t l, int64_t *bytes)
{
    const cot_rebalance_options *o = &c->r->o;
    const uint64_t *was = c->was + (size_t)l * (size_t)o->experts;
    uint64_t *now = c->search.now;
    int32_t before[COT_REBALANCE_MOST_RANKS], after[COT_REBALANCE_MOST_RANKS];
    memcpy(now, was, (size_t)o->experts * sizeof *now);
    for (int32_t i = 0; i < c->layer[l].taken; i++) {
        const cot_rebalance_change *change = &c->layer[l].mark[i].change;
        for (int k = 0; k < change->n; k++) now[change->expert[k]] = change->ranks[k];
    }
    count_ranks(before, was, o->experts);
    count_ranks(after, now, o->experts);
    for (int32_t r = 0; r < o->ranks; r++) {
        const int32_t most = after[r] > before[r] ? after[r] : before[r];
        if (most > o->base) *bytes += (most - o->base) * c->r->slot_bytes[l];
    }
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

/* Where slots have to become free before others may be filled, that alone is done: the next cycle does the rest. */
static void write_plan(cot_rebalance_plan *plan, cycle *c)
{
    const cot_rebalance_options *o = &c->r->o;
    int64_t most = 0, unused = 0;
    for (int32_t l = 0; l < o->layers; l++) change_layer(c, l, &most);
    const bool drops = !c->empties && most > c->r->spare_bytes;
    for (int32_t l = 0; l < o->layers; l++) {
        change_layer(c, l, &unused);
        if (drops) keep_drops(c->search.now, c->was + (size_t)l * (size_t)o->experts, o);
        write_layer(plan, c, l);
        plan->layer[l] = tell_layer(c, l);
        plan->before_ns += plan->layer[l].before_ns;
        if (c->layer[l].taken && !drops)
            plan->saving_ns += plan->layer[l].before_ns - plan->layer[l].after_ns;
    }
}

/* The ranks of each expert, as bits. Moves that were cut off may leave a rank one expert more than slots, in that through which experts come: *over. */
static cot_status read_layout(uint64_t *was, bool *over, const cot_rebalance_options *o,
                              const cot_expert_layout *layout, cot_error *error)
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
                if (*ranks != had && ++used[r.rank[i]] > o->slots + 1)
                    return cot_fail(error, COT_INVALID_ARGUMENT,
                                    "rank %d has more than %d experts of layer %d", (int)r.rank[i],
                                    (int)o->slots + 1, (int)layout->layers[l]);
                *over |= used[r.rank[i]] > o->slots;
            }
    }
    return COT_OK;
}

static cot_status choose_changes(cycle *c, cot_error *error)
{
    cot_status status = COT_OK;
    for (int32_t l = 0; status == COT_OK && l < c->r->o.layers; l++) status = plan_layer(c, l, error);
    if (status != COT_OK) return status;
    take_changes(c);
    if (c->r->spare_bytes == INT64_MAX) return COT_OK;
    status = search_bound_layers(c, error);
    if (status == COT_OK) take_changes(c);
    return status;
}

/* Searches every layer for changes that empty slots. */
static cot_status search_emptying(cycle *c, search_for what, cot_error *error)
{
    cot_status status = COT_OK;
    c->empties = true;
    for (int32_t l = 0; status == COT_OK && l < c->r->o.layers; l++) {
        find_rates(c, l);
        status = search_layer(c, l, &c->layer[l], what, NULL, error);
    }
    return status;
}

/* Spare slots of all layers become empty, those first that cost least for their bytes, until what is left is no more than may be. */
static cot_status choose_emptying(cycle *c, cot_error *error)
{
    const cot_status status = search_emptying(c, EMPTYING, error);
    while (status == COT_OK && c->room < 0) {
        layer_plan *p = cheapest_emptying(c, NULL);
        if (!p) break;
        c->room -= more_bytes(c, (int32_t)(p - c->layer), p, p->taken, p->taken + 1);
        p->taken++;
    }
    return status;
}

/* Ranks that have one expert more than slots give one up, and nothing else changes: what else would pay needs the slot through which experts come. */
static cot_status choose_returns(cycle *c, cot_error *error)
{
    const cot_status status = search_emptying(c, RETURNS, error);
    for (int32_t l = 0; status == COT_OK && l < c->r->o.layers; l++) c->layer[l].taken = c->layer[l].marks;
    return status;
}

static cot_status open_cycle(cycle *c, const cot_rebalance *r, const cot_expert_layout *layout,
                             const cot_rebalance_seen *seen, cot_rebalance_clock now, cot_error *error)
{
    const cot_rebalance_options *o = &r->o;
    const size_t L = (size_t)o->layers, E = (size_t)o->experts;
    *c = (cycle){.r = r,
                 .seen = seen,
                 .now = now,
                 .horizon = horizon_steps(r, now),
                 .was = malloc(L * E * sizeof *c->was),
                 .rate = malloc(E * sizeof *c->rate),
                 .cooling = malloc(E * sizeof *c->cooling),
                 .layer = calloc(L, sizeof *c->layer),
                 .moves = o->moves_a_cycle + r->saved_moves};
    const cot_status status = c->was && c->rate && c->cooling && c->layer
                                  ? cot_rebalance_search_open(&c->search, o, r->distance, seen->tokens, error)
                                  : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to rebalance");
    if (status != COT_OK) return status;
    c->room = r->spare_bytes - cot_rebalance_spare_bytes(r, layout, NULL);
    return read_layout(c->was, &c->over, o, layout, error);
}

static void close_cycle(cycle *c)
{
    for (int32_t l = 0; c->layer && l < c->r->o.layers; l++) free(c->layer[l].mark);
    cot_rebalance_search_close(&c->search);
    free(c->was);
    free(c->rate);
    free(c->cooling);
    free(c->layer);
}

static cot_status open_plan(cot_rebalance_plan *plan, const cot_rebalance *r, const cot_expert_layout *layout,
                            const cot_rebalance_seen *seen, cot_rebalance_clock now,
                            cot_status (*choose)(cycle *c, cot_error *error), cot_error *error)
{
    const cot_rebalance_options *o = &r->o;
    const size_t L = (size_t)o->layers, E = (size_t)o->experts;
    cycle c;
    cot_status status = open_cycle(&c, r, layout, seen, now, error);
    *plan = (cot_rebalance_plan){.layer = calloc(L, sizeof *plan->layer),
                                 .changes = calloc(L * E, sizeof *plan->changes),
                                 .layers = o->layers,
                                 .experts = o->experts,
                                 .horizon_steps = c.horizon};
    if (status == COT_OK && (!plan->layer || !plan->changes))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to rebalance");
    if (status == COT_OK)
        status = cot_expert_map_new(&plan->to, o->layers, o->experts, o->ranks, o->slots, error);
    if (status == COT_OK) status = (c.over ? choose_returns : choose)(&c, error);
    if (status == COT_OK) {
        memcpy(plan->to.layers, layout->layers, L * sizeof *layout->layers);
        write_plan(plan, &c);
    }
    close_cycle(&c);
    return status;
}

cot_status cot_rebalance_plan_open(cot_rebalance_plan *plan, const cot_rebalance *r,
                                   const cot_expert_layout *layout, const cot_rebalance_seen *seen,
                                   cot_rebalance_clock now, cot_error *error)
{
    return open_plan(plan, r, layout, seen, now, choose_changes, error);
}

cot_status cot_rebalance_plan_emptying(cot_rebalance_plan *plan, const cot_rebalance *r,
                                       const cot_expert_layout *layout, const cot_rebalance_seen *seen,
                                       cot_rebalance_clock now, cot_error *error)
{
    return open_plan(plan, r, layout, seen, now, choose_emptying, error);
}

void cot_rebalance_plan_close(cot_rebalance_plan *plan)
{
    cot_expert_map_free(&plan->to);
    free(plan->layer);
    free(plan->changes);
    *plan = (cot_rebalance_plan){0};
}

/* ---- what slots are worth ---- */

/* What each bin costs below what is filled: replicas go as choose_emptying has it. */
static cot_status worth_of_less(double *ns, int filled, double bin_bytes, double bytes, cycle *c,
                                cot_error *error)
{
    double lost = 0;
    cot_status status = COT_OK;
    for (int32_t l = 0; status == COT_OK && l < c->r->o.layers; l++) {
        find_rates(c, l);
        status = search_layer(c, l, &c->layer[l], EMPTYING, NULL, error);
    }
    for (int i = filled; status == COT_OK && i >= 0; i--) {
        double more;
        layer_plan *p = NULL;
        while (bytes > i * bin_bytes && (p = cheapest_emptying(c, &more))) {
            bytes += (double)more_bytes(c, (int32_t)(p - c->layer), p, p->taken, p->taken + 1);
            p->taken++;
            lost += more;
        }
        ns[i] = bytes > i * bin_bytes ? -INFINITY : -lost;
    }
    return status;
}

/* What each bin saves above: changes that pay, with so much more room. */
static cot_status worth_of_more(double *ns, int filled, int bins, double bin_bytes, double bytes, cycle *c,
                                cot_error *error)
{
    double anyhow = 0; // by changes that need no more bins
    cot_status status = COT_OK;
    for (int32_t l = 0; status == COT_OK && l < c->r->o.layers; l++) {
        layer_plan *p = &c->layer[l];
        p->taken = p->marks = 0;
        if (find_rates(c, l)) status = search_layer(c, l, p, ANY_CHANGE, NULL, error);
    }
    c->moves = INT64_MAX;
    c->room = 0;
    for (int i = filled; status == COT_OK && i <= bins; i++) {
        const double more = i * bin_bytes - bytes, before = i == filled ? 0 : more - bin_bytes;
        c->room += (int64_t)more - (int64_t)before;
        take_changes(c);
        double saved = 0;
        for (int32_t l = 0; l < c->r->o.layers; l++)
            saved += c->layer[l].before_ns - ns_at(&c->layer[l], c->layer[l].taken);
        if (i == filled) anyhow = saved;
        ns[i] = saved - anyhow;
    }
    return status;
}

cot_status cot_rebalance_worth(double *ns, int bins, double bin_bytes, const cot_rebalance *r,
                               const cot_expert_layout *layout, const cot_rebalance_seen *seen,
                               cot_rebalance_clock now, cot_error *error)
{
    cycle c;
    cot_status status = open_cycle(&c, r, layout, seen, now, error);
    const double bytes = (double)cot_rebalance_spare_bytes(r, layout, NULL);
    const int filled = (int)fmin(ceil(bytes / bin_bytes), bins);
    if (status == COT_OK) status = worth_of_less(ns, filled, bin_bytes, bytes, &c, error);
    if (status == COT_OK) status = worth_of_more(ns, filled, bins, bin_bytes, bytes, &c, error);
    for (int i = 1; status == COT_OK && i <= bins; i++)
        ns[i] = fmax(ns[i], ns[i - 1]); // none has to be filled
    close_cycle(&c);
    return status;
}
