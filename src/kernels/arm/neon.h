/* The words of template/ in AArch64's Advanced SIMD: four floats. */
#ifndef COT_KERNELS_ARM_NEON_H
#define COT_KERNELS_ARM_NEON_H
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef float32x4_t vec;
enum { LANES = 4 };

static inline vec v_zero(void)
{
    return vdupq_n_f32(0);
}
static inline vec v_set(float x)
{
    return vdupq_n_f32(x);
}
static inline vec v_load(const float *p)
{
    return vld1q_f32(p);
}
static inline void v_store(float *p, vec x)
{
    vst1q_f32(p, x);
}
static inline vec v_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}
static inline vec v_add(vec a, vec b)
{
    return vaddq_f32(a, b);
}
static inline vec v_sub(vec a, vec b)
{
    return vsubq_f32(a, b);
}
static inline vec v_mul(vec a, vec b)
{
    return vmulq_f32(a, b);
}
static inline vec v_div(vec a, vec b)
{
    return vdivq_f32(a, b);
}
static inline vec v_min(vec limit, vec x)
{
    return vminq_f32(limit, x);
} // a NaN where there is one
static inline vec v_max(vec limit, vec x)
{
    return vmaxq_f32(limit, x);
} // a NaN where there is one
static inline vec v_round(vec x)
{
    return vrndnq_f32(x);
}

/* x 2^n for whole n in [-252, 254], rounded once: two factors reach what one exponent cannot. */
static inline vec v_scale(vec x, vec n)
{
    int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1), bias = vdupq_n_s32(127);
    int32x4_t other = vsubq_s32(whole, half);
    x = vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(other, bias), 23)));
}

static inline vec v_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

static inline vec v_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

static inline void v_store_bf16(uint16_t *p, vec x)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x), top = vshrq_n_u32(bits, 16);
    uint32x4_t odd = vandq_u32(top, vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff));
    uint32x4_t quiet = vorrq_u32(top, vdupq_n_u32(0x40));
    vst1_u16(p, vmovn_u32(vbslq_u32(vceqq_f32(x, x), vshrq_n_u32(rounded, 16), quiet)));
}

/* Of LANES pairs of bf16: the first of each pair, and the second. */
static inline vec v_first(const uint16_t *pairs)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(vld1q_u16(pairs)), 16));
}
static inline vec v_second(const uint16_t *pairs)
{
    return vreinterpretq_f32_u32(
        vandq_u32(vreinterpretq_u32_u16(vld1q_u16(pairs)), vdupq_n_u32(0xffff0000u)));
}

/* Of LANES pairs of floats: the same, both at once, and back. */
static inline void v_load_pairs(const float *p, vec *first, vec *second)
{
    float32x4x2_t pairs = vld2q_f32(p);
    *first = pairs.val[0];
    *second = pairs.val[1];
}
static inline void v_store_pairs(float *p, vec first, vec second)
{
    vst2q_f32(p, (float32x4x2_t){{first, second}});
}

/* Vectors of whole numbers: words of int32, of pairs of int16, of four int8. */
typedef int32x4_t ivec;
static inline ivec i_zero(void)
{
    return vdupq_n_s32(0);
}
static inline ivec i_set(int32_t word)
{
    return vdupq_n_s32(word);
}
static inline ivec i_load(const void *p)
{
    return vreinterpretq_s32_s8(vld1q_s8(p));
}
static inline void i_store(void *p, ivec x)
{
    vst1q_s8(p, vreinterpretq_s8_s32(x));
}
static inline vec i_to_f32(ivec x)
{
    return vcvtq_f32_s32(x);
}
static inline ivec i_add(ivec a, ivec b)
{
    return vaddq_s32(a, b);
}
/* Of a word's four bytes the first and third, and the second and fourth, as pairs. */
static inline ivec i_even(ivec four)
{
    return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(four), 8), 8));
}
static inline ivec i_odd(ivec four)
{
    return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(four), 8));
}
static inline ivec i_pair_dot(ivec a, ivec b, ivec sum)
{
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y)), high = vmull_high_s16(x, y);
    return vaddq_s32(sum, vpaddq_s32(low, high));
}

#endif
