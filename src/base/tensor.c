#include "base/tensor.h"

static const struct {
    const char *name;
    int elements, bytes;
} kinds[COT_BLOCKS_COUNT] = {{"", 1, 0},
#define COT_BLOCK_ROW(name, number, elements, bytes) {#name, elements, bytes},
                             COT_BLOCK_LIST(COT_BLOCK_ROW)
#undef COT_BLOCK_ROW
};

int64_t cot_tensor_elements(const cot_tensor *tensor)
{
    int64_t n = 1;
    for (int d = 0; d < tensor->dims; d++) n *= tensor->shape[d];
    return n;
}

const char *cot_tensor_type_name(const cot_tensor *tensor)
{
    return tensor->blocks ? kinds[tensor->blocks].name : cot_dtype_name(tensor->dtype);
}

int cot_tensor_block_elements(cot_tensor_blocks blocks)
{
    return kinds[blocks].elements;
}

int cot_tensor_block_bytes(cot_tensor_blocks blocks)
{
    return kinds[blocks].bytes;
}
