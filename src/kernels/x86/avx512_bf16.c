/* AVX-512 with VPDPBUSD and VDPBF16PS: two products of a pair of rows added at once, subnormal numbers taken as zero.
 */
#define I_DOT
#include "kernels/x86/avx512_widen.h"

#define V_DOT
static inline vec v_dot(vec a, vec b, vec sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}

/* The same with a pair of memory as a: one instruction, and no register. */
static inline vec v_dot_word(const float *word, vec b, vec sum)
{
#ifdef __AVX512BF16__
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*word));
    return sum;
#else
    return v_dot(v_set(*word), b, sum);
#endif
}

#include "kernels/template/isa.h"

const cot_isa_code cot_isa_avx512_bf16 = COT_ISA_CODE("avx512_bf16");
