/* Formats by groups (template/grouped.h) in AArch64's Advanced SIMD. */
#ifndef COT_KERNELS_ARM_NEON_WIDEN_H
#define COT_KERNELS_ARM_NEON_WIDEN_H
#include "kernels/arm/neon.h"
#include "kernels/template/nibbles.h"

/* 2^(s - 127): of 0 a subnormal number. */
static inline vec w_scales(const uint8_t *scales)
{
    uint32_t four;
    memcpy(&four, scales, 4);
    const uint16x8_t halves = vmovl_u8(vcreate_u8(four));
    return vreinterpretq_f32_u32(
        vmaxq_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(halves)), 23), vdupq_n_u32(0x00400000u)));
}

static inline vec w_first(vec pairs)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pairs), 16));
}
static inline vec w_second(vec pairs)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs), vdupq_n_u32(0xffff0000u)));
}

/* bf16 by bytes: high ones and low ones. Of a word's nibbles the low ones are rows 0, 4, 1, 5, byte by byte, the high ones
 * rows 2, 6, 3, 7. */
static inline void w_pairs(const void *words, const struct nibbles *codes, vec pairs[4])
{
    const uint8x16_t highs = vld1q_u8(codes->high), lows = vld1q_u8(codes->low), x = vld1q_u8(words);
    const uint16x8_t even = vdupq_n_u16(255);
    const uint8x16_t nibbles[2] = {vandq_u8(x, vdupq_n_u8(15)), vshrq_n_u8(x, 4)};
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const uint16x8_t h = vreinterpretq_u16_u8(vqtbl1q_u8(highs, nibbles[i])),
                         l = vreinterpretq_u16_u8(vqtbl1q_u8(lows, nibbles[i]));
        pairs[i] = vreinterpretq_f32_u16(vorrq_u16(vshlq_n_u16(h, 8), vandq_u16(l, even)));
        pairs[i + 2] = vreinterpretq_f32_u16(vorrq_u16(vbicq_u16(h, even), vshrq_n_u16(l, 8)));
    }
}

static inline void w_bytes(const void *words, const struct nibbles *codes, ivec bytes[2])
{
    const uint8x16_t values = vld1q_u8(codes->whole), x = vld1q_u8(words);
    bytes[0] = vreinterpretq_s32_u8(vqtbl1q_u8(values, vandq_u8(x, vdupq_n_u8(15))));
    bytes[1] = vreinterpretq_s32_u8(vqtbl1q_u8(values, vshrq_n_u8(x, 4)));
}

static inline vec w_byte(ivec words, int place)
{
    return vcvtq_f32_s32(vshrq_n_s32(vshlq_s32(words, vdupq_n_s32(24 - 8 * place)), 24));
}

/* The code's bits in a float's places are too small by 2^120. */
static inline vec w_e4m3(ivec words, int place)
{
    const int32x4_t top = vshrq_n_s32(vshlq_s32(words, vdupq_n_s32(24 - 8 * place)), 4);
    const uint32x4_t bits = vandq_u32(vreinterpretq_u32_s32(top), vdupq_n_u32(0x87f00000u));
    return vmulq_f32(vreinterpretq_f32_u32(bits), vdupq_n_f32(0x1p120f));
}

/* 16 bits hold eight products: each is at most 24 x 127. */
static inline ivec w_dot(const ivec bytes[8], const int32_t *a, ivec sum)
{
    int16x8_t first = vdupq_n_s16(0), second = vdupq_n_s16(0);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const int8x16_t b = vreinterpretq_s8_s32(bytes[i]), x = vreinterpretq_s8_s32(vdupq_n_s32(a[i]));
        first = vmlal_s8(first, vget_low_s8(b), vget_low_s8(x));
        second = vmlal_high_s8(second, b, x);
    }
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second)));
}

#endif
