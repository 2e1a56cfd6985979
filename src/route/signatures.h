/* What texts call by their blocks: of each block the mean of the texts that went through it, the newest blocks alone; and what is
 * usual. */
#ifndef COT_ROUTE_SIGNATURES_H
#define COT_ROUTE_SIGNATURES_H
#include "coterie/route.h"

typedef struct cot_route_signatures cot_route_signatures;

/* Keeps `most` blocks, 1 to 2^20, of 1 KB each; calls are of `cells` cells. NULL: out of memory. */
cot_route_signatures *cot_route_signatures_open(size_t most, size_t cells);
void cot_route_signatures_close(cot_route_signatures *signatures); // NULL is fine
/* A text that calls so went through these blocks. A new block for which memory runs out is left out. */
void cot_route_signatures_put(cot_route_signatures *signatures, const uint64_t *keys, size_t count,
                              const cot_route_calls *calls);
/* Tables foretell of a text that it calls so. */
void cot_route_signatures_foretell(cot_route_signatures *signatures, const cot_route_calls *calls);
/* Of a text of such blocks: the mean of the deepest one that is known. NULL: none is. Until the next call. */
const cot_route_calls *cot_route_signatures_find(cot_route_signatures *signatures, const uint64_t *keys,
                                                 size_t count);
/* [cells] What texts call in the mean, old ones counting less: those that were put, or, while these are fewer than 32, those that were
 * foretold, if any were. A text that was foretold and is told of later counts once so. */
const float *cot_route_signatures_usual(const cot_route_signatures *signatures);
size_t cot_route_signatures_count(const cot_route_signatures *signatures); // blocks

#endif
