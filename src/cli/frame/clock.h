/* The clock that intervals are taken by. */
#ifndef COT_CLI_FRAME_CLOCK_H
#define COT_CLI_FRAME_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline int64_t cli_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double cli_seconds_now(void)
{
    return (double)cli_now_ns() * 1e-9;
}

#endif
