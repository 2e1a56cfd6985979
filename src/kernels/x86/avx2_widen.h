/* Formats by groups (template/grouped.h) in AVX2. */
#ifndef COT_KERNELS_X86_AVX2_WIDEN_H
#define COT_KERNELS_X86_AVX2_WIDEN_H
#include "kernels/template/nibbles.h"
#include "kernels/x86/avx2.h"

/* 2^(s - 127): of 0 a subnormal number. */
static inline vec w_scales(const uint8_t *scales)
{
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)scales));
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(wide, 23), _mm256_set1_epi32(0x00400000)));
}

static inline vec w_first(vec pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}
static inline vec w_second(vec pairs)
{
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32((int)0xffff0000u)));
}

static inline __m256i w_table(const uint8_t table[16])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
}

/* bf16 by bytes: high ones and low ones. Of a word's nibbles the low ones are rows 0, 4, 1, 5, byte by byte, the high ones rows 2, 6,
 * 3, 7. First four words' even bytes come before their odd ones, so that a pair's bytes meet where it is wanted. */
static inline void w_pairs(const void *words, const struct nibbles *codes, vec pairs[4])
{
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    const __m256i highs = w_table(codes->high), lows = w_table(codes->low);
    const __m256i x = _mm256_shuffle_epi8(_mm256_loadu_si256(words), order);
    const __m256i nibbles[2] = {_mm256_and_si256(x, low), _mm256_and_si256(_mm256_srli_epi16(x, 4), low)};
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m256i h = _mm256_shuffle_epi8(highs, nibbles[i]), l = _mm256_shuffle_epi8(lows, nibbles[i]);
        pairs[i] = _mm256_castsi256_ps(_mm256_unpacklo_epi8(l, h));
        pairs[i + 2] = _mm256_castsi256_ps(_mm256_unpackhi_epi8(l, h));
    }
}

static inline void w_bytes(const void *words, const struct nibbles *codes, ivec bytes[2])
{
    const __m256i low = _mm256_set1_epi8(15), values = w_table(codes->whole);
    const __m256i x = _mm256_loadu_si256(words);
    bytes[0] = _mm256_shuffle_epi8(values, _mm256_and_si256(x, low));
    bytes[1] = _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(x, 4), low));
}

static inline vec w_byte(ivec words, int place)
{
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 24 - 8 * place), 24));
}

/* The code's bits in a float's places are too small by 2^120. */
static inline vec w_e4m3(ivec words, int place)
{
    const __m256i top = _mm256_srai_epi32(_mm256_slli_epi32(words, 24 - 8 * place), 4),
                  bits = _mm256_and_si256(top, _mm256_set1_epi32((int)0x87f00000u));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
}

/* Pairs of 16 bits hold four sums of two products: each is at most 2 x 24 x 127. */
static inline ivec w_dot(const ivec bytes[8], const int32_t *a, ivec sum)
{
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        __m256i pairs = _mm256_maddubs_epi16(bytes[i], _mm256_set1_epi32(a[i]));
#pragma GCC unroll 3
        for (int j = i + 1; j < i + 4; j++)
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(bytes[j], _mm256_set1_epi32(a[j])));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum;
}

#endif
