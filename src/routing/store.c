#include "routing/store.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

cot_status cot_trace_own(cot_trace *trace, cot_error *error)
{
    trace->owner = calloc(1, sizeof *trace->owner);
    return trace->owner ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a routing trace");
}

bool cot_trace_adopt(cot_trace *trace, void *block)
{
    cot_trace_owner *owner = trace->owner;
    if (!block) return true;
    void **blocks = realloc(owner->blocks, (owner->n_blocks + 1) * sizeof *blocks);
    if (!blocks) {
        free(block);
        return false;
    }
    owner->blocks = blocks;
    owner->blocks[owner->n_blocks++] = block;
    return true;
}

void *cot_trace_alloc(cot_trace *trace, int64_t count, size_t bytes)
{
    void *block = count < 0 ? NULL : calloc(count ? (size_t)count : 1, bytes);
    return cot_trace_adopt(trace, block) ? block : NULL;
}

void cot_trace_close(cot_trace *trace)
{
    cot_trace_owner *owner = trace->owner;
    if (owner) {
        for (size_t i = 0; i < owner->n_blocks; i++) free(owner->blocks[i]);
        free(owner->blocks);
        cot_safetensors_close(&owner->file);
        free(owner);
    }
    *trace = (cot_trace){0};
}

int64_t cot_product(int64_t a, int64_t b, int64_t c)
{
    int64_t product;
    if (a < 0 || b < 0 || c < 0 || __builtin_mul_overflow(a, b, &product) ||
        __builtin_mul_overflow(product, c, &product))
        return -1;
    return product;
}

cot_status cot_trace_set_names(cot_trace *trace, const char *model, int32_t n_layers, const int32_t *layers,
                               const cot_trace *like, cot_error *error)
{
    size_t length = strlen(model);
    char *name = cot_trace_alloc(trace, (int64_t)length + 1, 1);
    int32_t *numbers = cot_trace_alloc(trace, n_layers, sizeof *numbers);
    if (!name || !numbers) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a routing trace");
    memcpy(name, model, length);
    memcpy(numbers, layers, (size_t)n_layers * sizeof *numbers);
    trace->model = name;
    trace->layers = numbers;
    trace->n_layers = n_layers;
    if (like) {
        trace->model_hash = like->model_hash;
        trace->hidden = like->hidden;
    }
    if (!like || !like->n_strings) return COT_OK;
    int64_t bytes = like->string_offsets[like->n_strings];
    int64_t *offsets = cot_trace_alloc(trace, like->n_strings + 1, sizeof *offsets);
    char *strings = cot_trace_alloc(trace, bytes, 1);
    if (!offsets || !strings)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld token strings",
                        (long long)like->n_strings);
    memcpy(offsets, like->string_offsets, (size_t)(like->n_strings + 1) * sizeof *offsets);
    if (bytes) memcpy(strings, like->strings, (size_t)bytes);
    trace->string_offsets = offsets;
    trace->strings = strings;
    trace->n_strings = like->n_strings;
    return COT_OK;
}

float cot_trace_weight(const cot_trace *trace, int32_t l, int64_t t, int32_t k)
{
    if (!trace->weights) return 0;
    return cot_f16_to_f32(trace->weights[((int64_t)l * trace->n_tokens + t) * trace->top_k + k]);
}
