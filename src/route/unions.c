#include "route/unions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double SURE = 1 - 1e-6;  // the most that a share counts, so that what came can go again
static const double SMALL = 0x1p-512; // below which a product is scaled

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
        free(u->of[t].product);
        free(u->of[t].halved);
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
        one->product[c] = 1;
        one->halved[c] = 0;
    }
    one->added = count_usual(u, one);
}

/* A request with this share of a cell comes. */
static void join(cot_route_union *one, uint16_t cell, double keeps)
{
    one->product[cell] *= keeps;
    if (one->product[cell] >= SMALL) return;
    one->product[cell] *= 1 / SMALL;
    one->halved[cell]++;
}

/* One that came goes. */
static void leave(cot_route_union *one, uint16_t cell, double keeps)
{
    one->product[cell] /= keeps;
    if (one->product[cell] <= 1) return;
    one->product[cell] = one->halved[cell] ? one->product[cell] * SMALL : 1;
    if (one->halved[cell]) one->halved[cell]--;
}

static void change(const cot_route_unions *u, cot_route_union *one, const cot_route_calls *calls,
                   void (*with)(cot_route_union *one, uint16_t cell, double keeps))
{
    for (uint32_t i = 0; i < calls->count; i++) {
        const uint16_t cell = calls->cell[i];
        with(one, cell, 1 - fmin((double)calls->share[i], SURE));
        const float now = one->halved[cell] ? 0 : (float)one->product[cell];
        one->added += (double)u->usual[cell] * ((double)now - (double)one->absent[cell]);
        one->absent[cell] = now;
    }
}

bool cot_route_unions_add(cot_route_unions *u, size_t target, const cot_route_calls *calls)
{
    cot_route_union *one = &u->of[target];
    if (!one->absent) {
        float *absent = malloc(u->cells * sizeof *absent);
        double *product = malloc(u->cells * sizeof *product);
        uint16_t *halved = malloc(u->cells * sizeof *halved);
        if (!absent || !product || !halved) {
            free(absent);
            free(product);
            free(halved);
            return false;
        }
        one->absent = absent;
        one->product = product;
        one->halved = halved;
        clear(u, one);
    }
    one->requests++;
    change(u, one, calls, join);
    return true;
}

void cot_route_unions_drop(cot_route_unions *u, size_t target, const cot_route_calls *calls)
{
    cot_route_union *one = &u->of[target];
    if (!--one->requests) {
        clear(u, one);
        return;
    }
    change(u, one, calls, leave);
}

double cot_route_unions_added(const cot_route_unions *u, size_t target, const cot_route_calls *calls)
{
    const cot_route_union *one = &u->of[target];
    double added = 0;
    for (uint32_t i = 0; i < calls->count; i++)
        added += calls->share[i] * (one->absent ? one->absent[calls->cell[i]] : 1);
    return added - one->added;
}
