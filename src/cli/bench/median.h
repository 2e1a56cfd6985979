#ifndef COT_CLI_BENCH_MEDIAN_H
#define COT_CLI_BENCH_MEDIAN_H
#include <stddef.h>

/* Sorts n > 0 values, the least first; the one in the middle, or the mean of the two. */
double cli_sort_median(double *values, size_t n);

#endif
