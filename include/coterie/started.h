/* Processes that were started beside each other to be one group of ranks: oshrun -np 4 coterie run ...
 *
 * Each of them makes the same calls. Those of the ranks other than 0 that open a group return COT_SERVED when it has ended.
 * Nothing here is thread-safe. */
#ifndef COTERIE_STARTED_H
#define COTERIE_STARTED_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ranks that oshrun, mpirun or srun has started, of which this process is one; all 0 where none of them did. */
typedef struct cot_launch_place {
    int rank, ranks;
    int here;      /* how many of them are on this host, as far as is told: at least 1 */
    int here_rank; /* the how manieth of these this one is; 0 where that is not told */
} cot_launch_place;
cot_launch_place cot_launch_started(void);

/* Gives all ranks what rank 0 has there, before a group is opened. Errors: where one of them has come to an error before it
 * got here, that one, on all ranks. NOT_FOUND, UNSUPPORTED: there is no OpenSHMEM. */
cot_status cot_launch_share(void *data, size_t bytes, cot_error *error);
/* This process opens no group and will end with that exit status, for that reason: all ranks' next share, or opening of a group,
 * fails with it. Nothing where one has been opened. False: the others cannot be told. */
bool cot_launch_refuse(const cot_error *why, int exit_status);
/* The exit status of the rank whose refusal this one was told of; 0: there was none. */
int cot_launch_refused(void);
/* Whether the group that this process was in has ended without some of its ranks. */
bool cot_launch_torn(void);

/* What carries messages between the hosts of the group that this process has last opened, as in "tcp/eth0"; NULL: there is
 * no such group, or all of it is on one host. Valid until the process ends. */
const char *cot_launch_carriers(void);

/* Tells who started this rank what it is at, where that asked for it by setting COTERIE_STARTED: a line on standard error, as
 * COT_STARTED_LINE has it. The library itself tells that this rank `meets` the others, which it may wait for, and that they
 * have `met`: a group then, which finds out itself when it loses one. Rank 0 that `serves` takes SIGTERM, SIGINT and SIGHUP itself,
 * and ends by the first two within as many seconds as the number says. */
#define COT_STARTED_VARIABLE "COTERIE_STARTED"
#define COT_STARTED_LINE "\001coterie rank %d %s %d process %d of %s\n"
void cot_launch_tell(const char *state, int number);
/* A process of this host as proc(5) has it: 'R', 'S', 'T' (stopped) and so on; 0: it has ended. Thread-safe. */
char cot_launch_process_state(int process);
/* Whether a group of such ranks has been opened by this process. Thread-safe. */
bool cot_launch_met(void);

#ifdef __cplusplus
}
#endif
#endif
