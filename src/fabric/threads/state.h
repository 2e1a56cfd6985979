/* Inside a group of one host: shared by threads.c (memory and messages) and start.c (who runs a rank). */
#ifndef COT_FABRIC_THREADS_STATE_H
#define COT_FABRIC_THREADS_STATE_H
#include "fabric/threads/link.h"
#include "fabric/threads/threads.h"
#include "fabric/turns.h"

#include <sys/types.h>

struct endpoint {
    alignas(128) cot_fabric fabric; // first: a cot_fabric * is a struct endpoint *
    cot_fabric_group *group;
    unsigned char *heap;
    size_t used;
    cot_link link;             // what this rank sends through
    int64_t line_free_ns;      // when all that it has sent so far will have left
    pid_t process;             // on rank 0: the child that runs this rank; 0: none, or none any more
    int killed_by;             // on rank 0: the signal that ended it
    atomic_int part;           // how far a rank in a process of its own has come; start.c alone uses it
    _Atomic int64_t looked_ns; // when it last looked whether others live
};

struct cot_fabric_group {
    size_t mapped_bytes, heap_bytes, stride; // stride: from one rank's heap to the next
    unsigned char *heaps;
    int ranks;
    int lives;            // a file that every living process has a lock on; -1: ranks have no processes
    cot_flights *flights; // [target][source]
    alignas(128) atomic_int failed; // 1 + the first rank that called fail or was found dead
    atomic_int shaped;              // ranks whose way out is a shaped link
    alignas(128) cot_turns turns;
    struct endpoint endpoints[];
};

static inline struct endpoint *endpoint_of(cot_fabric *fabric)
{
    return (struct endpoint *)fabric;
}

/* Looks, at most once a second, whether processes have died, and notes the first that did as failed. */
void cot_fabric_group_look(cot_fabric *fabric);
/* As cot_fabric_ops has it. */
int cot_fabric_group_death(cot_fabric *fabric, int rank);

#endif
