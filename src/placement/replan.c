/* Few moves from a running placement to a balanced one. In each layer, as long as a rank is above the target, the step
 * that takes most off what is above it for each move:
 *
 *     take over   a slot of a replicated expert becomes another replica of a hot one (one move; all replicas of the
 *                 hot one get lighter, those left of the other one heavier)
 *     exchange    two slots of different ranks (two moves)
 *
 * Layers do not touch each other: where moves are limited, the steps of all layers are taken by what they bring. */
#include "coterie/place.h"

#include "base/error.h"
#include "placement/fetches.h"
#include "placement/fit.h"
#include "placement/seats.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct layer_state {
    int32_t S, E, k;    // ranks, experts, slots a rank
    int32_t *expert;    // [S][k]
    int32_t was_k;      // slots a rank in the running placement
    const int32_t *was; // [S][was_k] what runs
    bool *marked;       // [E] of cot_fetches
    const double *load; // [E]
    int32_t *replicas;  // [E]
    double *sum;        // [S]
    double target;      // a load
} layer_state;

/* slot x takes over `expert` (y -1), or exchanges with slot y */
typedef struct move_step {
    int32_t x, y, expert;
    int32_t moves;        // it adds
    double before, after; // what is above the target, summed over ranks, and the peak's square as tie-break
} move_step;

static double share(const layer_state *t, int32_t e)
{
    return e < 0 ? 0 : t->load[e] / t->replicas[e];
}

static bool holds(const layer_state *t, int32_t r, int32_t e)
{
    const int32_t *slot = t->expert + (size_t)r * (size_t)t->k;
    for (int32_t i = 0; i < t->k; i++)
        if (slot[i] == e) return true;
    return false;
}

/* Moves that rank r costs so far. */
static int32_t fetched(const layer_state *t, int32_t r)
{
    return cot_fetches(NULL, t->was + (size_t)r * (size_t)t->was_k, t->was_k,
                       t->expert + (size_t)r * (size_t)t->k, t->k, t->marked);
}

static double above(double load, double target)
{
    return load > target ? load - target : 0;
}

static double excess(const layer_state *t)
{
    double sum = 0;
    for (int32_t r = 0; r < t->S; r++) sum += above(t->sum[r], t->target);
    return sum;
}

static void set_slot(layer_state *t, int32_t slot, int32_t e)
{
    int32_t old = t->expert[slot];
    if (old >= 0) {
        double less = share(t, old);
        t->replicas[old]--;
        double more = t->replicas[old] ? share(t, old) : 0;
        for (int32_t i = 0; i < t->S * t->k; i++)
            if (t->expert[i] == old) t->sum[i / t->k] += i == slot ? -less : more - less;
    }
    t->expert[slot] = e;
    if (e >= 0) {
        double less = t->replicas[e] ? share(t, e) : 0;
        t->replicas[e]++;
        double more = share(t, e);
        for (int32_t i = 0; i < t->S * t->k; i++)
            if (t->expert[i] == e) t->sum[i / t->k] += i == slot ? more : more - less;
    }
}

static void swap_slots(layer_state *t, int32_t x, int32_t y)
{
    int32_t a = x / t->k, b = y / t->k, e = t->expert[x], f = t->expert[y];
    double less = share(t, e) - share(t, f);
    t->sum[a] -= less;
    t->sum[b] += less;
    t->expert[x] = f;
    t->expert[y] = e;
}

static void apply(layer_state *t, const move_step *step)
{
    if (step->y < 0)
        set_slot(t, step->x, step->expert);
    else
        swap_slots(t, step->x, step->y);
}

/* Whether a step is better: more off the excess for each move. */
static void consider(move_step *best, double *rate, const move_step *step)
{
    int32_t moves = step->moves > 0 ? step->moves : 0;
    double gain = step->before - step->after;
    if (gain <= 1e-12 * step->before) return;
    double here = gain / (moves + 0.01); // taking a move back is nearly free
    if (here > *rate) {
        *rate = here;
        *best = *step;
    }
}

/* Exchanges of slots of rank a, which is above the target, with any other. */
static void try_exchanges(layer_state *t, int32_t a, move_step *best, double *rate, double before)
{
    for (int32_t x = a * t->k; x < (a + 1) * t->k; x++)
        for (int32_t y = 0; y < t->S * t->k; y++) {
            int32_t b = y / t->k, e = t->expert[x], f = t->expert[y];
            if (b == a || e == f || e < 0) continue;
            double less = share(t, e) - share(t, f);
            if (less <= 0) continue;
            double after = before - above(t->sum[a], t->target) - above(t->sum[b], t->target) +
                           above(t->sum[a] - less, t->target) + above(t->sum[b] + less, t->target);
            if ((before - after) / 0.01 <= *rate) continue;
            if (holds(t, b, e) || (f >= 0 && holds(t, a, f))) continue;
            int32_t cost = fetched(t, a) + fetched(t, b);
            t->expert[x] = f;
            t->expert[y] = e;
            cost = fetched(t, a) + fetched(t, b) - cost;
            t->expert[x] = e;
            t->expert[y] = f;
            consider(best, rate, &(move_step){x, y, -1, cost, before, after});
        }
}

