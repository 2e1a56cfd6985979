/* Element types of tensors, as safetensors spells them, and exact scalar conversions. */
#ifndef COT_BASE_DTYPE_H
#define COT_BASE_DTYPE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* X(NAME, bytes an element) */
// clang-format off
#define COT_DTYPE_LIST(X) \
    X(BOOL, 1) X(U8, 1) X(I8, 1) X(F8_E4M3, 1) X(F8_E5M2, 1) X(F8_E8M0, 1) X(I16, 2) X(U16, 2) X(F16, 2) \
    X(BF16, 2) X(I32, 4) X(U32, 4) X(F32, 4) X(I64, 8) X(U64, 8) X(F64, 8)
// clang-format on

typedef enum cot_dtype {
#define COT_DTYPE_ENUM(name, bytes) COT_##name,
    COT_DTYPE_LIST(COT_DTYPE_ENUM)
#undef COT_DTYPE_ENUM
        COT_DTYPE_COUNT
} cot_dtype;

size_t cot_dtype_bytes(cot_dtype type);
const char *cot_dtype_name(cot_dtype type);
/* The type of that name, or COT_DTYPE_COUNT. */
cot_dtype cot_dtype_parse(const char *name);

static inline float cot_bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

/* Round to nearest, ties to even; a NaN stays a (quiet) NaN. */
static inline uint16_t cot_f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Exact, infinities and NaNs too; without branches, so that loops over it run in vectors. */
static inline float cot_f16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)(bits & 0x7fff)
                    << 13; // the half's fields in a float's places: too small by 2^112
    float value;
    memcpy(&value, &wide, 4);
    value *= 0x1p112f;
    memcpy(&wide, &value, 4);
    wide |= ((bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0) | (uint32_t)(bits & 0x8000) << 16;
    memcpy(&value, &wide, 4);
    return value;
}
/* Round to nearest, ties to even; too large becomes infinity. */
uint16_t cot_f32_to_f16(float value);
/* OCP E8M0, a power of two: 2^(bits - 127); 255 is NaN. */
static inline float cot_f8_e8m0_to_f32(uint8_t bits)
{
    const uint32_t wide = bits == 255 ? 0x7fc00000u : bits ? (uint32_t)bits << 23 : 0x00400000u;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
/* OCP FP4 E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and from 8 on their negatives. Of `bits` the four lowest count. */
static inline float cot_f4_e2m1_to_f32(uint8_t bits)
{
    static const float magnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return bits & 8 ? -magnitude[bits & 7] : magnitude[bits & 7];
}
/* OCP FP8 E4M3 (finite only: 0x7f and 0xff are NaN). */
float cot_f8_e4m3_to_f32(uint8_t bits);

#endif
