/* What torch.save wrote before 1.6, and writes where _use_new_zipfile_serialization is False: pickles of a magic number, of a
 * version and of the machine's sizes, the pickle of what was saved, the pickle of a list of storage keys, and for each key in
 * that order the number of its elements (8 bytes) and the elements. Where the storages lie is known when the first reading of
 * the pickle has found its end; they are then listed as an archive's members, and it is read again. */
#include "routing/torch/file.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[] = {0x80, 2,    0x8a, 10,   0x6c, 0xfc, 0x9c, 0x46,
                                0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};

bool cot_torch_is_legacy(const void *data, size_t bytes)
{
    return bytes > sizeof magic && !memcmp(data, magic, sizeof magic);
}

typedef struct reading {
    cot_torch_file *file;
    const uint8_t *data;
    size_t at, bytes;
    const char *path;
    cot_error *error;
} reading;

static cot_status broken(const reading *r, const char *what)
{
    return cot_fail(r->error, COT_MALFORMED, "'%s' is a broken file of torch's older form: %s", r->path,
                    what);
}

static cot_status next_pickle(reading *r, const cot_torch_value **value, cot_torch_memory *memory,
                              cot_torch_storages *storages)
{
    size_t used = 0;
    cot_status status = cot_torch_unpickle(value, &used, memory, r->data + r->at, r->bytes - r->at, storages,
                                           r->path, r->error);
    r->at += used;
    return status;
}

static int by_key(const void *a, const void *b)
{
    const cot_torch_found *x = a, *y = b;
    const int order = memcmp(x->key, y->key, x->key_bytes < y->key_bytes ? x->key_bytes : y->key_bytes);
    return order ? order : (x->key_bytes > y->key_bytes) - (x->key_bytes < y->key_bytes);
}

/* The storage of that key, its elements and their number, becomes a member "data/KEY". */
static cot_status add_member(reading *r, const cot_torch_value *key, const cot_torch_storages *storages)
{
    const cot_torch_found wanted = {.key = key->text.at, .key_bytes = key->text.bytes};
    const cot_torch_found *found =
        key->kind == COT_TORCH_TEXT && storages->n_found
            ? bsearch(&wanted, storages->found, storages->n_found, sizeof wanted, by_key)
            : NULL;
    uint64_t count = 0;
    if (!found) return broken(r, "it lists a storage that nothing uses");
    if (r->bytes - r->at < 8) return broken(r, "it ends before a storage");
    for (int i = 8; i-- > 0;) count = count << 8 | r->data[r->at + (size_t)i];
    r->at += 8;
    const size_t size = cot_dtype_bytes(found->dtype);
    if (count > (r->bytes - r->at) / size) return broken(r, "it ends within a storage");
    char *name = cot_torch_take(&r->file->memory, wanted.key_bytes + 6);
    if (!name) return cot_fail(r->error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", r->path);
    memcpy(name, "data/", 5);
    memcpy(name + 5, wanted.key, wanted.key_bytes);
    r->file->zip.members[r->file->zip.count++] =
        (cot_zip_member){name, wanted.key_bytes + 5, r->data + r->at, (size_t)count * size};
    r->at += (size_t)count * size;
    return COT_OK;
}

static cot_status find_storages(reading *r, cot_torch_storages *storages, const cot_torch_value *keys)
{
    if (keys->kind != COT_TORCH_LIST) return broken(r, "it has no list of storages");
    r->file->zip.members = calloc((size_t)keys->list.count + 1, sizeof *r->file->zip.members);
    if (!r->file->zip.members)
        return cot_fail(r->error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", r->path);
    if (storages->n_found) qsort(storages->found, storages->n_found, sizeof *storages->found, by_key);
    cot_status status = COT_OK;
    for (uint32_t i = 0; status == COT_OK && i < keys->list.count; i++)
        status = add_member(r, keys->list.items[i], storages);
    return status;
}

/* The version and the machine. */
static cot_status read_head(reading *r, cot_torch_memory *memory, cot_torch_storages *storages)
{
    enum { VERSION = 1001 };
    const cot_torch_value *value, *little;
    r->at = sizeof magic;
    cot_status status = next_pickle(r, &value, memory, storages);
    if (status == COT_OK && (value->kind != COT_TORCH_INTEGER || value->integer != VERSION))
        return broken(r, "it is of another version than 1001");
    if (status == COT_OK) status = next_pickle(r, &value, memory, storages);
    if (status != COT_OK) return status;
    little = cot_torch_get(value, "little_endian");
    return little && little->kind == COT_TORCH_BOOL && little->integer
               ? COT_OK
               : cot_fail(r->error, COT_UNSUPPORTED, "'%s': tensors of a big-endian machine", r->path);
}

cot_status cot_torch_parse_legacy(cot_torch_file *file, const uint8_t *data, size_t bytes, const char *path,
                                  cot_error *error)
{
    reading r = {.file = file, .data = data, .bytes = bytes, .path = path, .error = error};
    cot_torch_memory memory = {0};
    cot_torch_storages storages = {0};
    const cot_torch_value *value;
    cot_status status = read_head(&r, &memory, &storages);
    const size_t saved = r.at;
    if (status == COT_OK) status = next_pickle(&r, &value, &memory, &storages);
    if (status == COT_OK) status = next_pickle(&r, &value, &memory, &storages);
    if (status == COT_OK) status = find_storages(&r, &storages, value);
    if (status == COT_OK && r.at != bytes) status = broken(&r, "there is more behind its storages");
    r.at = saved;
    cot_torch_storages there = {.zip = &file->zip, .folder = ""};
    if (status == COT_OK) status = next_pickle(&r, &file->value, &file->memory, &there);
    free(storages.found);
    cot_torch_memory_free(&memory);
    return status;
}
