/* Coterie's own map: one JSON object with "format", "version", the sizes, the layers' numbers and
 * "physical_to_logical_map" [L][ranks * slots_per_rank], -1 in empty slots; "dense_layers" where there are any, "model_hash"
 * where it is known. */
#include "placement/formats/formats.h"

#include "base/error.h"
#include "base/hash.h"

#include <inttypes.h>
#include <string.h>

/* The numbers of those layers that are dense, ascending. */
static cot_status read_dense(cot_expert_map *map, const json_t *dense, const char *path, cot_error *error)
{
    size_t n = json_array_size(dense), found = 0;
    for (int32_t l = 0; l < map->n_layers && found < n; l++) {
        map->dense[l] = json_integer_value(json_array_get(dense, found)) == map->layers[l];
        found += map->dense[l];
    }
    if (found == n && (!dense || json_is_array(dense))) return COT_OK;
    return cot_fail(error, COT_MALFORMED, "'%s': 'dense_layers' are no ascending numbers out of 'layers'",
                    path);
}

static cot_status read_hash(cot_expert_map *map, const json_t *hash, const char *path, cot_error *error)
{
    if (!hash || (json_is_string(hash) && cot_hash_parse(&map->model_hash, json_string_value(hash))))
        return COT_OK;
    return cot_fail(error, COT_MALFORMED, "'%s': 'model_hash' is no text of hexadecimal digits", path);
}

cot_status cot_map_read_coterie(cot_expert_map *map, const cot_map_source *source, cot_error *error)
{
    const json_t *o = source->json, *layers = json_object_get(o, "layers");
    const json_t *rows = json_object_get(o, "physical_to_logical_map");
    const char *path = source->path;
    int32_t version, E, S, slots;
    cot_status status = cot_map_json_integer(&version, o, "version", 1, INT32_MAX, path, error);
    if (status == COT_OK && version != 1)
        return cot_fail(error, COT_UNSUPPORTED, "'%s': version %" PRId32 " of Coterie's maps, expected 1",
                        path, version);
    if (status == COT_OK)
        status = cot_map_json_integer(&E, o, "experts", 1, COT_TRACE_MAX_EXPERTS, path, error);
    if (status == COT_OK) status = cot_map_json_integer(&S, o, "ranks", 1, COT_MAP_MAX_RANKS, path, error);
    if (status == COT_OK)
        status = cot_map_json_integer(&slots, o, "slots_per_rank", 1, COT_MAP_MAX_SLOTS, path, error);
    if (status != COT_OK) return status;
    size_t L = json_array_size(rows), width = (size_t)S * (size_t)slots;
    if (!L || L > COT_TRACE_MAX_LAYERS)
        return cot_fail(error, COT_MALFORMED, "'%s': 'physical_to_logical_map' is no array of 1 to %d layers",
                        path, COT_TRACE_MAX_LAYERS);
    for (size_t l = 0; l < L; l++) // the sizes are believed once the text holds as many numbers
        if (json_array_size(json_array_get(rows, l)) != width)
            return cot_fail(error, COT_MALFORMED,
                            "'%s': row %zu of 'physical_to_logical_map' is no array of %zu numbers", path, l,
                            width);
    status = cot_expert_map_new(map, (int32_t)L, E, S, slots, error);
    if (status == COT_OK)
        status = cot_map_json_row(map->layers, L, layers, 0, INT32_MAX, "'layers'", path, error);
    for (size_t l = 0; status == COT_OK && l < L; l++) {
        char name[48];
        snprintf(name, sizeof name, "row %zu of 'physical_to_logical_map'", l);
        status = cot_map_json_row(map->expert + l * width, width, json_array_get(rows, l), -1, E - 1, name,
                                  path, error);
    }
    if (status == COT_OK) status = read_hash(map, json_object_get(o, "model_hash"), path, error);
    return status == COT_OK ? read_dense(map, json_object_get(o, "dense_layers"), path, error) : status;
}

cot_status cot_map_write_coterie(FILE *stream, const cot_expert_map *map, const char *path,
                                 const cot_expert_map_options *options, cot_error *error)
{
    (void)path, (void)options, (void)error;
    size_t width = (size_t)map->n_ranks * (size_t)map->slots_per_rank;
    fprintf(stream,
            "{\"format\": \"coterie.placement\", \"version\": 1,\n \"experts\": %" PRId32
            ", \"ranks\": %" PRId32 ", \"slots_per_rank\": %" PRId32 ",\n \"layers\": ",
            map->n_experts, map->n_ranks, map->slots_per_rank);
    cot_map_print_row(stream, map->layers, (size_t)map->n_layers);
    int dense = 0;
    for (int32_t l = 0; l < map->n_layers; l++)
        if (map->dense[l])
            fprintf(stream, "%s%" PRId32, dense++ ? ", " : ",\n \"dense_layers\": [", map->layers[l]);
    if (dense) putc(']', stream);
    char hash[COT_HASH_TEXT_BYTES];
    cot_hash_print(hash, map->model_hash);
    if (map->model_hash) fprintf(stream, ",\n \"model_hash\": \"%s\"", hash);
    fputs(",\n \"physical_to_logical_map\": [", stream);
    for (int32_t l = 0; l < map->n_layers; l++) {
        fputs(l ? ",\n  " : "\n  ", stream);
        cot_map_print_row(stream, map->expert + (size_t)l * width, width);
    }
    fputs("]}\n", stream);
    return COT_OK;
}
