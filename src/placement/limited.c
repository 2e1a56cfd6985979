/* A limit on the load of a rank in a layer. With it the problem is one of packing, which no flow solves. Dual: charging
 * beta(l,s) for load there, and giving back what the limit allows, is a problem without a limit at costs + beta, which
 * the exact method solves; the best of several charges is the bound. Primal: experts are spread evenly over the seats
 * that the exact method took at those charges, then exchanged towards the cheap ranks as long as the limit allows. */
#include "placement/methods.h"

#include "base/error.h"
#include "placement/sort.h"
#include "placement/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct limited {
    const cot_problem *p;
    double *most;    // [L] the load that a rank may have
    double *beta;    // [L][S]
    double *charged; // [L][S] or [L][E][S] costs + beta
    double *sum;     // [S]
    int32_t *seat;   // [S][slots] of the layer at hand
    int32_t *order;  // [max(E, S)]
    cot_sort_item *scratch;
    int32_t *held; // [S]
    cot_assignment trial;
} limited;

static double load_of(const cot_problem *p, int32_t l, int32_t e)
{
    return p->load[(size_t)l * (size_t)p->E + (size_t)e];
}

/* The least limit that the hottest expert of each layer allows. */
static cot_status check_hottest(limited *w, double limit, cot_error *error)
{
    const cot_problem *p = w->p;
    double needed = 0;
    int32_t where = 0, which = 0;
    for (int32_t l = 0; l < p->L; l++) {
        double total = 0, most = 0;
        int32_t hot = 0;
        for (int32_t e = 0; e < p->E; e++) {
            total += load_of(p, l, e);
            if (load_of(p, l, e) > most) most = load_of(p, l, hot = e);
        }
        w->most[l] = limit * total / p->S;
        if (total > 0 && most / (total / p->S) > needed) {
            needed = most / (total / p->S);
            where = l;
            which = hot;
        }
    }
    if (needed > limit || limit < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "max load %.6g cannot be met: %s; the smallest that may be is %.6g", limit,
                        limit < 1 ? "a mean rank has 1" : "an expert alone has more",
                        needed > 1 ? ceil(needed * 1e6) / 1e6 : 1.0);
    (void)where, (void)which;
    return COT_OK;
}

/* Charges that make the ranks which a knapsack of loads fills to the limit cost as much as the last one it reaches. */
static void level(limited *w, int32_t l)
{
    const cot_problem *p = w->p;
    double *beta = w->beta + (size_t)l * (size_t)p->S, left = 0;
    for (int32_t s = 0; s < p->S; s++) {
        double mean = 0, total = 0;
        for (int32_t e = 0; !p->cost && e < p->E; e++) {
            mean += cot_problem_cost(p, l, e, s);
            total += load_of(p, l, e);
        }
        w->sum[s] = p->cost ? p->cost[(size_t)l * (size_t)p->S + (size_t)s] : total > 0 ? mean / total : 0;
    }
    for (int32_t e = 0; e < p->E; e++) left += load_of(p, l, e);
    cot_sort_indices(w->order, w->sum, p->S, false, w->scratch);
    double last = 0;
    for (int32_t i = 0; i < p->S && left > 0; i++) {
        if (!p->c_layer[w->order[i]]) continue;
        last = w->sum[w->order[i]];
        left -= w->most[l];
    }
    for (int32_t s = 0; s < p->S; s++) beta[s] = p->cost ? fmax(0, last - w->sum[s]) : 0;
}

static cot_problem charge(limited *w, double share)
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
static cot_status prove(limited *w, double share, double *bound, cot_error *error)
{
    cot_problem charged = charge(w, share);
    cot_twofold objective, dual;
    cot_status status = (charged.cost ? cot_place_chain : cot_place_pairs)(&w->trial, &charged, error);
    if (status == COT_OK) status = cot_assignment_verify(&objective, &dual, &w->trial, &charged, error);
    for (int32_t l = 0; status == COT_OK && l < w->p->L; l++)
        for (int32_t s = 0; s < w->p->S; s++)
            dual = cot_twofold_subtract(
                dual,
                cot_twofold_product(share * w->beta[(size_t)l * (size_t)w->p->S + (size_t)s], w->most[l]));
    *bound = dual.high;
    return status;
}

/* Subgradient steps on the charges of the layer: more where the trial is beyond the limit, less where below. Ranks at
 * one cost share what they carry, since the trial may deal it to any of them. */
