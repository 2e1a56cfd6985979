/* A limit on the load of a rank in a layer. With it the problem is one of packing, which no flow solves. Dual: charging
 * beta(l,s) for load there, and giving back what the limit allows, is a problem without a limit at costs + beta, which
 * the exact method solves; the best of several charges is the bound. Primal: experts are spread evenly over the seats
 * that the exact method took, at those charges or with fewer seats a rank, or over seats of their own choice, then drawn
 * towards the cheap ranks as long as the limit allows. Where bound and placement stay apart, branch and bound looks for the
 * cheapest placement of each layer (limited_pack.c). */
#include "placement/limited.h"

#include "base/error.h"
#include "placement/methods.h"
#include "placement/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double rounding = 1e-13; // of sums of loads: a limit that is just what a rank carries is met

/* Charges that make the ranks which a knapsack of loads fills to the limit cost as much as the last one it reaches. */
static void level(cot_limited *w, int32_t l)
{
    const cot_problem *p = w->p;
    double *beta = w->beta + (size_t)l * (size_t)p->S, left = 0;
    for (int32_t s = 0; s < p->S; s++) {
        double mean = 0, total = 0;
        for (int32_t e = 0; !p->cost && e < p->E; e++) {
            mean += cot_problem_cost(p, l, e, s);
            total += cot_limited_load(p, l, e);
        }
        w->sum[s] = p->cost ? p->cost[(size_t)l * (size_t)p->S + (size_t)s] : total > 0 ? mean / total : 0;
    }
    for (int32_t e = 0; e < p->E; e++) left += cot_limited_load(p, l, e);
    cot_sort_indices(w->order, w->sum, p->S, false, w->scratch);
    double last = 0;
    for (int32_t i = 0; i < p->S && left > 0; i++) {
        if (!p->c_layer[w->order[i]]) continue;
        last = w->sum[w->order[i]];
        left -= w->most[l];
    }
    for (int32_t s = 0; s < p->S; s++) beta[s] = p->cost ? fmax(0, last - w->sum[s]) : 0;
}

static cot_problem charge(cot_limited *w, double share)
{
    const cot_problem *p = w->p;
    cot_problem charged = *p;
    size_t S = (size_t)p->S, n = (size_t)p->L * (size_t)p->E;
    if (p->cost) {
        for (size_t i = 0; i < (size_t)p->L * S; i++) w->charged[i] = p->cost[i] + share * w->beta[i];
        charged.cost = w->charged;
    } else {
        for (size_t i = 0; i < n; i++)
            for (size_t s = 0; s < S; s++)
                w->charged[i * S + s] =
                    p->pair_cost[i * S + s] + share * w->beta[i / (size_t)p->E * S + s] * p->load[i];
        charged.pair_cost = w->charged;
    }
    return charged;
}

/* The bound that charges of `share` times beta prove; the trial assignment is what they make optimal. */
static cot_status prove(cot_limited *w, double share, double *bound, cot_error *error)
{
    cot_problem charged = charge(w, share);
    cot_double_double objective, dual;
    cot_status status = (charged.cost ? cot_place_chain : cot_place_pairs)(&w->trial, &charged, error);
    if (status == COT_OK) status = cot_assignment_verify(&objective, &dual, &w->trial, &charged, error);
    for (int32_t l = 0; status == COT_OK && l < w->p->L; l++)
        for (int32_t s = 0; s < w->p->S; s++)
            dual = cot_double_double_subtract(
                dual, cot_double_double_product(share * w->beta[(size_t)l * (size_t)w->p->S + (size_t)s],
                                                w->most[l]));
    *bound = dual.high;
    return status;
}

/* Ranks at one cost share what they carry, since the trial may deal it to any of them. Their charges stay equal, so
 * that the exact method goes on to merge them. */
