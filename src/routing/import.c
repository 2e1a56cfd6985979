#include "routing/import.h"

#include "base/error.h"
#include "routing/load/reader.h"
#include "routing/scan.h"
#include "routing/torch/file.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum format { TRACE, GPT_OSS, DEEPSEEK, TABLE, SGLANG, FORMATS };

const cot_trace_format cot_trace_formats[FORMATS + 1] = {
    [TRACE] = {"trace", "a routing trace of Coterie's own"},
    [GPT_OSS] = {"gpt-oss",
                 "a folder of ids.u8 [T][L][4], probs.bf16 (the same) and index.jsonl (the token strings)"},
    [DEEPSEEK] =
        {"deepseek",
         "a folder of expert_weights_<layer>.txt: a document a line, 6 experts a token, then weights"},
    [TABLE] = {"table", "a tab-separated table of layer, expert, token_id and count"},
    [SGLANG] = {"sglang",
                "recordings of SGLang's expert distribution recorder in the mode per_token: a .pt, or a "
                "folder of them, one a rank"},
};

void cot_import_note(const cot_import *import, const char *format, ...)
{
    char line[256];
    if (!import->options->say) return;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    import->options->say(import->options->context, line);
}

void cot_import_advance(cot_import *import, uint64_t bytes)
{
    import->done_bytes += bytes;
    if (import->options->progress)
        import->options->progress(import->options->context, import->done_bytes, import->total_bytes);
}

cot_status cot_import_no_memory(const cot_import *import, cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "cannot import '%s': out of memory", import->path);
}

cot_status cot_import_experts(cot_trace *trace, const cot_import *import, uint32_t largest, uint32_t known,
                              cot_error *error)
{
    uint32_t given = (uint32_t)import->options->n_experts, experts = largest + 1;
    if (given && given < experts)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' names expert %" PRIu32 ", more than the %" PRIu32 " experts given allow",
                        import->path, largest, given);
    if (given)
        experts = given;
    else if (experts < known)
        experts = known;
    trace->n_experts = (int32_t)experts;
    if (given) return COT_OK;
    if (known == experts)
        cot_import_note(import, "%" PRIu32 " experts a layer, as the format's model has", experts);
    else
        cot_import_note(import, "%" PRIu32 " experts a layer, from the largest id that occurs", experts);
    return COT_OK;
}

cot_status cot_import_set_experts(cot_trace *trace, uint16_t *experts, cot_error *error)
{
    size_t n = (size_t)cot_product(trace->n_layers, trace->n_tokens, trace->top_k);
    void *block = experts;
    bool narrow = trace->n_experts <= 256;
    if (narrow) { // in place: element i is written after it is read
        uint8_t *bytes = block;
        for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)experts[i];
        void *smaller = n ? realloc(block, n) : NULL;
        if (smaller) block = smaller;
    }
    if (!cot_trace_adopt(trace, block))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a routing trace");
    if (narrow)
        trace->experts_u8 = block;
    else
        trace->experts_u16 = block;
    return COT_OK;
}

static bool holds(const char *folder, const char *name)
{
    char *path = cot_path_join(folder, name);
    struct stat info;
    bool found = path && !stat(path, &info) && S_ISREG(info.st_mode);
    free(path);
    return found;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return !stat(path, &info) && S_ISDIR(info.st_mode);
}

/* What lies at `path`, judged by the files of a folder or the first bytes of a file. */
static cot_status recognise(enum format *format, const char *path, cot_error *error)
{
    *format = FORMATS;
    if (is_folder(path)) {
        if (holds(path, "ids.u8"))
            *format = GPT_OSS;
        else if (cot_import_is_deepseek(path))
            *format = DEEPSEEK;
        else if (cot_load_has_torch(path))
            *format = SGLANG;
        if (*format != FORMATS) return COT_OK;
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s' is no routing data: the folder holds neither ids.u8 nor "
                        "expert_weights_<layer>.txt nor recordings (.pt)",
                        path);
    }
    cot_file_map map;
    cot_status status = cot_file_map_open(&map, path, error);
    if (status != COT_OK) return status;
    const cot_scan row = cot_scan_first_row((const char *)map.data, map.bytes);
    if (cot_safetensors_is(map.data, map.bytes))
        *format = TRACE;
    else if (cot_torch_is(map.data, map.bytes))
        *format = SGLANG;
    else if (row.at < row.end && isalpha((unsigned char)*row.at) &&
             memchr(row.at, '\t', (size_t)(row.end - row.at)))
        *format = TABLE; // it begins with the columns' names
    cot_file_map_close(&map);
    if (*format != FORMATS) return COT_OK;
    return cot_fail(error, COT_UNSUPPORTED,
                    "'%s' is no routing data: neither a trace, a tab-separated table nor a recording (.pt)",
                    path);
}

