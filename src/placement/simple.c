/* Round robin and greedy. */
#include "placement/methods.h"

#include "base/error.h"
#include "placement/sort.h"

#include <stdlib.h>

static cot_status no_room(int32_t l, int32_t e, const char *method, cot_error *error)
{
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "%s finds no room for expert %d of the %d-th layer: what it placed before leaves none",
                    method, e, l);
}

cot_status cot_place_rr(cot_assignment *assignment, const cot_problem *p, const int32_t *home,
                        cot_error *error)
{
    int32_t *held = calloc((size_t)p->S, sizeof *held);
    cot_status status =
        held ? cot_problem_feasible(p, error) : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (int32_t l = 0; status == COT_OK && l < p->L; l++) {
        int32_t need = 0, taken = 0; // ranks that a window has to have
        for (int64_t room = 0; need < p->S && room < p->E; need++)
            room += p->c_layer[(home[l] + need) % p->S];
        int32_t s = (home[l] - need / 2 + p->S) % p->S, passed = 0;
        for (int32_t e = 0; status == COT_OK && e < p->E; e++) {
            for (; passed <= p->S && (taken >= p->c_layer[s] || held[s] >= p->c_exp[s]); passed++, taken = 0)
                s = (s + 1) % p->S;
            if (passed > p->S) {
                status = no_room(l, e, "rr", error);
                break;
            }
            assignment->rank[(size_t)l * (size_t)p->E + (size_t)e] = s;
            taken++;
            held[s]++;
        }
    }
    free(held);
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
    int32_t *held = calloc(2 * S, sizeof *held), *order = held + S;
    double *row = malloc(S * sizeof *row);
    cot_sort_item *scratch = malloc(2 * S * sizeof *scratch);
    cot_status status = held && row && scratch ? cot_problem_feasible(p, error)
                                               : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (int32_t l = 0; status == COT_OK && l < p->L; l++) {
        int32_t at = 0, taken = 0;
        layer_costs(row, p, l);
        cot_sort_indices(order, row, p->S, false, scratch);
        for (int32_t e = 0; status == COT_OK && e < p->E; e++) {
            for (; at < p->S && (taken >= p->c_layer[order[at]] || held[order[at]] >= p->c_exp[order[at]]);
                 at++)
                taken = 0;
            if (at == p->S) {
                status = no_room(l, e, "greedy", error);
                break;
            }
            assignment->rank[(size_t)l * (size_t)p->E + (size_t)e] = order[at];
            taken++;
            held[order[at]]++;
        }
    }
    free(held);
    free(row);
    free(scratch);
    return status;
}
