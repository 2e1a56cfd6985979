/* `--fabric shmem` where nobody has started the ranks yet: the program starts itself under oshrun. */
#ifndef COT_CLI_START_RANKS_H
#define COT_CLI_START_RANKS_H
#include <stdint.h>

/* Runs this program with these arguments on so many ranks, on the hosts of a file (NULL: on this one), until none is left:
 * the exit status of its first rank, or of another where that has none any more. Says on stderr what keeps it from that. */
int cot_start_ranks(int64_t ranks, const char *hostfile, char **argv);

/* Tells who started this rank that it ends with that status; does nothing for others. */
void cot_tell_starter(int status);

#endif
