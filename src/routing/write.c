#include "routing/store.h"

#include "base/error.h"
#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static cot_tensor tensor(const char *name, cot_dtype dtype, const void *data, int dims, int64_t a, int64_t b,
                         int64_t c)
{
    cot_tensor t = {.name = name, .dtype = dtype, .dims = dims, .shape = {a, b, c}, .data = data};
    t.bytes = (size_t)cot_tensor_elements(&t) * cot_dtype_bytes(dtype);
    return t;
}

/* "0,1,2" in malloc'd memory, or NULL. */
static char *layer_list(const cot_trace *trace)
{
    size_t room = (size_t)trace->n_layers * 12 + 1, used = 0;
    char *text = malloc(room);
    for (int32_t l = 0; text && l < trace->n_layers; l++)
        used += (size_t)snprintf(text + used, room - used, l ? ",%" PRId32 : "%" PRId32, trace->layers[l]);
    return text;
}

cot_status cot_trace_write(const cot_trace *trace, const char *path, cot_error *error)
{
    cot_status status = cot_trace_validate(trace, path, error);
    if (status != COT_OK) return status;
    char experts[12], top_k[12], hidden[12], hash[COT_HASH_TEXT_BYTES], *layers = layer_list(trace);
    if (!layers) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot write '%s': out of memory", path);
    snprintf(experts, sizeof experts, "%" PRId32, trace->n_experts);
    snprintf(top_k, sizeof top_k, "%" PRId32, trace->top_k);
    snprintf(hidden, sizeof hidden, "%" PRId32, trace->hidden);
    cot_hash_print(hash, trace->model_hash);
    bool counts = trace->kind == COT_TRACE_COUNTS;
    const char *meta[] = {
        "format", "coterie.trace", "version", "1",     "kind",  counts ? "counts" : "tokens",
        "model",  trace->model,    "experts", experts, "top_k", top_k,
        "layers", layers,          NULL,      NULL,    NULL,    NULL};
    size_t pairs = sizeof meta / sizeof *meta / 2 - 2;
    if (trace->hidden) {
        meta[2 * pairs] = "hidden";
        meta[2 * pairs++ + 1] = hidden;
    }
    if (trace->model_hash) {
        meta[2 * pairs] = "model_hash";
        meta[2 * pairs++ + 1] = hash;
    }

    cot_tensor tensors[6];
    size_t n = 0;
    int64_t L = trace->n_layers, T = trace->n_tokens, E = trace->n_experts, K = trace->top_k,
            V = trace->n_strings;
    // widest elements first, so that every tensor lies aligned and the reader need copy none
    if (V) tensors[n++] = tensor("token_string_offsets", COT_I64, trace->string_offsets, 1, V + 1, 0, 0);
    if (!counts)
        tensors[n++] =
            tensor("sequence_offsets", COT_I64, trace->sequence_offsets, 1, trace->n_sequences + 1, 0, 0);
    tensors[n++] = tensor("token_ids", COT_I32, trace->token_ids, 1, T, 0, 0);
    if (counts) {
        tensors[n++] = tensor("counts", COT_U32, trace->counts, 3, L, T, E);
    } else {
        cot_tensor wide = tensor("experts", COT_U16, trace->experts_u16, 3, L, T, K);
        cot_tensor narrow = tensor("experts", COT_U8, trace->experts_u8, 3, L, T, K);
        if (!trace->experts_u8) tensors[n++] = wide;
        if (trace->weights) tensors[n++] = tensor("weights", COT_F16, trace->weights, 3, L, T, K);
        if (trace->experts_u8) tensors[n++] = narrow;
    }
    if (V) tensors[n++] = tensor("token_strings", COT_U8, trace->strings, 1, trace->string_offsets[V], 0, 0);
    status = cot_safetensors_write(path, tensors, n, meta, pairs, error);
    free(layers);
    return status;
}
