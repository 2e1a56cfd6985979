/* ids.u8 uint8 [T][L][K] and probs.bf16 uint16 [T][L][K], with index.jsonl: an object a line, each a
 * generation, of "row0" (its first row), "rows" and "tokens" (the rows' token strings). Neither L nor K is in
 * the files: the format has K = 4, which leaves L. */
#include "routing/import.h"

#include "base/error.h"
#include "routing/ids.h"
#include "routing/scan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TOP_K = 4, EXPERTS = 32 };

typedef struct index_data {
    cot_string_table strings;
    int32_t *ids;     // [tokens]
    int64_t *offsets; // [sequences + 1]
    int64_t tokens, sequences, ids_room, offsets_room;
} index_data;

static void index_free(index_data *index)
{
    cot_string_table_free(&index->strings);
    free(index->ids);
    free(index->offsets);
}

static bool reserve(index_data *index, int64_t tokens)
{
    if (index->tokens + tokens > index->ids_room || !index->ids) {
        int64_t room = (index->tokens + tokens) * 2 + 64;
        int32_t *ids = realloc(index->ids, (size_t)room * sizeof *ids);
        if (!ids) return false;
        index->ids = ids;
        index->ids_room = room;
    }
    if (index->sequences + 2 > index->offsets_room) {
        int64_t room = (index->sequences + 2) * 2;
        int64_t *offsets = realloc(index->offsets, (size_t)room * sizeof *offsets);
        if (!offsets) return false;
        index->offsets = offsets;
        index->offsets_room = room;
        offsets[0] = 0;
    }
    return true;
}

/* Appends the generation that one line of the index describes. */
static cot_status read_generation(index_data *index, const json_t *line, int64_t n, const char *path,
                                  cot_error *error)
{
    const json_t *row0 = json_object_get(line, "row0"), *rows = json_object_get(line, "rows");
    const json_t *tokens = json_object_get(line, "tokens");
    if (!json_is_integer(row0) || !json_is_integer(rows) || !json_is_array(tokens))
        return cot_fail(error, COT_MALFORMED, "'%s' line %" PRId64 " lacks row0, rows or tokens", path, n);
    if (json_integer_value(row0) != index->tokens)
        return cot_fail(error, COT_MALFORMED, "'%s' line %" PRId64 " begins at row %lld, expected %" PRId64,
                        path, n, (long long)json_integer_value(row0), index->tokens);
    size_t count = json_array_size(tokens);
    if (json_integer_value(rows) < 0 || (uint64_t)json_integer_value(rows) != count)
        return cot_fail(error, COT_MALFORMED, "'%s' line %" PRId64 " has %lld rows but %zu tokens", path, n,
                        (long long)json_integer_value(rows), count);
    if (!reserve(index, (int64_t)count))
        return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", path);
    for (size_t i = 0; i < count; i++) {
        const json_t *token = json_array_get(tokens, i);
        if (!json_is_string(token))
            return cot_fail(error, COT_MALFORMED, "'%s' line %" PRId64 ": token %zu is no string", path, n,
                            i);
        int32_t id = cot_string_number(&index->strings, json_string_value(token), json_string_length(token));
        if (id < 0) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", path);
        index->ids[index->tokens++] = id;
    }
    index->offsets[++index->sequences] = index->tokens;
    return COT_OK;
}

static cot_status read_index(index_data *index, const cot_file_map *map, const char *path, cot_import *import,
                             cot_error *error)
{
    cot_scan scan = cot_scan_file(map);
    const char *text = scan.at, *end = scan.end;
    cot_status status = reserve(index, 0) ? COT_OK : cot_import_no_memory(import, error);
    for (int64_t n = 1; text < end && status == COT_OK; n++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((newline ? newline : end) - text);
        json_error_t detail;
        json_t *line = json_loadb(text, length, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &detail);
        if (!json_is_object(line))
            status = cot_fail(error, COT_MALFORMED, "'%s' line %" PRId64 " is no JSON object: %s", path, n,
                              line ? "" : detail.text);
        else
            status = read_generation(index, line, n, path, error);
        json_decref(line);
        cot_import_advance(import, length);
        text += newline ? length + 1 : length;
    }
    return status;
}

