/* TensorRT-LLM's expert statistics: a folder with meta_info.json and, a file a rank, rankN.safetensors whose tensors
 * "ITERATION_LAYER" [E] count how many of that rank's tokens chose each expert. Layers carry the model's own numbers. */
#include "routing/load/reader.h"

#include "base/error.h"
#include "base/safetensors.h"
#include "routing/ids.h"
#include "routing/scan.h"
#include "routing/store.h"
#include "routing/torch/value.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct statistics {
    const cot_load_files *files;
    cot_safetensors *file; // [files->count]
    size_t opened;
    int32_t *rank; // [files->count]
    int32_t largest_rank;
    int32_t *layers; // [n_layers] ascending
    int64_t n_layers, experts;
} statistics;

/* "rank12.safetensors" -> 12; false for any other name. */
static bool rank_of(const char *path, int32_t *rank)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    uint32_t n;
    if (strncmp(name, "rank", 4) != 0) return false;
    cot_scan scan = {name + 4, name + strlen(name)};
    if (!cot_scan_number(&scan, COT_LOAD_MAX_SOURCES - 1, &n) || strcmp(scan.at, ".safetensors") != 0)
        return false;
    *rank = (int32_t)n;
    return true;
}

bool cot_load_is_tensorrt(const char *name)
{
    int32_t rank;
    return rank_of(name, &rank);
}

/* "ITERATION_LAYER" */
static bool layer_of(const char *key, int32_t *layer)
{
    uint32_t iteration, n;
    cot_scan scan = {key, key + strlen(key)};
    if (!cot_scan_number(&scan, INT32_MAX, &iteration) || !cot_scan_char(&scan, '_') ||
        !cot_scan_number(&scan, INT32_MAX, &n) || scan.at != scan.end)
        return false;
    *layer = (int32_t)n;
    return true;
}

/* Opens the files; checks every tensor's name and shape; collects the layers. */
static cot_status open_files(statistics *s, cot_error *error)
{
    const cot_load_files *files = s->files;
    size_t tensors = 0;
    for (size_t i = 0; i < files->count; i++) {
        cot_status status = cot_safetensors_open(&s->file[i], files->paths[i], error);
        if (status != COT_OK) return status;
        s->opened++;
        tensors += s->file[i].count;
        if (!rank_of(files->paths[i], &s->rank[i]) && files->count > 1)
            return cot_fail(error, COT_MALFORMED, "'%s' is not named rank<number>.safetensors",
                            files->paths[i]);
        for (size_t j = 0; j < i; j++)
            if (s->rank[j] == s->rank[i])
                return cot_fail(error, COT_MALFORMED, "'%s' and '%s' are of one rank", files->paths[j],
                                files->paths[i]);
        if (s->rank[i] > s->largest_rank) s->largest_rank = s->rank[i];
    }
    if (!(s->layers = malloc((tensors ? tensors : 1) * sizeof *s->layers)))
        return cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", files->paths[0]);
    for (size_t i = 0; i < files->count; i++)
        for (size_t t = 0; t < s->file[i].count; t++) {
            const cot_tensor *tensor = &s->file[i].tensors[t];
            if (!layer_of(tensor->name, &s->layers[s->n_layers]) || tensor->dims != 1)
                return cot_fail(
                    error, COT_MALFORMED,
                    "'%s': tensor '%.60s' is no expert statistic, expected '<iteration>_<layer>' of one "
                    "dimension",
                    files->paths[i], tensor->name);
            if (s->n_layers && tensor->shape[0] != s->experts)
                return cot_fail(error, COT_MALFORMED,
                                "'%s': tensor '%s' counts %" PRId64 " experts, others %" PRId64,
                                files->paths[i], tensor->name, tensor->shape[0], s->experts);
            s->experts = tensor->shape[0];
            s->n_layers++;
        }
    if (s->n_layers) s->n_layers = cot_ids_sort(s->layers, s->n_layers);
    if (!s->n_layers || s->n_layers > COT_TRACE_MAX_LAYERS || s->experts < 1 ||
        s->experts > COT_TRACE_MAX_EXPERTS)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': statistics of %" PRId64 " layers and %" PRId64 " experts", files->paths[0],
                        s->n_layers, s->experts);
    return COT_OK;
}

/* Adds the tensors up; `known`: by rank. */
static cot_status add(cot_load_counts *load, const statistics *s, bool known, cot_error *error)
{
    for (size_t i = 0; i < s->opened; i++)
        for (size_t t = 0; t < s->file[i].count; t++) {
            const cot_tensor *tensor = &s->file[i].tensors[t];
            const uint8_t *at = tensor->data;
            int32_t layer = 0;
            layer_of(tensor->name, &layer);
            int64_t l = cot_ids_find(s->layers, s->n_layers, layer), source = known ? s->rank[i] : 0;
            double *to = load->tokens + (l * load->n_sources + source) * s->experts, n;
            for (int64_t e = 0; e < s->experts; e++, at += cot_dtype_bytes(tensor->dtype)) {
                if (!cot_torch_number(&n, tensor->dtype, at) || !(n >= 0) || isinf(n))
                    return cot_fail(error, COT_MALFORMED, "'%s': tensor '%s' holds no numbers of 0 or more",
                                    s->files->paths[i], tensor->name);
                to[e] += n;
            }
        }
    return COT_OK;
}

/* meta_info.json beside the files, where there is one, says K and must agree on E. */
static cot_status read_meta(cot_load_counts *load, const char *path, cot_error *error)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup("."), *name, *text;
    size_t bytes;
    name = folder ? cot_path_join(folder, "meta_info.json") : NULL;
    free(folder);
    if (!name) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", path);
    cot_status status = cot_file_read(&text, &bytes, name, 1 << 20, error);
    if (status == COT_OK) {
        json_error_t json_error;
        json_t *meta = json_loadb(text, bytes, 0, &json_error);
        json_int_t E = json_integer_value(json_object_get(meta, "num_experts"));
        json_int_t K = json_integer_value(json_object_get(meta, "num_experts_per_token"));
        if (!meta || E != load->n_experts || K < 1 || K > E)
            status = cot_fail(error, COT_MALFORMED,
                              "'%s' does not say the statistics' %" PRId32 " experts and top-k", name,
                              load->n_experts);
        else
            load->top_k = (int32_t)K;
        json_decref(meta);
        free(text);
    } else if (status == COT_NOT_FOUND) {
        status = COT_OK;
    }
    free(name);
    return status;
}

cot_status cot_load_read_tensorrt(cot_load_counts *load, const cot_load_files *files, cot_error *error)
{
    statistics s = {.files = files};
    cot_status status = COT_OK;
    s.file = calloc(files->count, sizeof *s.file);
    s.rank = calloc(files->count, sizeof *s.rank);
    if (!s.file || !s.rank)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", files->paths[0]);
    if (status == COT_OK) status = open_files(&s, error);
    bool known = files->count > 1; // one rank's tokens are taken for everyone's
    if (status == COT_OK)
        status = cot_load_counts_new(load, (int32_t)s.n_layers, known ? s.largest_rank + 1 : 1,
                                     (int32_t)s.experts, error);
    if (status == COT_OK) {
        memcpy(load->layers, s.layers, (size_t)s.n_layers * sizeof *s.layers);
        load->sources_known = known;
        load->from_engine = true;
        status = add(load, &s, known, error);
    }
    if (status == COT_OK) status = read_meta(load, files->paths[0], error);
    for (size_t i = 0; i < s.opened; i++) cot_safetensors_close(&s.file[i]);
    free(s.file);
    free(s.rank);
    free(s.layers);
    return status;
}
