/* What may come next in a step's constrained texts, found on a thread of its own while the ranks compute the step. */
#ifndef COT_ENGINE_MASKS_H
#define COT_ENGINE_MASKS_H
#include "engine/loop.h"

#include <pthread.h>

/* Of a span: whose next token is drawn with it, and has a constraint. */
typedef struct cot_masks_span {
    const cot_request_state *request; // NULL: no such span
    const uint32_t *mask;             // NULL: the constraint failed
} cot_masks_span;

typedef struct cot_masks {
    cot_masks_span *span; // [spans] of the step
    int32_t count;        // of the step
    bool any;             // one of them has a constraint
    bool runs;            // there is a thread: from the first step that has any on
    pthread_t thread;
    pthread_mutex_t lock; // of what follows
    pthread_cond_t changed;
    bool asked, ends;
} cot_masks;

/* For steps of up to so many spans. False: memory ran out. Close either way. */
bool cot_masks_open(cot_masks *masks, size_t spans);
/* A step begins; until it is waited for its requests' constraints are the thread's. */
void cot_masks_begin(cot_masks *masks, const cot_step *step, cot_request_state *const *by_row);
void cot_masks_wait(cot_masks *masks);
/* Of the step that was waited for: what may come behind its span; NULL: anything. False: nothing may. */
bool cot_masks_get(const cot_masks *masks, int32_t span, const uint32_t **mask);
void cot_masks_close(cot_masks *masks);

#endif
