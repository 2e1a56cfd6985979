#include "moe/shared.h"

#include <math.h>

/* A dot product in one fixed order that vectorises: 16 lanes, then pairs of them. */
static float dot(const float *a, const float *b, int64_t n)
{
    enum { LANES = 16 };
    float lanes[LANES] = {0};
    for (int64_t i = 0; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lanes[l] += a[i + l] * b[i + l];
    for (int64_t i = n / LANES * LANES; i < n; i++) lanes[i % LANES] += a[i] * b[i];
    for (int width = LANES / 2; width; width /= 2)
        for (int l = 0; l < width; l++) lanes[l] += lanes[l + width];
    return lanes[0];
}

void cot_moe_shared_gate(const cot_kernels *kernels, float *y, const float *x, const float *gate,
                         int64_t hidden)
{
    kernels->scale(y, COT_F32, y, 1 / (1 + expf(-dot(x, gate, hidden))), hidden);
}
