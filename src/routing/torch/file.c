#include "routing/torch/file.h"

#include "base/error.h"

#include <string.h>

/* Values take some ten times the pickle's bytes; recordings of ten million tokens have pickles of 100 MB. */
static const size_t MAX_PICKLE_BYTES = (size_t)256 << 20;

cot_status cot_torch_parse(cot_torch_file *file, const void *data, size_t bytes, const char *path,
                           cot_error *error)
{
    static const char pickle[] = "/data.pkl";
    const size_t tail = sizeof pickle - 1;
    *file = (cot_torch_file){0};
    if (cot_torch_is_legacy(data, bytes)) {
        cot_status status = cot_torch_parse_legacy(file, data, bytes, path, error);
        if (status != COT_OK) cot_torch_close(file);
        return status;
    }
    cot_status status = cot_zip_open(&file->zip, data, bytes, path, error);
    if (status != COT_OK) return status;
    const cot_zip_member *found = NULL, *order;
    for (size_t i = 0; i < file->zip.count && !found; i++) {
        const cot_zip_member *m = &file->zip.members[i];
        if (m->name_bytes > tail && !memcmp(m->name + m->name_bytes - tail, pickle, tail)) found = m;
    }
    if (!found) {
        status = cot_fail(error, COT_MALFORMED,
                          "'%s' is a zip archive without a data.pkl: torch.save did not write it", path);
    } else if (found->bytes > MAX_PICKLE_BYTES) {
        status = cot_fail(error, COT_UNSUPPORTED, "'%s': a pickle of %zu bytes, at most %zu are read", path,
                          found->bytes, MAX_PICKLE_BYTES);
    } else {
        size_t folder = found->name_bytes - tail + 1; // with its slash
        order = cot_zip_find(&file->zip, found->name, folder, "byteorder", 9);
        if (order && (order->bytes != 6 || memcmp(order->data, "little", 6) != 0))
            status = cot_fail(error, COT_UNSUPPORTED, "'%s': tensors of a big-endian machine", path);
        else {
            cot_torch_storages storages = {&file->zip, found->name, folder, NULL, 0, 0};
            size_t used;
            status = cot_torch_unpickle(&file->value, &used, &file->memory, found->data, found->bytes,
                                        &storages, path, error);
        }
    }
    if (status != COT_OK) cot_torch_close(file);
    return status;
}

bool cot_torch_is(const void *data, size_t bytes)
{
    return (bytes >= 4 && !memcmp(data, "PK\3\4", 4)) || cot_torch_is_legacy(data, bytes);
}

cot_status cot_torch_open(cot_torch_file *file, const char *path, cot_error *error)
{
    cot_file_map map;
    *file = (cot_torch_file){0};
    cot_status status = cot_file_map_open(&map, path, error);
    if (status != COT_OK) return status;
    status = cot_torch_parse(file, map.data, map.bytes, path, error);
    if (status == COT_OK)
        file->map = map;
    else
        cot_file_map_close(&map);
    return status;
}

void cot_torch_close(cot_torch_file *file)
{
    cot_torch_memory_free(&file->memory);
    cot_zip_close(&file->zip);
    cot_file_map_close(&file->map);
    *file = (cot_torch_file){0};
}
