/* A group of processes that nobody has started yet: the program starts itself as such under oshrun, and watches its ranks.
 *
 *     int main(int argc, char **argv)
 *         if (!cot_launch_started().ranks) return cot_start_ranks(&options);
 *         cot_start_tell();
 *
 * Each of the ranks goes on as coterie/started.h has it. Nothing here is thread-safe. */
#ifndef COTERIE_START_H
#define COTERIE_START_H
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_start_options {
    int ranks;
    const char *hostfile; /* where: one address a line, slots=N for several ranks there; NULL: on this host */
    double timeout_s;     /* for which a rank may not answer where no group knows of it */
    char **argv;          /* of this program, NULL ends; ranks get the same */
    void (*complain)(const char *line); /* takes what keeps it from that, and notes: a line without its end */
} cot_start_options;

/* Runs this program on so many ranks until none is left: the exit status of the first, or of another where that has none any
 * more; 128 and the signal that ended them all. What the first writes to standard output, and all to standard error, comes
 * out of this process's. A rank that is lost where no group knows of it, or does not answer there, is named. Takes SIGINT,
 * SIGTERM, SIGQUIT and SIGHUP over. */
int cot_start_ranks(const cot_start_options *options);

enum { COT_START_LEAST_S = 30 }; /* that ranks have to begin and to meet, whatever the time-out */

/* In a rank that cot_start_ranks has started: tells that it begins, and from now on that it lives. Does nothing in others. */
void cot_start_tell(void);
/* In a rank that oshrun alone has started, where nobody else looks: ends this process, with a line, if the ranks have not met
 * within timeout_s, or COT_START_LEAST_S if that is longer. */
void cot_start_bound_meeting(double timeout_s);
/* Whether all ranks wait for what the first one reads from standard input, as long as it takes. */
void cot_start_wait_for_input(bool waits);

#ifdef __cplusplus
}
#endif
#endif
