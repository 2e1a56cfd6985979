#include "engine/bench/times.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

double cot_bench_median(int64_t *ns, int64_t n)
{
    qsort(ns, (size_t)n, sizeof *ns, by_value);
    return (double)(ns[(n - 1) / 2] + ns[n / 2]) / 2;
}
