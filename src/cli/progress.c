#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void cot_progress_show(cot_progress *progress, uint64_t done, uint64_t total)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t now_ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    if (!total || (progress->drawn_ns && now_ns - progress->drawn_ns < 100000000) || !isatty(STDERR_FILENO))
        return;
    progress->drawn_ns = now_ns;
    enum { CELLS = 40 };
    double share = done < total ? (double)done / (double)total : 1;
    char bar[CELLS + 1] = "";
    memset(bar, '.', CELLS);
    memset(bar, '#', (size_t)(share * CELLS));
    fprintf(stderr, "\r%s [%s] %3.0f %%", progress->what, bar, 100 * share);
    fflush(stderr);
}

void cot_progress_end(cot_progress *progress)
{
    if (progress->drawn_ns) fputs("\r\033[K", stderr);
    progress->drawn_ns = 0;
}
