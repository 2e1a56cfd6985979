/* Placements under a load limit: what the bound (limited.c) and the placements (limited_seats.c) share. */
#ifndef COT_PLACEMENT_LIMITED_H
#define COT_PLACEMENT_LIMITED_H
#include "placement/problem.h"
#include "placement/sort.h"

typedef struct cot_limited {
    const cot_problem *p;
    double *most;    // [L] the load that a rank may have
    double *beta;    // [L][S]
    double *charged; // [L][S] or [L][E][S] costs + beta
    double *sum;     // [S] loads of the ranks in the layer at hand
    int32_t *order;  // [max(E, S)]
    cot_sort_item *scratch;
    int32_t *held; // [S] experts of the layer at hand
    int32_t *used; // [S] experts of all layers
    int32_t *rank; // [L][E] a placement in the making
    cot_assignment trial;
} cot_limited;

/* Puts the experts on as many seats of each rank and layer as the trial took: evenly, then towards the cheap ranks as
 * far as the limit allows. `*peak` is how far the worst layer's most loaded rank is beyond the limit, as a ratio, and
 * `*layer` which that is; above 1 the placement is the most even one found. Errors: OUT_OF_MEMORY. */
cot_status cot_limited_seat(cot_limited *w, double *peak, int32_t *layer, cot_error *error);

static inline double cot_limited_load(const cot_problem *p, int32_t l, int32_t e)
{
    return p->load[(size_t)l * (size_t)p->E + (size_t)e];
}

#endif
