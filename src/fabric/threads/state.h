/* Inside a group of one host: shared by threads.c (memory and messages) and start.c (who runs a rank). */
#ifndef COT_FABRIC_THREADS_STATE_H
#define COT_FABRIC_THREADS_STATE_H
#include "fabric/threads/link.h"
#include "fabric/threads/threads.h"
#include "fabric/turns.h"

#include <sys/types.h>

enum { COT_LIFE_BEGINS, COT_LIFE_RUNS, COT_LIFE_ENDS };

struct endpoint {
    alignas(128) cot_fabric fabric; // first: a cot_fabric * is a struct endpoint *
    cot_fabric_group *group;
    unsigned char *heap;
    size_t used;
    _Atomic pid_t process; // on rank 0: the child that runs this rank; 0: none, or none any more
    atomic_int part;       // how far a rank in a process of its own has come: COT_LIFE_...
    atomic_int ended;      // how its process ended before its time: a signal, or COT_DEATH_OTHER
    _Atomic uint64_t
        beats; // that its process lives: raised by a thread of it, an eighth of the time-out apart
    _Atomic int64_t quiet_ns; // for how long they have not risen, as far as was watched
};

struct cot_fabric_group {
    size_t mapped_bytes, heap_bytes, stride; // stride: from one rank's heap to the next
    unsigned char *heaps;
    int ranks;
    bool forked; // heaps are shared by processes
    pid_t root; // rank 0's process where the others are its children; 0: ranks have no processes of their own
    alignas(128)
        atomic_int failed; // 1 + the first rank that failed; COT_FAILED_MUTE with it: it does not answer
    atomic_flag told;      // one of the processes has said that rank 0 is gone
    _Atomic uint64_t posts[COT_MAX_RANKS];
    alignas(128) cot_turns turns;
    cot_links links;
    struct endpoint endpoints[];
};

static inline struct endpoint *endpoint_of(cot_fabric *fabric)
{
    return (struct endpoint *)fabric;
}

enum { COT_FAILED_RANK = 0xff, COT_FAILED_MUTE = 0x100 };

/* Notes, unless another has failed before, that a rank has, and wakes all that sleep. */
void cot_fabric_group_failed(cot_fabric_group *group, int rank, bool mute);

#endif
