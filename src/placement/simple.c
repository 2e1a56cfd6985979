/* Round robin and greedy. */
#include "placement/methods.h"

#include "base/error.h"
#include "placement/sort.h"

#include <stdlib.h>

/* What keeps a method that places layer after layer from using up room that later layers need. The layers after this
 * one can be placed as long as sum_s min(after * c_layer, what c_exp leaves) is what they need: a place on a rank with
 * more left than they could use is free, any other takes one off what there is to spare. */
typedef struct room {
    const cot_problem *p;
    int32_t *held;  // [S] of all layers
    int32_t *taken; // [S] of this one
    int64_t spare, after;
} room;

static void begin_layer(room *r, int32_t l)
{
    const cot_problem *p = r->p;
    r->after = p->L - l - 1;
    r->spare = -r->after * p->E;
    for (int32_t s = 0; s < p->S; s++) {
        int64_t most = r->after * p->c_layer[s], left = p->c_exp[s] - r->held[s];
        r->spare += left < most ? left : most;
        r->taken[s] = 0;
    }
}

static int64_t left_on(const room *r, int32_t s)
{
    return r->p->c_exp[s] - r->held[s];
}

static bool is_free(const room *r, int32_t s)
{
    return left_on(r, s) > r->after * r->p->c_layer[s];
}

/* Puts an expert on rank s if it may be there. */
static bool take(room *r, int32_t s)
{
    if (r->taken[s] >= r->p->c_layer[s] || left_on(r, s) <= 0) return false;
    if (!is_free(r, s) && r->spare-- <= 0) {
        r->spare++;
        return false;
    }
    r->taken[s]++;
    r->held[s]++;
    return true;
}

static cot_status open_room(room *r, const cot_problem *p, cot_error *error)
{
    *r = (room){.p = p, .held = calloc(2 * (size_t)p->S, sizeof *r->held)};
    if (!r->held) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement");
    r->taken = r->held + p->S;
    return cot_problem_feasible(p, error);
}

cot_status cot_place_rr(cot_assignment *assignment, const cot_problem *p, const int32_t *home,
                        cot_error *error)
{
    room r;
    cot_status status = open_room(&r, p, error);
    for (int32_t l = 0; status == COT_OK && l < p->L; l++) {
        int32_t need = 0; // ranks that a window has to have
        for (int64_t places = 0; need < p->S && places < p->E; need++)
            places += p->c_layer[(home[l] + need) % p->S];
        int32_t s = (home[l] - need / 2 + p->S) % p->S;
        begin_layer(&r, l);
        for (int32_t e = 0; e < p->E; e++) {
            while (!take(&r, s)) s = (s + 1) % p->S; // what is refused once in a layer is always refused
            assignment->rank[(size_t)l * (size_t)p->E + (size_t)e] = s;
        }
    }
    free(r.held);
    return status;
}

/* What every expert of the layer is compared by; of pair costs the mean of the layer's. */
static void layer_costs(double *row, const cot_problem *p, int32_t l)
{
    for (int32_t s = 0; s < p->S; s++) {
        row[s] = p->cost ? p->cost[(size_t)l * (size_t)p->S + (size_t)s] : 0;
        for (int32_t e = 0; !p->cost && e < p->E; e++) row[s] += cot_problem_cost(p, l, e, s);
    }
}

cot_status cot_place_greedy(cot_assignment *assignment, const cot_problem *p, cot_error *error)
{
    size_t S = (size_t)p->S;
    room r;
    int32_t *order = malloc(S * sizeof *order);
    double *row = malloc(S * sizeof *row);
    cot_sort_item *scratch = malloc(2 * S * sizeof *scratch);
    cot_status status = open_room(&r, p, error);
    if (status == COT_OK && !(order && row && scratch))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement");
    for (int32_t l = 0; status == COT_OK && l < p->L; l++) {
        int32_t at = 0;
        layer_costs(row, p, l);
        cot_sort_indices(order, row, p->S, false, scratch);
        begin_layer(&r, l);
        for (int32_t e = 0; e < p->E; e++) {
            while (!take(&r, order[at])) at++;
            assignment->rank[(size_t)l * (size_t)p->E + (size_t)e] = order[at];
        }
    }
    free(r.held);
    free(order);
    free(row);
    free(scratch);
    return status;
}