const char *cot_import_description(const char *path)
{
    enum format format;
    return recognise(&format, path, NULL) == COT_OK && format != TRACE ? cot_trace_formats[format].text
                                                                       : NULL;
}

static cot_status named(enum format *format, const char *name, cot_error *error)
{
    for (*format = 0; *format < FORMATS; (*format)++)
        if (!strcmp(name, cot_trace_formats[*format].name)) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "unknown format '%s' of routing data", name);
}

/* The model's name: as given, or that of the folder the data lie in, past the levels that name a part of the
 * data. */
static cot_status set_model(cot_trace *trace, const cot_import *import, enum format format, cot_error *error)
{
    const char *given = import->options->model, *name = given;
    char *real = NULL;
    if (!given) {
        if (!(real = realpath(import->path, NULL))) return cot_import_no_memory(import, error);
        char *slash = NULL;
        if ((format == TABLE || format == SGLANG) && !is_folder(real) && (slash = strrchr(real, '/')))
            *slash = 0; // the file
        if (format == DEEPSEEK && (slash = strrchr(real, '/')) && slash - real > 14 &&
            !strncmp(slash - 14, "/expert_scores", 14))
            slash[-14] = 0; // model/expert_scores/domain
        slash = strrchr(real, '/');
        name = slash ? slash + 1 : real;
    }
    cot_status status = COT_OK;
    char *copy = cot_trace_alloc(trace, (int64_t)strlen(name) + 1, 1);
    if (copy) {
        strcpy(copy, name);
        trace->model = copy;
        if (!given) cot_import_note(import, "model '%s', from the folder's name", copy);
    } else {
        status = cot_import_no_memory(import, error);
    }
    free(real);
    return status;
}

static cot_status check_options(const cot_trace_import_options *o, cot_error *error)
{
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "import options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (o->n_experts < 0 || o->n_experts > COT_TRACE_MAX_EXPERTS || o->top_k < 0 ||
        o->top_k > COT_TRACE_MAX_EXPERTS || o->hidden < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no trace can have %" PRId32 " of %" PRId32 " experts a token, and rows of %" PRId32,
                        o->top_k, o->n_experts, o->hidden);
    return COT_OK;
}

static cot_status import_foreign(cot_trace *trace, cot_import *import, enum format format, cot_error *error)
{
    cot_status status = cot_trace_own(trace, error);
    if (status != COT_OK) return status;
    if (format == GPT_OSS)
        status = cot_import_gpt_oss(trace, import, error);
    else if (format == DEEPSEEK)
        status = cot_import_deepseek(trace, import, error);
    else if (format == SGLANG)
        status = cot_import_sglang(trace, import, error);
    else
        status = cot_import_table(trace, import, error);
    if (status == COT_OK) status = set_model(trace, import, format, error);
    return status == COT_OK ? cot_trace_validate(trace, import->path, error) : status;
}

cot_status cot_trace_import(cot_trace *trace, const char *path, const cot_trace_import_options *options,
                            cot_error *error)
{
    const cot_trace_import_options none = {.size = sizeof none};
    cot_import import = {.path = path, .options = options ? options : &none};
    enum format format;
    *trace = (cot_trace){0};
    cot_status status = check_options(import.options, error);
    if (status != COT_OK) return status;
    status =
        import.options->from ? named(&format, import.options->from, error) : recognise(&format, path, error);
    if (status != COT_OK) return status;
    if (format == TRACE && (import.options->n_experts || import.options->top_k || import.options->model))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' is a trace, which says its model, experts and top-k itself", path);
    status =
        format == TRACE ? cot_trace_open(trace, path, error) : import_foreign(trace, &import, format, error);
    if (status != COT_OK)
        cot_trace_close(trace);
    else if (import.options->hidden)
        trace->hidden = import.options->hidden;
    return status;
}
