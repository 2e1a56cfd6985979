/* Arithmetic on rows for training, the same bits on every machine: kernels may round differently from one instruction
 * set to another, and a table trained once should be the one that everybody trains. Rows are whole blocks, so that
 * the compiler makes vectors of them. */
#ifndef COT_PREDICT_LOGISTIC_H
#define COT_PREDICT_LOGISTIC_H
#include <stdint.h>

enum { COT_LOGISTIC_BLOCK = 16 };

void cot_add_row(float *restrict y, const float *restrict x, float factor, int64_t n); // y += factor x
void cot_logistic(float *x, int64_t n); // x = 1 / (1 + exp(-x))
float cot_mean_square(const float *x, int64_t n);

#endif