/* Slots of replicated experts that become replicas of e, an expert of rank a. */
static void try_takeovers(layer_state *t, int32_t a, int32_t e, move_step *best, double *rate, double before,
                          double *sum)
{
    for (int32_t x = 0; x < t->S * t->k; x++) {
        int32_t r = x / t->k, old = t->expert[x];
        if (old == e || r == a || (old >= 0 && t->replicas[old] < 2)) continue;
        if (holds(t, r, e)) continue;
        memcpy(sum, t->sum, (size_t)t->S * sizeof *sum);
        int32_t cost = fetched(t, r);
        set_slot(t, x, e);
        move_step step = {x, -1, e, fetched(t, r) - cost, before, excess(t)};
        set_slot(t, x, old);
        memcpy(t->sum, sum, (size_t)t->S * sizeof *sum);
        consider(best, rate, &step);
    }
}

static bool find_step(layer_state *t, move_step *best, double *sum)
{
    double rate = 0, before = excess(t);
    int32_t peak = 0;
    if (before <= 0) return false;
    for (int32_t r = 1; r < t->S; r++)
        if (t->sum[r] > t->sum[peak]) peak = r;
    try_exchanges(t, peak, best, &rate, before);
    for (int32_t i = 0; i < t->k; i++) {
        int32_t e = t->expert[(size_t)peak * (size_t)t->k + (size_t)i];
        if (e >= 0) try_takeovers(t, peak, e, best, &rate, before, sum);
    }
    return rate > 0;
}

/* The steps of a layer, one after another, with the peak and the moves after each. */
typedef struct plan {
    move_step *steps;
    double *peak;
    int64_t *moves;
    int32_t n, room;
    double start; // peak before the first
    int64_t fill; // moves before the first: what fitting into the slots costs
    double mean;
} plan;

static double peak_of(const layer_state *t)
{
    double peak = 0;
    for (int32_t r = 0; r < t->S; r++) peak = fmax(peak, t->sum[r]);
    return peak;
}

static int64_t moves_of(const layer_state *t)
{
    int64_t n = 0;
    for (int32_t r = 0; r < t->S; r++) n += fetched(t, r);
    return n;
}

static bool add(plan *p, const move_step *step, const layer_state *t)
{
    if (p->n == p->room) {
        int32_t room = p->room ? 2 * p->room : 32;
        move_step *steps = realloc(p->steps, (size_t)room * sizeof *steps);
        if (steps) p->steps = steps;
        double *peak = realloc(p->peak, (size_t)room * sizeof *peak);
        if (peak) p->peak = peak;
        int64_t *moves = realloc(p->moves, (size_t)room * sizeof *moves);
        if (moves) p->moves = moves;
        if (!steps || !peak || !moves) return false;
        p->room = room;
    }
    p->steps[p->n] = *step;
    p->peak[p->n] = peak_of(t);
    p->moves[p->n++] = moves_of(t);
    return true;
}

/* Opens layer l's state on `start`, what runs now fitted into the new slots; all arrays but `was` and `load` are the
 * caller's room. */
static void open_state(layer_state *t, const cot_costs *c, int32_t l, const cot_expert_map *start,
                       const cot_expert_map *current)
{
    int32_t k = start->slots_per_rank;
    const int32_t *first = start->expert + (size_t)l * (size_t)c->n_ranks * (size_t)k;
    t->S = c->n_ranks;
    t->E = c->n_experts;
    t->k = k;
    t->was_k = current->slots_per_rank;
    t->was =
        current->expert + (size_t)cot_map_row(current, c->layers[l]) * (size_t)c->n_ranks * (size_t)t->was_k;
    t->load = c->load + (size_t)l * (size_t)c->n_experts;
    memcpy(t->expert, first, (size_t)t->S * (size_t)k * sizeof *first);
    memset(t->replicas, 0, (size_t)t->E * sizeof *t->replicas);
    memset(t->sum, 0, (size_t)t->S * sizeof *t->sum);
    for (int32_t i = 0; i < t->S * k; i++)
        if (first[i] >= 0) t->replicas[first[i]]++;
    for (int32_t i = 0; i < t->S * k; i++) t->sum[i / k] += share(t, first[i]);
}

/* How many steps of each layer are taken: all, or those that lower the peak most for each move while moves last. */
static void choose_steps(int32_t *taken, const plan *plans, int32_t L, const cot_replan_options *o)
{
    int64_t left = o->max_moves < 0 ? INT64_MAX : o->max_moves;
    for (int32_t l = 0; l < L; l++) {
        taken[l] = 0;
        left -= plans[l].fill;
    }
    for (;;) {
        double best = o->move_cost > 0 ? o->move_cost : 0;
        int32_t which = -1, upto = 0;
        for (int32_t l = 0; l < L; l++) {
            const plan *p = &plans[l];
            double from = taken[l] ? p->peak[taken[l] - 1] : p->start;
            int64_t had = taken[l] ? p->moves[taken[l] - 1] : p->fill;
            for (int32_t n = taken[l]; n < p->n;
                 n++) { // several steps together may pay where the first does not
                int64_t moves = p->moves[n] - had;
                double rate = (from - p->peak[n]) / p->mean / (double)(moves > 0 ? moves : 1);
                bool good = which < 0 ? rate >= best && rate > 0 : rate > best;
                if (moves <= left && good) {
                    best = rate;
                    which = l;
                    upto = n + 1;
                }
            }
        }
        if (which < 0) return;
        const plan *p = &plans[which];
        left -= p->moves[upto - 1] - (taken[which] ? p->moves[taken[which] - 1] : p->fill);
        taken[which] = upto;
    }
}

