/* Formats by groups (template/grouped.h) in AVX-512. */
#ifndef COT_KERNELS_X86_AVX512_WIDEN_H
#define COT_KERNELS_X86_AVX512_WIDEN_H
#include "kernels/template/nibbles.h"
#include "kernels/x86/avx512.h"

/* 2^(s - 127): of 0 a subnormal number. */
static inline vec w_scales(const uint8_t *scales)
{
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)scales));
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(wide, 23), _mm512_set1_epi32(0x00400000)));
}

static inline vec w_first(vec pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
static inline vec w_second(vec pairs)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32((int)0xffff0000u)));
}

static inline vec w_pair(vec first, vec second)
{
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(
        low, _mm512_and_si512(_mm512_castps_si512(second), _mm512_set1_epi32((int)0xffff0000u))));
}

/* VPERMW looks at five bits of a place: its table holds the bf16 twice, and what lies above a nibble does not matter. */
static inline void w_pairs(const void *words, const struct nibbles *codes, vec pairs[4])
{
    const __m512i table =
                      _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)codes->bf16)),
                  x = _mm512_loadu_si512(words);
    pairs[0] = _mm512_castsi512_ps(_mm512_permutexvar_epi16(x, table));
    pairs[1] = _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_srli_epi16(x, 4), table));
    pairs[2] = _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_srli_epi16(x, 8), table));
    pairs[3] = _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_srli_epi16(x, 12), table));
}

static inline void w_bytes(const void *words, const struct nibbles *codes, ivec bytes[2])
{
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i values =
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)codes->whole));
    const __m512i x = _mm512_loadu_si512(words);
    bytes[0] = _mm512_shuffle_epi8(values, _mm512_and_si512(x, low));
    bytes[1] = _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(x, 4), low));
}

/* As the last bits of 2^23 + 128, which are then taken off: of the units that shift there are fewer than of those that add. */
static inline vec w_byte(ivec words, int place)
{
    const __m512i flipped = _mm512_xor_si512(words, _mm512_set1_epi8((char)0x80)),
                  low = place ? _mm512_srli_epi32(flipped, (unsigned)(8 * place)) : flipped,
                  bits = _mm512_ternarylogic_epi32(low, _mm512_set1_epi32(255), _mm512_set1_epi32(0x4b000000),
                                                   0xea); // low & 255 | 2^23
    return _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p23f + 128));
}

/* The code's bits in a float's places are too small by 2^120. */
static inline vec w_e4m3(ivec words, int place)
{
    const __m512i top = _mm512_srai_epi32(_mm512_slli_epi32(words, (unsigned)(24 - 8 * place)), 4),
                  bits = _mm512_and_si512(top, _mm512_set1_epi32((int)0x87f00000u));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
}

/* Words of four bytes of E4M3: rows 0 and 1, and rows 2 and 3, as pairs of bf16, whose high bytes a table of the codes' upper
 * bits tells (or, of subnormal codes, of their lower ones), and whose low bytes are the codes' lower bits. */
static inline void w_e4m3_pairs(const void *words, vec pairs[2])
{
    const __m512i order = _mm512_broadcast_i32x4(
                      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)),
                  highs = _mm512_broadcast_i32x4(
                      _mm_setr_epi8(60, 61, 62, 63, 64, 65, 66, 67, 60, 61, 62, 63, 64, 65, 66, 67)),
                  small_highs = _mm512_broadcast_i32x4(
                      _mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0)),
                  small_lows = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x20,
                                                                    0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, 0)),
                  four = _mm512_set1_epi8(15), x = _mm512_shuffle_epi8(_mm512_loadu_si512(words), order);
    const __m512i lower = _mm512_and_si512(x, four), upper = _mm512_and_si512(_mm512_srli_epi16(x, 4), four);
    const __mmask64 small = _mm512_testn_epi8_mask(x, _mm512_set1_epi8(0x78));
    __m512i high = _mm512_shuffle_epi8(highs, upper), low = _mm512_slli_epi16(lower, 4);
    high = _mm512_mask_shuffle_epi8(high, small, small_highs, lower);
    low = _mm512_mask_shuffle_epi8(low, small, small_lows, lower);
    high = _mm512_ternarylogic_epi32(high, x, _mm512_set1_epi8((char)0x80), 0xd8); // the sign is x's
    pairs[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi8(low, high));
    pairs[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi8(low, high));
}

#ifndef I_DOT
/* Pairs of 16 bits hold four sums of two products: each is at most 2 x 24 x 127. */
static inline ivec w_dot(const ivec bytes[8], const int32_t *a, ivec sum)
{
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        __m512i pairs = _mm512_maddubs_epi16(bytes[i], _mm512_set1_epi32(a[i]));
#pragma GCC unroll 3
        for (int j = i + 1; j < i + 4; j++)
            pairs = _mm512_add_epi16(pairs, _mm512_maddubs_epi16(bytes[j], _mm512_set1_epi32(a[j])));
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
    return sum;
}
#endif

#endif
