/* vLLM's load statistics: JSON lines, or the same records over several lines each; those with "record_type" "eplb_load_stats" hold "expert_load" [L][P], the tokens
 * of each physical expert in a window, and "p2l_map" [L][P], which logical expert each was then. Rows are the model's
 * MoE layers, counted from 0. Windows add up; lines of other types are passed over. */
#include "routing/load/reader.h"

#include "base/error.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct stats {
    const char *path;
    int64_t line;
    int64_t layers, experts; // so far
    double *tokens;          // [L][room]
    int64_t room;            // experts a layer there is memory for
} stats;

static cot_status bad(const stats *s, const char *what, cot_error *error)
{
    return cot_fail(error, COT_MALFORMED, "'%s' line %" PRId64 ": %s", s->path, s->line, what);
}

/* Makes room for `experts` a layer. */
static cot_status widen(stats *s, int64_t experts, cot_error *error)
{
    if (experts <= s->room) return COT_OK;
    int64_t room = experts < 2 * s->room ? 2 * s->room : experts;
    double *wider = calloc((size_t)(s->layers * room), sizeof *wider);
    if (!wider) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", s->path);
    for (int64_t l = 0; l < s->layers && s->room; l++)
        memcpy(wider + l * room, s->tokens + l * s->room, (size_t)s->room * sizeof *wider);
    free(s->tokens);
    s->tokens = wider;
    s->room = room;
    return COT_OK;
}

static cot_status add_layer(stats *s, int64_t l, const json_t *load, const json_t *map, cot_error *error)
{
    size_t P = json_array_size(load);
    if (!P || json_array_size(map) != P) return bad(s, "'expert_load' and 'p2l_map' differ in shape", error);
    for (size_t p = 0; p < P; p++) {
        const json_t *expert = json_array_get(map, p), *tokens = json_array_get(load, p);
        json_int_t e = json_integer_value(expert);
        double n = json_number_value(tokens);
        if (!json_is_integer(expert) || e < -1 || e >= COT_TRACE_MAX_EXPERTS)
            return bad(s, "an element of 'p2l_map' is no expert", error);
        if (!json_is_number(tokens) || !(n >= 0) || isinf(n))
            return bad(s, "an element of 'expert_load' is no number of 0 or more", error);
        if (e < 0) { // a slot that was empty
            if (n > 0) return bad(s, "an empty slot has a load", error);
            continue;
        }
        cot_status status = widen(s, e + 1, error);
        if (status != COT_OK) return status;
        if (e >= s->experts) s->experts = e + 1;
        s->tokens[l * s->room + e] += n;
    }
    return COT_OK;
}

static cot_status add_window(stats *s, const json_t *record, cot_error *error)
{
    const json_t *load = json_object_get(record, "expert_load"), *map = json_object_get(record, "p2l_map");
    size_t L = json_array_size(load);
    if (!L || L > COT_TRACE_MAX_LAYERS || json_array_size(map) != L)
        return bad(s, "'expert_load' and 'p2l_map' are no matrices of as many layers", error);
    if (s->layers && (int64_t)L != s->layers) return bad(s, "another number of layers than before", error);
    s->layers = (int64_t)L;
    cot_status status = COT_OK;
    for (size_t l = 0; status == COT_OK && l < L; l++)
        status = add_layer(s, (int64_t)l, json_array_get(load, l), json_array_get(map, l), error);
    return status;
}

/* The record that begins at `text`, of which it takes `*taken` bytes. */
static cot_status read_record(size_t *taken, stats *s, const char *text, size_t bytes, cot_error *error)
{
    json_error_t json_error;
    json_t *record = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &json_error);
    const char *type = json_string_value(json_object_get(record, "record_type"));
    cot_status status = COT_OK;
    if (!record)
        status = cot_fail(error, COT_MALFORMED, "'%s' line %" PRId64 " is no JSON: %s", s->path, s->line,
                          json_error.text);
    else if (type && !strcmp(type, "eplb_load_stats"))
        status = add_window(s, record, error);
    *taken = record ? (size_t)json_error.position : 0;
    json_decref(record);
    return status;
}

static cot_status assemble(cot_load_counts *load, const stats *s, const cot_load_files *files,
                           cot_error *error)
{
    if (!s->layers || !s->experts)
        return cot_fail(error, COT_MALFORMED, "'%s' has no line of record_type 'eplb_load_stats'", s->path);
    cot_status status = cot_load_counts_new(load, (int32_t)s->layers, 1, (int32_t)s->experts, error);
    if (status != COT_OK) return status;
    for (int64_t l = 0; l < s->layers; l++)
        memcpy(load->tokens + l * s->experts, s->tokens + l * s->room, (size_t)s->experts * sizeof(double));
    load->from_engine = true;
    return cot_load_number_moe_layers(load, files, error);
}

cot_status cot_load_read_vllm(cot_load_counts *load, const cot_load_files *files, cot_error *error)
{
    stats s = {.path = files->paths[0], .line = 1};
    cot_file_map map;
    cot_status status = cot_load_want_one_file(files, error);
    if (status == COT_OK) status = cot_file_map_open(&map, s.path, error);
    if (status != COT_OK) return status;
    const char *at = (const char *)map.data, *end = at + map.bytes;
    while (status == COT_OK) {
        for (; at < end && memchr(" \t\r\n", *at, 4); at++) s.line += *at == '\n';
        if (at == end) break;
        size_t taken;
        status = read_record(&taken, &s, at, (size_t)(end - at), error);
        for (const char *stop = at + taken; at < stop; at++) s.line += *at == '\n';
    }
    if (status == COT_OK) status = assemble(load, &s, files, error);
    cot_file_map_close(&map);
    free(s.tokens);
    return status;
}
