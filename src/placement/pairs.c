#include "placement/pairs.h"

#include "base/error.h"

#include <math.h>
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

/* Costs become whole multiples of a power of two; those that are whole numbers already stay as they are. */
static void round_costs(cot_pairs *p)
{
    size_t S = (size_t)p->S, n = (size_t)p->L * (size_t)p->E;
    double most = 1;
    bool whole = true;
    for (size_t i = 0; i < n; i++)
        for (size_t s = 0; s < S; s++) {
            int32_t l = (int32_t)(i / (size_t)p->E), e = (int32_t)(i % (size_t)p->E);
            double x = cot_problem_cost(p->problem, l, e, (int32_t)s);
            p->cost[i * S + s] = x;
            most = fmax(most, x);
            whole = whole && x == floor(x);
        }
    int exponent;
    frexp(most, &exponent);
    double unit = ldexp(1, exponent - 40), inverse = 1 / unit; // sums of 2^12 of them are exact
    p->exact = whole && unit <= 1;
    for (size_t i = 0; !p->exact && i < n * S; i++) p->cost[i] = rint(p->cost[i] * inverse) * unit;
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
    pairs->potential = calloc((L + 1) * S + 1, sizeof *pairs->potential);
    if (!pairs->cost || !pairs->head || !pairs->next || !pairs->count || !pairs->used || !pairs->potential)
        return cot_fail(error, COT_OUT_OF_MEMORY,
                        "out of memory for costs of %zu layers, %zu experts and %zu ranks", L, E, S);
    round_costs(pairs);
    for (size_t i = 0; i < L * S; i++) pairs->head[i] = -1;
    for (int32_t l = 0; l < pairs->L; l++)
        for (int32_t e = 0; e < pairs->E; e++) {
            const double *cost = pairs->cost + ((size_t)l * E + (size_t)e) * S;
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

static void set_prices(cot_assignment *a, const cot_pairs *p, const cot_double_double *potential)
{
    const cot_double_double zero = {0, 0}, sink = potential[((size_t)p->L + 1) * (size_t)p->S];
    for (int32_t s = 0; s < p->S; s++) {
        cot_double_double price =
            cot_double_double_subtract(sink, potential[(size_t)p->L * (size_t)p->S + (size_t)s]);
        a->price[s] = cot_double_double_less(price, zero) ? zero : price;
        for (int32_t l = 0; l < p->L; l++) {
            size_t place = (size_t)l * (size_t)p->S + (size_t)s;
            cot_double_double more =
                cot_double_double_subtract(cot_double_double_subtract(sink, potential[place]), a->price[s]);
            a->layer_price[place] = cot_double_double_less(more, zero) ? zero : more;
        }
    }
    a->priced = true;
}

cot_status cot_place_pairs(cot_assignment *assignment, const cot_problem *problem, cot_error *error)
{
    cot_pairs pairs;
    cot_double_double *potential = NULL;
    cot_status status = cot_problem_feasible(problem, error);
    if (status != COT_OK) return status;
    status = cot_pairs_open(&pairs, problem, assignment->rank, error);
    if (status == COT_OK) {
        potential = malloc((((size_t)problem->L + 1) * (size_t)problem->S + 1) * sizeof *potential);
        if (!potential)
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the proof of a placement");
    }
    if (status == COT_OK) status = cot_pairs_solve(&pairs, error);
    if (status == COT_OK) status = cot_pairs_polish(&pairs, potential, error);
    if (status == COT_OK) set_prices(assignment, &pairs, potential);
    if (status == COT_OK) status = cot_pairs_even(assignment, problem, error);
    free(potential);
    cot_pairs_close(&pairs);
    return status;
}
