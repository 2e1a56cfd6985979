/* vllm-ascend's expert map: "layer_list", whose i-th element is the i-th MoE layer ("layer_id" says the same), of
 * "device_list", whose elements hold their slots as "device_expert". */
#include "placement/formats/formats.h"

#include "base/error.h"

#include <inttypes.h>

static const json_t *devices_of(const json_t *layers, size_t l)
{
    return json_object_get(json_array_get(layers, l), "device_list");
}

static const json_t *experts_of(const json_t *devices, size_t s)
{
    return json_object_get(json_array_get(devices, s), "device_expert");
}

static cot_status bad(const cot_map_source *source, size_t l, const char *what, cot_error *error)
{
    return cot_fail(error, COT_MALFORMED, "'%s': layer %zu of 'layer_list' %s", source->path, l, what);
}

cot_status cot_map_read_ascend(cot_expert_map *map, const cot_map_source *source, cot_error *error)
{
    const json_t *layers = json_object_get(source->json, "layer_list");
    size_t L = json_array_size(layers), S = json_array_size(devices_of(layers, 0)), slots = 0, listed = 0;
    if (!L || L > COT_TRACE_MAX_LAYERS || !S || S > COT_MAP_MAX_RANKS)
        return cot_fail(error, COT_MALFORMED, "'%s': 'layer_list' is no list of layers with a 'device_list'",
                        source->path);
    if (json_integer_value(json_object_get(source->json, "moe_layer_count")) != (json_int_t)L)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': 'moe_layer_count' does not say the %zu layers of 'layer_list'", source->path,
                        L);
    for (size_t l = 0; l < L; l++) {
        const json_t *devices = devices_of(layers, l);
        if (json_array_size(devices) != S)
            return bad(source, l, "has another number of devices than the first", error);
        for (size_t s = 0; s < S; s++) {
            size_t n = json_array_size(experts_of(devices, s));
            if (!n) return bad(source, l, "has a device without a 'device_expert'", error);
            if (n > slots) slots = n;
            listed += n;
        }
    }
    // slots that only some devices have are empty on the others, but a few numbers may not ask for a map of millions
    if (slots > COT_MAP_MAX_SLOTS || L * S * slots > 64 * listed)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' has a device of %zu slots, far more than the others",
                        source->path, slots);
    cot_status status = cot_expert_map_new(map, (int32_t)L, 1, (int32_t)S, (int32_t)slots, error);
    for (size_t l = 0; status == COT_OK && l < L; l++)
        for (size_t s = 0; status == COT_OK && s < S; s++) {
            const json_t *experts = experts_of(devices_of(layers, l), s);
            char name[80];
            snprintf(name, sizeof name, "'device_expert' of layer %zu, device %zu", l, s);
            status = cot_map_json_row(map->expert + (l * S + s) * slots, json_array_size(experts), experts, 0,
                                      COT_TRACE_MAX_EXPERTS - 1, name, source->path, error);
        }
    if (status != COT_OK) return status;
    cot_map_count_experts(map);
    return cot_map_number_moe_layers(map, source, error);
}

cot_status cot_map_write_ascend(FILE *stream, const cot_expert_map *map, const char *path,
                                const cot_expert_map_options *options, cot_error *error)
{
    int32_t rows = 0, row = 0, S = map->n_ranks, slots = map->slots_per_rank;
    cot_status status = cot_map_want_full(map, path, options, error); // the engine makes one tensor of them
    if (status == COT_OK) // of two slots it would load and name the last, and count slots by those
        status = cot_map_want_distinct(map, path, options, error);
    if (status != COT_OK) return status;
    for (int32_t l = 0; l < map->n_layers; l++) rows += !cot_map_is_dense(map, l, options);
    fprintf(stream, "{\"moe_layer_count\": %" PRId32 ", \"layer_list\": [", rows);
    for (int32_t l = 0; l < map->n_layers; l++) {
        if (cot_map_is_dense(map, l, options)) continue;
        fprintf(stream, "%s\n {\"layer_id\": %" PRId32 ", \"device_count\": %" PRId32 ", \"device_list\": [",
                row ? "," : "", row, S);
        row++;
        for (int32_t s = 0; s < S; s++) {
            fprintf(stream, "%s\n  {\"device_id\": %" PRId32 ", \"device_expert\": ", s ? "," : "", s);
            cot_map_print_row(stream, map->expert + ((size_t)l * (size_t)S + (size_t)s) * (size_t)slots,
                              (size_t)slots);
            putc('}', stream);
        }
        fputs("]}", stream);
    }
    fputs("]}\n", stream);
    return COT_OK;
}