static void step(limited *w, double size)
{
    const cot_problem *p = w->p;
    for (int32_t l = 0; l < p->L; l++) {
        double *beta = w->beta + (size_t)l * (size_t)p->S, total = 0, spread = 0;
        for (int32_t s = 0; s < p->S; s++) w->sum[s] = 0;
        for (int32_t e = 0; e < p->E; e++) {
            w->sum[w->trial.rank[(size_t)l * (size_t)p->E + (size_t)e]] += load_of(p, l, e);
            total += load_of(p, l, e);
        }
        for (int32_t s = 0; p->cost && s < p->S; s++)
            spread = fmax(spread, p->cost[(size_t)l * (size_t)p->S + (size_t)s]);
        for (int32_t s = 0; !p->cost && s < p->S && total > 0; s++) {
            double mean = 0;
            for (int32_t e = 0; e < p->E; e++) mean += cot_problem_cost(p, l, e, s);
            spread = fmax(spread, mean / total);
        }
        for (int32_t s = 0; s < p->S && w->most[l] > 0; s++)
            beta[s] = fmax(0, beta[s] + size * spread * (w->sum[s] / w->most[l] - 1));
    }
}

/* Experts of a layer, the hottest first, each to the seat of least load. The seats are those the trial took. */
static void spread_evenly(limited *w, int32_t *rank, int32_t l)
{
    const cot_problem *p = w->p;
    memset(w->held, 0, (size_t)p->S * sizeof *w->held);
    for (int32_t e = 0; e < p->E; e++) w->held[w->trial.rank[(size_t)l * (size_t)p->E + (size_t)e]]++;
    for (int32_t s = 0; s < p->S; s++) w->sum[s] = 0;
    cot_sort_indices(w->order, p->load + (size_t)l * (size_t)p->E, p->E, true, w->scratch);
    for (int32_t i = 0; i < p->E; i++) {
        int32_t best = -1;
        for (int32_t s = 0; s < p->S; s++)
            if (w->held[s] && (best < 0 || w->sum[s] < w->sum[best] ||
                               (w->sum[s] == w->sum[best] && w->held[s] > w->held[best])))
                best = s;
        rank[w->order[i]] = best;
        w->held[best]--;
        w->sum[best] += load_of(p, l, w->order[i]);
    }
}

/* Below the limit by exchanges that lower the peak. */
static cot_status obey(limited *w, int32_t *rank, int32_t l, cot_error *error)
{
    const cot_problem *p = w->p;
    int32_t slots = 0;
    for (int32_t s = 0; s < p->S; s++) w->held[s] = 0;
    for (int32_t e = 0; e < p->E; e++)
        if (++w->held[rank[e]] > slots) slots = w->held[rank[e]];
    size_t n = (size_t)p->S * (size_t)slots;
    int32_t *expert = malloc(n * sizeof *expert), *one = malloc((size_t)p->E * sizeof *one);
    double *sum = malloc(((size_t)p->S + n) * sizeof *sum);
    if (!expert || !one || !sum) {
        free(sum);
        free(expert);
        free(one);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a layer's slots");
    }
    for (size_t i = 0; i < n; i++) expert[i] = -1;
    for (int32_t e = 0; e < p->E; e++) {
        one[e] = 1;
        expert[(size_t)rank[e] * (size_t)slots + (size_t)--w->held[rank[e]]] = e;
    }
    cot_slots layer = {p->S, p->E, slots, expert, p->load + (size_t)l * (size_t)p->E, one};
    cot_slots_balance(&layer, sum);
    double peak = 0;
    for (int32_t s = 0; s < p->S; s++) peak = fmax(peak, sum[s]);
    free(sum);
    for (size_t i = 0; i < n; i++)
        if (expert[i] >= 0) rank[expert[i]] = (int32_t)(i / (size_t)slots);
    free(expert);
    free(one);
    if (peak <= w->most[l]) return COT_OK;
    return cot_fail(
        error, COT_INVALID_ARGUMENT,
        "found no placement within the load limit in the %d-th layer: the best has a rank at %.6g times it",
        l, peak / w->most[l]);
}

/* The exchange of an expert of rank a with one elsewhere that saves the most; -1 when none saves. */
static int32_t best_saving(const limited *w, const int32_t *rank, int32_t l, int32_t a, int32_t *with)
{
    const cot_problem *p = w->p;
    double most = 0;
    int32_t found = -1;
    for (int32_t i = 0; i < p->E; i++) {
        if (rank[i] != a) continue;
        double wi = load_of(p, l, i), here = cot_problem_cost(p, l, i, a);
        for (int32_t k = 0; k < p->E; k++) {
            int32_t b = rank[k];
            double more = load_of(p, l, k) - wi;
            if (b == a || w->sum[a] + more > w->most[l] || w->sum[b] - more > w->most[l]) continue;
            double saved = here - cot_problem_cost(p, l, i, b) + cot_problem_cost(p, l, k, b) -
                           cot_problem_cost(p, l, k, a);
            if (saved > most * (1 + 1e-9) + 1e-12 * here) {
                most = saved;
                found = i;
                *with = k;
            }
        }
    }
    return found;
}

