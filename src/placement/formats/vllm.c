/* vLLM's initial mapping: a JSON line of "record_type" "eplb_initial_mapping" with "num_slots", "num_redundant_experts"
 * and "initial_global_assignments", from the number of a MoE layer, counted from 0 and written as text, to its slots. */
#include "placement/formats/formats.h"

#include "base/error.h"

#include <inttypes.h>
#include <string.h>

static bool is_mapping(const json_t *record)
{
    const char *type = json_string_value(json_object_get(record, "record_type"));
    return type && !strcmp(type, "eplb_initial_mapping");
}

/* The first line that is a mapping, owned by the caller; NULL where there is none. */
static json_t *find_mapping(const cot_map_source *source)
{
    const char *at = source->text, *end = at + source->bytes;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        json_t *record = json_loadb(at, (size_t)(stop - at), JSON_REJECT_DUPLICATES, NULL);
        if (is_mapping(record)) return record;
        json_decref(record);
        at = newline ? newline + 1 : end;
    }
    return NULL;
}

static cot_status read_mapping(cot_expert_map *map, const json_t *record, const cot_map_source *source,
                               cot_error *error)
{
    const json_t *rows = json_object_get(record, "initial_global_assignments");
    int32_t slots, redundant;
    cot_status status =
        cot_map_json_integer(&slots, record, "num_slots", 1, COT_MAP_MAX_RANKS * 16, source->path, error);
    if (status == COT_OK)
        status = cot_map_json_integer(&redundant, record, "num_redundant_experts", 0, slots - 1, source->path,
                                      error);
    size_t L = json_object_size(rows), width = json_array_size(json_object_get(rows, "0"));
    if (status == COT_OK && width != (size_t)slots)
        status = cot_fail(error, COT_MALFORMED, "'%s': layer 0 has %zu slots, 'num_slots' says %" PRId32,
                          source->path, width, slots);
    if (status == COT_OK) status = cot_map_new_rows(map, L, width, source, error);
    for (size_t l = 0; status == COT_OK && l < L; l++) {
        char key[24], name[64];
        snprintf(key, sizeof key, "%zu", l);
        snprintf(name, sizeof name, "'initial_global_assignments' of layer %zu", l);
        status = cot_map_json_row(map->expert + l * width, width, json_object_get(rows, key), 0,
                                  COT_TRACE_MAX_EXPERTS - 1, name, source->path, error);
    }
    if (status != COT_OK) return status;
    cot_map_count_experts(map);
    if (map->n_experts != slots - redundant)
        return cot_fail(error, COT_MALFORMED,
                        "'%s' names %" PRId32 " experts, but has %" PRId32 " slots of which %" PRId32
                        " are redundant",
                        source->path, map->n_experts, slots, redundant);
    return cot_map_number_moe_layers(map, source, error);
}

cot_status cot_map_read_vllm(cot_expert_map *map, const cot_map_source *source, cot_error *error)
{
    json_t *record = is_mapping(source->json) ? json_incref(source->json) : find_mapping(source);
    cot_status status =
        record ? read_mapping(map, record, source, error)
               : cot_fail(error, COT_MALFORMED, "'%s' has no line of record_type 'eplb_initial_mapping'",
                          source->path);
    json_decref(record);
    return status;
}

cot_status cot_map_write_vllm(FILE *stream, const cot_expert_map *map, const char *path,
                              const cot_expert_map_options *options, cot_error *error)
{
    int32_t slots = map->n_ranks * map->slots_per_rank, row = 0;
    cot_status status = cot_map_want_full(map, path, options, error);
    if (status != COT_OK) return status;
    fprintf(stream,
            "{\"record_type\": \"eplb_initial_mapping\", \"version\": 1, \"num_redundant_experts\": %" PRId32
            ", \"num_slots\": %" PRId32 ", \"initial_global_assignments\": {",
            slots - map->n_experts, slots);
    for (int32_t l = 0; l < map->n_layers; l++) {
        if (cot_map_is_dense(map, l, options)) continue;
        fprintf(stream, "%s\"%" PRId32 "\": ", row ? ", " : "", row);
        cot_map_print_row(stream, map->expert + (size_t)l * (size_t)slots, (size_t)slots);
        row++;
    }
    fputs("}}\n", stream); // one line: vLLM reads the file line by line
    return COT_OK;
}
