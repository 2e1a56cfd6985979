#include "predict/logistic.h"

#include <string.h>

enum { BLOCK = COT_LOGISTIC_BLOCK };

void cot_add_row(float *restrict y, const float *restrict x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK)
        for (int j = 0; j < BLOCK; j++) y[i + j] += factor * x[i + j];
}

/* 2^t by its whole part in the exponent and a polynomial of the rest, |rest| <= 1/2 (Taylor's, error below 3e-6). */
static inline float power_of_2(float t)
{
    const float magic = 0x1.8p23f; // adding it rounds to a whole number
    const float whole = (t + magic) - magic, rest = t - whole;
    float p = 0x1.5d87fep-10f;
    p = p * rest + 0x1.3b2ab6p-7f;
    p = p * rest + 0x1.c6b08ep-5f;
    p = p * rest + 0x1.ebfbep-3f;
    p = p * rest + 0x1.62e43p-1f;
    p = p * rest + 1;
    const int32_t bits = ((int32_t)whole + 127) * (1 << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * p;
}

void cot_logistic(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK)
        for (int j = 0; j < BLOCK; j++) {
            float t = -0x1.715476p0f * x[i + j];
            t = t < -100 ? -100 : t;
            t = t > 100 ? 100 : t;
            x[i + j] = 1 / (1 + power_of_2(t));
        }
}

float cot_mean_square(const float *x, int64_t n)
{
    float sum[BLOCK] = {0}, all = 0;
    for (int64_t i = 0; i < n; i += BLOCK)
        for (int j = 0; j < BLOCK; j++) sum[j] += x[i + j] * x[i + j];
    for (int j = 0; j < BLOCK; j++) all += sum[j];
    return all / (float)n;
}
