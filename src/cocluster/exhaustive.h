/* All groupings of a layer, one after the other. */
#ifndef COT_COCLUSTER_EXHAUSTIVE_H
#define COT_COCLUSTER_EXHAUSTIVE_H
#include "cocluster/solver.h"

enum {
    COT_EXHAUSTIVE_EXPERTS = 32, // no more experts than these ...
    COT_EXHAUSTIVE_MOST = 3000,  // ... and no more groupings are tried
    COT_EXHAUSTIVE_STEP = 32     // groupings of one step
};

typedef struct cot_exhaustive {
    bool few; // there are few enough to try them all
    bool begun;
    double bound; // the largest bound of local + bonus of those that were tried
    int32_t rank[COT_EXHAUSTIVE_EXPERTS];
} cot_exhaustive;

void cot_exhaustive_begin(cot_exhaustive *all, const cot_cocluster *problem);
/* Offers the next COT_EXHAUSTIVE_STEP of them; after the last one it sets the problem's bound and `done`. */
void cot_exhaustive_step(cot_exhaustive *all, cot_cocluster *problem);

#endif
