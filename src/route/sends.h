/* What a token sends to other ranks: once to each that serves one of its experts in a layer, under the placement in force. */
#ifndef COT_ROUTE_SENDS_H
#define COT_ROUTE_SENDS_H
#include "coterie/route.h"

/* A worker's ranks, each of which is a home. */
typedef struct cot_route_placement {
    size_t homes;
    size_t experts;     // of a layer: cells stand layer after layer
    uint64_t *ranks_of; // [cells] who has each, a bit a rank; NULL: it is not known
} cot_route_placement;

/* Ranks beside its own that a token of a request with such calls is expected to send to, over the layers of cells, for each home [homes]. Of several
 * ranks that have an expert the home itself serves it, else each of them equally often. */
void cot_route_sends(double *sends, const cot_route_placement *placement, const cot_route_calls *calls);

#endif
