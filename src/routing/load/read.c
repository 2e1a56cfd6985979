#include "routing/load/reader.h"

#include "base/error.h"
#include "routing/scan.h"
#include "routing/torch/file.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum format { TRACE, SGLANG, VLLM, TENSORRT, CSV, COUNT, FORMATS };

const cot_load_format cot_load_formats[FORMATS + 1] = {
    [TRACE] = {"trace", "a routing trace, or whatever coterie trace convert makes one of"},
    [SGLANG] = {"sglang", "files of SGLang's expert distribution recorder (.pt), one or one a rank"},
    [VLLM] = {"vllm", "JSON lines of vLLM's eplb_load_stats"},
    [TENSORRT] = {"tensorrt-llm", "TensorRT-LLM's expert statistics: a folder of rank<number>.safetensors"},
    [CSV] =
        {"csv",
         "counts separated by commas or semicolons with a header: layer,expert,tokens and perhaps source"},
    [COUNT] = {"logical_count",
               "counts [layers][experts] or [passes][layers][experts]: JSON (logical_count, or the "
               "matrix alone) or .npy"},
};

void cot_load_note(const cot_load_files *files, const char *format, ...)
{
    char line[256];
    if (!files->options->say) return;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    files->options->say(files->options->context, line);
}

cot_status cot_load_want_one_file(const cot_load_files *files, cot_error *error)
{
    if (files->count == 1) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' and '%s' are two recordings, expected one",
                    files->paths[0], files->paths[1]);
}

cot_status cot_load_number_moe_layers(cot_load_counts *load, const cot_load_files *files, cot_error *error)
{
    int32_t first = files->options->first_layer;
    if (first > INT32_MAX - load->n_layers)
        return cot_fail(error, COT_INVALID_ARGUMENT, "layers from %" PRId32 " on are beyond any model",
                        first);
    for (int32_t l = 0; l < load->n_layers; l++) load->layers[l] = first + l;
    if (!first)
        cot_load_note(
            files,
            "'%s' counts MoE layers: its row 0 is taken for the model's layer 0, unless a first layer "
            "is given",
            files->paths[0]);
    return COT_OK;
}

static cot_status read_trace(cot_load_counts *load, const cot_load_files *files, cot_error *error)
{
    const cot_load_options *o = files->options;
    const cot_trace_import_options import = {.size = sizeof import, .say = o->say, .context = o->context};
    cot_trace trace;
    cot_status status = cot_load_want_one_file(files, error);
    if (status == COT_OK) status = cot_trace_import(&trace, files->paths[0], &import, error);
    if (status != COT_OK) return status;
    status = cot_load_counts_new(load, trace.n_layers, 1, trace.n_experts, error);
    size_t E = (size_t)trace.n_experts;
    uint64_t *row = malloc(E * sizeof *row);
    if (status == COT_OK && !row)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", files->paths[0]);
    for (int32_t l = 0; status == COT_OK && l < trace.n_layers; l++) {
        cot_trace_load(row, &trace, l);
        load->layers[l] = trace.layers[l];
        for (size_t e = 0; e < E; e++) load->tokens[(size_t)l * E + e] = (double)row[e];
    }
    if (status == COT_OK) {
        load->top_k = trace.top_k;
        load->hidden = trace.hidden;
        load->model_hash = trace.model_hash;
    }
    free(row);
    cot_trace_close(&trace);
    return status;
}

/* Whether the first `bytes` of a file hold a word. */
static bool says(const cot_file_map *map, size_t bytes, const char *word)
{
    return memmem(map->data, bytes, word, strlen(word)) != NULL;
}

/* Whether the header of a safetensors file calls it a trace. */
static bool says_trace(const cot_file_map *map)
{
    uint64_t header = 0;
    for (int i = 8; i-- > 0;) header = header << 8 | map->data[i];
    return says(map, header > map->bytes - 8 ? map->bytes : (size_t)header + 8, "coterie.trace");
}

/* Whether `c` is the first that is no blank. */
static bool begins_with(const char *text, size_t bytes, char c)
{
    size_t at = 0;
    while (at < bytes && memchr(" \t\r\n", text[at], 4)) at++;
    return at < bytes && text[at] == c;
}

/* Whether an object is none of vLLM's records, and has counts, or what is a map and no load. */
static bool says_counts(const cot_file_map *map)
{
    return !says(map, map->bytes, "\"record_type\"") &&
           (says(map, map->bytes, "\"logical_count\"") ||
            says(map, map->bytes, "\"physical_to_logical_map\""));
}

/* Whether there are commas or semicolons, and no tab, in the first line that may be a row: a comment or a blank line before it is refused
 * best by the reader of such files. */
