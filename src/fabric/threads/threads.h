/* P ranks on one host: threads of one process, or processes forked after the group was opened. */
#ifndef COT_FABRIC_THREADS_H
#define COT_FABRIC_THREADS_H
#include "fabric/fabric.h"

typedef struct cot_fabric_group cot_fabric_group;

typedef struct cot_fabric_group_options {
    int ranks;          // 1 to COT_MAX_RANKS
    size_t heap_bytes;  // a rank; address space only until touched
    int running;        // ranks that may compute at once, >= 1
    int64_t timeout_ns; // of every wait, > 0
    double
        link_bytes_per_s; // of each rank's way out, over which one message leaves after the other; 0: no limit
    int64_t link_latency_ns; // from a message's last byte leaving to its signal's being seen, >= 0
    bool forked; // memory shared with processes forked later (else private to this one, in huge pages)
} cot_fabric_group_options;

/* Maps the heaps. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. */
cot_status cot_fabric_group_open(cot_fabric_group **group, const cot_fabric_group_options *options,
                                 cot_error *error);
/* The endpoint of one rank; owned by the group. With `forked`, each process uses one. */
cot_fabric *cot_fabric_group_rank(cot_fabric_group *group, int rank);
/* Gives the links another shape, as in the options. What is under way arrives at once. No rank may be in a
 * call. */
void cot_fabric_group_set_link(cot_fabric_group *group, double link_bytes_per_s, int64_t link_latency_ns);
void cot_fabric_group_close(cot_fabric_group *group); // NULL is fine

#endif