static void draw_near(limited *w, int32_t *rank, int32_t l)
{
    const cot_problem *p = w->p;
    for (int32_t s = 0; s < p->S; s++) w->sum[s] = 0;
    for (int32_t e = 0; e < p->E; e++) w->sum[rank[e]] += load_of(p, l, e);
    bool changed = true;
    for (int round = 0; changed && round < 50; round++) {
        changed = false;
        for (int32_t a = 0; a < p->S; a++)
            for (int32_t k, i; (i = best_saving(w, rank, l, a, &k)) >= 0; changed = true) {
                int32_t b = rank[k];
                double more = load_of(p, l, k) - load_of(p, l, i);
                rank[i] = b;
                rank[k] = a;
                w->sum[a] += more;
                w->sum[b] -= more;
            }
    }
}

static cot_status open_limited(limited *w, const cot_problem *p, cot_error *error)
{
    size_t L = (size_t)p->L, E = (size_t)p->E, S = (size_t)p->S, wide = E > S ? E : S;
    *w = (limited){.p = p};
    w->most = malloc(L * sizeof *w->most);
    w->beta = malloc(L * S * sizeof *w->beta);
    w->charged = malloc(L * S * (p->cost ? 1 : E) * sizeof *w->charged);
    w->sum = malloc(S * sizeof *w->sum);
    w->order = malloc(wide * sizeof *w->order);
    w->scratch = malloc(2 * wide * sizeof *w->scratch);
    w->held = malloc(S * sizeof *w->held);
    cot_status status = cot_assignment_open(&w->trial, p, error);
    if (status == COT_OK &&
        !(w->most && w->beta && w->charged && w->sum && w->order && w->scratch && w->held))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement with a load limit");
    return status;
}

static void close_limited(limited *w)
{
    free(w->most);
    free(w->beta);
    free(w->charged);
    free(w->sum);
    free(w->order);
    free(w->scratch);
    free(w->held);
    cot_assignment_close(&w->trial);
}

static double total_cost(const cot_problem *p, const int32_t *rank)
{
    double sum = 0;
    for (int32_t l = 0; l < p->L; l++)
        for (int32_t e = 0; e < p->E; e++)
            sum += cot_problem_cost(p, l, e, rank[(size_t)l * (size_t)p->E + (size_t)e]);
    return sum;
}

/* A placement on the trial's seats, kept in `assignment` if it is the best so far. */
static cot_status seat(limited *w, int32_t *rank, cot_assignment *assignment, double *cost, cot_error *error)
{
    size_t n = (size_t)w->p->L * (size_t)w->p->E;
    for (int32_t l = 0; l < w->p->L; l++) {
        int32_t *row = rank + (size_t)l * (size_t)w->p->E;
        spread_evenly(w, row, l);
        cot_status status = obey(w, row, l, error);
        if (status != COT_OK) return status;
        draw_near(w, row, l);
    }
    double here = total_cost(w->p, rank);
    if (here < *cost) {
        *cost = here;
        memcpy(assignment->rank, rank, n * sizeof *rank);
    }
    return COT_OK;
}

cot_status cot_place_limited(cot_assignment *assignment, double *dual, const cot_problem *problem,
                             double limit, cot_error *error)
{
    limited w;
    double cost = INFINITY, bound;
    cot_error last = {0};
    int32_t *rank = malloc((size_t)problem->L * (size_t)problem->E * sizeof *rank);
    cot_status status = cot_problem_feasible(problem, error);
    if (status == COT_OK)
        status = open_limited(&w, problem, error);
    else
        w = (limited){0};
    if (status == COT_OK && !rank)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement");
    if (status == COT_OK) status = check_hottest(&w, limit, error);
    if (status == COT_OK) {
        for (int32_t l = 0; l < problem->L; l++) level(&w, l);
        status = prove(&w, 0, dual, error); // without charges: the optimum without a limit
        if (status == COT_OK && seat(&w, rank, assignment, &cost, &last) == COT_OUT_OF_MEMORY)
            status = COT_OUT_OF_MEMORY;
    }
    int rounds = problem->cost ? 24 : 6;
    for (int i = 0; status == COT_OK && i < rounds; i++) {
        status = prove(&w, 1, &bound, error);
        if (status != COT_OK) break;
        if (bound > *dual) *dual = bound;
        if ((i == 0 || i + 1 == rounds) && seat(&w, rank, assignment, &cost, &last) == COT_OUT_OF_MEMORY)
            status = COT_OUT_OF_MEMORY;
        if (cost - *dual <= 1e-4 * cost) break;
        step(&w, 0.1 / (i + 1));
    }
    if (status == COT_OK && isinf(cost)) {
        status = last.status;
        if (error) *error = last;
    }
    assignment->priced = false;
    close_limited(&w);
    free(rank);
    return status;
}
