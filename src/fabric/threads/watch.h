/* A thread of each process of a group: it shows that its process lives, and looks whether others do. */
#ifndef COT_FABRIC_THREADS_WATCH_H
#define COT_FABRIC_THREADS_WATCH_H
#include "fabric/threads/threads.h"

#include <pthread.h>
#include <semaphore.h>

typedef struct cot_watch {
    cot_fabric_group *group;
    int rank;
    int64_t period_ns, looked_ns;
    uint64_t seen[COT_MAX_RANKS]; // the beats of each
    int64_t quiet_ns[COT_MAX_RANKS];
    int64_t failed_ns; // since when the group was seen to have failed; 0: it has not
    sem_t over;
    pthread_t thread;
    bool runs;
} cot_watch;

/* Begins to watch in the process of that rank; a child's watch ends with its process alone. False: no thread can be had. */
bool cot_watch_begin(cot_watch *watch, cot_fabric_group *group, int rank);
/* On rank 0. Nothing happens to one that has not begun. */
void cot_watch_end(cot_watch *watch);

/* The group's cot_fabric_ops' lost. */
int cot_watch_lost(cot_fabric_group *group);

/* Says on standard error, in place of rank 0 and once for all others, how that failed: its death, as cot_fabric_ops has it. But
 * not where all were asked to end. */
void cot_watch_tell_of_root(cot_fabric_group *group, int rank, int death);

/* In a child: ends the process once nothing is being said. */
_Noreturn void cot_watch_end_process(int status);

/* How long a rank may take to end by itself after the group has failed. */
int64_t cot_watch_ending_ns(int64_t timeout_ns);

/* On rank 0: shows that it lives, for as long as nobody watches yet. */
void cot_watch_beat(cot_fabric_group *group, int rank);

#endif