/* [T][L][K] -> [L][T][K], bf16 to half precision on the way. */
static cot_status seat(cot_trace *trace, cot_import *import, const uint8_t *ids, const uint8_t *probs,
                       cot_error *error)
{
    int64_t L = trace->n_layers, T = trace->n_tokens, K = trace->top_k, cells = L * T * K;
    uint8_t *experts = cot_trace_alloc(trace, cells, sizeof *experts);
    uint16_t *weights = cot_trace_alloc(trace, cells, sizeof *weights);
    if (!experts || !weights) return cot_import_no_memory(import, error);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t l = 0; l < L; l++) {
            int64_t from = (t * L + l) * K, to = (l * T + t) * K;
            for (int64_t k = 0; k < K; k++) {
                const uint8_t *p = probs + 2 * (from + k);
                experts[to + k] = ids[from + k];
                weights[to + k] = cot_f32_to_f16(cot_bf16_to_f32((uint16_t)(p[0] | p[1] << 8)));
            }
        }
        if (t % 4096 == 0) cot_import_advance(import, (uint64_t)(3 * L * K * (T - t < 4096 ? T - t : 4096)));
    }
    trace->experts_u8 = experts;
    trace->weights = weights;
    return COT_OK;
}

/* Sets the trace's shape from the index and the arrays' sizes. */
static cot_status set_shape(cot_trace *trace, const cot_import *import, const index_data *index,
                            const cot_file_map *ids, const cot_file_map *probs, cot_error *error)
{
    int64_t T = index->tokens, K = import->options->top_k ? import->options->top_k : TOP_K;
    int64_t row = T ? (int64_t)(ids->bytes / (size_t)T) : 0, L = row / K;
    if (probs->bytes / 2 != ids->bytes || probs->bytes % 2)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': probs.bf16 has %zu bytes, expected twice the %zu of ids.u8", import->path,
                        probs->bytes, ids->bytes);
    if (!T) return cot_fail(error, COT_MALFORMED, "'%s': index.jsonl has no tokens", import->path);
    if (L < 1 || L > COT_TRACE_MAX_LAYERS || (uint64_t)T * (uint64_t)(L * K) != ids->bytes)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': the %zu bytes of ids.u8 are no whole layers of %" PRId64
                        " tokens with %" PRId64 " experts each",
                        import->path, ids->bytes, T, K);
    cot_import_note(import, "%" PRId64 " layers of %" PRId64 " experts a token", L, K);
    uint8_t largest = 0;
    for (size_t i = 0; i < ids->bytes; i++) largest = ids->data[i] > largest ? ids->data[i] : largest;
    trace->top_k = (int32_t)K;
    trace->n_layers = (int32_t)L;
    trace->n_tokens = T;
    trace->n_sequences = index->sequences;
    return cot_import_experts(trace, import, largest, EXPERTS, error);
}

static cot_status set_index(cot_trace *trace, cot_import *import, index_data *index, cot_error *error)
{
    int32_t *layers = cot_trace_alloc(trace, trace->n_layers, sizeof *layers);
    if (!layers) return cot_import_no_memory(import, error);
    for (int32_t l = 0; l < trace->n_layers; l++) layers[l] = l;
    trace->layers = layers;
    trace->token_ids = index->ids;
    trace->sequence_offsets = index->offsets;
    trace->n_strings = index->strings.n;
    trace->string_offsets = index->strings.offsets;
    trace->strings = index->strings.bytes;
    bool kept = cot_trace_adopt(trace, index->ids);
    kept &= cot_trace_adopt(trace, index->offsets);
    kept &= cot_trace_adopt(trace, index->strings.offsets);
    kept &= cot_trace_adopt(trace, index->strings.bytes);
    index->ids = NULL;
    index->offsets = index->strings.offsets = NULL;
    index->strings.bytes = NULL;
    if (!kept) return cot_import_no_memory(import, error);
    cot_import_note(import, "%" PRId64 " token strings numbered by first appearance", trace->n_strings);
    return COT_OK;
}

cot_status cot_import_gpt_oss(cot_trace *trace, cot_import *import, cot_error *error)
{
    enum { IDS, PROBS, INDEX, FILES };
    static const char *const names[FILES] = {"ids.u8", "probs.bf16", "index.jsonl"};
    char *paths[FILES] = {0};
    cot_file_map maps[FILES] = {0};
    index_data index = {0};
    cot_status status = COT_OK;
    for (int i = 0; i < FILES && status == COT_OK; i++) {
        if (!(paths[i] = cot_path_join(import->path, names[i])))
            status = cot_import_no_memory(import, error);
        else
            status = cot_file_map_open(&maps[i], paths[i], error);
        import->total_bytes += maps[i].bytes;
    }
    if (status == COT_OK) status = read_index(&index, &maps[INDEX], paths[INDEX], import, error);
    if (status == COT_OK) status = set_shape(trace, import, &index, &maps[IDS], &maps[PROBS], error);
    if (status == COT_OK) status = set_index(trace, import, &index, error);
    if (status == COT_OK) status = seat(trace, import, maps[IDS].data, maps[PROBS].data, error);
    for (int i = 0; i < FILES; i++) {
        cot_file_map_close(&maps[i]);
        free(paths[i]);
    }
    index_free(&index);
    return status;
}
