/* Values as rows hold them. */
#ifndef COT_CUDA_NUMBER_H
#define COT_CUDA_NUMBER_H
#include "cuda/ptx.h"

namespace cot {

/* Rounded to nearest, ties to even; a NaN stays one. */
COT_DEVICE uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

COT_DEVICE float float_of(uint16_t bf16)
{
    const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
COT_DEVICE float float_of(float value)
{
    return value;
}

COT_DEVICE void store_as(uint16_t *to, float value)
{
    *to = bf16_of(value);
}
COT_DEVICE void store_as(float *to, float value)
{
    *to = value;
}

} // namespace cot

#endif
