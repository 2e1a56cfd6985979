/* Ranks that were started from outside, one a process, on one host or several: oshrun -np 4 coterie run ... */
#ifndef COT_FABRIC_SHMEM_H
#define COT_FABRIC_SHMEM_H
#include "fabric/launch.h"
#include "fabric/shmem/calls.h"

#include <stdatomic.h>

/* The module. Errors: NOT_FOUND, with the packages to install; UNSUPPORTED (it is another version's). */
cot_status cot_shmem_find(const cot_shmem_calls **calls, cot_error *error);

/* A host as its ranks see it. */
typedef struct cot_shmem_host {
    char name[64];
    uint64_t key; // the same on all ranks that run on one system and may see each other's processes
} cot_shmem_host;

/* One rank's end of what it was started with. */
typedef struct cot_shmem_world {
    const cot_shmem_calls *calls;
    int rank, ranks;
    cot_shmem_host host;
    atomic_bool met;    // a group was opened
    bool over;          // all have been told of an error: no group will be
    int refused;        // the exit status of the rank whose error that is, where it has told one
    char carriers[128]; // what carries messages to ranks out of sight; "": there are none
    bool torn;          // one ended without some of its ranks: what all do together would wait for ever
} cot_shmem_world;

/* To be called when the heap has been made: OpenSHMEM then has a handler for the end of the process which waits for all ranks,
 * and handlers run last come, first served. */
void cot_shmem_leave_first(void);

/* The world, which the first call joins. Errors: cot_shmem_find's; INVALID_ARGUMENT (not started from outside, or with more than
 * COT_MAX_RANKS); OUT_OF_MEMORY (it may map less than Open MPI takes, and ends a process for). */
cot_status cot_shmem_join(cot_shmem_world **world, cot_error *error);

/* all [ranks][bytes] becomes what each rank gave as `own`. */
void cot_shmem_exchange(cot_shmem_world *world, void *all, const void *own, size_t bytes);

/* What a rank is about to do; all do the same, or one is told of another's error. */
enum { COT_SHMEM_GIVES_UP, COT_SHMEM_SHARES, COT_SHMEM_COMPARES, COT_SHMEM_OPENS, COT_SHMEM_STEPS };

/* What a rank has found so far. All ranks give theirs, and all get the same answer: OK, or the first rank's that is
 * not, of which the message names rank and host where it is not rank 0's. */
cot_status cot_shmem_agree(cot_shmem_world *world, int step, cot_status status, cot_error *error);
/* Says which rank has what, other than rank 0: (rank, its host, what, rank 0's host). */
#define COT_SHMEM_UNLIKE "rank %d (%s) has %s than rank 0 (%s)"

/* A number of the build that this code is of. */
uint64_t cot_shmem_build(void);
/* cot_launch_agree for these ranks. */
cot_status cot_shmem_compare(const cot_launch_account *account, cot_status status, cot_error *error);

/* Every process is a rank, all make the same launches in the same order, and what one launch has is gone with the next.
 * The first one's heap is the greatest, unless SHMEM_SYMMETRIC_HEAP_SIZE asks for more. Errors, on all ranks alike: those of
 * cot_shmem_join; INVALID_ARGUMENT (ranks that are not as many as the processes, or that were told different things),
 * OUT_OF_MEMORY (the heaps of a host beyond its shared memory, or beyond the first launch's). */
extern const cot_fabric_backend cot_fabric_shmem;

#endif
