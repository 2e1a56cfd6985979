/* What texts call, joined, and read from what tables foretell. */
#ifndef COT_ROUTE_CALLS_H
#define COT_ROUTE_CALLS_H
#include "coterie/route.h"

/* `mean`, of so many texts, with one more. Cells beyond COT_ROUTE_MOST_CALLS, those with the smallest shares, are left out. */
void cot_route_calls_join(cot_route_calls *mean, uint32_t texts, const cot_route_calls *one);
/* Of the share [cells] of each cell, none above 1: those that count most, COT_ROUTE_MOST_CALLS at most and none of 0. At most
 * COT_ROUTE_MOST_CELLS cells. */
void cot_route_calls_of(cot_route_calls *calls, const float *share, size_t cells);

#endif
