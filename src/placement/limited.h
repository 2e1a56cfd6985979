/* Placements under a load limit: what the bound (limited.c) and the placements (limited_seats.c, limited_pack.c) share. */
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
    int32_t *
        turn; // [L] layers in the order in which they are packed: earlier ones have more ranks' room to choose from
    cot_assignment trial;
} cot_limited;

/* Makes a placement, `rank`, in which every rank has as many experts of each layer as it has in `trial`: first evenly by
 * load, then with experts moved to cheap ranks as far as the limit allows. `*peak` is the load of the worst layer's most
 * loaded rank over the limit, and `*layer` that layer; where it is above 1 the placement is the most even one that was
 * found. Errors: OUT_OF_MEMORY. */
cot_status cot_limited_seat(cot_limited *w, double *peak, int32_t *layer, cot_error *error);

/* Makes a placement, `rank`, whatever the limit is, as even as can be: greedily, with `search` also by branch and bound.
 * `*peak` and `*layer` as above; `*proven`: no placement has a lower peak in any layer. Errors: OUT_OF_MEMORY. */
cot_status cot_limited_pack(cot_limited *w, bool search, double *peak, int32_t *layer, bool *proven,
                            cot_error *error);
/* Draws `rank`, which must be within the limit, near: experts change ranks as long as that saves within limit and
 * capacities. */
void cot_limited_draw_near(cot_limited *w);
/* Makes a placement within the limit, `rank` [L][E], cheaper by branch and bound, layer by layer. `*proven`: none is cheaper,
 * but by rounding. Errors: OUT_OF_MEMORY. */
cot_status cot_limited_polish(cot_limited *w, int32_t *rank, bool *proven, cot_error *error);

static inline double cot_limited_load(const cot_problem *p, int32_t l, int32_t e)
{
    return p->load[(size_t)l * (size_t)p->E + (size_t)e];
}

#endif
