/* Placements within a limit of load on seats of their own choice: how even a layer can be, and what its cheapest placement
 * within the limit is. Both search branch and bound, experts in falling order of load, for as long as a budget lasts. */
#include "placement/limited.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How many ranks the searches of a problem look at, for the least peaks and for the least cost, and how many (expert, rank)
 * pairs a layer may have that is searched. One of 16 experts on 8 ranks is searched to the end as a rule. */
enum { PEAK_LOOKS = 1 << 24, COST_LOOKS = 1 << 26, MOST_PAIRS = 1 << 20 };
static const double margin = 1e-12; // what is better by less is no better

/* One layer while its experts are seated. Of the seats of a rank the first `spare` are none that later layers need; each
 * other one takes one of `slack`. */
typedef struct layer {
    const cot_problem *p;
    int32_t l;
    const int32_t *order;  // [E] experts by falling load
    double *tail;          // [E + 1] load of order[i] and all behind it
    double *least;         // [E + 1] what order[i] and all behind it cost at least
    int32_t *near;         // [E][S] ranks in the order that expert order[i] tries them in
    int32_t *by_cost;      // [S] ranks by the layer's cost; of product costs
    double *sum;           // [S]
    int32_t *room, *spare; // [S] seats left
    int32_t *paid;         // [S] seats taken of the slack
    int64_t slack;
    int32_t *rank, *best; // [E] by expert
    double limit;         // of a rank's load
    double value;         // of `best`: its peak, or its cost
    double bound;         // a peak that none is below
    bool peaks;           // the search is for the least peak
    int64_t trials;       // left, of a rank for an expert: each looks at all ranks
} layer;

static double load_of(const layer *y, int32_t e)
{
    return cot_limited_load(y->p, y->l, e);
}

static bool has_seat(const layer *y, int32_t s)
{
    return y->room[s] > 0 && (y->spare[s] > 0 || y->slack > 0);
}

static void seat(layer *y, int32_t e, int32_t s)
{
    y->rank[e] = s;
    y->sum[s] += load_of(y, e);
    y->room[s]--;
    if (y->spare[s] > 0)
        y->spare[s]--;
    else {
        y->paid[s]++;
        y->slack--;
    }
}

/* `sum` is what the rank carried before the expert came: differences would gather rounding. */
static void unseat(layer *y, int32_t s, double sum)
{
    y->sum[s] = sum;
    y->room[s]++;
    if (y->paid[s] > 0) {
        y->paid[s]--;
        y->slack++;
    } else
        y->spare[s]++;
}

static void close_layer(layer *y)
{
    free(y->tail);
    free(y->near);
    *y = (layer){0};
}

static cot_status open_layer(layer *y, cot_limited *w, cot_error *error)
{
    const cot_problem *p = w->p;
    const size_t E = (size_t)p->E, S = (size_t)p->S, pairs = E * S <= MOST_PAIRS ? E * S : 0;
    *y = (layer){.p = p, .order = w->order};
    y->tail = malloc((2 * (E + 1) + S) * sizeof *y->tail);
    y->near = malloc((pairs + 2 * E + 4 * S) * sizeof *y->near);
    if (!y->tail || !y->near) {
        close_layer(y);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement with a load limit");
    }
    y->least = y->tail + E + 1;
    y->sum = y->least + E + 1;
    y->rank = y->near + pairs;
    y->best = y->rank + E;
    y->by_cost = y->best + E;
    y->room = y->by_cost + S;
    y->spare = y->room + S;
    y->paid = y->spare + S;
    return COT_OK;
}

/* Begins layer `l` with no expert seated, while `after` layers still need their seats. `used` [S] are those of the others. */
static void begin(layer *y, cot_limited *w, int32_t l, int32_t after)
{
    const cot_problem *p = y->p;
    y->l = l;
    y->slack = -(int64_t)after * p->E;
    cot_sort_indices(w->order, p->load + (size_t)l * (size_t)p->E, p->E, true, w->scratch);
    y->tail[p->E] = 0;
    for (int32_t i = p->E; i-- > 0;) y->tail[i] = y->tail[i + 1] + load_of(y, y->order[i]);
    for (int32_t s = 0; s < p->S; s++) {
        const int64_t left = p->c_exp[s] - w->used[s], later = (int64_t)after * p->c_layer[s];
        const int64_t room = left < p->c_layer[s] ? left : p->c_layer[s], spare = left - later;
        y->sum[s] = 0;
        y->paid[s] = 0;
        y->room[s] = (int32_t)room;
        y->spare[s] = (int32_t)(spare < 0 ? 0 : spare < room ? spare : room);
        y->slack += left < later ? left : later;
    }
}

