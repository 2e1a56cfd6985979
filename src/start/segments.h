/* What UCX leaves in /dev/shm of a process that was killed. */
#ifndef COT_START_SEGMENTS_H
#define COT_START_SEGMENTS_H
#include <time.h>

/* UCX gives a segment of memory a name and takes it away at once; a process that is killed between the two leaves it. Removes such names
 * of this user that have come since then and that no process holds. */
void cot_oshrun_remove_segments(time_t since);

#endif
