/* Numbers drawn one after the other, as inputs. */
#ifndef COT_TESTS_HARNESS_DRAW_H
#define COT_TESTS_HARNESS_DRAW_H
#include "base/dtype.h"

#include <stdint.h>

struct draw {
    uint64_t seed, stream, position;
};

int64_t draw_below(struct draw *draw, int64_t n);

/* Uniform in [-scale, scale), rounded to `type`. */
float draw_float(struct draw *draw, double scale, cot_dtype type);

float *draw_typed(struct draw *draw, int64_t n, double scale, cot_dtype type);

float *draw_floats(struct draw *draw, int64_t n, double scale);

#endif
