#include "route/unions.h"

#include <stdlib.h>
#include <string.h>

bool cot_route_unions_open(cot_route_unions *u, size_t targets, size_t cells)
{
    *u = (cot_route_unions){targets, cells, calloc(cells, sizeof *u->usual), calloc(targets, sizeof *u->of)};
    if (u->usual && u->of) return true;
    cot_route_unions_free(u);
    return false;
}

void cot_route_unions_free(cot_route_unions *u)
{
    for (size_t t = 0; u->of && t < u->targets; t++) free(u->of[t].absent);
    free(u->usual);
    free(u->of);
    *u = (cot_route_unions){0};
}

/* What the usual calls add, counted anew. */
static double count_usual(const cot_route_unions *u, const cot_route_union *one)
{
    double added = 0;
    for (size_t c = 0; c < u->cells; c++) added += u->usual[c] * (one->absent ? one->absent[c] : 1);
    return added;
}

void cot_route_unions_set_usual(cot_route_unions *u, const float *usual)
{
    memcpy(u->usual, usual, u->cells * sizeof *usual);
    const double alone = count_usual(u, &(cot_route_union){0});
    for (size_t t = 0; t < u->targets; t++)
        u->of[t].added = u->of[t].requests ? count_usual(u, &u->of[t]) : alone;
}

/* Nobody is there: what rounding has left goes. */
static void clear(const cot_route_unions *u, cot_route_union *one)
{
    for (size_t c = 0; c < u->cells; c++) one->absent[c] = 1;
    one->added = count_usual(u, one);
}

bool cot_route_unions_add(cot_route_unions *u, size_t target, const cot_route_calls *calls)
{
    cot_route_union *one = &u->of[target];
    if (!one->absent) {
        one->absent = malloc(u->cells * sizeof *one->absent);
        if (!one->absent) return false;
        clear(u, one);
    }
    one->requests++;
    for (uint32_t i = 0; i < calls->count; i++) {
        float *absent = &one->absent[calls->cell[i]];
        one->added -= (double)u->usual[calls->cell[i]] * *absent * calls->share[i];
        *absent *= 1 - calls->share[i];
    }
    return true;
}

void cot_route_unions_drop(cot_route_unions *u, size_t target, const cot_route_calls *calls)
{
    cot_route_union *one = &u->of[target];
    if (!--one->requests) {
        clear(u, one);
        return;
    }
    for (uint32_t i = 0; i < calls->count; i++) {
        float *absent = &one->absent[calls->cell[i]];
        *absent /= 1 - calls->share[i];
        one->added += (double)u->usual[calls->cell[i]] * *absent * calls->share[i];
    }
}

double cot_route_unions_added(const cot_route_unions *u, size_t target, const cot_route_calls *calls)
{
    const cot_route_union *one = &u->of[target];
    double added = 0;
    for (uint32_t i = 0; i < calls->count; i++)
        added += calls->share[i] * (one->absent ? one->absent[calls->cell[i]] : 1);
    return added - one->added;
}
