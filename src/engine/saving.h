/* What moves of experts have saved, by steps as they were seen to take. Pure: steps, times and the costs of all else are handed in. */
#ifndef COT_ENGINE_SAVING_H
#define COT_ENGINE_SAVING_H
#include "schedule/cost.h"

/* Steps before moves begin, and as many when they are over, are compared: what experts take of one is its time less what the cost model, without
 * its terms of experts, says of all else. The medians are, which a pause of the machine does not change. */
enum { COT_SAVING_STEPS = 256 };

typedef struct cot_saving_step {
    double ns;
    cot_cost_step held;
} cot_saving_step;

typedef struct cot_saving {
    cot_saving_step step[COT_SAVING_STEPS]; // the last ones
    cot_saving_step before[COT_SAVING_STEPS];
    int64_t steps; // that are alike but for what they hold: no experts moved
    enum { COT_SAVING_STILL, COT_SAVING_MOVING, COT_SAVING_OVER } state;
    double foreseen_ns; // of the moves that have begun
} cot_saving;

/* Moves begin that were to save so much of a step. */
void cot_saving_begin(cot_saving *saving, double foreseen_ns);
/* They are over, or have been for a while. */
void cot_saving_end(cot_saving *saving);
/* Experts move for another reason: nothing is compared that was seen so far. */
void cot_saving_forget(cot_saving *saving);
/* A step of this time was run. True: with it there are steps enough on both sides, and *realised_ns is what one takes less, by these weights of the
 * cost model. */
bool cot_saving_add(double *realised_ns, cot_saving *saving, const cot_cost_step *held, double ns,
                    const double weight[COT_COST_TERMS]);

#endif
