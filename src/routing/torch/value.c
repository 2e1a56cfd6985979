#include "routing/torch/value.h"

#include <stdlib.h>

enum { BLOCK_BYTES = 1 << 16 };

struct cot_torch_block {
    struct cot_torch_block *next;
    uint64_t bytes[];
};

void *cot_torch_take(cot_torch_memory *memory, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + 7) / 8 * 8;
    if (bytes > memory->left) {
        size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        struct cot_torch_block *block = calloc(1, sizeof *block + size);
        if (!block) return NULL;
        block->next = memory->blocks;
        memory->blocks = block;
        memory->at = (uint8_t *)block->bytes;
        memory->left = size;
    }
    void *taken = memory->at;
    memory->at += bytes;
    memory->left -= bytes;
    return taken;
}

void cot_torch_memory_free(cot_torch_memory *memory)
{
    for (struct cot_torch_block *block = memory->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    *memory = (cot_torch_memory){0};
}

const cot_torch_value *cot_torch_get(const cot_torch_value *dict, const char *key)
{
    size_t bytes = strlen(key);
    if (!dict || dict->kind != COT_TORCH_DICT) return NULL;
    for (uint32_t i = dict->list.count; i >= 2; i -= 2) { // the last of equal keys counts
        const cot_torch_value *k = dict->list.items[i - 2];
        if (k->kind == COT_TORCH_TEXT && k->text.bytes == bytes && !memcmp(k->text.at, key, bytes))
            return dict->list.items[i - 1];
    }
    return NULL;
}

const cot_torch_tensor *cot_torch_get_tensor(const cot_torch_value *dict, const char *key)
{
    const cot_torch_value *value = cot_torch_get(dict, key);
    return value && value->kind == COT_TORCH_TENSOR ? value->tensor : NULL;
}

bool cot_torch_number(double *number, cot_dtype dtype, const void *at)
{
    union {
        int8_t i8;
        uint8_t u8;
        int16_t i16;
        uint16_t u16;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        uint64_t u64;
        float f32;
        double f64;
    } bits;
    memcpy(&bits, at, cot_dtype_bytes(dtype));
    switch (dtype) {
    case COT_BOOL:
    case COT_U8:
        *number = bits.u8;
        break;
    case COT_I8:
        *number = bits.i8;
        break;
    case COT_I16:
        *number = bits.i16;
        break;
    case COT_U16:
        *number = bits.u16;
        break;
    case COT_F16:
        *number = (double)cot_f16_to_f32(bits.u16);
        break;
    case COT_BF16:
        *number = (double)cot_bf16_to_f32(bits.u16);
        break;
    case COT_I32:
        *number = bits.i32;
        break;
    case COT_U32:
        *number = bits.u32;
        break;
    case COT_F32:
        *number = (double)bits.f32;
        break;
    case COT_I64:
        *number = (double)bits.i64;
        break;
    case COT_U64:
        *number = (double)bits.u64;
        break;
    case COT_F64:
        *number = bits.f64;
        break;
    default:
        return false;
    }
    return true;
}

bool cot_torch_whole(int64_t *n, const cot_torch_tensor *tensor, int64_t i, int64_t least, int64_t most)
{
    double number;
    const uint8_t *at = tensor->data + (size_t)i * cot_dtype_bytes(tensor->dtype);
    if (!cot_torch_number(&number, tensor->dtype, at) || !(number >= (double)least && number <= (double)most))
        return false;
    *n = (int64_t)number;
    return (double)*n == number;
}
