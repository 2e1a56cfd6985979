/* The words of template/ in AVX-512 (F, BW, DQ, VL): sixteen floats. */
#ifndef COT_KERNELS_X86_AVX512_H
#define COT_KERNELS_X86_AVX512_H
#include <immintrin.h>
#include <stdint.h>

typedef __m512 vec;
enum { LANES = 16 };

static inline vec v_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vec v_set(float x)
{
    return _mm512_set1_ps(x);
}
static inline vec v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}
static inline vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vec v_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
static inline vec v_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
static inline vec v_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
static inline vec v_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
static inline vec v_min(vec limit, vec x)
{
    return _mm512_min_ps(limit, x);
} // x where it is a NaN
static inline vec v_max(vec limit, vec x)
{
    return _mm512_max_ps(limit, x);
} // x where it is a NaN
static inline vec v_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vec v_scale(vec x, vec n)
{
    return _mm512_scalef_ps(x, n);
} // x 2^n, rounded once

static inline vec v_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline vec v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* In integers: VCVTNEPS2BF16 would flush subnormal numbers. */
static inline void v_store_bf16(uint16_t *p, vec x)
{
    __m512i bits = _mm512_castps_si512(x), top = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    __m512i quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i words = _mm512_mask_blend_epi32(is_nan, _mm512_srli_epi32(rounded, 16), quiet);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(words));
}

/* Of LANES pairs of bf16: the first of each pair, and the second. */
static inline vec v_first(const uint16_t *pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16));
}
static inline vec v_second(const uint16_t *pairs)
{
    __m512i mask = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), mask));
}

/* Of LANES pairs of floats: the same, both at once, and back. */
static inline void v_load_pairs(const float *p, vec *first, vec *second)
{
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    vec low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + 16);
    *first = _mm512_permutex2var_ps(low, even, high);
    *second = _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
}
static inline void v_store_pairs(float *p, vec first, vec second)
{
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(first, low, second));
    _mm512_storeu_ps(p + 16,
                     _mm512_permutex2var_ps(first, _mm512_add_epi32(low, _mm512_set1_epi32(8)), second));
}

/* Vectors of whole numbers: words of int32, of pairs of int16, of four int8. */
typedef __m512i ivec;
static inline ivec i_zero(void)
{
    return _mm512_setzero_si512();
}
static inline ivec i_set(int32_t word)
{
    return _mm512_set1_epi32(word);
}
static inline ivec i_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
static inline vec i_to_f32(ivec x)
{
    return _mm512_cvtepi32_ps(x);
}
static inline void i_store(void *p, ivec x)
{
    _mm512_storeu_si512(p, x);
}
#ifdef I_DOT
static inline ivec i_flip(ivec x, int32_t bits)
{
    return _mm512_xor_si512(x, _mm512_set1_epi32(bits));
}
static inline ivec i_sub(ivec a, ivec b)
{
    return _mm512_sub_epi32(a, b);
}
static inline ivec i_dot(ivec a, ivec b, ivec sum)
{
#ifdef __AVX512VNNI__ // around the intrinsic gcc 12 copies sums, and spills them
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#else
    return _mm512_dpbusd_epi32(sum, a, b);
#endif
}
/* The same with a word of memory as b: one instruction, and no register. */
static inline ivec i_dot_word(ivec a, const int32_t *word, ivec sum)
{
#ifdef __AVX512VNNI__
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(a), "m"(*word));
    return sum;
#else
    return i_dot(a, i_set(*word), sum);
#endif
}
#else
static inline ivec i_add(ivec a, ivec b)
{
    return _mm512_add_epi32(a, b);
}
/* Of a word's four bytes the first and third, and the second and fourth, as pairs. */
static inline ivec i_even(ivec four)
{
    return _mm512_srai_epi16(_mm512_slli_epi16(four, 8), 8);
}
static inline ivec i_odd(ivec four)
{
    return _mm512_srai_epi16(four, 8);
}
static inline ivec i_pair_dot(ivec a, ivec b, ivec sum)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}
#endif

/* 32 registers: 12 x 2 sums, or 6 x 4 and B's vectors. */
enum { TALL_ROWS = 12, TALL_VECTORS = 2, SHORT_ROWS = 12, WIDE_ROWS = 6, WIDE_TURNS = 2 };
enum { FEW_ROWS = 96 };
#ifdef I_DOT
enum { FEW_ROWS_I8 = 96, WIDE_TURNS_I8 = 4 };
#else
enum { FEW_ROWS_I8 = 24, WIDE_TURNS_I8 = 1 };
#endif
#define WIDE(X) X(1, 4) X(2, 4) X(3, 4) X(4, 4) X(5, 4) X(6, 4)
#define SHORT(X)                                                                                             \
    X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2) X(7, 2) X(8, 2) X(9, 2) X(10, 2) X(11, 2) X(12, 2)
#define TALL(X) X(6, 2) X(7, 2) X(8, 2) X(9, 2) X(10, 2) X(11, 2) X(12, 2)

#endif
