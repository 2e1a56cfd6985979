/* The step plan as bytes: what rank 0 broadcasts before each collective call of the group. */
#ifndef COT_ENGINE_PLAN_H
#define COT_ENGINE_PLAN_H
#include "fabric/fabric.h"
#include "schedule/step.h"
#include <stddef.h>

typedef enum cot_plan_kind { COT_PLAN_STEP, COT_PLAN_STATS, COT_PLAN_LINK, COT_PLAN_STOP } cot_plan_kind;

/* Most bytes of a plan with so many tokens, at most as many spans, and so many page maps. */
size_t cot_plan_bytes(int64_t tokens, int64_t maps);
/* Writes a plan; `step` is read for COT_PLAN_STEP only. Returns its bytes. */
size_t cot_plan_write(void *bytes, cot_plan_kind kind, const cot_step *step);
/* A plan of kind COT_PLAN_LINK, and what it says. */
size_t cot_plan_write_link(void *bytes, const cot_link *link);
void cot_plan_read_link(cot_link *link, const void *bytes);
/* Reads it; the step points into `bytes`, which are 4-aligned. */
cot_plan_kind cot_plan_read(cot_step *step, const void *bytes);

#endif
