/* A progress bar on stderr; silent when stderr is no terminal. */
#ifndef COT_CLI_PROGRESS_H
#define COT_CLI_PROGRESS_H
#include <stdint.h>

typedef struct cot_progress {
    const char *what; // what goes on, e.g. "loading"
    int64_t drawn_ns; // when the bar was last drawn; 0 before the first time
} cot_progress;

/* `done` of `total` units are behind; redraws at most ten times a second. One thread at a time. */
void cot_progress_show(cot_progress *progress, uint64_t done, uint64_t total);
/* Wipes the bar; call before anything else is written to the terminal. */
void cot_progress_end(cot_progress *progress);

#endif