/* ---- an even layer, greedily ---- */

/* The hottest first, each to the rank of least load (there is one with a seat: the spare ones and the slack are E or more as
 * long as all layers left have seats, which a problem that is feasible begins with and every layer keeps); of equal ones the hot experts, which stay alone, to those with few seats
 * left. */
static void spread(layer *y)
{
    for (int32_t i = 0; i < y->p->E; i++) {
        int32_t best = -1;
        for (int32_t s = 0; s < y->p->S; s++) {
            if (!has_seat(y, s)) continue;
            if (best < 0 || y->sum[s] < y->sum[best] ||
                (y->sum[s] == y->sum[best] && y->spare[s] < y->spare[best]))
                best = s;
        }
        seat(y, y->order[i], best);
    }
}

static int32_t fullest(const layer *y)
{
    int32_t most = 0;
    for (int32_t s = 1; s < y->p->S; s++)
        if (y->sum[s] > y->sum[most]) most = s;
    return most;
}

static double add_up(const layer *y, int32_t s)
{
    double sum = 0;
    for (int32_t e = 0; e < y->p->E; e++)
        if (y->rank[e] == s) sum += load_of(y, e);
    return sum;
}

/* Moves an expert of the fullest rank, or exchanges it for another's, as long as that lowers the two ranks' peak. */
static void even_out(layer *y)
{
    for (;;) {
        const int32_t a = fullest(y);
        int32_t best = -1, with = -1, to = -1;
        double least = y->sum[a] * (1 - margin);
        for (int32_t i = 0; i < y->p->E; i++) {
            if (y->rank[i] != a) continue;
            const double wi = load_of(y, i);
            for (int32_t b = 0; b < y->p->S; b++) {
                const double peak = fmax(y->sum[a] - wi, y->sum[b] + wi);
                if (b == a || !has_seat(y, b) || peak >= least) continue;
                least = peak, best = i, with = -1, to = b;
            }
            for (int32_t k = 0; k < y->p->E; k++) {
                const int32_t b = y->rank[k];
                const double less = wi - load_of(y, k), peak = fmax(y->sum[a] - less, y->sum[b] + less);
                if (b == a || peak >= least) continue;
                least = peak, best = i, with = k, to = b;
            }
        }
        if (best < 0) return;
        if (with >= 0) {
            y->rank[with] = a;
            y->rank[best] = to;
        } else {
            unseat(y, a, 0);
            seat(y, best, to);
        }
        y->sum[a] = add_up(y, a);
        y->sum[to] = add_up(y, to);
    }
}

/* Deals what the ranks carry anew: most experts to the rank with most seats left, so that none has used up its seats while
 * others have many. Loads stay. The ranks stay too where one has no seats for that, or later layers would be short of some. */
static void even_seats(layer *y, cot_limited *w, int32_t after)
{
    const cot_problem *p = y->p;
    int32_t *by_left = y->by_cost, *by_held = w->order, *to = y->paid;
    int64_t later = 0; // seats of later layers
    for (int32_t s = 0; s < p->S; s++) w->held[s] = 0;
    for (int32_t e = 0; e < p->E; e++) w->held[y->rank[e]]++;
    for (int32_t s = 0; s < p->S; s++) w->sum[s] = p->c_exp[s] - w->used[s];
    cot_sort_indices(by_left, w->sum, p->S, true, w->scratch);
    for (int32_t s = 0; s < p->S; s++) w->sum[s] = w->held[s];
    cot_sort_indices(by_held, w->sum, p->S, true, w->scratch);
    for (int32_t i = 0; i < p->S; i++) {
        const int32_t s = by_left[i], held = w->held[by_held[i]];
        const int64_t left = (int64_t)p->c_exp[s] - w->used[s] - held, most = (int64_t)after * p->c_layer[s];
        if (left < 0 || held > p->c_layer[s]) return;
        to[by_held[i]] = s;
        later += left < most ? left : most;
    }
    if (later < (int64_t)after * p->E) return;
    for (int32_t e = 0; e < p->E; e++) y->rank[e] = to[y->rank[e]];
}

/* ---- branch and bound ---- */

/* A peak that no placement of the layer is below: of the mean rank with seats, of the hottest expert, and of the two that
 * share a rank at best where there are more experts than such ranks. */
