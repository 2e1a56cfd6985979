/* Checks placements and what is claimed of them; shares nothing with the methods. */
#ifndef COT_PLACEMENT_VERIFY_H
#define COT_PLACEMENT_VERIFY_H
#include "placement/problem.h"

/* Checks that every expert has one rank and that no capacity is exceeded; computes the objective anew in double-double
 * numbers, and what the prices prove, which no rounding puts above the cost of any placement. Errors: INVALID_ARGUMENT, naming what is wrong; OUT_OF_MEMORY. */
cot_status cot_assignment_verify(cot_double_double *objective, cot_double_double *dual,
                                 const cot_assignment *assignment, const cot_problem *problem,
                                 cot_error *error);

#endif
