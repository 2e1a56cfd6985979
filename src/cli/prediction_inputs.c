/* What `coterie predict` and `coterie group` read. */
#include "cmd_predict.h"

#include "token_ids.h"
#include "coterie/model.h"

#include <inttypes.h>
#include <stdlib.h>

static void note(void *context, const char *line)
{
    cot_complain("%s%s", (const char *)context, line);
}

int cot_open_trace(cot_trace *trace, int32_t **ids, const char *path, const char *tokenizer)
{
    const cot_trace_import_options options = {
        .size = sizeof options, .say = note, .context = (void *)"note: "};
    cot_error error = {0};
    cot_status status = cot_trace_import(trace, path, &options, &error);
    if (status == COT_OK) {
        status = cot_trace_warn(trace, note, (void *)"warning: ", &error);
        if (status != COT_OK) cot_trace_close(trace);
    }
    if (status != COT_OK) return cot_complain_of(&error);
    return tokenizer ? cot_map_token_ids(trace, ids, tokenizer) : COT_EXIT_OK;
}

int cot_open_embeddings(cot_predict_embedding *embedding, float **memory, const cot_trace *trace,
                        const char *path)
{
    cot_error error = {0};
    if (trace->n_strings)
        return cot_complain("--embeddings: the trace knows tokens by their strings: give --tokenizer too");
    if (cot_model_embedding(memory, &embedding->n_ids, &embedding->width, path, &error) != COT_OK)
        return cot_complain_of(&error);
    embedding->row = *memory;
    for (int64_t t = 0; t < trace->n_tokens; t++)
        if (trace->token_ids[t] >= embedding->n_ids)
            return cot_complain("the trace has token id %" PRId32 ", beyond the vocabulary of '%s', %" PRId64
                                " ids",
                                trace->token_ids[t], path, embedding->n_ids);
    return COT_EXIT_OK;
}

uint8_t *cot_draw_training(const cot_trace *trace, double share, uint64_t seed)
{
    if (trace->kind == COT_TRACE_COUNTS) {
        cot_complain("counts have no sequences to split: coterie group --tables learns from one domain, "
                     "coterie predict "
                     "--tables tests on another");
        return NULL;
    }
    uint8_t *training = malloc((size_t)trace->n_sequences + 1);
    if (!training) {
        cot_complain("out of memory for %" PRId64 " sequences", trace->n_sequences);
        return NULL;
    }
    cot_trace_split(training, trace->n_sequences, share, seed);
    int64_t tokens = 0;
    for (int64_t s = 0; s < trace->n_sequences; s++)
        if (training[s]) tokens += trace->sequence_offsets[s + 1] - trace->sequence_offsets[s];
    if (tokens) return training;
    cot_complain("the training split is empty: %g of %" PRId64 " sequences", share, trace->n_sequences);
    free(training);
    return NULL;
}

static bool has_layer(const cot_expert_map *map, int32_t layer, int32_t *row)
{
    for (*row = 0; *row < map->n_layers; (*row)++)
        if (map->layers[*row] == layer) return true;
    return false;
}

int32_t *cot_map_ranks(const cot_expert_map *map, const cot_trace *trace, const char *path)
{
    const size_t E = (size_t)trace->n_experts;
    bool replicas = false;
    if (map->n_experts != trace->n_experts) {
        cot_complain("'%s' places %" PRId32 " experts, the trace has %" PRId32, path, map->n_experts,
                     trace->n_experts);
        return NULL;
    }
    int32_t *rank = malloc((size_t)trace->n_layers * E * sizeof *rank);
    if (!rank) {
        cot_complain("out of memory for the ranks of experts");
        return NULL;
    }
    for (int32_t l = 0; l < trace->n_layers; l++) {
        int32_t row;
        if (!has_layer(map, trace->layers[l], &row)) {
            cot_complain("'%s' has no layer %" PRId32 ", the trace does", path, trace->layers[l]);
            free(rank);
            return NULL;
        }
        const int32_t slots = map->n_ranks * map->slots_per_rank;
        const int32_t *slot = map->expert + (size_t)row * (size_t)slots;
        for (size_t e = 0; e < E; e++) rank[(size_t)l * E + e] = -1;
        for (int32_t i = 0; i < slots; i++) {
            if (slot[i] < 0) continue;
            int32_t *one = &rank[(size_t)l * E + (size_t)slot[i]];
            replicas |= *one >= 0;
            if (*one < 0) *one = i / map->slots_per_rank;
        }
    }
    if (replicas) cot_complain("note: of an expert's replicas in '%s' the first counts", path);
    return rank;
}
