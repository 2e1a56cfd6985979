/* Counts of logical experts by themselves, [L][E] or [passes][L][E], as engines take them for a first placement: JSON, an object
 * with the matrix "logical_count" or the matrix alone, or a .npy array. Rows are the model's layers, from the first layer on
 * that the caller gives; dense ones have no load. Passes add up. */
#include "routing/load/reader.h"

#include "base/error.h"
#include "routing/npy.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

static cot_status open_load(cot_load_counts *load, const cot_load_files *files, size_t layers, size_t experts,
                            cot_error *error)
{
    const int32_t first = files->options->first_layer;
    if (layers < 1 || layers > COT_TRACE_MAX_LAYERS || experts < 1 || experts > COT_TRACE_MAX_EXPERTS)
        return cot_fail(error, COT_MALFORMED, "'%s': %zu layers of %zu experts", files->paths[0], layers,
                        experts);
    if (first > INT32_MAX - (int32_t)layers)
        return cot_fail(error, COT_INVALID_ARGUMENT, "layers from %" PRId32 " on are beyond any model",
                        first);
    cot_status status = cot_load_counts_new(load, (int32_t)layers, 1, (int32_t)experts, error);
    for (int32_t l = 0; status == COT_OK && l < load->n_layers; l++) load->layers[l] = first + l;
    load->from_engine = true;
    return status;
}

/* ---- JSON ---- */

static cot_status add_pass(cot_load_counts *load, const json_t *pass, const char *path, cot_error *error)
{
    const size_t L = (size_t)load->n_layers, E = (size_t)load->n_experts;
    if (json_array_size(pass) != L)
        return cot_fail(error, COT_MALFORMED, "'%s': passes of %zu and of %zu layers", path, L,
                        json_array_size(pass));
    for (size_t l = 0; l < L; l++) {
        const json_t *row = json_array_get(pass, l);
        if (!json_is_array(row) || json_array_size(row) != E)
            return cot_fail(error, COT_MALFORMED, "'%s': layer %zu is no row of %zu counts", path, l, E);
        for (size_t e = 0; e < E; e++) {
            const json_t *count = json_array_get(row, e);
            if (!json_is_number(count) || !(json_number_value(count) >= 0))
                return cot_fail(error, COT_MALFORMED,
                                "'%s': 'logical_count' of layer %zu, expert %zu is no number of 0 or more",
                                path, l, e);
            load->tokens[l * E + e] += json_number_value(count);
        }
    }
    return COT_OK;
}

static cot_status add_json(cot_load_counts *load, const json_t *root, const cot_load_files *files,
                           cot_error *error)
{
    const char *path = files->paths[0];
    const json_t *count = json_is_object(root) ? json_object_get(root, "logical_count") : root;
    if (!count && json_object_get(root, "physical_to_logical_map"))
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s' is a placement (physical_to_logical_map), expected a load: logical_count",
                        path);
    const json_t *inner = json_array_get(json_array_get(count, 0), 0);
    const bool passes = json_is_array(inner);
    if (!json_is_array(count) || !inner)
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s' is no load: expected \"logical_count\" [layers][experts] or a matrix alone",
                        path);
    const json_t *first = passes ? json_array_get(count, 0) : count;
    cot_status status =
        open_load(load, files, json_array_size(first), json_array_size(json_array_get(first, 0)), error);
    if (!passes) return status == COT_OK ? add_pass(load, count, path, error) : status;
    for (size_t p = 0; status == COT_OK && p < json_array_size(count); p++)
        status = add_pass(load, json_array_get(count, p), path, error);
    return status;
}

static cot_status read_json(cot_load_counts *load, const cot_load_files *files, const cot_file_map *map,
                            cot_error *error)
{
    json_error_t where;
    json_t *root = json_loadb((const char *)map->data, map->bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return cot_fail(error, COT_MALFORMED, "'%s' line %d is no JSON: %s", files->paths[0], where.line,
                        where.text);
    cot_status status = add_json(load, root, files, error);
    json_decref(root);
    return status;
}

/* ---- .npy ---- */

static cot_status read_npy(cot_load_counts *load, const cot_load_files *files, const cot_file_map *map,
                           cot_error *error)
{
    cot_npy array;
    const char *path = files->paths[0];
    cot_status status = cot_npy_parse(&array, (const char *)map->data, map->bytes, path, error);
    if (status != COT_OK) return status;
    if (array.dims != 2 && array.dims != 3)
        return cot_fail(
            error, COT_UNSUPPORTED,
            "'%s' is an array of %d dimensions, expected [layers][experts] or [passes][layers][experts]",
            path, array.dims);
    const int first = array.dims - 2; // of layers
    status = open_load(load, files, (size_t)array.shape[first], (size_t)array.shape[first + 1], error);
    const int64_t passes = first ? array.shape[0] : 1;
    for (int64_t p = 0; status == COT_OK && p < passes; p++)
        for (int64_t l = 0; status == COT_OK && l < load->n_layers; l++)
            for (int64_t e = 0; status == COT_OK && e < load->n_experts; e++) {
                const int64_t index[] = {p, l, e};
                const double count = cot_npy_number(&array, first ? index : index + 1);
                if (!(count >= 0))
                    status = cot_fail(error, COT_MALFORMED,
                                      "'%s': layer %" PRId64 ", expert %" PRId64 " is no number of 0 or more",
                                      path, l, e);
                load->tokens[l * load->n_experts + e] += count;
            }
    return status;
}

/* Row 0 of a model's every layer has no load where layer 0 is dense; one that has some may be the first MoE layer's. */
static void note_rows(const cot_load_counts *load, const cot_load_files *files)
{
    double sum = 0;
    for (int32_t e = 0; e < load->n_experts; e++) sum += load->tokens[e];
    if (sum > 0 && !files->options->first_layer)
        cot_load_note(
            files,
            "'%s' does not number its %" PRId32
            " rows: row 0, which has tokens, is taken for the model's layer 0, unless a first layer "
            "is given",
            files->paths[0], load->n_layers);
}

bool cot_load_is_npy(const char *data, size_t bytes)
{
    return bytes > 6 && !memcmp(data, "\x93NUMPY", 6);
}

cot_status cot_load_read_logical_count(cot_load_counts *load, const cot_load_files *files, cot_error *error)
{
    cot_file_map map;
    cot_status status = cot_load_want_one_file(files, error);
    if (status == COT_OK) status = cot_file_map_open(&map, files->paths[0], error);
    if (status != COT_OK) return status;
    status =
        (cot_load_is_npy((const char *)map.data, map.bytes) ? read_npy : read_json)(load, files, &map, error);
    cot_file_map_close(&map);
    if (status == COT_OK) note_rows(load, files);
    return status;
}