static cot_status plan_layers(plan *plans, layer_state *t, double *scratch, const cot_expert_map *start,
                              const cot_expert_map *current, const cot_costs *c, const cot_replan_options *o,
                              cot_error *error)
{
    for (int32_t l = 0; l < c->n_layers; l++) {
        open_state(t, c, l, start, current);
        plan *p = &plans[l];
        for (int32_t e = 0; e < t->E; e++) p->mean += t->load[e] / t->S;
        t->target = (o->peak ? o->peak[l] : 1) * p->mean * (1 + 1e-9);
        p->start = peak_of(t);
        p->fill = moves_of(t);
        move_step step;
        for (int32_t n = 0; n < 16 * t->S * t->k && find_step(t, &step, scratch); n++) {
            apply(t, &step);
            if (!add(p, &step, t)) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a plan");
        }
    }
    return COT_OK;
}

/* Whether exchanges ended above the peak of a layer of the fresh plan, which then stands in for them. */
static bool falls_short(const layer_state *t, const plan *p, const cot_expert_map *map,
                        const cot_replan_options *o, int32_t l)
{
    return o->fresh && o->fresh->slots_per_rank == map->slots_per_rank && o->peak && o->max_moves < 0 &&
           o->move_cost <= 0 && peak_of(t) > o->peak[l] * p->mean * (1 + 1e-6);
}

/* Takes the steps that are worth it from `map`, `current` fitted into the new slots, which becomes the new placement. */
static cot_status replan(cot_expert_map *map, const cot_expert_map *current, const cot_costs *costs,
                         const cot_replan_options *options, cot_error *error)
{
    size_t L = (size_t)costs->n_layers, S = (size_t)costs->n_ranks, n = S * (size_t)map->slots_per_rank;
    layer_state t = {.expert = malloc(n * sizeof *t.expert),
                     .marked = calloc((size_t)costs->n_experts, sizeof *t.marked),
                     .replicas = malloc((size_t)costs->n_experts * sizeof *t.replicas),
                     .sum = malloc(S * sizeof *t.sum)};
    double *scratch = malloc(S * sizeof *scratch);
    plan *plans = calloc(L, sizeof *plans);
    int32_t *taken = malloc(L * sizeof *taken);
    cot_status status = t.expert && t.marked && t.replicas && t.sum && scratch && plans && taken
                            ? plan_layers(plans, &t, scratch, map, current, costs, options, error)
                            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a plan");
    if (status == COT_OK) choose_steps(taken, plans, costs->n_layers, options);
    for (int32_t l = 0; status == COT_OK && l < costs->n_layers; l++) {
        open_state(&t, costs, l, map, current);
        for (int32_t i = 0; i < taken[l]; i++) apply(&t, &plans[l].steps[i]);
        const int32_t *better =
            falls_short(&t, &plans[l], map, options, l) ? options->fresh->expert + (size_t)l * n : t.expert;
        memcpy(map->expert + (size_t)l * n, better, n * sizeof *better);
    }
    for (size_t l = 0; plans && l < L; l++) {
        free(plans[l].steps);
        free(plans[l].peak);
        free(plans[l].moves);
    }
    free(plans);
    free(taken);
    free(scratch);
    free(t.expert);
    free(t.marked);
    free(t.replicas);
    free(t.sum);
    return status;
}

cot_status cot_place_replan(cot_expert_map *map, int64_t *moves, const cot_expert_map *current,
                            const cot_costs *costs, const cot_replan_options *options, cot_error *error)
{
    *map = (cot_expert_map){0};
    *moves = 0;
    if (options->size != sizeof *options)
        return cot_fail(error, COT_INVALID_ARGUMENT, "replan options of %zu bytes, expected %zu",
                        options->size, sizeof *options);
    cot_status status = cot_place_fit(map, current, costs, options->slots_per_rank, error);
    if (status == COT_OK) status = cot_place_moves(moves, current, map, error);
    if (status == COT_OK && options->max_moves >= 0 && *moves > options->max_moves)
        status = cot_fail(error, COT_INVALID_ARGUMENT,
                          "%" PRId64 " moves are too few: filling %d slots a rank takes %" PRId64,
                          options->max_moves, map->slots_per_rank, *moves);
    if (status == COT_OK) status = replan(map, current, costs, options, error);
    if (status == COT_OK) status = cot_place_moves(moves, current, map, error);
    if (status == COT_OK)
        map->model_hash = costs->model_hash;
    else
        cot_expert_map_free(map);
    return status;
}
