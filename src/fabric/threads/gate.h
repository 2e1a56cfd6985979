/* The run gate: so many permits to compute, handed out in the order in which ranks asked.
 *
 * It is a courtesy to the machine, not a lock: nothing is protected by it, so a rank may give up asking at
 * any time and go on without. It is plain memory and polling, so that it works between processes as well and
 * a rank that dies in the queue or with a permit costs the others no more than their patience. */
#ifndef COT_FABRIC_THREADS_GATE_H
#define COT_FABRIC_THREADS_GATE_H
#include "fabric/fabric.h"
#include <stdatomic.h>

typedef struct cot_gate {
    _Atomic uint64_t tickets; // handed out so far
    atomic_int permits;       // free now
    int ranks;
    _Atomic uint64_t waiting[COT_MAX_RANKS]; // each rank's ticket, 0 while it does not ask
} cot_gate;

void cot_gate_open(cot_gate *gate, int ranks, int permits);
/* Asks until a permit comes (true), `*stop` is not 0 or the deadline is over (false). */
bool cot_gate_enter(cot_gate *gate, int rank, int64_t deadline_ns, const atomic_int *stop);
/* Takes a permit (true) if one is free that nobody asks for. */
bool cot_gate_try(cot_gate *gate);
bool cot_gate_is_asked(cot_gate *gate); // whether a rank waits for a permit
void cot_gate_leave(cot_gate *gate);    // gives one permit back

/* Between two looks at what has not come for `waited_ns`: gives the core away, soon sleeps, so that ranks that
 * wait take nothing from those that compute. Sleeps are 1/40 of the wait that earned them, between 10 us (the
 * system makes 60 of that) and 1 ms. */
void cot_back_off(int64_t waited_ns);

#endif
