/* expert_weights_<layer>.txt: a document a line, its ids (K a token, one after another, separated by tabs),
 * two tabs, its weights in the same order. K is not in the files: the format has 6. Token ids are not known.
 */
#include "routing/import.h"

#include "base/error.h"
#include "routing/scan.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOP_K = 6, EXPERTS = 64 };

/* The layer that a file's name says; false when it is none of ours. */
static bool layer_of(const char *name, int32_t *layer)
{
    static const char prefix[] = "expert_weights_";
    uint32_t n;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
    cot_scan scan = {name + sizeof prefix - 1, name + strlen(name)};
    if (!cot_scan_number(&scan, INT32_MAX, &n) || strcmp(scan.at, ".txt") != 0) return false;
    *layer = (int32_t)n;
    return true;
}

static int ours(const struct dirent *entry)
{
    int32_t layer;
    return layer_of(entry->d_name, &layer);
}

static int by_layer(const struct dirent **a, const struct dirent **b)
{
    int32_t x = 0, y = 0;
    layer_of((*a)->d_name, &x);
    layer_of((*b)->d_name, &y);
    return x < y ? -1 : x > y;
}

static void free_files(struct dirent **files, int n)
{
    for (int i = 0; i < n; i++) free(files[i]);
    free(files);
}

bool cot_import_is_deepseek(const char *folder)
{
    struct dirent **files = NULL;
    int n = scandir(folder, &files, ours, NULL);
    free_files(files, n);
    return n > 0;
}

/* Counts the documents and their tokens in one layer's text, which fixes the trace's sequences. */
static cot_status count_documents(cot_trace *trace, const cot_import *import, const cot_file_map *map,
                                  const char *path, cot_error *error)
{
    cot_scan scan = cot_scan_file(map);
    const char *text = scan.at, *end = scan.end;
    int64_t lines = 0, K = trace->top_k;
    for (const char *c = text; c < end && (c = memchr(c, '\n', (size_t)(end - c))); c++) lines++;
    int64_t *offsets = cot_trace_alloc(trace, lines + 2, sizeof *offsets), documents = 0;
    if (!offsets) return cot_import_no_memory(import, error);
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text)), *line_end = newline ? newline : end;
        const char *gap = memmem(text, (size_t)(line_end - text), "\t\t", 2);
        int64_t ids = 1;
        if (!gap)
            return cot_fail(error, COT_MALFORMED,
                            "'%s' line %" PRId64 " has no two tabs between ids and weights", path,
                            documents + 1);
        for (const char *c = text; c < gap; c++) ids += *c == '\t';
        if (ids % K)
            return cot_fail(error, COT_MALFORMED,
                            "'%s' line %" PRId64 " has %" PRId64 " ids, no multiple of the %" PRId64
                            " a token has%s",
                            path, documents + 1, ids, K,
                            import->options->top_k ? "" : ", unless another top-k is given (--top-k)");
        offsets[documents + 1] = offsets[documents] + ids / K;
        documents++;
        text = newline ? newline + 1 : end;
    }
    if (!documents) return cot_fail(error, COT_MALFORMED, "'%s' holds no documents", path);
    trace->sequence_offsets = offsets;
    trace->n_sequences = documents;
    trace->n_tokens = offsets[documents];
    return COT_OK;
}

static cot_status bad_document(const char *path, int64_t line, const char *what, int64_t i, int64_t expected,
                               cot_error *error)
{
    return cot_fail(error, COT_MALFORMED,
                    "'%s' line %" PRId64 ": expected %" PRId64
                    " %s as in the first layer, bad at number %" PRId64,
                    path, line, expected, what, i + 1);
}

/* Reads one layer's text into experts and weights [T][K]. */
static cot_status read_layer(const cot_trace *trace, const cot_file_map *map, const char *path,
                             uint16_t *experts, uint16_t *weights, uint32_t *largest, cot_error *error)
{
    cot_scan scan = cot_scan_file(map);
    for (int64_t s = 0; s < trace->n_sequences; s++) {
        int64_t begin = trace->sequence_offsets[s] * trace->top_k,
                n = trace->sequence_offsets[s + 1] * trace->top_k - begin;
        if (scan.at == scan.end)
            return cot_fail(error, COT_MALFORMED, "'%s' has %" PRId64 " documents, the first layer %" PRId64,
                            path, s, trace->n_sequences);
        for (int64_t i = 0; i < n; i++) {
            uint32_t id;
            if ((i && !cot_scan_char(&scan, '\t')) || !cot_scan_number(&scan, COT_TRACE_MAX_EXPERTS - 1, &id))
                return bad_document(path, s + 1, "ids", i, n, error);
            if (id > *largest) *largest = id;
            experts[begin + i] = (uint16_t)id;
        }
        if (!cot_scan_char(&scan, '\t') || !cot_scan_char(&scan, '\t'))
            return bad_document(path, s + 1, "ids", n, n, error);
        for (int64_t i = 0; i < n; i++) {
            double weight;
            if ((i && !cot_scan_char(&scan, '\t')) || !cot_scan_decimal(&scan, &weight))
                return bad_document(path, s + 1, "weights", i, n, error);
            weights[begin + i] = cot_f32_to_f16((float)weight);
        }
        if (!cot_scan_line_end(&scan)) return bad_document(path, s + 1, "weights", n, n, error);
    }
    if (scan.at == scan.end) return COT_OK;
    return cot_fail(error, COT_MALFORMED, "'%s' has more than the %" PRId64 " documents of the first layer",
                    path, trace->n_sequences);
}

