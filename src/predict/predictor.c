#include "predict/predictor.h"

#include "base/error.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

const char *const cot_predict_method_names[COT_PREDICT_METHODS] = {
    "global", "token-table", "device-sequence", "algorithm-2", "context-prefill", "context-decode"};

void *cot_predictor_alloc(cot_predictor *p, int64_t count, size_t bytes)
{
    void *block = count < 0 ? NULL : calloc(count ? (size_t)count : 1, bytes);
    void **blocks = block ? realloc(p->blocks, (p->n_blocks + 1) * sizeof *blocks) : NULL;
    if (!blocks) {
        free(block);
        return NULL;
    }
    p->blocks = blocks;
    return p->blocks[p->n_blocks++] = block;
}

void cot_predictor_close(cot_predictor *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_blocks; i++) free(p->blocks[i]);
    free(p->blocks);
    cot_safetensors_close(&p->file);
    free(p);
}

int64_t cot_sequence_rows(int32_t n_ranks, int32_t order)
{
    int64_t rows = 1, power = 1;
    for (int32_t j = 0; j < order; j++) rows += power *= n_ranks;
    return rows;
}

int32_t cot_sequence_order(const cot_predictor *p, int32_t l)
{
    int32_t order = p->order < l ? p->order : l;
    while (order > 0 && cot_sequence_rows(p->n_ranks, order) > 1 + p->n_ranks &&
           cot_sequence_rows(p->n_ranks, order) * p->n_experts > COT_SEQUENCE_CELLS)
        order--;
    return order;
}

const cot_predictor_context *cot_predictor_context_of(const cot_predictor *p, cot_predict_method method)
{
    const int form = (int)method - COT_PREDICT_CONTEXT_PREFILL;
    return form >= 0 && form < COT_CONTEXT_FORMS && p->has_context[form] ? &p->context[form] : NULL;
}

