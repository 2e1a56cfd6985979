/* NumPy's .npy arrays of numbers (numpy.lib.format says how they are laid out). */
#ifndef COT_ROUTING_NPY_H
#define COT_ROUTING_NPY_H
#include "base/dtype.h"
#include "coterie/status.h"
#include <stdio.h>

enum { COT_NPY_MAX_DIMS = 4 };

typedef struct cot_npy {
    cot_dtype dtype;
    int dims;
    int64_t shape[COT_NPY_MAX_DIMS];  // of dimensions that are not there: 1
    int64_t stride[COT_NPY_MAX_DIMS]; // elements
    const char *data;                 // lies within the file, at any alignment
} cot_npy;

/* Reads the header and checks that the data are there; `path` is for messages. Errors: MALFORMED, UNSUPPORTED (a dtype
 * that is no little-endian number, too many dimensions). */
cot_status cot_npy_parse(cot_npy *array, const char *file, size_t bytes, const char *path, cot_error *error);
/* An element; indices [dims] are not checked. */
double cot_npy_number(const cot_npy *array, const int64_t *index);
/* The header of an array of int32, row-major; its elements follow. */
void cot_npy_write_header(FILE *stream, const int64_t *shape, int dims);

#endif
