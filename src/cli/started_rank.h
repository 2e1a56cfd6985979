/* What a process does that is a rank, since oshrun has started it. */
#ifndef COT_CLI_STARTED_RANK_H
#define COT_CLI_STARTED_RANK_H
#include <stdbool.h>

enum { COT_LEAST_START_S = 30 }; // that ranks have to begin and to meet, whatever the time-out

/* In a rank that this program has started (start_ranks.h): tells that it begins, and from now on that it lives. Does nothing in
 * others. */
void cot_tell_starter(void);
/* In a rank that oshrun alone has started, where nobody else looks: ends this process, with a line, if the ranks have not met
 * within timeout_s, or COT_LEAST_START_S if that is longer. */
void cot_bound_meeting(double timeout_s);
/* Whether all ranks wait for what the first one reads from standard input, as long as it takes. */
void cot_wait_for_input(bool waits);

#endif
