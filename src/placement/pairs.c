#include "placement/pairs.h"

#include "base/error.h"

#include <stdlib.h>

void cot_pairs_close(cot_pairs *pairs)
{
    free(pairs->cost);
    free(pairs->head);
    free(pairs->next);
    free(pairs->count);
    free(pairs->used);
    free(pairs->potential);
    *pairs = (cot_pairs){0};
}

/* Costs in units, rounded down where at all. A path goes through no place twice, so its cost is at most L * S times the
 * largest cost; potentials are within a few times that, which is below 2^127. */
static cot_status fill_costs(cot_pairs *p, cot_error *error)
{
    const cot_problem *q = p->problem;
    const size_t S = (size_t)p->S, E = (size_t)p->E, L = (size_t)p->L, n = L * E;
    const double *row = NULL;
    double most = 0;
    int32_t last_load = q->cost ? INT32_MAX : 0, last_cost = INT32_MAX;
    for (size_t i = 0; i < n; i++) {
        const double load = q->cost ? q->load[i] : 1;
        const bool seen = q->cost && i % E; // experts of a layer share a row of costs
        row = q->cost ? q->cost + i / E * S : q->pair_cost + i * S;
        last_load = cot_units_last_bit(load, last_load);
        for (size_t s = 0; s < S; s++) {
            most = load * row[s] > most ? load * row[s] : most;
            if (!seen) last_cost = cot_units_last_bit(row[s], last_cost);
        }
    }
    const double bound = most * (double)(L * S + S);
    if (!(bound < COT_UNITS_MOST))
        return cot_fail(error, COT_INVALID_ARGUMENT, "loads or costs are too large: they add up to %g",
                        bound);
    p->unit = cot_units_choose(bound, last_load, last_cost);
    for (size_t i = 0; i < n; i++) {
        const cot_units_factor load = cot_units_split(q->cost ? q->load[i] : 1);
        row = q->cost ? q->cost + i / E * S : q->pair_cost + i * S;
        for (size_t s = 0; s < S; s++) {
            const cot_units_factor x = cot_units_split(row[s]);
            p->cost[i * S + s] =
                cot_units_times(load.mantissa, x.mantissa, load.exponent + x.exponent - p->unit);
        }
    }
    return COT_OK;
}

static void put(cot_pairs *p, int32_t l, int32_t e, int32_t s)
{
    size_t at = (size_t)l * (size_t)p->E + (size_t)e, place = (size_t)l * (size_t)p->S + (size_t)s;
    p->rank[at] = s;
    p->next[at] = p->head[place];
    p->head[place] = e;
    p->count[place]++;
    p->used[s]++;
}

void cot_pairs_move(cot_pairs *p, int32_t l, int32_t e, int32_t to)
{
    size_t row = (size_t)l * (size_t)p->E;
    int32_t from = p->rank[row + (size_t)e];
    size_t place = (size_t)l * (size_t)p->S + (size_t)from;
    int32_t *at = &p->head[place];
    while (*at != e) at = &p->next[row + (size_t)*at];
    *at = p->next[row + (size_t)e];
    p->count[place]--;
    p->used[from]--;
    put(p, l, e, to);
}

cot_status cot_pairs_open(cot_pairs *pairs, const cot_problem *problem, int32_t *rank, cot_error *error)
{
    size_t L = (size_t)problem->L, E = (size_t)problem->E, S = (size_t)problem->S;
    *pairs = (cot_pairs){.problem = problem, .L = problem->L, .E = problem->E, .S = problem->S, .rank = rank};
    if ((L + 1) * S >= INT32_MAX / 2)
        return cot_fail(error, COT_UNSUPPORTED, "%zu layers on %zu ranks are too many", L, S);
    pairs->cost = malloc(L * E * S * sizeof *pairs->cost);
    pairs->head = malloc(L * S * sizeof *pairs->head);
    pairs->next = malloc(L * E * sizeof *pairs->next);
    pairs->count = calloc(L * S, sizeof *pairs->count);
    pairs->used = calloc(S, sizeof *pairs->used);
    pairs->potential = calloc((L + 1) * S, sizeof *pairs->potential);
    if (!pairs->cost || !pairs->head || !pairs->next || !pairs->count || !pairs->used || !pairs->potential)
        return cot_fail(error, COT_OUT_OF_MEMORY,
                        "out of memory for costs of %zu layers, %zu experts and %zu ranks", L, E, S);
    cot_status status = fill_costs(pairs, error);
    if (status != COT_OK) return status;
    for (size_t i = 0; i < L * S; i++) pairs->head[i] = -1;
    for (int32_t l = 0; l < pairs->L; l++)
        for (int32_t e = 0; e < pairs->E; e++) {
            const cot_units *cost = pairs->cost + ((size_t)l * E + (size_t)e) * S;
            int32_t best = 0;
            for (int32_t s = 1; s < pairs->S; s++)
                if (cost[s] < cost[best] ||
                    (cost[s] == cost[best] &&
                     pairs->count[(size_t)l * S + (size_t)s] < pairs->count[(size_t)l * S + (size_t)best]))
                    best = s;
            put(pairs, l, e, best);
        }
    return COT_OK;
}

/* The price of capacity is how much a vertex is below 0, where the ranks with room are. */
static void set_prices(cot_assignment *a, const cot_pairs *p)
{
    const cot_units *place = p->potential, *rank = p->potential + (size_t)p->L * (size_t)p->S;
    for (int32_t s = 0; s < p->S; s++) {
        cot_units price = rank[s] < 0 ? -rank[s] : 0;
        a->price[s] = cot_units_value(price, p->unit);
        for (int32_t l = 0; l < p->L; l++) {
            size_t at = (size_t)l * (size_t)p->S + (size_t)s;
            cot_units more = -place[at] - price;
            a->layer_price[at] = cot_units_value(more > 0 ? more : 0, p->unit);
        }
    }
    a->priced = true;
}

cot_status cot_place_pairs(cot_assignment *assignment, const cot_problem *problem, cot_error *error)
{
    cot_pairs pairs;
    cot_status status = cot_problem_feasible(problem, error);
    if (status != COT_OK) return status;
    status = cot_pairs_open(&pairs, problem, assignment->rank, error);
    if (status == COT_OK) status = cot_pairs_solve(&pairs, error);
    if (status == COT_OK) set_prices(assignment, &pairs);
    if (status == COT_OK) status = cot_pairs_even(assignment, problem, error);
    cot_pairs_close(&pairs);
    return status;
}
