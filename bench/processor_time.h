/* Processor time of parts of a program, each a function that a benchmark wraps: what they take of all that the program takes. */
#ifndef BENCH_PROCESSOR_TIME_H
#define BENCH_PROCESSOR_TIME_H
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static inline int64_t bench_ns_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* What the parts took, of all threads, since the program began; and how many they were. */
typedef struct bench_part {
    _Atomic int64_t ns, count;
} bench_part;

static inline int64_t bench_part_begin(void)
{
    return bench_ns_of(CLOCK_THREAD_CPUTIME_ID);
}

static inline void bench_part_end(bench_part *part, int64_t began_ns)
{
    part->ns += bench_ns_of(CLOCK_THREAD_CPUTIME_ID) - began_ns;
    part->count++;
}

/* A part of nothing takes so much: what reading the clock adds to each. */
static inline double bench_part_of_nothing(void)
{
    enum { TIMES = 100000 };
    bench_part nothing = {0};
    for (int i = 0; i < TIMES; i++) bench_part_end(&nothing, bench_part_begin());
    return (double)nothing.ns / TIMES;
}

/* Where a program stands. */
typedef struct bench_moment {
    int64_t all_ns, part_ns, parts;
} bench_moment;

static inline bench_moment bench_now(const bench_part *part)
{
    return (bench_moment){bench_ns_of(CLOCK_PROCESS_CPUTIME_ID), part->ns, part->count};
}

static inline int bench_by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of n values, n > 0, which change their places: the one in the middle, of two the greater. */
static inline double bench_median(double *value, int n)
{
    qsort(value, (size_t)n, sizeof *value, bench_by_size);
    return value[n / 2];
}

#endif
