#include "placement/formats/formats.h"

#include "base/error.h"
#include "base/file.h"
#include "routing/torch/file.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum format { COTERIE, SGLANG, VLLM, TENSORRT, ASCEND, OMNI, FORMATS };

/* A map of 1,024 layers and 65,536 slots in JSON. */
static const size_t MAX_BYTES = (size_t)512 << 20;

const cot_expert_map_format cot_expert_map_formats[FORMATS + 1] = {
    [COTERIE] = {"coterie", "JSON: sizes, layer numbers and physical_to_logical_map, -1 in empty slots",
                 true},
    [SGLANG] = {"sglang",
                "JSON of SGLang's --init-expert-location: physical_to_logical_map, a row for every layer"},
    [VLLM] = {"vllm", "a JSON line eplb_initial_mapping of vLLM's static mapping"},
    [TENSORRT] = {"tensorrt-llm", "YAML of TensorRT-LLM's load balancer: initial_global_assignments"},
    [ASCEND] = {"vllm-ascend", "JSON of vllm-ascend's expert map: layer_list of device_list"},
    [OMNI] = {"omni-infer", ".npy of omni-infer's placement pattern: ranks, layers, experts as 0 and 1",
              true},
};

static const struct codec {
    cot_map_reader *read;
    cot_map_writer *write;
} codecs[FORMATS] = {
    [COTERIE] = {cot_map_read_coterie, cot_map_write_coterie},
    [SGLANG] = {cot_map_read_sglang, cot_map_write_sglang},
    [VLLM] = {cot_map_read_vllm, cot_map_write_vllm},
    [TENSORRT] = {cot_map_read_tensorrt, cot_map_write_tensorrt},
    [ASCEND] = {cot_map_read_ascend, cot_map_write_ascend},
    [OMNI] = {cot_map_read_omni, cot_map_write_omni},
};

void cot_map_note(const cot_expert_map_options *options, const char *format, ...)
{
    char line[256];
    if (!options->say) return;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    options->say(options->context, line);
}

cot_status cot_map_no_memory(const char *path, cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the map '%s'", path);
}

cot_status cot_map_find_format(size_t *place, const char *name, cot_error *error)
{
    for (*place = 0; cot_expert_map_formats[*place].name; (*place)++)
        if (!strcmp(name, cot_expert_map_formats[*place].name)) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "unknown format '%s' of maps", name);
}

static cot_status check_options(enum format *format, const cot_expert_map_options *o, cot_error *error)
{
    *format = FORMATS;
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "map options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (o->ranks < 0 || o->ranks > COT_MAP_MAX_RANKS || o->first_layer < 0 || o->n_layers < 0 ||
        o->n_layers > COT_TRACE_MAX_LAYERS || o->moe_layers < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no map can have %" PRId32 " ranks, first layer %" PRId32 " and %" PRId32 " layers",
                        o->ranks, o->first_layer, o->n_layers);
    for (int32_t l = 0; l < o->moe_layers; l++)
        if (o->moe_layer[l] < (l ? o->moe_layer[l - 1] + 1 : 0) || o->moe_layer[l] >= o->n_layers)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "layer %" PRId32 " is no MoE layer of %" PRId32 " layers that ascend",
                            o->moe_layer[l], o->n_layers);
    if (!o->format) return COT_OK;
    size_t place;
    const cot_status status = cot_map_find_format(&place, o->format, error);
    *format = (enum format)place; // FORMATS where it is unknown
    return status;
}

static bool begins(const cot_map_source *source, const char *word)
{
    size_t n = strlen(word);
    return source->bytes >= n && !memcmp(source->text, word, n);
}

static bool holds(const cot_map_source *source, const char *word)
{
    return memmem(source->text, source->bytes, word, strlen(word)) != NULL;
}

/* The format that the content tells; FORMATS when none. */
static enum format recognise(const cot_map_source *source)
{
    const char *format = json_string_value(json_object_get(source->json, "format"));
    if (format && !strcmp(format, "coterie.placement")) return COTERIE;
    if (cot_torch_is(source->text, source->bytes) || json_object_get(source->json, "physical_to_logical_map"))
        return SGLANG;
    if (begins(source, "\x93NUMPY")) return OMNI;
    if (json_object_get(source->json, "layer_list")) return ASCEND;
    if (holds(source, "eplb_initial_mapping")) return VLLM;
    return holds(source, "initial_global_assignments") ? TENSORRT : FORMATS;
}

/* Refuses JSON where the file looks like it and is not, and files without JSON as a JSON format. */
static cot_status check_json(const cot_map_source *source, enum format format, const json_error_t *json_error,
                             cot_error *error)
{
    bool wanted = format == COTERIE || format == ASCEND ||
                  (format == SGLANG && !cot_torch_is(source->text, source->bytes));
    if (source->json || (!wanted && !(format == FORMATS && begins(source, "{")))) return COT_OK;
    return cot_fail(error, COT_MALFORMED, "'%s' line %d is no JSON: %s", source->path, json_error->line,
                    json_error->text);
}

cot_status cot_expert_map_parse(cot_expert_map *map, const char *text, size_t bytes, const char *path,
                                const cot_expert_map_options *options, cot_error *error)
{
    const cot_expert_map_options none = {.size = sizeof none};
    cot_map_source source = {path, text, bytes, NULL, options ? options : &none};
    enum format format;
    json_error_t json_error;
    *map = (cot_expert_map){0};
    cot_status status = check_options(&format, source.options, error);
    if (status != COT_OK) return status;
    source.json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &json_error);
    if (format == FORMATS) format = recognise(&source);
    status = check_json(&source, format, &json_error, error);
    if (status == COT_OK && format == FORMATS)
        status = cot_fail(error, COT_UNSUPPORTED, "'%s' is no map of experts in a known format", path);
    if (status == COT_OK) status = codecs[format].read(map, &source, error);
    if (status == COT_OK) status = cot_expert_map_check(map, path, error);
    if (status != COT_OK) cot_expert_map_free(map);
    json_decref(source.json);
    return status;
}

cot_status cot_expert_map_read(cot_expert_map *map, const char *path, const cot_expert_map_options *options,
                               cot_error *error)
{
    char *text;
    size_t bytes;
    *map = (cot_expert_map){0};
    cot_status status = cot_file_read(&text, &bytes, path, MAX_BYTES, error);
    if (status != COT_OK) return status;
    status = cot_expert_map_parse(map, text, bytes, path, options, error);
    free(text);
    return status;
}

cot_status cot_expert_map_write(const cot_expert_map *map, const char *path,
                                const cot_expert_map_options *options, cot_error *error)
{
    const cot_expert_map_options none = {.size = sizeof none};
    const cot_expert_map_options *o = options ? options : &none;
    cot_file_writer writer;
    enum format format;
    cot_status status = check_options(&format, o, error);
    if (format == FORMATS) format = COTERIE;
    if (status == COT_OK) status = cot_expert_map_check(map, path, error);
    if (status == COT_OK) status = cot_file_writer_open(&writer, path, error);
    if (status != COT_OK) return status;
    status = codecs[format].write(writer.stream, map, path, o, error);
    if (status == COT_OK) return cot_file_writer_commit(&writer, error);
    cot_file_writer_abort(&writer);
    return status;
}