static double least_peak(const layer *y)
{
    int32_t ranks = 0;
    for (int32_t s = 0; s < y->p->S; s++) ranks += y->room[s] > 0;
    const int32_t E = y->p->E;
    double bound = fmax(y->tail[0] / ranks, load_of(y, y->order[0]));
    if (E > ranks) bound = fmax(bound, load_of(y, y->order[ranks - 1]) + load_of(y, y->order[ranks]));
    return bound;
}

/* Whether ranks a and b cost the same for order[i] and all behind it, as far as cost matters. */
static bool cost_alike(const layer *y, int32_t i, int32_t a, int32_t b)
{
    const cot_problem *p = y->p;
    const double *cost = p->cost ? p->cost + (size_t)y->l * (size_t)p->S : NULL;
    if (y->peaks) return true;
    if (cost) return cost[a] == cost[b];
    for (int32_t k = i; k < p->E; k++)
        if (cot_problem_cost(p, y->l, y->order[k], a) != cot_problem_cost(p, y->l, y->order[k], b))
            return false;
    return true;
}

/* Whether a rank before near[k] is to order[i] what near[k] is. Such ranks stand side by side. */
static bool has_twin(const layer *y, int32_t i, const int32_t *near, int32_t k)
{
    const int32_t s = near[k];
    for (int32_t before = k; before-- > 0;) {
        const int32_t b = near[before];
        if (y->peaks ? y->sum[b] != y->sum[s] : !cost_alike(y, i, b, s)) return false;
        if (y->sum[b] == y->sum[s] && y->room[b] == y->room[s] && y->spare[b] == y->spare[s]) return true;
    }
    return false;
}

/* What the experts from order[i] on cost at least, infinite where they do not fit: they fill the ranks from the cheapest on,
 * each up to the limit or with as many of them as it has seats. */
static double least_cost(const layer *y, int32_t i)
{
    const int32_t E = y->p->E;
    const double *price = y->peaks || !y->p->cost ? NULL : y->p->cost + (size_t)y->l * (size_t)y->p->S;
    double left = y->tail[i], cost = price || y->peaks ? 0 : y->least[i];
    for (int32_t k = 0; k < y->p->S && left > 0; k++) {
        const int32_t s = price ? y->by_cost[k] : k, last = i + y->room[s] < E ? i + y->room[s] : E;
        if (y->sum[s] > y->limit) return INFINITY; // a more even placement has been found since
        if (!y->room[s]) continue;
        const double fill = fmin(left, fmin(y->limit - y->sum[s], y->tail[i] - y->tail[last]));
        if (price) cost += fill * price[s];
        left -= fill;
    }
    return left > margin * y->tail[0] ? INFINITY : cost;
}

static void order_by_sum(layer *y, int32_t *near)
{
    for (int32_t n = 0; n < y->p->S; n++) {
        int32_t at = n;
        for (; at > 0 && y->sum[near[at - 1]] > y->sum[n]; at--) near[at] = near[at - 1];
        near[at] = n;
    }
}

static void descend(layer *y, int32_t i, double cost)
{
    const cot_problem *p = y->p;
    if (i == p->E) {
        y->value = y->peaks ? y->sum[fullest(y)] : cost;
        if (y->peaks) y->limit = y->value * (1 - margin);
        memcpy(y->best, y->rank, (size_t)p->E * sizeof *y->best);
        return;
    }
    const int32_t e = y->order[i],
                  *near = y->p->cost && !y->peaks ? y->by_cost : y->near + (size_t)i * (size_t)p->S;
    if (y->peaks) order_by_sum(y, y->near + (size_t)i * (size_t)p->S);
    for (int32_t k = 0; k < p->S; k++) {
        const int32_t s = near[k];
        const double sum = y->sum[s];
        if (--y->trials < 0 || (y->peaks && y->value <= y->bound * (1 + margin))) return;
        if (!has_seat(y, s) || sum + load_of(y, e) > y->limit || has_twin(y, i, near, k)) continue;
        const double with = y->peaks ? 0 : cost + cot_problem_cost(p, y->l, e, s);
        seat(y, e, s);
        const double rest = least_cost(y, i + 1);
        if (y->peaks ? isfinite(rest) : with + rest < y->value * (1 - margin)) descend(y, i + 1, with);
        unseat(y, s, sum);
    }
}

/* How many trials a layer's search has of a problem's looks; none where the layer is too large. */
static int64_t trials_of(const cot_problem *p, int64_t looks)
{
    return (int64_t)p->E * p->S > MOST_PAIRS ? 0 : looks / ((int64_t)p->L * p->S) + 1;
}

