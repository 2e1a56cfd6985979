/* AVX-512 with VPDPBUSD: four products of bytes added at once. */
#define I_DOT
#include "kernels/x86/avx512_widen.h"

#include "kernels/template/isa.h"

const cot_isa_code cot_isa_avx512_vnni = COT_ISA_CODE("avx512_vnni");