static void share_at_one_cost(cot_limited *w, int32_t l)
{
    const double *cost = w->p->cost + (size_t)l * (size_t)w->p->S;
    cot_sort_indices(w->order, cost, w->p->S, false, w->scratch);
    for (int32_t i = 0, end; i < w->p->S; i = end) {
        double all = 0;
        for (end = i; end < w->p->S && cost[w->order[end]] == cost[w->order[i]]; end++)
            all += w->sum[w->order[end]];
        for (int32_t k = i; k < end; k++) w->sum[w->order[k]] = all / (end - i);
    }
}

/* Subgradient steps on the charges of the layer: more where the trial is beyond the limit, less where below. */
static void step(cot_limited *w, double size)
{
    const cot_problem *p = w->p;
    for (int32_t l = 0; l < p->L; l++) {
        double *beta = w->beta + (size_t)l * (size_t)p->S, total = 0, spread = 0;
        for (int32_t s = 0; s < p->S; s++) w->sum[s] = 0;
        for (int32_t e = 0; e < p->E; e++) {
            w->sum[w->trial.rank[(size_t)l * (size_t)p->E + (size_t)e]] += cot_limited_load(p, l, e);
            total += cot_limited_load(p, l, e);
        }
        for (int32_t s = 0; p->cost && s < p->S; s++)
            spread = fmax(spread, p->cost[(size_t)l * (size_t)p->S + (size_t)s]);
        for (int32_t s = 0; !p->cost && s < p->S && total > 0; s++) {
            double mean = 0;
            for (int32_t e = 0; e < p->E; e++) mean += cot_problem_cost(p, l, e, s);
            spread = fmax(spread, mean / total);
        }
        if (p->cost) share_at_one_cost(w, l);
        for (int32_t s = 0; s < p->S && w->most[l] > 0; s++)
            beta[s] = fmax(0, beta[s] + size * spread * (w->sum[s] / w->most[l] - 1));
    }
}

static cot_status open_limited(cot_limited *w, const cot_problem *p, double limit, cot_error *error)
{
    size_t L = (size_t)p->L, E = (size_t)p->E, S = (size_t)p->S, wide = E > S ? E : S;
    *w = (cot_limited){.p = p};
    cot_status status = cot_assignment_open(&w->trial, p, error);
    w->most = calloc(L, sizeof *w->most);
    w->beta = malloc(L * S * sizeof *w->beta);
    w->charged = malloc(L * S * (p->cost ? 1 : E) * sizeof *w->charged);
    w->sum = malloc(S * sizeof *w->sum);
    w->order = malloc(wide * sizeof *w->order);
    w->scratch = malloc(2 * wide * sizeof *w->scratch);
    w->held = malloc(2 * S * sizeof *w->held);
    w->rank = malloc(L * E * sizeof *w->rank);
    w->turn = malloc(L * sizeof *w->turn);
    if (status == COT_OK && !(w->most && w->beta && w->charged && w->sum && w->order && w->scratch &&
                              w->held && w->rank && w->turn))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement with a load limit");
    if (status != COT_OK) return status;
    w->used = w->held + S;
    for (size_t l = 0; l < L; l++) {
        w->turn[l] = (int32_t)l;
        for (size_t e = 0; e < E; e++) w->most[l] += p->load[l * E + e];
        w->most[l] *= limit / (double)S * (1 + rounding);
    }
    return COT_OK;
}

static void close_limited(cot_limited *w)
{
    free(w->most);
    free(w->beta);
    free(w->charged);
    free(w->sum);
    free(w->order);
    free(w->scratch);
    free(w->held);
    free(w->rank);
    free(w->turn);
    cot_assignment_close(&w->trial);
}

/* The best placement so far, and how the most even one is in its worst layer: beside the limit. */
typedef struct best {
    int32_t *rank; // [L][E]
    double cost;   // infinite: none
    double peak;   // a ratio; above 1: beyond the limit
    int32_t layer;
    bool proven; // no placement is more even
} best;

static double cost_of(const cot_problem *p, const int32_t *rank)
{
    double cost = 0;
    for (int32_t l = 0; l < p->L; l++)
        for (int32_t e = 0; e < p->E; e++)
            cost += cot_problem_cost(p, l, e, rank[(size_t)l * (size_t)p->E + (size_t)e]);
    return cost;
}

