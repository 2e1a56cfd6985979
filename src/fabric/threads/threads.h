/* P ranks on one host: threads of one process, or processes forked after the group was opened. */
#ifndef COT_FABRIC_THREADS_H
#define COT_FABRIC_THREADS_H
#include "fabric/launch.h"

/* A group without anybody to run its ranks. */
typedef struct cot_fabric_group cot_fabric_group;

typedef struct cot_fabric_group_options {
    int ranks;          // 1 to COT_MAX_RANKS
    size_t heap_bytes;  // a rank; address space only until touched
    int running;        // ranks that may compute at once, >= 1
    int64_t timeout_ns; // of every wait, > 0
    bool forked;        // memory shared with processes forked later (else private to this one, in huge pages)
} cot_fabric_group_options;

/* Maps the heaps. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. */
cot_status cot_fabric_group_open(cot_fabric_group **group, const cot_fabric_group_options *options,
                                 cot_error *error);
/* The endpoint of one rank; owned by the group. With `forked`, each process uses one. */
cot_fabric *cot_fabric_group_rank(cot_fabric_group *group, int rank);
void cot_fabric_group_close(cot_fabric_group *group); // NULL is fine

/* Rank 0 is the caller's thread; the others are threads beside it, or children of its process. */
extern const cot_fabric_backend cot_fabric_threads, cot_fabric_processes;

#endif