/* Layer numbers, ascending and distinct, and the size of all files. */
static cot_status list_layers(cot_trace *trace, cot_import *import, struct dirent **files, int n,
                              cot_error *error)
{
    int32_t *layers = cot_trace_alloc(trace, n, sizeof *layers);
    if (!layers) return cot_import_no_memory(import, error);
    if (n > COT_TRACE_MAX_LAYERS)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' has %d layers, at most %d are read", import->path, n,
                        COT_TRACE_MAX_LAYERS);
    for (int l = 0; l < n; l++) {
        layer_of(files[l]->d_name, &layers[l]);
        if (l && layers[l] == layers[l - 1])
            return cot_fail(error, COT_MALFORMED, "'%s' has two files of layer %" PRId32 ", '%s' and '%s'",
                            import->path, layers[l], files[l - 1]->d_name, files[l]->d_name);
    }
    trace->layers = layers;
    trace->n_layers = n;
    trace->top_k = import->options->top_k ? import->options->top_k : TOP_K;
    return COT_OK;
}

/* All layers; `*experts` [L][T][K] is malloc'd and the caller's. */
static cot_status read_layers(cot_trace *trace, cot_import *import, struct dirent **files, uint16_t **experts,
                              uint32_t *largest, cot_error *error)
{
    uint16_t *weights = NULL;
    cot_status status = COT_OK;
    for (int32_t l = 0; l < trace->n_layers && status == COT_OK; l++) {
        cot_file_map map = {0};
        char *path = cot_path_join(import->path, files[l]->d_name);
        status = path ? cot_file_map_open(&map, path, error) : cot_import_no_memory(import, error);
        if (status == COT_OK && !l) {
            import->total_bytes = map.bytes * (uint64_t)trace->n_layers; // they are much alike
            status = count_documents(trace, import, &map, path, error);
            int64_t cells = cot_product(trace->n_layers, trace->n_tokens, trace->top_k);
            if (status == COT_OK && (!(*experts = calloc((size_t)cells, sizeof **experts)) ||
                                     !(weights = cot_trace_alloc(trace, cells, sizeof *weights))))
                status = cot_import_no_memory(import, error);
        }
        int64_t row = l * trace->n_tokens * trace->top_k;
        if (status == COT_OK)
            status = read_layer(trace, &map, path, *experts + row, weights + row, largest, error);
        cot_import_advance(import, map.bytes);
        cot_file_map_close(&map);
        free(path);
    }
    trace->weights = weights;
    return status;
}

cot_status cot_import_deepseek(cot_trace *trace, cot_import *import, cot_error *error)
{
    struct dirent **files = NULL;
    uint16_t *experts = NULL;
    uint32_t largest = 0;
    int n = scandir(import->path, &files, ours, by_layer);
    cot_status status = COT_OK;
    if (n < 0)
        status = cot_fail(error, errno == ENOENT ? COT_NOT_FOUND : COT_IO, "cannot open '%s': %s",
                          import->path, strerror(errno));
    else if (!n)
        status = cot_fail(error, COT_NOT_FOUND, "'%s' holds no expert_weights_<layer>.txt", import->path);
    else
        status = list_layers(trace, import, files, n, error);
    if (status == COT_OK) status = read_layers(trace, import, files, &experts, &largest, error);
    free_files(files, n);
    if (status == COT_OK) {
        cot_import_note(import, "%" PRId32 " experts a token", trace->top_k);
        status = cot_import_experts(trace, import, largest, EXPERTS, error);
    }
    if (status != COT_OK) {
        free(experts);
        return status;
    }
    status = cot_import_set_experts(trace, experts, error);
    int32_t *ids = cot_trace_alloc(trace, trace->n_tokens, sizeof *ids);
    if (!ids) return cot_import_no_memory(import, error);
    memset(ids, 0xff, (size_t)trace->n_tokens * sizeof *ids); // -1 everywhere
    trace->token_ids = ids;
    return status;
}