/* Keeps the placement at hand, which is within the limit, if it is the cheapest so far. */
static void keep(const cot_limited *w, best *b)
{
    const cot_problem *p = w->p;
    const double cost = cost_of(p, w->rank);
    if (cost >= b->cost) return;
    b->cost = cost;
    memcpy(b->rank, w->rank, (size_t)p->L * (size_t)p->E * sizeof *b->rank);
}

/* A placement on the trial's seats. */
static cot_status seat(cot_limited *w, best *b, cot_error *error)
{
    double peak;
    int32_t layer;
    cot_status status = cot_limited_seat(w, &peak, &layer, error);
    if (status == COT_OK && peak <= 1) keep(w, b);
    return status;
}

/* The problem with at most `seats` experts of a layer on a rank; `c_layer` [S] is its room. */
static cot_problem with_seats(const cot_problem *p, int32_t seats, int32_t *c_layer)
{
    cot_problem fewer = *p;
    fewer.c_layer = c_layer;
    for (int32_t s = 0; s < p->S; s++) c_layer[s] = p->c_layer[s] < seats ? p->c_layer[s] : seats;
    return fewer;
}

/* Packs with as many seats a rank as mean ranks need, which layers that share a rank's room leave each other. */
static cot_status pack_few(cot_limited *w, best *b, cot_error *error)
{
    const cot_problem *p = w->p;
    double peak;
    int32_t layer;
    bool proven;
    int32_t *c_layer = malloc((size_t)p->S * sizeof *c_layer);
    if (!c_layer)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement with a load limit");
    const cot_problem fewer = with_seats(p, (p->E + p->S - 1) / p->S, c_layer);
    cot_status status = COT_OK;
    if (cot_problem_feasible(&fewer, NULL) == COT_OK) {
        w->p = &fewer;
        status = cot_limited_pack(w, true, &peak, &layer, &proven, error);
        w->p = p;
        if (status == COT_OK && peak < b->peak) b->peak = peak, b->layer = layer;
    }
    free(c_layer);
    return status;
}

/* Packs the layer that was beyond the limit before the others, again and again: it found too little room on the ranks that it needs. */
static cot_status pack_worst_first(cot_limited *w, best *b, int32_t worst, cot_error *error)
{
    enum { TRIES = 8 };
    cot_status status = COT_OK;
    for (int i = 0; status == COT_OK && i < TRIES && b->peak > 1 && w->turn[0] != worst; i++) {
        double peak;
        bool proven;
        int32_t at = 0;
        while (w->turn[at] != worst) at++;
        memmove(w->turn + 1, w->turn, (size_t)at * sizeof *w->turn);
        w->turn[0] = worst;
        status = cot_limited_pack(w, true, &peak, &worst, &proven, error);
        if (status == COT_OK && peak < b->peak) b->peak = peak, b->layer = worst;
    }
    return status;
}

/* The most even placement, whatever the limit: found greedily, or by a search where the limit asks for it. */
static cot_status pack(cot_limited *w, best *b, cot_error *error)
{
    cot_status status = cot_limited_pack(w, false, &b->peak, &b->layer, &b->proven, error);
    if (status == COT_OK && b->peak > 1)
        status = cot_limited_pack(w, true, &b->peak, &b->layer, &b->proven, error);
    const int32_t worst = b->layer;
    if (status == COT_OK && b->peak > 1 && !b->proven) status = pack_few(w, b, error);
    if (status == COT_OK && b->peak > 1 && !b->proven) status = pack_worst_first(w, b, worst, error);
    if (status != COT_OK || b->peak > 1) return status;
    cot_limited_draw_near(w);
    keep(w, b);
    return COT_OK;
}

