/* A tensor as a container of files has it. */
#ifndef COT_BASE_TENSOR_H
#define COT_BASE_TENSOR_H
#include "base/dtype.h"

enum { COT_MAX_DIMS = 8 };

/* Elements that are stored in blocks of a row: X(NAME, the container's number, elements and bytes of a block) */
// clang-format off
#define COT_BLOCK_LIST(X) \
    X(Q4_0, 2, 32, 18) X(Q4_1, 3, 32, 20) X(Q5_0, 6, 32, 22) X(Q5_1, 7, 32, 24) X(Q8_0, 8, 32, 34) X(Q8_1, 9, 32, 36) \
    X(Q2_K, 10, 256, 84) X(Q3_K, 11, 256, 110) X(Q4_K, 12, 256, 144) X(Q5_K, 13, 256, 176) X(Q6_K, 14, 256, 210) \
    X(Q8_K, 15, 256, 292) X(IQ2_XXS, 16, 256, 66) X(IQ2_XS, 17, 256, 74) X(IQ3_XXS, 18, 256, 98) X(IQ1_S, 19, 256, 50) \
    X(IQ4_NL, 20, 32, 18) X(IQ3_S, 21, 256, 110) X(IQ2_S, 22, 256, 82) X(IQ4_XS, 23, 256, 136) X(IQ1_M, 29, 256, 56) \
    X(TQ1_0, 34, 256, 54) X(TQ2_0, 35, 256, 66) X(MXFP4, 39, 32, 17) X(NVFP4, 40, 64, 36)
// clang-format on

typedef enum cot_tensor_blocks {
    COT_BLOCKS_NONE, // elements of the tensor's dtype
#define COT_BLOCK_ENUM(name, number, elements, bytes) COT_BLOCKS_##name,
    COT_BLOCK_LIST(COT_BLOCK_ENUM)
#undef COT_BLOCK_ENUM
        COT_BLOCKS_COUNT
} cot_tensor_blocks;

typedef struct cot_tensor {
    const char *name;
    cot_dtype dtype; // in blocks: U8
    int dims;
    int64_t shape[COT_MAX_DIMS]; // of elements, the fastest last
    const void *data;            // little-endian, row-major, at any alignment; NULL when bytes is 0
    size_t bytes;
    cot_tensor_blocks blocks; // of each row
} cot_tensor;

int64_t cot_tensor_elements(const cot_tensor *tensor);
/* What its elements are: "BF16", "Q4_K". */
const char *cot_tensor_type_name(const cot_tensor *tensor);
/* Elements and bytes of a block. */
int cot_tensor_block_elements(cot_tensor_blocks blocks);
int cot_tensor_block_bytes(cot_tensor_blocks blocks);

#endif
