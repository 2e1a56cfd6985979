#include "placement/problem.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>

cot_status cot_assignment_open(cot_assignment *assignment, const cot_problem *problem, cot_error *error)
{
    size_t L = (size_t)problem->L, E = (size_t)problem->E, S = (size_t)problem->S;
    *assignment = (cot_assignment){.rank = malloc(L * E * sizeof *assignment->rank),
                                   .price = calloc(S, sizeof *assignment->price),
                                   .layer_price = calloc(L * S, sizeof *assignment->layer_price)};
    if (assignment->rank && assignment->price && assignment->layer_price) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement of %zu layers of %zu experts", L,
                    E);
}

void cot_assignment_close(cot_assignment *assignment)
{
    free(assignment->rank);
    free(assignment->price);
    free(assignment->layer_price);
    *assignment = (cot_assignment){0};
}

/* All layers want the same, so the tightest cut is one of these three (the capacity of k layers is concave in k). */
cot_status cot_problem_feasible(const cot_problem *problem, cot_error *error)
{
    int64_t a_layer = 0, all = 0, both = 0, L = problem->L, E = problem->E;
    for (int32_t s = 0; s < problem->S; s++) {
        int64_t layers = L * problem->c_layer[s], total = problem->c_exp[s];
        a_layer += problem->c_layer[s];
        all += total;
        both += layers < total ? layers : total;
    }
    if (a_layer < E)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "c_layer is too small: %" PRId32 " ranks hold %" PRId64
                        " experts of a layer, %" PRId64 " fewer than its %" PRId64,
                        problem->S, a_layer, E - a_layer, E);
    if (all < L * E)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "c_exp is too small: %" PRId32 " ranks hold %" PRId64 " experts, %" PRId64
                        " fewer than the %" PRId64 " of %" PRId64 " layers",
                        problem->S, all, L * E - all, L * E, L);
    if (both < L * E)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "c_layer and c_exp together are too small: %" PRId32 " ranks hold %" PRId64
                        " experts, %" PRId64 " fewer than the %" PRId64 " of %" PRId64 " layers",
                        problem->S, both, L * E - both, L * E, L);
    return COT_OK;
}
