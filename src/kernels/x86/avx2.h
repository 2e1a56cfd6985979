/* The words of template/ in AVX2 and FMA: eight floats. */
#ifndef COT_KERNELS_X86_AVX2_H
#define COT_KERNELS_X86_AVX2_H
#include <immintrin.h>
#include <stdint.h>

typedef __m256 vec;
enum { LANES = 8 };

static inline vec v_zero(void)
{
    return _mm256_setzero_ps();
}
static inline vec v_set(float x)
{
    return _mm256_set1_ps(x);
}
static inline vec v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void v_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x);
}
static inline vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vec v_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
static inline vec v_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
static inline vec v_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
static inline vec v_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
static inline vec v_min(vec limit, vec x)
{
    return _mm256_min_ps(limit, x);
} // x where it is a NaN
static inline vec v_max(vec limit, vec x)
{
    return _mm256_max_ps(limit, x);
} // x where it is a NaN
static inline vec v_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x 2^n for whole n in [-252, 254], rounded once: two factors reach what one exponent cannot. */
static inline vec v_scale(vec x, vec n)
{
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256i other = _mm256_sub_epi32(whole, half);
    x = _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(other, bias), 23)));
}

static inline vec v_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static inline vec v_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline void v_store_bf16(uint16_t *p, vec x)
{
    __m256i bits = _mm256_castps_si256(x), top = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i words = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, is_nan);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(packed));
}

/* Of LANES pairs of bf16: the first of each pair, and the second. */
static inline vec v_first(const uint16_t *pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)pairs), 16));
}
/* The mask is read from memory each time: hoisted into a register, as gcc would, it costs a tile one of its
 * sums. */
static inline vec v_second(const uint16_t *pairs)
{
#define HIGH_HALVES (long long)0xffff0000ffff0000u
    static const volatile __m256i mask = {HIGH_HALVES, HIGH_HALVES, HIGH_HALVES, HIGH_HALVES};
    return _mm256_castsi256_ps(_mm256_and_si256(mask, _mm256_loadu_si256((const __m256i *)pairs)));
}

/* Of LANES pairs of floats: the same, both at once, and back. */
static inline void v_load_pairs(const float *p, vec *first, vec *second)
{
    vec low = _mm256_loadu_ps(p), high = _mm256_loadu_ps(p + 8);
    vec even = _mm256_shuffle_ps(low, high, 0x88), odd = _mm256_shuffle_ps(low, high, 0xdd);
    *first = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
    *second = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
}
static inline void v_store_pairs(float *p, vec first, vec second)
{
    vec low = _mm256_unpacklo_ps(first, second), high = _mm256_unpackhi_ps(first, second);
    _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

/* Vectors of whole numbers: words of int32, of pairs of int16, of four int8. */
typedef __m256i ivec;
static inline ivec i_zero(void)
{
    return _mm256_setzero_si256();
}
static inline ivec i_set(int32_t word)
{
    return _mm256_set1_epi32(word);
}
static inline ivec i_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
static inline void i_store(void *p, ivec x)
{
    _mm256_storeu_si256(p, x);
}
static inline vec i_to_f32(ivec x)
{
    return _mm256_cvtepi32_ps(x);
}
static inline ivec i_add(ivec a, ivec b)
{
    return _mm256_add_epi32(a, b);
}
/* Of a word's four bytes the first and third, and the second and fourth, as pairs. */
static inline ivec i_even(ivec four)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8);
}
static inline ivec i_odd(ivec four)
{
    return _mm256_srai_epi16(four, 8);
}
static inline ivec i_pair_dot(ivec a, ivec b, ivec sum)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

#endif