int cot_predictor_tables(cot_predictor_table *tables, cot_predictor *p)
{
    const int64_t L = p->n_layers, E = p->n_experts, N = p->n_tokens;
    const int64_t sequences = p->sequence_first ? p->sequence_first[L] : 0;
    int n = 0;
    cot_predictor_context *prefill = p->has_context[0] ? &p->context[0] : NULL,
                          *decode = p->has_context[1] ? &p->context[1] : NULL;
#define TABLE_NAMED(text, member, type, count, a, b, c, reader)                                              \
    tables[n++] = (cot_predictor_table)                                                                      \
    {                                                                                                        \
        text, type, count, {a, b, c}, (const void **)&(member), reader                                       \
    }
#define TABLE(member, ...) TABLE_NAMED(#member, p->member, __VA_ARGS__)
#define CONTEXTS(member, ...)                                                                                \
    if (prefill)                                                                                             \
        TABLE_NAMED("context_prefill_" #member, prefill->member, __VA_ARGS__, COT_PREDICT_CONTEXT_PREFILL);  \
    if (decode) TABLE_NAMED("context_" #member, decode->member, __VA_ARGS__, COT_PREDICT_CONTEXT_DECODE)
    /* widest elements first, so that every table lies aligned in the file */
    if (p->has_tokens) TABLE(token_offsets, COT_I64, 1, L * N + 1, 0, 0, COT_PREDICT_TOKEN_TABLE);
    if (p->n_string_bytes >= 0) TABLE(token_string_offsets, COT_I64, 1, N + 1, 0, 0, COT_PREDICT_METHODS);
    CONTEXTS(scale, COT_F32, 1, L, 0, 0);
    if (p->has_tokens) TABLE(token_ids, COT_I32, 1, N, 0, 0, COT_PREDICT_METHODS);
    if (p->n_ids) TABLE(id_row, COT_I32, 1, p->n_ids, 0, 0, COT_PREDICT_METHODS);
    if (p->has_tokens) TABLE(token_ranks, COT_U16, 3, N, L, 2, COT_PREDICT_TOKEN_TABLE);
    if (p->has_sequences) TABLE(sequence_ranks, COT_U16, 2, sequences, 2, 0, COT_PREDICT_DEVICE_SEQUENCE);
    TABLE(layer_ranks, COT_U16, 2, L, 2, 0, COT_PREDICT_GLOBAL);
    TABLE(layer_shares, COT_U16, 2, L, E, 0, COT_PREDICT_GLOBAL);
    if (p->has_tokens) {
        TABLE(token_experts, COT_U16, 1, p->n_entries, 0, 0, COT_PREDICT_TOKEN_TABLE);
        TABLE(token_shares, COT_U16, 1, p->n_entries, 0, 0, COT_PREDICT_TOKEN_TABLE);
        TABLE(token_frequency, COT_U16, 1, N, 0, 0, COT_PREDICT_METHODS);
    }
    CONTEXTS(bias, COT_I16, 2, L, E, 0);
    CONTEXTS(tokens, COT_I8, 3, L, N + 1, E);
    CONTEXTS(before, COT_I8, 3, L, N + 1, E);
    CONTEXTS(own, COT_I8, 3, L, 2 * E, E);
    if (decode)
        TABLE_NAMED("context_earlier", decode->earlier, COT_I8, 3, L, 2 * E, E, COT_PREDICT_CONTEXT_DECODE);
    if (p->has_sequences) TABLE(sequence_shares, COT_U8, 2, sequences, E, 0, COT_PREDICT_DEVICE_SEQUENCE);
    TABLE_NAMED("expert_rank", p->expert_rank_u8, COT_U8, 2, L, E, 0, COT_PREDICT_METHODS);
    if (p->chosen) TABLE(chosen, COT_U8, 1, p->n_sequences, 0, 0, COT_PREDICT_METHODS);
    if (p->n_string_bytes >= 0) TABLE(token_strings, COT_U8, 1, p->n_string_bytes, 0, 0, COT_PREDICT_METHODS);
#undef CONTEXTS
#undef TABLE
#undef TABLE_NAMED
    return n;
}

static void list_ranks(cot_predictor *p, int64_t l)
{
    const int32_t E = p->n_experts, D = p->n_ranks;
    const uint8_t *rank = p->expert_rank_u8 + l * E;
    int32_t *first = p->rank_first + l * (D + 1), next[COT_TRACE_MAX_RANKS];
    for (int32_t e = 0; e < E; e++) first[rank[e] + 1]++;
    for (int32_t d = 0; d < D; d++) {
        next[d] = first[d];
        first[d + 1] += first[d];
    }
    for (int32_t e = 0; e < E; e++) p->rank_experts[l * E + next[rank[e]]++] = (uint16_t)e;
}

cot_status cot_predictor_finish(cot_predictor *p, cot_error *error)
{
    const int64_t L = p->n_layers, cells = L * p->n_experts;
    p->expert_rank = cot_predictor_alloc(p, cells, sizeof *p->expert_rank);
    p->sequence_first = cot_predictor_alloc(p, L + 1, sizeof *p->sequence_first);
    p->rank_experts = cot_predictor_alloc(p, cells, sizeof *p->rank_experts);
    p->rank_first = cot_predictor_alloc(p, L * (p->n_ranks + 1), sizeof *p->rank_first);
    if (!p->expert_rank || !p->sequence_first || !p->rank_experts || !p->rank_first)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a predictor of %lld experts",
                        (long long)cells);
    for (int64_t i = 0; i < cells; i++) p->expert_rank[i] = p->expert_rank_u8[i];
    for (int64_t l = 0; l < L; l++) list_ranks(p, l);
    for (int32_t l = 0; l < L; l++)
        p->sequence_first[l + 1] =
            p->sequence_first[l] + cot_sequence_rows(p->n_ranks, cot_sequence_order(p, l));
    return cot_predictor_set_isa(p, NULL, error);
}

cot_status cot_predictor_set_isa(cot_predictor *p, const char *isa, cot_error *error)
{
    const cot_status status = cot_kernels_choose(&p->kernels, isa, error);
    return status == COT_OK ? cot_lookup_kernels_choose(&p->lookup, isa, error) : status;
}

void cot_predictor_describe(cot_predictor_info *info, const cot_predictor *p)
{
    cot_predictor_table tables[COT_PREDICTOR_TABLES];
    const int n = cot_predictor_tables(tables, (cot_predictor *)(uintptr_t)p); // which it only reads
    *info = (cot_predictor_info){.model = p->model,
                                 .model_hash = p->model_hash,
                                 .n_layers = p->n_layers,
                                 .n_experts = p->n_experts,
                                 .top_k = p->top_k,
                                 .n_ranks = p->n_ranks,
                                 .order = p->order,
                                 .layers = p->layers,
                                 .expert_rank = p->expert_rank,
                                 .trace_hash = p->trace_hash,
                                 .seed = p->seed,
                                 .chosen = p->chosen,
                                 .n_sequences = p->n_sequences,
                                 .token_ids = p->token_ids,
                                 .token_frequency = p->token_frequency,
                                 .n_tokens = p->n_tokens,
                                 .token_strings = (const char *)p->token_strings,
                                 .token_string_offsets = p->token_string_offsets};
    info->has[COT_PREDICT_GLOBAL] = true;
    info->has[COT_PREDICT_TOKEN_TABLE] = p->has_tokens;
    info->has[COT_PREDICT_DEVICE_SEQUENCE] = p->has_sequences;
    info->has[COT_PREDICT_ALGORITHM_2] = p->has_tokens && p->has_sequences;
    info->has[COT_PREDICT_CONTEXT_PREFILL] = p->has_context[0];
    info->has[COT_PREDICT_CONTEXT_DECODE] = p->has_context[1];
    for (int i = 0; i < n; i++) {
        if (tables[i].method == COT_PREDICT_METHODS) continue;
        uint64_t bytes = cot_dtype_bytes(tables[i].dtype);
        for (int d = 0; d < tables[i].dims; d++) bytes *= (uint64_t)tables[i].shape[d];
        info->table_bytes[tables[i].method] += bytes;
    }
    if (info->has[COT_PREDICT_ALGORITHM_2])
        info->table_bytes[COT_PREDICT_ALGORITHM_2] =
            info->table_bytes[COT_PREDICT_TOKEN_TABLE] + info->table_bytes[COT_PREDICT_DEVICE_SEQUENCE];
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    hash = cot_mix64(hash ^ bytes);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, at + i, bytes - i < 8 ? bytes - i : 8);
        hash = cot_mix64(hash ^ word);
    }
    return hash;
}

