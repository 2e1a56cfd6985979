/* Commands as bytes, which rank 0 broadcasts. Each has an answer of every rank. */
#ifndef COT_ENGINE_PLAN_H
#define COT_ENGINE_PLAN_H
#include "fabric/fabric.h"
#include "model/chunk.h"
#include "schedule/step.h"
#include <stddef.h>

/* What a command is: and its answer. */
typedef enum cot_plan_kind {
    COT_PLAN_STEP,  // a step: its results (cot_runner_step)
    COT_PLAN_STATS, // counters are gathered: they themselves (cot_runner_stats)
    COT_PLAN_PLACE, // changes of a placement (placement/epoch.h); with the last of them an epoch begins: a status
    COT_PLAN_COPY, // chunks of slots go from rank to rank: a status, and what became of each
    COT_PLAN_RESIZE, // pages of the KV cache open and close, places of experts that nobody has are emptied: a status
    COT_PLAN_LINK, // the shape of links: a status
    COT_PLAN_STOP  // the end: none
} cot_plan_kind;

/* A command that was read; it points into the bytes, which are 8-aligned. */
typedef struct cot_plan {
    cot_plan_kind kind;
    cot_step step;                 // STEP
    const int32_t *words;          // PLACE: [count]; RESIZE: [count] pairs of pages (cot_kv_resize)
    const cot_runner_chunk *chunk; // COPY: [count]
    int64_t count;
    bool last;    // of the epoch's changes; of the pairs
    int32_t open; // RESIZE: pages that are open with the last pairs
    cot_link link;
} cot_plan;

/* Most bytes of a plan with so many tokens, at most as many spans, and so many page maps and copies of states; or with a chunk for every
 * two ranks. */
size_t cot_plan_bytes(int64_t tokens, int64_t maps, int64_t states, int ranks);
/* Words of changes that a plan of so many bytes has room for. */
int64_t cot_plan_words(size_t bytes);
/* Writes what its kind says of it. Returns its bytes. */
size_t cot_plan_write(void *bytes, const cot_plan *plan);
void cot_plan_read(cot_plan *plan, const void *bytes);

#endif
