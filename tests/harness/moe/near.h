/* Comparison with an answer in double precision. */
#ifndef COT_TESTS_HARNESS_MOE_NEAR_H
#define COT_TESTS_HARNESS_MOE_NEAR_H
#include "base/dtype.h"

/* Fails the test, at that line of it, where they are farther apart. */
void near_at(double found, double expected, double tolerance, const char *file, int line);
#define near(found, expected, tolerance) near_at(found, expected, tolerance, __FILE__, __LINE__)

double rounded(double value, cot_dtype type);

#endif
