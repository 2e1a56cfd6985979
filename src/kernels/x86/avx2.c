/* 16 registers: 6 x 2 sums leave room for B's vectors and one of A. */
#include "kernels/x86/avx2_widen.h"

enum { TALL_ROWS = 6, TALL_VECTORS = 2, SHORT_ROWS = 6, WIDE_ROWS = 1, WIDE_TURNS = 1, WIDE_TURNS_I8 = 1 };
enum { FEW_ROWS = 24, FEW_ROWS_I8 = 24 };
#define TALL(X) X(4, 2) X(5, 2) X(6, 2)
#define SHORT(X) X(1, 4) X(2, 4) X(3, 4) X(4, 2) X(5, 2) X(6, 2)
#define WIDE(X) X(1, 8)

#include "kernels/template/isa.h"

const cot_isa_code cot_isa_avx2 = COT_ISA_CODE("avx2");
