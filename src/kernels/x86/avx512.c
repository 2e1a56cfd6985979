#include "kernels/x86/avx512_widen.h"

#include "kernels/template/isa.h"

const cot_isa_code cot_isa_avx512 = COT_ISA_CODE("avx512");
