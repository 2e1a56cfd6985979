/* What each instruction set's file hands to the room: its table, and loops that do nothing but its best
 * multiply-add. */
#ifndef COT_KERNELS_ISA_H
#define COT_KERNELS_ISA_H
#include "kernels/kernels.h"
#include "kernels/lookup.h"

/* Runs `rounds` rounds of independent multiply-adds in registers; returns the operations done. */
typedef double cot_roof_loop(int64_t rounds);

/* Reads all of `bytes` (a multiple of 4096, at a multiple of 64) as floats, in four streams; returns their
 * sum. */
typedef float cot_read_loop(const void *data, size_t bytes);

typedef struct cot_isa_code {
    cot_kernels kernels;
    cot_lookup_kernels lookup;
    cot_roof_loop *f32_loop, *bf16_loop, *int8_loop;
    cot_read_loop *read_loop;
} cot_isa_code;

extern const cot_isa_code cot_isa_ref, cot_isa_avx2, cot_isa_avx512, cot_isa_avx512_vnni, cot_isa_avx512_bf16,
    cot_isa_neon;

/* As cot_kernels_of. */
const cot_isa_code *cot_isa_code_of(cot_isa isa);

#endif
