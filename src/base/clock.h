/* Monotonic time. */
#ifndef COT_BASE_CLOCK_H
#define COT_BASE_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline int64_t cot_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#endif
