#include "placement/verify.h"

#include "base/error.h"

#include <stdlib.h>

static cot_status check_capacities(const cot_assignment *a, const cot_problem *p, int32_t *held,
                                   int32_t *here, cot_error *error)
{
    for (int32_t l = 0; l < p->L; l++) {
        for (int32_t s = 0; s < p->S; s++) here[s] = 0;
        for (int32_t e = 0; e < p->E; e++) {
            int32_t s = a->rank[(size_t)l * (size_t)p->E + (size_t)e];
            if (s < 0 || s >= p->S)
                return cot_fail(error, COT_INVALID_ARGUMENT, "expert %d of layer %d is on rank %d of %d", e,
                                l, s, p->S);
            here[s]++;
            held[s]++;
        }
        for (int32_t s = 0; s < p->S; s++)
            if (here[s] > p->c_layer[s])
                return cot_fail(error, COT_INVALID_ARGUMENT,
                                "rank %d holds %d experts of layer %d, c_layer is %d", s, here[s], l,
                                p->c_layer[s]);
    }
    for (int32_t s = 0; s < p->S; s++)
        if (held[s] > p->c_exp[s])
            return cot_fail(error, COT_INVALID_ARGUMENT, "rank %d holds %d experts, c_exp is %d", s, held[s],
                            p->c_exp[s]);
    return COT_OK;
}

static cot_double_double exact_cost(const cot_problem *p, int32_t l, int32_t e, int32_t s)
{
    size_t at = (size_t)l * (size_t)p->E + (size_t)e;
    if (p->pair_cost) return cot_double_double_of(p->pair_cost[at * (size_t)p->S + (size_t)s]);
    return cot_double_double_product(p->load[at], p->cost[(size_t)l * (size_t)p->S + (size_t)s]);
}

/* A rank's cost and price in a layer of product costs: of ranks at one cost the cheapest counts. */
typedef struct offer {
    double cost;
    cot_double_double price;
    int32_t rank;
} offer;

static int by_cost(const void *a, const void *b)
{
    const offer *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
    return cot_double_double_less(x->price, y->price) ? -1 : cot_double_double_less(y->price, x->price);
}

/* Only the cheapest of each cost can be the least for any load; returns how many are left. */
static int32_t sift(offer *offers, int32_t n)
{
    int32_t kept = 0;
    qsort(offers, (size_t)n, sizeof *offers, by_cost);
    for (int32_t i = 0; i < n; i++)
        if (!kept || (offers[kept - 1].cost != offers[i].cost &&
                      cot_double_double_less(offers[i].price, offers[kept - 1].price)))
            offers[kept++] = offers[i];
    return kept;
}

static cot_status bound(cot_double_double *dual, const cot_assignment *a, const cot_problem *p, offer *offers,
                        cot_error *error)
{
    const cot_double_double zero = {0, 0};
    cot_double_double sum = zero;
    for (int32_t s = 0; s < p->S; s++) {
        if (cot_double_double_less(a->price[s], zero))
            return cot_fail(error, COT_INVALID_ARGUMENT, "rank %d has a negative price", s);
        sum = cot_double_double_subtract(sum, cot_double_double_times(a->price[s], p->c_exp[s]));
    }
    for (int32_t l = 0; l < p->L; l++) {
        for (int32_t s = 0; s < p->S; s++) {
            cot_double_double here = a->layer_price[(size_t)l * (size_t)p->S + (size_t)s];
            if (cot_double_double_less(here, zero))
                return cot_fail(error, COT_INVALID_ARGUMENT, "rank %d has a negative price in layer %d", s,
                                l);
            sum = cot_double_double_subtract(sum, cot_double_double_times(here, p->c_layer[s]));
            offers[s] = (offer){p->cost ? p->cost[(size_t)l * (size_t)p->S + (size_t)s] : 0,
                                cot_double_double_add(a->price[s], here), s};
        }
        int32_t n = p->cost ? sift(offers, p->S) : p->S;
        for (int32_t e = 0; e < p->E; e++) {
            cot_double_double least = zero;
            for (int32_t i = 0; i < n; i++) {
                cot_double_double x =
                    cot_double_double_add(exact_cost(p, l, e, offers[i].rank), offers[i].price);
                if (!i || cot_double_double_less(x, least)) least = x;
            }
            sum = cot_double_double_add(sum, least);
        }
    }
    *dual = sum;
    return COT_OK;
}

cot_status cot_assignment_verify(cot_double_double *objective, cot_double_double *dual,
                                 const cot_assignment *assignment, const cot_problem *problem,
                                 cot_error *error)
{
    size_t S = (size_t)problem->S;
    int32_t *held = calloc(2 * S, sizeof *held);
    offer *offers = malloc(S * sizeof *offers);
    cot_status status = held && offers
                            ? check_capacities(assignment, problem, held, held + S, error)
                            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to verify a placement");
    *objective = *dual = (cot_double_double){0, 0};
    for (int32_t l = 0; status == COT_OK && l < problem->L; l++)
        for (int32_t e = 0; e < problem->E; e++)
            *objective = cot_double_double_add(
                *objective,
                exact_cost(problem, l, e, assignment->rank[(size_t)l * (size_t)problem->E + (size_t)e]));
    if (status == COT_OK && assignment->priced) status = bound(dual, assignment, problem, offers, error);
    free(held);
    free(offers);
    return status;
}
