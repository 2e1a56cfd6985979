#include "coterie/load.h"

#include "base/error.h"
#include "routing/store.h"

#include <inttypes.h>
#include <stdlib.h>

cot_status cot_load_counts_new(cot_load_counts *load, int32_t layers, int32_t sources, int32_t experts,
                               cot_error *error)
{
    *load = (cot_load_counts){0};
    if (layers < 1 || layers > COT_TRACE_MAX_LAYERS || sources < 1 || sources > COT_LOAD_MAX_SOURCES ||
        experts < 1 || experts > COT_TRACE_MAX_EXPERTS)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no load can have %" PRId32 " layers, %" PRId32 " sources and %" PRId32 " experts",
                        layers, sources, experts);
    int64_t cells = cot_product(layers, sources, experts); // at most 2^42
    load->n_layers = layers;
    load->n_sources = sources;
    load->n_experts = experts;
    load->layers = malloc((size_t)layers * sizeof *load->layers);
    load->tokens = calloc((size_t)cells, sizeof *load->tokens);
    if (!load->layers || !load->tokens) {
        cot_load_counts_free(load);
        return cot_fail(error, COT_OUT_OF_MEMORY,
                        "out of memory for the load of %" PRId32 " layers, %" PRId32 " sources and %" PRId32
                        " experts",
                        layers, sources, experts);
    }
    for (int32_t l = 0; l < layers; l++) load->layers[l] = l;
    return COT_OK;
}

void cot_load_counts_free(cot_load_counts *load)
{
    free(load->layers);
    free(load->tokens);
    *load = (cot_load_counts){0};
}
