#include "base/safetensors.h"

#include "base/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER_BYTES = 100 * 1000 * 1000 }; // what the reference reader accepts

/* One header entry {"dtype", "shape", "data_offsets"} -> tensor, with data pointing into the payload. */
static cot_status parse_entry(cot_tensor *tensor, const char *name, const json_t *entry,
                              const uint8_t *payload, size_t payload_bytes, const char *path,
                              cot_error *error)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    if (!dtype || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return cot_fail(error, COT_MALFORMED, "'%s': tensor '%s' lacks dtype, shape or data_offsets", path,
                        name);
    *tensor =
        (cot_tensor){.name = name, .dtype = cot_dtype_parse(dtype), .dims = (int)json_array_size(shape)};
    if (tensor->dtype == COT_DTYPE_COUNT)
        return cot_fail(error, COT_UNSUPPORTED, "'%s': tensor '%s' has unknown dtype '%s'", path, name,
                        dtype);
    if (json_array_size(shape) > COT_MAX_DIMS)
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s': tensor '%s' has %zu dimensions, at most %d are supported", path, name,
                        json_array_size(shape), COT_MAX_DIMS);
    uint64_t bytes = cot_dtype_bytes(tensor->dtype);
    bool empty = false;
    for (int d = 0; d < tensor->dims; d++) {
        const json_t *size = json_array_get(shape, (size_t)d);
        int64_t n = json_integer_value(size);
        if (!json_is_integer(size) || n < 0)
            return cot_fail(error, COT_MALFORMED, "'%s': tensor '%s' has a bad shape", path, name);
        tensor->shape[d] = n;
        empty |= n == 0;
        // A zero does not hide the other sizes: whatever part of a shape a reader multiplies, it fits.
        if (n && (__builtin_mul_overflow(bytes, (uint64_t)n, &bytes) || bytes > INT64_MAX))
            return cot_fail(error, COT_MALFORMED, "'%s': shape of tensor '%s' overflows", path, name);
    }
    if (empty) bytes = 0;
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    int64_t begin = json_integer_value(from), end = json_integer_value(to);
    if (!json_is_integer(from) || !json_is_integer(to) || begin < 0 || end < begin ||
        (uint64_t)end > payload_bytes)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': tensor '%s' lies at bytes %" PRId64 " to %" PRId64 " of %zu", path, name,
                        begin, end, payload_bytes);
    if ((uint64_t)(end - begin) != bytes)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': tensor '%s' holds %" PRId64 " bytes, its shape needs %" PRIu64, path, name,
                        end - begin, bytes);
    tensor->bytes = (size_t)bytes;
    tensor->data = bytes ? payload + begin : NULL;
    return COT_OK;
}

static int by_place(const void *a, const void *b)
{
    const cot_tensor *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    return p < q ? -1 : p > q;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const cot_tensor *)a)->name, ((const cot_tensor *)b)->name);
}

static cot_status check_layout(cot_safetensors *file, const uint8_t *payload, size_t payload_bytes,
                               const char *path, cot_error *error)
{
    if (file->count) qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    size_t covered = 0;
    const char *previous = "";
    for (size_t i = 0; i < file->count; i++) {
        const cot_tensor *t = &file->tensors[i];
        if (!t->bytes) continue;
        size_t begin = (size_t)((const uint8_t *)t->data - payload);
        if (begin < covered)
            return cot_fail(error, COT_MALFORMED, "'%s': tensors '%s' and '%s' overlap", path, previous,
                            t->name);
        if (begin > covered)
            return cot_fail(error, COT_MALFORMED, "'%s': %zu bytes before tensor '%s' belong to no tensor",
                            path, begin - covered, t->name);
        covered = begin + t->bytes;
        previous = t->name;
    }
    if (covered != payload_bytes)
        return cot_fail(error, COT_MALFORMED, "'%s': its tensors end at byte %zu of %zu", path, covered,
                        payload_bytes);
    if (file->count) qsort(file->tensors, file->count, sizeof *file->tensors, by_name);
    return COT_OK;
}

static bool all_strings(json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) if (!json_is_string(value)) return false;
    return json_is_object(object);
}

static uint64_t header_length(const uint8_t *data)
{
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | data[i];
    return length;
}

bool cot_safetensors_is(const void *data, size_t bytes)
{
    const uint8_t *at = data;
    return bytes > 8 && at[8] == '{' && header_length(at) <= MAX_HEADER_BYTES;
}

