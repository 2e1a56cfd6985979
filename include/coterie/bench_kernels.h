/* Measures the products of an expert's network with weights of each form, against both roofs of the machine. */
#ifndef COTERIE_BENCH_KERNELS_H
#define COTERIE_BENCH_KERNELS_H
#include "coterie/roof.h"
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COT_BENCH_KERNELS_MOST_ROWS = 4096, COT_BENCH_KERNELS_RUNS = 5 };

typedef struct cot_bench_kernels_options {
    size_t size;                  /* sizeof this structure */
    int64_t hidden, intermediate; /* H and I of SwiGLU experts, each 1 to 65536 */
    const char *weights;          /* a form of docs/FORMATS.md; NULL: each */
    const char *precision;        /* "fp32", "bf16" or "int8"; NULL: each that multiplies the form */
    const int64_t *rows;          /* [n_rows] rows of an expert, each 1 to COT_BENCH_KERNELS_MOST_ROWS */
    size_t n_rows;                /* at least 1 */
    int threads;                  /* 1 to 256 */
    const char *isa;              /* caps the instruction set, see cot_isa_names; NULL: the best */
    /* Of weights that are multiplied one after another, at least; the buffer that the read roof streams over has as many. 0: twice
     * the last-level cache, 512 MiB to 2 GiB. */
    int64_t weight_bytes;
} cot_bench_kernels_options;

/* Experts of one form and arithmetic, each with so many rows. All of them are run from first to last, one after the other. */
typedef struct cot_bench_kernels_row {
    const char *weights, *precision; /* constant */
    const char *isa;                 /* what was chosen; constant */
    int64_t rows, experts;
    int64_t weight_bytes; /* of all experts, as they are packed */
    double operations;    /* of all products: a multiply-add counts two */
    double least_ns, median_ns, most_ns;
    double read_share, multiply_share; /* of the roofs, by the median */
    cot_roof roof;                     /* the higher of those measured before and after the form's rows */
    double drift;                      /* the greatest factor between these two */
    /* The median over the least time that both roofs allow: that of the reads, or of the products. */
    double over_roof;
    bool reads_bound; /* because of the reads */
} cot_bench_kernels_row;

/* Measures and calls `found` with each row in turn, on the calling thread: forms in the order of docs/FORMATS.md, arithmetics,
 * numbers of rows. `progress` (may be NULL) is told how many of all rows are done. Errors: INVALID_ARGUMENT (named; also where
 * the precision does not multiply the form), UNSUPPORTED (isa), OUT_OF_MEMORY. Thread-safe. */
cot_status cot_bench_kernels(const cot_bench_kernels_options *options,
                             void (*found)(void *context, const cot_bench_kernels_row *row),
                             void (*progress)(void *context, size_t done, size_t total), void *context,
                             cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
