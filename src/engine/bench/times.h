/* Times of a benchmark's runs. */
#ifndef COT_ENGINE_BENCH_TIMES_H
#define COT_ENGINE_BENCH_TIMES_H
#include <stdint.h>

/* Sorts ns [n], n > 0, and says the middle one, or the mean of the two in the middle. */
double cot_bench_median(int64_t *ns, int64_t n);

#endif