uint64_t cot_trace_hash(const cot_trace *trace)
{
    const int64_t L = trace->n_layers, E = trace->n_experts, K = trace->top_k, T = trace->n_tokens;
    const int64_t sizes[] = {trace->kind, L, E, K, T, trace->n_sequences};
    uint64_t hash = hash_bytes(0, sizes, sizeof sizes);
    hash = hash_bytes(hash, trace->layers, (size_t)L * sizeof *trace->layers);
    if (trace->kind == COT_TRACE_COUNTS) {
        hash = hash_bytes(hash, trace->token_ids, (size_t)T * sizeof *trace->token_ids);
        return hash_bytes(hash, trace->counts, (size_t)(L * T * E) * sizeof *trace->counts);
    }
    hash = hash_bytes(hash, trace->sequence_offsets, (size_t)(trace->n_sequences + 1) * sizeof(int64_t));
    // By value: the same routing may be stored in one byte an expert or in two.
    enum { BLOCK = 4096 };
    uint16_t block[BLOCK];
    for (int64_t first = 0, n = 0; first < L * T * K; first += n) {
        n = L * T * K - first < BLOCK ? L * T * K - first : BLOCK;
        for (int64_t i = 0; i < n; i++)
            block[i] = trace->experts_u8 ? trace->experts_u8[first + i] : trace->experts_u16[first + i];
        hash = hash_bytes(hash, block, (size_t)n * sizeof *block);
    }
    return hash;
}
