/* Distinct experts that are called in steps of a target, as they are foretold: of each cell the chance that none of the requests there calls
 * it in a step, which are taken to call it independently. */
#ifndef COT_ROUTE_UNIONS_H
#define COT_ROUTE_UNIONS_H
#include "coterie/route.h"

typedef struct cot_route_union {
    float *absent; // [cells] that chance; NULL: nobody was there yet
    /* [cells] The chance is product / 2^(512 x halved): of many it neither runs out of range nor loses one of them. */
    double *product;
    uint16_t *halved;
    double added;    // cells that a request of the usual calls would add
    size_t requests; // whose calls count
} cot_route_union;

typedef struct cot_route_unions {
    size_t targets, cells;
    float *usual;        // [cells] share of tokens that call it, in the mean
    cot_route_union *of; // [targets]
} cot_route_unions;

/* False: out of memory; all is zero then. */
bool cot_route_unions_open(cot_route_unions *unions, size_t targets, size_t cells);
void cot_route_unions_free(cot_route_unions *unions); // of no cells is fine
void cot_route_unions_set_usual(cot_route_unions *unions, const float *usual);

/* A request with such calls, none of a cell beyond, joins a target; false: out of memory, and it does not. */
bool cot_route_unions_add(cot_route_unions *unions, size_t target, const cot_route_calls *calls);
/* One that joined goes. */
void cot_route_unions_drop(cot_route_unions *unions, size_t target, const cot_route_calls *calls);
/* Cells that it would add to a step there, less those that a request of the usual calls would. */
double cot_route_unions_added(const cot_route_unions *unions, size_t target, const cot_route_calls *calls);

#endif
