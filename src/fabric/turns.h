/* Turns to compute: so many permits, handed out in the order in which ranks asked.
 *
 * Words that the ranks of one host share, uncounted. They are a courtesy to the machine, not a lock: nothing
 * is protected by them, so a rank may give up asking at any time and go on without. They are plain memory and
 * polling, so that they work between processes as well and a rank that dies in the queue or with a permit
 * costs the others no more than their patience. A backend offers them in cot_fabric.turns. */
#ifndef COT_FABRIC_TURNS_H
#define COT_FABRIC_TURNS_H
#include "fabric/fabric.h"
#include <stdatomic.h>

typedef struct cot_turns {
    bool limited;                            // there are fewer permits than ranks; else nobody needs one
    _Atomic uint64_t tickets;                // handed out so far
    atomic_int permits;                      // free now
    _Atomic uint64_t waiting[COT_MAX_RANKS]; // each rank's ticket, 0 while it does not ask
    _Atomic uint32_t
        asleep[COT_MAX_RANKS]; // 1 while a rank sleeps in a patient wait, until it is roused (a futex)
} cot_turns;

/* Sets up `turns`, all bytes of which are zero. permits >= 1. */
void cot_turns_open(cot_turns *turns, int ranks, int permits);

/* Between two looks at what has not come for `waited_ns`: gives the core away, soon sleeps, so that ranks that
 * wait take nothing from those that compute. Sleeps are 1/40 of the wait that earned them, between 10 us (the
 * system makes 60 of that) and 1 ms. */
void cot_back_off(int64_t waited_ns);

#endif
