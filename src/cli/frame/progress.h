/* One line on a terminal's stderr that tells what goes on, how far it is, and for how long; silent elsewhere. */
#ifndef COT_CLI_FRAME_PROGRESS_H
#define COT_CLI_FRAME_PROGRESS_H
#include <stdint.h>

typedef struct cli_progress {
    const char *what; // what goes on, e.g. "loading"; may change between calls, and outlives them
    int64_t began_ns; // when it was first shown; 0 before
} cli_progress;

/* `done` of `total` units are behind; a total of 0: nobody knows, and only the time is told, from the first second on.
 * Draws at most ten times a second, and a thread of its own draws every second until cli_progress_end. One at a time;
 * calls may come from any thread, but not two at once. */
void cli_progress_show(cli_progress *progress, uint64_t done, uint64_t total);
/* Wipes the line, for good; nothing where it was not shown. */
void cli_progress_end(cli_progress *progress);
/* Wipes the line until it is drawn again, so that another one can be written. */
void cli_progress_make_way(void);

#endif
