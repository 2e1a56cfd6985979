/* omni-infer's placement pattern: a .npy array [ranks][MoE layers, counted from 0][experts] of 0 and 1. It says which
 * experts a rank holds, not in which slots: the engine seats them in ascending order. */
#include "placement/formats/formats.h"

#include "base/error.h"
#include "routing/npy.h"

#include <inttypes.h>

/* Which experts rank `s` holds in layer `l`, into expert[0 .. *count) unless it is NULL. */
static cot_status read_rank(int32_t *expert, int32_t *count, const cot_npy *array, int64_t s, int64_t l,
                            const char *path, cot_error *error)
{
    *count = 0;
    for (int64_t e = 0; e < array->shape[2]; e++) {
        double bit = cot_npy_number(array, (const int64_t[]){s, l, e});
        if (bit != 0 && bit != 1)
            return cot_fail(error, COT_MALFORMED,
                            "'%s': rank %" PRId64 ", layer %" PRId64 ", expert %" PRId64
                            " is %g, expected 0 or 1",
                            path, s, l, e, bit);
        if (bit == 0) continue;
        if (expert) expert[*count] = (int32_t)e;
        ++*count;
    }
    return COT_OK;
}

cot_status cot_map_read_omni(cot_expert_map *map, const cot_map_source *source, cot_error *error)
{
    cot_npy array;
    cot_status status = cot_npy_parse(&array, source->text, source->bytes, source->path, error);
    if (status != COT_OK) return status;
    int64_t S = array.shape[0], L = array.shape[1], E = array.shape[2];
    if (array.dims != 3 || S < 1 || S > COT_MAP_MAX_RANKS || L < 1 || L > COT_TRACE_MAX_LAYERS || E < 1 ||
        E > COT_TRACE_MAX_EXPERTS)
        return cot_fail(error, COT_MALFORMED, "'%s' is no array of ranks, layers and experts", source->path);
    int32_t slots = 1, n;
    for (int64_t s = 0; status == COT_OK && s < S; s++)
        for (int64_t l = 0; status == COT_OK && l < L; l++) {
            status = read_rank(NULL, &n, &array, s, l, source->path, error);
            if (n > slots) slots = n;
        }
    if (status == COT_OK) status = cot_expert_map_new(map, (int32_t)L, (int32_t)E, (int32_t)S, slots, error);
    for (int64_t s = 0; status == COT_OK && s < S; s++)
        for (int64_t l = 0; status == COT_OK && l < L; l++)
            status = read_rank(map->expert + (l * S + s) * slots, &n, &array, s, l, source->path, error);
    return status == COT_OK ? cot_map_number_moe_layers(map, source, error) : status;
}

cot_status cot_map_write_omni(FILE *stream, const cot_expert_map *map, const char *path,
                              const cot_expert_map_options *options, cot_error *error)
{
    int32_t S = map->n_ranks, slots = map->slots_per_rank, rows = 0;
    cot_status status = cot_map_want_distinct(map, path, options, error);
    if (status != COT_OK) return status;
    for (int32_t l = 0; l < map->n_layers; l++) rows += !cot_map_is_dense(map, l, options);
    cot_npy_write_header(stream, (const int64_t[]){S, rows, map->n_experts}, 3);
    for (int32_t s = 0; s < S; s++)
        for (int32_t l = 0; l < map->n_layers; l++) {
            if (cot_map_is_dense(map, l, options)) continue;
            const int32_t *expert = map->expert + ((size_t)l * (size_t)S + (size_t)s) * (size_t)slots;
            for (int32_t e = 0; e < map->n_experts; e++) {
                uint8_t held = 0;
                for (int32_t i = 0; i < slots; i++) held |= expert[i] == e;
                fwrite((const uint8_t[]){held, 0, 0, 0}, 1, 4, stream);
            }
        }
    cot_map_note(options, "'%s' does not keep the order of a rank's slots: experts ascend", path);
    return COT_OK;
}