/* Placements on few seats a rank: on as many as the limit has room for mean experts. */
static cot_status seat_evenly(cot_limited *w, best *b, double limit, cot_error *error)
{
    const cot_problem *p = w->p;
    int32_t *c_layer = malloc((size_t)p->S * sizeof *c_layer);
    cot_status status = COT_OK;
    if (!c_layer)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement with a load limit");
    const int32_t room = (int32_t)fmin(limit * p->E / p->S, p->E);
    for (int32_t seats = room + 1; status == COT_OK && seats >= room; seats--) {
        cot_problem fewer = with_seats(p, seats, c_layer);
        if (cot_problem_feasible(&fewer, NULL) != COT_OK) break;
        status = (p->cost ? cot_place_chain : cot_place_pairs)(&w->trial, &fewer, error);
        if (status == COT_OK) status = seat(w, b, error);
    }
    free(c_layer);
    return status;
}

/* The limit cannot be met, or nobody found how. */
static cot_status refuse(const cot_limited *w, const best *b, const int32_t *layers, double limit,
                         cot_error *error)
{
    const cot_problem *p = w->p;
    int32_t hot = 0, where = 0;
    double most = 0, met = fmax(1, ceil(b->peak * limit * 1e5) / 1e5);
    for (int32_t l = 0; l < p->L; l++)
        for (int32_t e = 0; e < p->E; e++)
            if (w->most[l] > 0 && cot_limited_load(p, l, e) / w->most[l] > most) {
                most = cot_limited_load(p, l, e) / w->most[l];
                hot = e;
                where = l;
            }
    if (most > 1)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "max load %.6g cannot be met: expert %d of layer %d alone has %.6g times the mean rank's "
            "load; the smallest feasible found is %.10g",
            limit, hot, layers[where], most * limit, met);
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "max load %.6g %s: layer %d is tightest; the smallest feasible found is %.10g", limit,
                    limit < 1   ? "cannot be met, a mean rank has 1"
                    : b->proven ? "is met by no placement"
                                : "is met by no placement found",
                    layers[b->layer], met);
}

/* Whether the best placement is as cheap as the bound, as far as anybody minds. */
static bool meets(const best *b, double dual)
{
    return isfinite(b->cost) && b->cost - dual <= 1e-4 * b->cost;
}

/* Bounds, and placements on the seats of the first and the last, until they meet: mostly at once. What is left between them
 * a search may close. */
static cot_status improve(cot_limited *w, best *b, double *dual, double limit, cot_error *error)
{
    int rounds = w->p->cost ? 24 : 6;
    double bound;
    bool proven;
    cot_status status = prove(w, 0, dual, error); // without charges: the optimum without a limit
    if (status == COT_OK) status = seat(w, b, error);
    for (int i = 0; status == COT_OK && i < rounds && !meets(b, *dual); i++) {
        if (i == 1) status = pack(w, b, error);
        if (status == COT_OK && i == 1 && isinf(b->cost) && b->proven) return COT_OK;
        if (status == COT_OK && i == 1) status = seat_evenly(w, b, limit, error);
        if (status == COT_OK) status = prove(w, 1, &bound, error);
        if (status != COT_OK) break;
        *dual = fmax(*dual, bound);
        if (i == 0 || i + 1 == rounds) status = seat(w, b, error);
        step(w, 0.1 / (i + 1));
    }
    if (status != COT_OK || isinf(b->cost) || meets(b, *dual)) return status;
    status = cot_limited_polish(w, b->rank, &proven, error);
    b->cost = cost_of(w->p, b->rank);
    if (status == COT_OK && proven) *dual = fmax(*dual, b->cost * (1 - 1e-11));
    return status;
}

cot_status cot_place_limited(cot_assignment *assignment, double *dual, const cot_problem *problem,
                             const int32_t *layers, double limit, cot_error *error)
{
    cot_limited w;
    best b = {.rank = assignment->rank, .cost = INFINITY};
    cot_status status = cot_problem_feasible(problem, error);
    if (status != COT_OK) return status;
    status = open_limited(&w, problem, limit, error);
    for (int32_t l = 0; status == COT_OK && l < problem->L; l++) level(&w, l);
    if (status == COT_OK) status = improve(&w, &b, dual, limit, error);
    if (status == COT_OK && isinf(b.cost)) status = refuse(&w, &b, layers, limit, error);
    assignment->priced = false;
    close_limited(&w);
    return status;
}
