#include "predict/predictor.h"

#include "base/error.h"
#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

cot_status cot_predictor_write(const cot_predictor *p, const char *path, cot_error *error)
{
    cot_predictor_table tables[COT_PREDICTOR_TABLES];
    cot_tensor tensors[COT_PREDICTOR_TABLES];
    const int n = cot_predictor_tables(tables, (cot_predictor *)(uintptr_t)p); // which only reads it
    for (int i = 0; i < n; i++) {
        cot_tensor *t = &tensors[i];
        *t = (cot_tensor){.name = tables[i].name,
                          .dtype = tables[i].dtype,
                          .dims = tables[i].dims,
                          .data = *tables[i].data};
        for (int d = 0; d < t->dims; d++) t->shape[d] = tables[i].shape[d];
        t->bytes = (size_t)cot_tensor_elements(t) * cot_dtype_bytes(t->dtype);
    }
    const size_t room = (size_t)p->n_layers * 12 + 1;
    char *layers = malloc(room), experts[12], top_k[12], ranks[12], order[12], seed[24], sequences[24],
         hash[COT_HASH_TEXT_BYTES], model_hash[COT_HASH_TEXT_BYTES];
    if (!layers) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot write '%s': out of memory", path);
    for (size_t l = 0, used = 0; l < (size_t)p->n_layers; l++)
        used += (size_t)snprintf(layers + used, room - used, l ? ",%" PRId32 : "%" PRId32, p->layers[l]);
    snprintf(experts, sizeof experts, "%" PRId32, p->n_experts);
    snprintf(top_k, sizeof top_k, "%" PRId32, p->top_k);
    snprintf(ranks, sizeof ranks, "%" PRId32, p->n_ranks);
    snprintf(order, sizeof order, "%" PRId32, p->order);
    cot_hash_print(hash, p->trace_hash);
    cot_hash_print(model_hash, p->model_hash);
    snprintf(seed, sizeof seed, "%" PRIu64, p->seed);
    snprintf(sequences, sizeof sequences, "%" PRId64, p->n_sequences);
    const char *meta[] = {"format",     "coterie.predictor",
                          "version",    "1",
                          "model",      p->model,
                          "experts",    experts,
                          "top_k",      top_k,
                          "layers",     layers,
                          "ranks",      ranks,
                          "order",      order,
                          "sequences",  sequences,
                          "seed",       seed,
                          "trace_hash", hash,
                          "model_hash", model_hash}; // the last only where there is one
    const size_t pairs = sizeof meta / sizeof *meta / 2 - !p->model_hash;
    cot_status status = cot_safetensors_write(path, tensors, (size_t)n, meta, pairs, error);
    free(layers);
    return status;
}
