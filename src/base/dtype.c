#include "base/dtype.h"

#include <math.h>

size_t cot_dtype_bytes(cot_dtype type)
{
    static const uint8_t bytes[] = {
#define COT_DTYPE_BYTES(name, size) size,
        COT_DTYPE_LIST(COT_DTYPE_BYTES)
#undef COT_DTYPE_BYTES
    };
    return type < COT_DTYPE_COUNT ? bytes[type] : 0;
}

static const char *const names[] = {
#define COT_DTYPE_NAME(name, size) #name,
    COT_DTYPE_LIST(COT_DTYPE_NAME)
#undef COT_DTYPE_NAME
};

const char *cot_dtype_name(cot_dtype type)
{
    return type < COT_DTYPE_COUNT ? names[type] : "?";
}

cot_dtype cot_dtype_parse(const char *name)
{
    unsigned type = 0;
    while (type < COT_DTYPE_COUNT && strcmp(name, names[type]) != 0) type++;
    return (cot_dtype)type;
}

uint16_t cot_f32_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);  // NaN
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // rounds to 65536 or more
    if (magnitude < 0x38800000u) {                                   // subnormal half: units of 2^-24
        float units = rintf(ldexpf(fabsf(value), 24));
        return (uint16_t)(sign | (uint32_t)units);
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

float cot_f8_e4m3_to_f32(uint8_t bits)
{
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float magnitude = (bits & 0x7f) == 0x7f ? NAN
                      : exponent == 0       ? ldexpf((float)mantissa, -9)
                                            : ldexpf((float)(mantissa | 8), exponent - 10);
    return bits & 0x80 ? -magnitude : magnitude;
}
