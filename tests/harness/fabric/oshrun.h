/* Starts processes that are ranks, as users of OpenSHMEM do. */
#ifndef COT_TESTS_HARNESS_FABRIC_OSHRUN_H
#define COT_TESTS_HARNESS_FABRIC_OSHRUN_H
#include <stdbool.h>
#include <sys/types.h>

/* Whether there is an oshrun, and this build has what its processes need; says loudly what is not. */
bool oshrun_is_here(void);

/* What oshrun may need to be told by its environment: that it runs as root, and more ranks than cores. */
void oshrun_allow(void);

/* Whether tools/hosts can make hosts here; says loudly why not. */
bool hosts_are_here(void);

/* Starts the program with its arguments (NULL ends) on so many ranks, on as many hosts where `hosts`. */
pid_t oshrun_start(bool hosts, int ranks, const char *const *words);
/* Waits for any of those: its exit status, or 256 + the signal that ended it. */
int oshrun_end_any(pid_t *ended);
/* Runs this very program with that word on so many ranks: its exit status, likewise. Below 0: it has no name. */
int oshrun_run_again(int ranks, const char *word);

#endif
