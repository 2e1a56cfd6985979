/* 32 registers: 6 x 4 sums leave room for B's vectors and one of A. */
#include "kernels/arm/neon_widen.h"

enum { TALL_ROWS = 6, TALL_VECTORS = 4, SHORT_ROWS = 3, WIDE_ROWS = 1, WIDE_TURNS = 1, WIDE_TURNS_I8 = 1 };
enum { FEW_ROWS = 24, FEW_ROWS_I8 = 24 };
#define TALL(X) X(4, 4) X(5, 4) X(6, 4)
#define SHORT(X) X(1, 8) X(2, 8) X(3, 8)
#define WIDE(X) X(1, 16)

#include "kernels/template/isa.h"

const cot_isa_code cot_isa_neon = COT_ISA_CODE("neon");