/* What a file probably is that is none of safetensors. */
static const char *likely_kind(const uint8_t data[8])
{
    static const struct {
        const char *magic, *kind;
    } kinds[] = {{"PK\3\4", "a zip archive, as torch.save writes"},
                 {"\x93NUMPY", "a NumPy array"},
                 {"GGUF", "a GGUF file"},
                 {"{", "JSON"},
                 {"[", "JSON"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!memcmp(data, kinds[i].magic, strlen(kinds[i].magic))) return kinds[i].kind;
    for (int i = 0; i < 8; i++)
        if ((data[i] < ' ' && data[i] != '\t' && data[i] != '\r' && data[i] != '\n') || data[i] > '~')
            return NULL;
    return "text";
}

cot_status cot_safetensors_parse(cot_safetensors *file, const void *data, size_t bytes, const char *path,
                                 cot_error *error)
{
    *file = (cot_safetensors){0};
    if (bytes < 8)
        return cot_fail(error, COT_MALFORMED, "'%s': %zu bytes are no safetensors file", path, bytes);
    const uint64_t header_bytes = header_length(data);
    const char *kind = header_bytes > MAX_HEADER_BYTES ? likely_kind(data) : NULL;
    if (kind)
        return cot_fail(error, COT_MALFORMED, "'%s' is no safetensors file: it looks like %s", path, kind);
    if (header_bytes > MAX_HEADER_BYTES || header_bytes > bytes - 8)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': header of %" PRIu64 " bytes in a file of %zu (at most %d are read)", path,
                        header_bytes, bytes, MAX_HEADER_BYTES);
    const uint8_t *payload = (const uint8_t *)data + 8 + header_bytes;
    size_t payload_bytes = bytes - 8 - (size_t)header_bytes;
    json_error_t detail;
    file->header = json_loadb((const char *)data + 8, (size_t)header_bytes, JSON_REJECT_DUPLICATES, &detail);
    cot_status status = COT_OK;
    if (!file->header)
        status = cot_fail(error, COT_MALFORMED, "'%s': header is no JSON: %s", path, detail.text);
    else if (!json_is_object(file->header))
        status = cot_fail(error, COT_MALFORMED, "'%s': header is no JSON object", path);
    else if (!(file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", path);
    const char *name;
    json_t *entry;
    if (status == COT_OK) {
        json_object_foreach(file->header, name, entry)
        {
            if (!strcmp(name, "__metadata__")) {
                if (all_strings(entry))
                    file->metadata = entry;
                else
                    status =
                        cot_fail(error, COT_MALFORMED, "'%s': __metadata__ is no object of strings", path);
            } else {
                status = parse_entry(&file->tensors[file->count], name, entry, payload, payload_bytes, path,
                                     error);
                file->count++;
            }
            if (status != COT_OK) break;
        }
    }
    if (status == COT_OK) status = check_layout(file, payload, payload_bytes, path, error);
    if (status != COT_OK) cot_safetensors_close(file);
    return status;
}

cot_status cot_safetensors_open(cot_safetensors *file, const char *path, cot_error *error)
{
    cot_file_map map;
    *file = (cot_safetensors){0};
    cot_status status = cot_file_map_open(&map, path, error);
    if (status != COT_OK) return status;
    status = cot_safetensors_parse(file, map.data, map.bytes, path, error);
    if (status == COT_OK)
        file->map = map;
    else
        cot_file_map_close(&map);
    return status;
}

void cot_safetensors_close(cot_safetensors *file)
{
    free(file->tensors);
    json_decref(file->header);
    cot_file_map_close(&file->map);
    *file = (cot_safetensors){0};
}

const cot_tensor *cot_safetensors_find(const cot_safetensors *file, const char *name)
{
    cot_tensor key = {.name = name};
    return file->count ? bsearch(&key, file->tensors, file->count, sizeof *file->tensors, by_name) : NULL;
}

const char *cot_safetensors_meta(const cot_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}

/* The header's JSON text, padded with spaces so that the payload starts at a multiple of 8; NULL when out of
 * memory. */
static char *header_text(const cot_tensor *tensors, size_t count, const char *const *meta, size_t n_meta)
{
    json_t *header = json_object(), *metadata = json_object();
    int failed = 0;
    for (size_t i = 0; i < n_meta; i++)
        failed |= json_object_set_new(metadata, meta[2 * i], json_string(meta[2 * i + 1]));
    if (n_meta) failed |= json_object_set(header, "__metadata__", metadata);
    json_decref(metadata);
    json_int_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        json_t *shape = json_array();
        for (int d = 0; d < tensors[i].dims; d++)
            failed |= json_array_append_new(shape, json_integer(tensors[i].shape[d]));
        json_int_t end = begin + (json_int_t)tensors[i].bytes;
        json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", cot_dtype_name(tensors[i].dtype), "shape",
                                  shape, "data_offsets", begin, end);
        failed |= json_object_set_new(header, tensors[i].name, entry);
        begin = end;
    }
    char *text = failed ? NULL : json_dumps(header, JSON_COMPACT), *padded = NULL;
    json_decref(header);
    if (text) {
        size_t length = strlen(text), room = (length + 7) / 8 * 8;
        if ((padded = malloc(room + 1))) {
            memcpy(padded, text, length);
            memset(padded + length, ' ', room - length);
            padded[room] = 0;
        }
        free(text);
    }
    return padded;
}

cot_status cot_safetensors_begin(FILE *stream, const char *path, const cot_tensor *tensors, size_t count,
                                 const char *const *meta, size_t n_meta, cot_error *error)
{
    char *header = header_text(tensors, count, meta, n_meta);
    if (!header)
        return cot_fail(error, COT_OUT_OF_MEMORY, "cannot write '%s': out of memory or a name is not UTF-8",
                        path);
    const uint64_t length = strlen(header);
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)(length >> 8 * i);
    const bool good =
        fwrite(prefix, 1, 8, stream) == 8 && fwrite(header, 1, (size_t)length, stream) == length;
    const int code = errno;
    free(header);
    return good ? COT_OK : cot_fail(error, COT_IO, "cannot write '%s': %s", path, strerror(code));
}

cot_status cot_safetensors_write(const char *path, const cot_tensor *tensors, size_t count,
                                 const char *const *meta, size_t n_meta, cot_error *error)
{
    cot_file_writer writer;
    cot_status status = cot_file_writer_open(&writer, path, error);
    if (status != COT_OK) return status;
    status = cot_safetensors_begin(writer.stream, path, tensors, count, meta, n_meta, error);
    if (status != COT_OK) {
        cot_file_writer_abort(&writer);
        return status;
    }
    for (size_t i = 0; i < count; i++)
        if (tensors[i].bytes) fwrite(tensors[i].data, 1, tensors[i].bytes, writer.stream);
    return cot_file_writer_commit(&writer, error); // sees any earlier write error
}
