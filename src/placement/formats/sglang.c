/* SGLang's --init-expert-location: a JSON object with the one key "physical_to_logical_map" [L][slots], a row for each
 * layer of the model, dense ones too (SGLang hands all keys to a function that takes this one). It also reads a file of
 * torch.save with that key; recordings of single tokens hold the running map as "last_physical_to_logical_map". */
#include "placement/formats/formats.h"

#include "base/error.h"
#include "routing/torch/file.h"

#include <inttypes.h>

static const char KEY[] = "physical_to_logical_map";

static cot_status read_json(cot_expert_map *map, const cot_map_source *source, cot_error *error)
{
    const json_t *rows = json_object_get(source->json, KEY);
    size_t L = json_array_size(rows), slots = json_array_size(json_array_get(rows, 0));
    cot_status status = cot_map_new_rows(map, L, slots, source, error);
    for (size_t l = 0; status == COT_OK && l < L; l++) {
        char name[64];
        snprintf(name, sizeof name, "row %zu of '%s'", l, KEY);
        status = cot_map_json_row(map->expert + l * slots, slots, json_array_get(rows, l), 0,
                                  COT_TRACE_MAX_EXPERTS - 1, name, source->path, error);
    }
    return status;
}

static cot_status read_tensor(cot_expert_map *map, const cot_map_source *source, const cot_torch_tensor *t,
                              cot_error *error)
{
    if (!t || t->dims != 2)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' holds no matrix '%s' or 'last_%s'", source->path, KEY,
                        KEY);
    cot_status status = cot_map_new_rows(map, (size_t)t->shape[0], (size_t)t->shape[1], source, error);
    int32_t *to = map->expert;
    for (int64_t l = 0; status == COT_OK && l < t->shape[0]; l++)
        for (int64_t i = 0; i < t->shape[1]; i++) {
            const uint8_t *at =
                t->data + (size_t)(l * t->stride[0] + i * t->stride[1]) * cot_dtype_bytes(t->dtype);
            double e;
            if (!cot_torch_number(&e, t->dtype, at) || !(e >= 0 && e < COT_TRACE_MAX_EXPERTS) ||
                e != (int32_t)e)
                return cot_fail(error, COT_MALFORMED,
                                "'%s': layer %" PRId64 ", slot %" PRId64 " holds no expert", source->path, l,
                                i);
            *to++ = (int32_t)e;
        }
    return status;
}

cot_status cot_map_read_sglang(cot_expert_map *map, const cot_map_source *source, cot_error *error)
{
    cot_torch_file file;
    cot_status status;
    if (source->json) {
        status = read_json(map, source, error);
    } else {
        status = cot_torch_parse(&file, source->text, source->bytes, source->path, error);
        if (status != COT_OK) return status;
        const cot_torch_tensor *t = cot_torch_get_tensor(file.value, KEY);
        status = read_tensor(map, source,
                             t ? t : cot_torch_get_tensor(file.value, "last_physical_to_logical_map"), error);
        cot_torch_close(&file);
    }
    if (status == COT_OK) status = cot_map_mark_dense_layers(map, source, error);
    if (status == COT_OK) cot_map_count_experts(map);
    return status;
}

cot_status cot_map_write_sglang(FILE *stream, const cot_expert_map *map, const char *path,
                                const cot_expert_map_options *options, cot_error *error)
{
    int32_t last = map->layers[map->n_layers - 1], rows = options->n_layers ? options->n_layers : last + 1;
    int32_t slots = map->n_ranks * map->slots_per_rank, made = 0;
    if (last >= rows || last >= COT_TRACE_MAX_LAYERS)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "cannot write '%s': %" PRId32 " layers, but layer %" PRId32 " has a place", path,
                        rows, last);
    cot_status status = cot_map_want_full(map, path, options, error);
    if (status != COT_OK) return status;
    fprintf(stream, "{\"%s\": [", KEY);
    for (int32_t row = 0, l = 0; row < rows; row++) {
        const int32_t *expert =
            l < map->n_layers && map->layers[l] == row ? map->expert + (size_t)l++ * (size_t)slots : NULL;
        made += !expert;
        fputs(row ? ",\n[" : "\n[", stream);
        for (int32_t i = 0; i < slots; i++) {
            int32_t e = expert ? expert[i] : -1;
            fprintf(stream, "%s%" PRId32, i ? ", " : "", e < 0 ? i % map->n_experts : e);
        }
        putc(']', stream);
    }
    fputs("]}\n", stream);
    if (made)
        cot_map_note(options,
                     "%" PRId32 " of %" PRId32
                     " rows of '%s' have no place in the map: expert = slot mod %" PRId32,
                     made, rows, path, map->n_experts);
    if (!options->n_layers)
        cot_map_note(options,
                     "'%s' has rows for layers 0 to %" PRId32
                     ": SGLang wants one for every layer of the model",
                     path, rows - 1);
    return COT_OK;
}
