/* All groupings of a layer, one after the other. */
#ifndef COT_PLACEMENT_COCLUSTER_EXHAUSTIVE_H
#define COT_PLACEMENT_COCLUSTER_EXHAUSTIVE_H
#include "placement/cocluster/solver.h"

enum { COT_EXHAUSTIVE_EXPERTS = 32, COT_EXHAUSTIVE_MOST = 3000, COT_EXHAUSTIVE_STEP = 32 };

typedef struct cot_exhaustive {
    bool few; // there are few enough to try them all
    bool begun;
    double bound; // of those tried
    int32_t rank[COT_EXHAUSTIVE_EXPERTS];
} cot_exhaustive;

void cot_exhaustive_begin(cot_exhaustive *all, const cot_cocluster *problem);
/* Offers some more; at the end tells the problem their bound and that it is done. */
cot_status cot_exhaustive_step(cot_exhaustive *all, cot_cocluster *problem, cot_error *error);

#endif
