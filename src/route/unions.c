#include "route/unions.h"

#include <math.h>
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
    for (size_t t = 0; u->of && t < u->targets; t++) {
        free(u->of[t].absent);
        free(u->of[t].log_absent);
    }
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
    for (size_t c = 0; c < u->cells; c++) {
        one->absent[c] = 1;
        one->log_absent[c] = 0;
    }
    one->added = count_usual(u, one);
}

static const double surest = 1 - 1e-6; // of a share, so that what came can go again

/* A request with this share of a cell comes, or goes: sums of logarithms neither run out of range nor lose one of many. */
static void change(const cot_route_unions *u, cot_route_union *one, uint16_t cell, float share, int sign)
{
    const double log = fmin(one->log_absent[cell] + sign * log1p(-fmin(share, surest)), 0);
    const float now = (float)exp(log);
    one->added += (double)u->usual[cell] * ((double)now - (double)one->absent[cell]);
    one->log_absent[cell] = log;
    one->absent[cell] = now;
}

bool cot_route_unions_add(cot_route_unions *u, size_t target, const cot_route_calls *calls)
{
    cot_route_union *one = &u->of[target];
    if (!one->absent) {
        float *absent = malloc(u->cells * sizeof *absent);
        double *log_absent = malloc(u->cells * sizeof *log_absent);
        if (!absent || !log_absent) {
            free(absent);
            free(log_absent);
            return false;
        }
        one->absent = absent;
        one->log_absent = log_absent;
        clear(u, one);
    }
    one->requests++;
    for (uint32_t i = 0; i < calls->count; i++) change(u, one, calls->cell[i], calls->share[i], 1);
    return true;
}

void cot_route_unions_drop(cot_route_unions *u, size_t target, const cot_route_calls *calls)
{
    cot_route_union *one = &u->of[target];
    if (!--one->requests) {
        clear(u, one);
        return;
    }
    for (uint32_t i = 0; i < calls->count; i++) change(u, one, calls->cell[i], calls->share[i], -1);
}

double cot_route_unions_added(const cot_route_unions *u, size_t target, const cot_route_calls *calls)
{
    const cot_route_union *one = &u->of[target];
    double added = 0;
    for (uint32_t i = 0; i < calls->count; i++)
        added += calls->share[i] * (one->absent ? one->absent[calls->cell[i]] : 1);
    return added - one->added;
}