static bool looks_like_csv(const char *text, size_t bytes)
{
    const cot_scan row = cot_scan_first_row(text, bytes);
    const size_t length = (size_t)(row.end - row.at);
    return (memchr(row.at, ',', length) || memchr(row.at, ';', length)) && !memchr(row.at, '\t', length);
}

/* What the file is, judged by its first bytes; what is nothing else may be a trace. */
static cot_status recognise(enum format *format, const char *path, cot_error *error)
{
    struct stat info;
    cot_file_map map;
    *format = TRACE;
    if (!stat(path, &info) && S_ISDIR(info.st_mode)) return COT_OK;
    cot_status status = cot_file_map_open(&map, path, error);
    if (status != COT_OK) return status;
    const char *text = (const char *)map.data;
    if (cot_torch_is(map.data, map.bytes))
        *format = SGLANG;
    else if (cot_safetensors_is(map.data, map.bytes))
        *format = says_trace(&map) ? TRACE : TENSORRT;
    else if (cot_load_is_npy(text, map.bytes) || begins_with(text, map.bytes, '['))
        *format = COUNT;
    else if (begins_with(text, map.bytes, '{'))
        *format = says_counts(&map) ? COUNT : VLLM;
    else if (looks_like_csv(text, map.bytes))
        *format = CSV;
    cot_file_map_close(&map);
    return COT_OK;
}

/* Refuses loads that are none; says which layers have no load. */
static cot_status check(const cot_load_counts *load, const cot_load_files *files, cot_error *error)
{
    size_t row = (size_t)load->n_sources * (size_t)load->n_experts;
    int32_t empty = 0, first_empty = 0;
    for (int32_t l = 0; l < load->n_layers; l++) {
        bool any = false;
        for (size_t i = 0; i < row; i++) {
            double tokens = load->tokens[(size_t)l * row + i];
            if (!(tokens >= 0) || isinf(tokens))
                return cot_fail(error, COT_MALFORMED,
                                "'%s': layer %" PRId32
                                ", expert %zu has a load of %g, expected a finite number of "
                                "0 or more",
                                files->paths[0], load->layers[l], i % (size_t)load->n_experts, tokens);
            any |= tokens > 0;
        }
        if (!any && !empty++) first_empty = load->layers[l];
    }
    if (empty == load->n_layers)
        return cot_fail(error, COT_MALFORMED, "'%s' holds no load: all counts are 0", files->paths[0]);
    if (empty)
        cot_load_note(files,
                      "%" PRId32 " of %" PRId32 " layers, layer %" PRId32
                      " the first, have no load: taken for "
                      "dense",
                      empty, load->n_layers, first_empty);
    return COT_OK;
}

static cot_status check_options(const cot_load_options *o, size_t n_paths, cot_error *error)
{
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "load options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (o->top_k < 0 || o->top_k > COT_TRACE_MAX_EXPERTS || o->first_layer < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no load can have top-k %" PRId32 " and first layer %" PRId32, o->top_k,
                        o->first_layer);
    if (!n_paths) return cot_fail(error, COT_INVALID_ARGUMENT, "no file of loads given");
    return COT_OK;
}

cot_status cot_load_counts_read(cot_load_counts *load, const char *const *paths, size_t n_paths,
                                const cot_load_options *options, cot_error *error)
{
    static cot_load_reader *const readers[FORMATS] = {
        [TRACE] = read_trace,        [SGLANG] = cot_load_read_sglang,
        [VLLM] = cot_load_read_vllm, [TENSORRT] = cot_load_read_tensorrt,
        [CSV] = cot_load_read_csv,   [COUNT] = cot_load_read_logical_count};
    const cot_load_options none = {.size = sizeof none};
    cot_load_files files = {.options = options ? options : &none};
    cot_load_paths all = {0};
    enum format format = FORMATS;
    *load = (cot_load_counts){0};
    cot_status status = check_options(files.options, n_paths, error);
    if (status == COT_OK) status = cot_load_paths_open(&all, paths, n_paths, error);
    files.paths = (const char *const *)all.paths;
    files.count = all.count;
    if (status == COT_OK) status = recognise(&format, files.paths[0], error);
    if (status == COT_OK) status = readers[format](load, &files, error);
    if (status == COT_OK) status = check(load, &files, error);
    if (status == COT_OK && files.options->top_k) load->top_k = files.options->top_k;
    if (status == COT_OK && files.options->first_layer && format != VLLM && format != COUNT)
        cot_load_note(&files, "the first layer given is not used: '%s' carries the model's layer numbers",
                      files.paths[0]);
    if (status == COT_OK)
        load->format = cot_load_formats[format].name;
    else
        cot_load_counts_free(load);
    cot_load_paths_close(&all);
    return status;
}