/* The least peak of the layer from the one that is seated on, which is then the one found. Returns whether none is less. */
static bool search_peak(layer *y, cot_limited *w, int32_t l, int32_t after)
{
    y->peaks = true;
    y->value = y->sum[fullest(y)];
    memcpy(y->best, y->rank, (size_t)y->p->E * sizeof *y->best);
    begin(y, w, l, after);
    y->bound = least_peak(y);
    y->limit = y->value * (1 - margin);
    y->trials = trials_of(y->p, PEAK_LOOKS);
    if (y->trials) descend(y, 0, 0);
    memcpy(y->rank, y->best, (size_t)y->p->E * sizeof *y->best);
    return y->trials > 0;
}

cot_status cot_limited_pack(cot_limited *w, bool search, double *peak, int32_t *layer_number, bool *proven,
                            cot_error *error)
{
    const cot_problem *p = w->p;
    layer y;
    cot_status status = open_layer(&y, w, error);
    if (status != COT_OK) return status;
    *peak = 0;
    *layer_number = 0;
    *proven = search;
    for (int32_t s = 0; s < p->S; s++) { // seats of one layer must never be short in another
        w->used[s] = 0;
        *proven &= p->c_exp[s] >= (int64_t)p->L * p->c_layer[s];
    }
    for (int32_t i = 0; i < p->L; i++) {
        const int32_t l = w->turn[i], after = p->L - 1 - i;
        int32_t *rank = w->rank + (size_t)l * (size_t)p->E;
        begin(&y, w, l, after);
        spread(&y);
        even_out(&y);
        double here = y.sum[fullest(&y)];
        if (search) {
            *proven &= search_peak(&y, w, l, after);
            here = y.value;
        }
        even_seats(&y, w, after);
        memcpy(rank, y.rank, (size_t)p->E * sizeof *rank);
        for (int32_t e = 0; e < p->E; e++) w->used[rank[e]]++;
        if (here > w->most[l] * *peak) {
            *peak = here / w->most[l];
            *layer_number = l;
        }
    }
    close_layer(&y);
    return COT_OK;
}

/* Ranks in the order of what they cost: for all experts alike, or for each. */
static void order_by_cost(layer *y, cot_limited *w)
{
    const cot_problem *p = y->p;
    const size_t S = (size_t)p->S, at = (size_t)y->l * (size_t)p->E;
    if (p->cost) {
        cot_sort_indices(y->by_cost, p->cost + (size_t)y->l * S, p->S, false, w->scratch);
    } else
        for (int32_t i = 0; i < p->E; i++)
            cot_sort_indices(y->near + (size_t)i * S, p->pair_cost + (at + (size_t)y->order[i]) * S, p->S,
                             false, w->scratch);
    y->least[p->E] = 0;
    for (int32_t i = p->E; !p->cost && i-- > 0;)
        y->least[i] = y->least[i + 1] + cot_problem_cost(p, y->l, y->order[i], y->near[(size_t)i * S]);
}

cot_status cot_limited_polish(cot_limited *w, int32_t *rank, bool *proven, cot_error *error)
{
    const cot_problem *p = w->p;
    layer y;
    *proven = trials_of(p, COST_LOOKS) > 0;
    if (!*proven) return COT_OK;
    cot_status status = open_layer(&y, w, error);
    if (status != COT_OK) return status;
    for (int32_t s = 0; s < p->S; s++) {
        w->used[s] = 0;
        *proven &= p->c_exp[s] >= (int64_t)p->L * p->c_layer[s];
    }
    for (size_t i = 0; i < (size_t)p->L * (size_t)p->E; i++) w->used[rank[i]]++;
    for (int32_t l = 0; l < p->L; l++) {
        int32_t *here = rank + (size_t)l * (size_t)p->E;
        for (int32_t e = 0; e < p->E; e++) w->used[here[e]]--;
        begin(&y, w, l, 0);
        order_by_cost(&y, w);
        memcpy(y.best, here, (size_t)p->E * sizeof *here);
        y.value = 0;
        for (int32_t e = 0; e < p->E; e++) y.value += cot_problem_cost(p, l, e, here[e]);
        y.limit = w->most[l];
        y.trials = trials_of(p, COST_LOOKS);
        descend(&y, 0, 0);
        *proven &= y.trials > 0;
        memcpy(here, y.best, (size_t)p->E * sizeof *here);
        for (int32_t e = 0; e < p->E; e++) w->used[here[e]]++;
    }
    close_layer(&y);
    return COT_OK;
}
