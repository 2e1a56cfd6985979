#include "placement/verify.h"

#include "base/error.h"

#include <math.h>
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

/* A double-double number, and the most that rounding took from it or gave to it: 0 when it is exact. */
typedef struct tracked {
    cot_double_double value;
    double lost;
} tracked;

static tracked plain(cot_double_double x)
{
    return (tracked){x, 0};
}

/* As cot_double_double_add, with what each rounding leaves out. */
static tracked add(tracked a, tracked b)
{
    cot_double_double s = cot_double_double_sum(a.value.high, b.value.high),
                      t = cot_double_double_sum(a.value.low, b.value.low),
                      u = cot_double_double_sum(s.low, t.high);
    s = cot_double_double_sum(s.high, u.high);
    cot_double_double v = cot_double_double_sum(s.low, t.low);
    return (tracked){cot_double_double_sum(s.high, v.high), a.lost + b.lost + fabs(u.low) + fabs(v.low)};
}

static tracked subtract(tracked a, tracked b)
{
    return add(a, (tracked){cot_double_double_negative(b.value), b.lost});
}

/* Products whose last bits may be below the least double are off by a few of that. */
static tracked product(double a, double b)
{
    cot_double_double p = cot_double_double_product(a, b);
    bool tiny = a != 0 && b != 0 && fabs(p.high) < 0x1p-900;
    return (tracked){p, tiny ? 0x1p-1070 : 0};
}

static tracked times(cot_double_double a, double n)
{
    return add(product(a.high, n), product(a.low, n));
}

static tracked cost_of(const cot_problem *p, int32_t l, int32_t e, int32_t s)
{
    size_t at = (size_t)l * (size_t)p->E + (size_t)e;
    if (p->pair_cost) return plain(cot_double_double_of(p->pair_cost[at * (size_t)p->S + (size_t)s]));
    return product(p->load[at], p->cost[(size_t)l * (size_t)p->S + (size_t)s]);
}

/* A rank's cost and price in a layer of product costs: of ranks at one cost the cheapest counts. */
typedef struct offer {
    double cost;
    tracked price;
    int32_t rank;
} offer;

static int by_cost(const void *a, const void *b)
{
    const offer *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
    return cot_double_double_less(x->price.value, y->price.value)
               ? -1
               : cot_double_double_less(y->price.value, x->price.value);
}

/* Only the cheapest of each cost can be the least for any load; returns how many are left. */
static int32_t sift(offer *offers, int32_t n)
{
    int32_t kept = 0;
    qsort(offers, (size_t)n, sizeof *offers, by_cost);
    for (int32_t i = 0; i < n; i++)
        if (!kept || (offers[kept - 1].cost != offers[i].cost &&
                      cot_double_double_less(offers[i].price.value, offers[kept - 1].price.value)))
            offers[kept++] = offers[i];
    return kept;
}

/* What an expert costs at least; each of the offers that were compared, or sifted out, may be less by what it lost. */
static tracked least_cost(const cot_problem *p, int32_t l, int32_t e, const offer *offers, int32_t n,
                          double sifted)
{
    tracked least = {{0, 0}, 0};
    double lost = 0;
    for (int32_t i = 0; i < n; i++) {
        tracked x = add(cost_of(p, l, e, offers[i].rank), offers[i].price);
        lost = fmax(lost, x.lost);
        if (!i || cot_double_double_less(x.value, least.value)) least.value = x.value;
    }
    least.lost = lost + sifted;
    return least;
}

/* The sum is rounded down by all that was lost: it is above no placement's cost. Where nothing was, it is exact. */
static cot_double_double round_down(tracked sum)
{
    if (sum.lost == 0) return sum.value;
    return cot_double_double_subtract(
        sum.value, cot_double_double_of(2 * sum.lost + 0x1p-100 * fabs(sum.value.high) + 0x1p-1070));
}

static cot_status bound(cot_double_double *dual, const cot_assignment *a, const cot_problem *p, offer *offers,
                        cot_error *error)
{
    const cot_double_double zero = {0, 0};
    tracked sum = plain(zero);
    for (int32_t s = 0; s < p->S; s++) {
        if (cot_double_double_less(a->price[s], zero))
            return cot_fail(error, COT_INVALID_ARGUMENT, "rank %d has a negative price", s);
        sum = subtract(sum, times(a->price[s], p->c_exp[s]));
    }
    for (int32_t l = 0; l < p->L; l++) {
        double sifted = 0;
        for (int32_t s = 0; s < p->S; s++) {
            cot_double_double here = a->layer_price[(size_t)l * (size_t)p->S + (size_t)s];
            if (cot_double_double_less(here, zero))
                return cot_fail(error, COT_INVALID_ARGUMENT, "rank %d has a negative price in layer %d", s,
                                l);
            sum = subtract(sum, times(here, p->c_layer[s]));
            offers[s] = (offer){p->cost ? p->cost[(size_t)l * (size_t)p->S + (size_t)s] : 0,
                                add(plain(a->price[s]), plain(here)), s};
            sifted = fmax(sifted, offers[s].price.lost);
        }
        int32_t n = p->cost ? sift(offers, p->S) : p->S;
        for (int32_t e = 0; e < p->E; e++) sum = add(sum, least_cost(p, l, e, offers, n, sifted));
    }
    *dual = round_down(sum);
    return COT_OK;
}

cot_status cot_assignment_verify(cot_double_double *objective, cot_double_double *dual,
                                 const cot_assignment *assignment, const cot_problem *problem,
                                 cot_error *error)
{
    size_t S = (size_t)problem->S;
    int32_t *held = calloc(2 * S, sizeof *held);
    offer *offers = malloc(S * sizeof *offers);
    tracked sum = {{0, 0}, 0};
    cot_status status = held && offers
                            ? check_capacities(assignment, problem, held, held + S, error)
                            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to verify a placement");
    *dual = sum.value;
    for (int32_t l = 0; status == COT_OK && l < problem->L; l++)
        for (int32_t e = 0; e < problem->E; e++)
            sum = add(sum,
                      cost_of(problem, l, e, assignment->rank[(size_t)l * (size_t)problem->E + (size_t)e]));
    *objective = sum.value;
    if (status == COT_OK && assignment->priced) status = bound(dual, assignment, problem, offers, error);
    free(held);
    free(offers);
    return status;
}
