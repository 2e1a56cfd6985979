/* What the parts of bench_kernels share. */
#ifndef COT_BENCH_H
#define COT_BENCH_H
#include "coterie/roof.h"
#include "kernels/matmul.h"

struct bench {
    const cot_kernels *kernels;
    cot_pool *pool;
    cot_roof roof;
    int64_t cold_bytes; // weights that no cache holds
};

void *bench_allocate(size_t bytes); // or exits
/* Small whole numbers and halves, in any of the three types. */
void *bench_values(cot_dtype type, int64_t n);
/* Median seconds of `body`, its least and most; one run before to warm up. */
double bench_seconds(void (*body)(void *), void *context, double *least, double *most);
/* Expert networks; NULL or 0: all shapes, types, numbers of rows. */
void bench_experts(const struct bench *bench, const char *shape, const char *type, int64_t rows);

#endif
