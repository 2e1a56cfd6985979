/* Stands before the compiler's <immintrin.h> where the AVX-512 tables are tested on a CPU without AVX-512:
 * SIMDe computes each intrinsic in plain vectors. What SIMDe 0.7.4 lacks, or rounds otherwise, follows a lane
 * at a time. */
#ifndef COT_TESTS_EMULATED_IMMINTRIN_H
#define COT_TESTS_EMULATED_IMMINTRIN_H
#include_next <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline __m512i emulated_cvtepu16_epi32(__m256i x)
{
    uint16_t in[16];
    uint32_t out[16];
    __m512i result;
    memcpy(in, &x, sizeof in);
    for (int i = 0; i < 16; i++) out[i] = in[i];
    memcpy(&result, out, sizeof out);
    return result;
}

static inline __m512i emulated_srai_epi32(__m512i x, unsigned count)
{
    int32_t all[16];
    memcpy(all, &x, sizeof all);
    for (int i = 0; i < 16; i++) all[i] >>= count;
    memcpy(&x, all, sizeof all);
    return x;
}

static inline __m512i emulated_cvtepu8_epi32(__m128i x)
{
    uint8_t in[16];
    uint32_t out[16];
    __m512i result;
    memcpy(in, &x, sizeof in);
    for (int i = 0; i < 16; i++) out[i] = in[i];
    memcpy(&result, out, sizeof out);
    return result;
}

static inline __m256i emulated_cvtepi32_epi16(__m512i x)
{
    uint32_t in[16];
    uint16_t out[16];
    __m256i result;
    memcpy(in, &x, sizeof in);
    for (int i = 0; i < 16; i++) out[i] = (uint16_t)in[i];
    memcpy(&result, out, sizeof out);
    return result;
}

static inline __m512 emulated_cvtph_ps(__m256i x)
{
    __m128i in[2];
    __m512 result;
    memcpy(in, &x, sizeof in);
    const __m256 out[2] = {_mm256_cvtph_ps(in[0]), _mm256_cvtph_ps(in[1])};
    memcpy(&result, out, sizeof out);
    return result;
}

/* x 2^floor(n), rounded once, infinities and NaNs as they are. */
static inline __m512 emulated_scalef_ps(__m512 x, __m512 n)
{
    float in[16], by[16], out[16];
    __m512 result;
    memcpy(in, &x, sizeof in);
    memcpy(by, &n, sizeof by);
    for (int i = 0; i < 16; i++)
        out[i] = isnan(by[i]) ? by[i] : ldexpf(in[i], (int)floorf(fminf(fmaxf(by[i], -1000), 1000)));
    memcpy(&result, out, sizeof out);
    return result;
}

static inline float emulated_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* The second of a pair first, each step a fused multiply-add; subnormal inputs and results are zero. */
static inline __m512 emulated_dpbf16_ps(__m512 sum, __m512i a, __m512i b)
{
    uint32_t x[16], y[16];
    float out[16];
    __m512 result;
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    memcpy(out, &sum, sizeof out);
    for (int i = 0; i < 16; i++) {
        out[i] = emulated_flush(out[i]);
        for (int half = 1; half >= 0; half--) {
            uint32_t wide[2] = {half ? x[i] & 0xffff0000u : x[i] << 16,
                                half ? y[i] & 0xffff0000u : y[i] << 16};
            float factor[2];
            memcpy(factor, wide, sizeof wide);
            out[i] = emulated_flush(fmaf(emulated_flush(factor[0]), emulated_flush(factor[1]), out[i]));
        }
    }
    memcpy(&result, out, sizeof out);
    return result;
}

/* Two halves, each as AVX2 has it. */
#define EMULATED_HALVES(result_type, half_result, half, expression)                                          \
    __m256i x[2], y[2];                                                                                      \
    half_result out[2];                                                                                      \
    result_type result;                                                                                      \
    memcpy(x, &a, sizeof x);                                                                                 \
    memcpy(y, &b, sizeof y);                                                                                 \
    for (int half = 0; half < 2; half++) out[half] = expression;                                             \
    memcpy(&result, out, sizeof out);                                                                        \
    return result

static inline __m512i emulated_madd_epi16(__m512i a, __m512i b)
{
    EMULATED_HALVES(__m512i, __m256i, half, _mm256_madd_epi16(x[half], y[half]));
}

static inline __m512 emulated_cvtepi32_ps(__m512i a)
{
    const __m512i b = a;
    EMULATED_HALVES(__m512, __m256, half, _mm256_cvtepi32_ps(x[half]));
}

static inline __m512i emulated_dpbusd_epi32(__m512i sum, __m512i a, __m512i b)
{
    uint8_t x[64];
    int8_t y[64];
    int32_t out[16];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    memcpy(out, &sum, sizeof out);
    for (int i = 0; i < 64; i++) out[i / 4] += x[i] * y[i];
    memcpy(&sum, out, sizeof out);
    return sum;
}

static inline __m512i emulated_shift_epi16(__m512i x, int left, int right)
{
    uint16_t words[32];
    memcpy(words, &x, sizeof words);
    for (int i = 0; i < 32; i++) words[i] = (uint16_t)((int16_t)(uint16_t)(words[i] << left) >> right);
    memcpy(&x, words, sizeof words);
    return x;
}

static inline __mmask64 emulated_testn_epi8_mask(__m512i a, __m512i b)
{
    uint8_t x[64], y[64];
    __mmask64 mask = 0;
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 64; i++) mask |= (__mmask64) !(x[i] & y[i]) << i;
    return mask;
}

#undef _mm512_madd_epi16
#undef _mm512_dpbusd_epi32
#undef _mm512_slli_epi16
#undef _mm512_srai_epi16
#define _mm512_madd_epi16 emulated_madd_epi16
#define _mm512_testn_epi8_mask emulated_testn_epi8_mask
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_dpbusd_epi32 emulated_dpbusd_epi32
#define _mm512_slli_epi16(x, n) emulated_shift_epi16(x, n, 0)
#define _mm512_srai_epi16(x, n) emulated_shift_epi16(x, 0, n)
#undef _mm512_scalef_ps
#undef _mm512_dpbf16_ps
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 emulated_srai_epi32
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 emulated_cvtepu8_epi32
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_scalef_ps emulated_scalef_ps
#define _mm512_dpbf16_ps(sum, a, b) emulated_dpbf16_ps(sum, (__m512i)(a), (__m512i)(b))

#endif
