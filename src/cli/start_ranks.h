/* `--fabric shmem` where nobody has started the ranks yet: the program starts itself under oshrun. */
#ifndef COT_CLI_START_RANKS_H
#define COT_CLI_START_RANKS_H
#include <stdint.h>

/* Runs this program with these arguments on so many ranks, on the hosts of a file (NULL: on this one), until none is left:
 * the exit status of its first rank, or of another where that has none any more. One that is lost where no group knows of it,
 * or does not answer there for timeout_s, is named. Says on stderr what keeps it from that. */
int cot_start_ranks(int ranks, const char *hostfile, double timeout_s, char **argv);

#endif
