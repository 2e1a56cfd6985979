#include "checkpoint/shards.h"

#include "base/error.h"
#include "base/file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static const char single_name[] = "model.safetensors", index_name[] = "model.safetensors.index.json";
enum { MAX_INDEX_BYTES = 256 << 20 };

static int by_name(const void *a, const void *b)
{
    const cot_shard_tensor *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

const cot_shard_tensor *cot_shards_find(const cot_shards *shards, const char *name)
{
    cot_tensor tensor = {.name = name};
    cot_shard_tensor key = {.tensor = &tensor};
    if (!shards->tensor_count) return NULL;
    return bsearch(&key, shards->tensors, shards->tensor_count, sizeof key, by_name);
}

/* The names go into a path: only a plain file name stays in the folder. */
static bool stays_in_folder(const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* The set of files that the index names, as an object from name to number, ascending. */
static cot_status list_files(json_t *files, const json_t *map, const char *path, cot_error *error)
{
    const char *tensor;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, file)
    {
        const char *name = json_string_value(file);
        if (!name)
            return cot_fail(error, COT_MALFORMED, "'%s': the file of tensor '%s' is no string", path, tensor);
        if (!stays_in_folder(name))
            return cot_fail(error, COT_MALFORMED, "'%s': shard name '%s' leaves the model's folder", path,
                            name);
        if (!json_object_get(files, name) &&
            json_object_set_new(files, name, json_integer((json_int_t)json_object_size(files))))
            return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", path);
    }
    return COT_OK;
}

static cot_status open_files(cot_shards *shards, const char *folder, json_t *names, cot_error *error)
{
    shards->files = calloc(json_object_size(names) + 1, sizeof *shards->files);
    if (!shards->files) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
    const char *name;
    json_t *number;
    json_object_foreach(names, name, number)
    {
        char *path = cot_path_join(folder, name);
        if (!path) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
        json_integer_set(number, (json_int_t)shards->file_count); // as the object is walked, so the files lie
        cot_status status = cot_safetensors_open(&shards->files[shards->file_count], path, error);
        free(path);
        if (status != COT_OK) return status;
        shards->tensor_count += shards->files[shards->file_count++].count;
    }
    return COT_OK;
}

const cot_file_map *cot_shards_map(const cot_shards *shards, const cot_shard_tensor *tensor)
{
    return shards->parts ? &shards->parts[tensor->file].map : &shards->files[tensor->file].map;
}

cot_status cot_shards_merge(cot_shards *shards, const char *name, cot_error *error)
{
    shards->tensors = calloc(shards->tensor_count + 1, sizeof *shards->tensors);
    if (!shards->tensors) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", name);
    size_t n = 0;
    for (size_t f = 0; f < shards->file_count; f++) {
        const cot_tensor *tensors = shards->parts ? shards->parts[f].tensors : shards->files[f].tensors;
        const size_t count = shards->parts ? shards->parts[f].count : shards->files[f].count;
        for (size_t t = 0; t < count; t++) {
            shards->tensors[n++] = (cot_shard_tensor){&tensors[t], f};
            shards->bytes += tensors[t].bytes;
        }
    }
    if (n) qsort(shards->tensors, n, sizeof *shards->tensors, by_name);
    for (size_t i = 1; i < n; i++)
        if (!by_name(&shards->tensors[i - 1], &shards->tensors[i]))
            return cot_fail(error, COT_MALFORMED, "'%s': two shards hold tensor '%s'", name,
                            shards->tensors[i].tensor->name);
    return COT_OK;
}

static cot_status check_places(const cot_shards *shards, const json_t *map, const json_t *names,
                               const char *path, cot_error *error)
{
    const char *tensor;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, file)
    {
        const char *name = json_string_value(file);
        const cot_shard_tensor *found = cot_shards_find(shards, tensor);
        if (!found || (json_int_t)found->file != json_integer_value(json_object_get(names, name)))
            return cot_fail(error, COT_MALFORMED, "'%s': tensor '%s' is not in '%s'", path, tensor, name);
    }
    return COT_OK;
}

bool cot_shards_find_unread(char name[256], const char *folder)
{
    static const char *const ends[] = {".gguf", ".GGUF", ".bin", ".pth", ".pt"};
    size_t best = sizeof ends / sizeof *ends;
    DIR *list = opendir(folder);
    for (const struct dirent *entry; list && (entry = readdir(list));)
        for (size_t e = 0; e < best; e++)
            if (cot_path_ends(entry->d_name, ends[e])) {
                snprintf(name, 256, "%s", entry->d_name);
                best = e;
            }
    if (list) closedir(list);
    return best < sizeof ends / sizeof *ends;
}

const char *cot_shards_advice(const char *name)
{
    const bool gguf = cot_path_ends(name, ".gguf") || cot_path_ends(name, ".GGUF");
    return gguf ? "': give that file in place of the folder" : "', which is not read";
}

static cot_status open_single(cot_shards *shards, const char *folder, const char *path, cot_error *error)
{
    shards->files = calloc(1, sizeof *shards->files);
    if (!shards->files) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
    cot_status status = cot_safetensors_open(&shards->files[0], path, error);
    if (status != COT_OK) return status;
    shards->file_count = 1;
    shards->tensor_count = shards->files[0].count;
    return cot_shards_merge(shards, folder, error);
}

/* How many files are called .safetensors, and the first of them by name. */
static size_t find_others(char first[256], const char *folder)
{
    size_t count = 0;
    DIR *list = opendir(folder);
    for (const struct dirent *entry; list && (entry = readdir(list));) {
        const char *name = entry->d_name;
        if (*name == '.' || !cot_path_ends(name, ".safetensors")) continue;
        if (!count++ || strcmp(name, first) < 0) snprintf(first, 256, "%s", name);
    }
    if (list) closedir(list);
    return count;
}

/* Weights of neither name. */
static cot_status open_other(cot_shards *shards, const char *folder, cot_error *error)
{
    char name[256], more[48] = "";
    const size_t count = find_others(name, folder);
    if (count == 1 && !strstr(name, "-of-")) {
        char *path = cot_path_join(folder, name);
        const cot_status status = path ? open_single(shards, folder, path, error)
                                       : cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
        free(path);
        memcpy(shards->other, name, sizeof name);
        return status;
    }
    if (count > 1) snprintf(more, sizeof more, " and %zu more", count - 1);
    if (count)
        return cot_fail(error, COT_NOT_FOUND,
                        "'%s' holds neither %s nor %s, but '%s'%s: files of several are read by the index",
                        folder, single_name, index_name, name, more);
    if (cot_shards_find_unread(name, folder))
        return cot_fail(error, COT_NOT_FOUND, "'%s' holds neither %s nor %s, but '%s%s", folder, single_name,
                        index_name, name, cot_shards_advice(name));
    return cot_fail(error, COT_NOT_FOUND, "'%s' holds neither %s nor %s", folder, single_name, index_name);
}

static cot_status open_indexed(cot_shards *shards, const char *folder, const char *path, cot_error *error)
{
    char *text;
    size_t bytes;
    json_error_t detail;
    cot_status status = cot_file_read(&text, &bytes, path, MAX_INDEX_BYTES, error);
    if (status == COT_NOT_FOUND) return open_other(shards, folder, error);
    if (status != COT_OK) return status;
    json_t *index = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &detail), *names = json_object();
    const json_t *map = json_object_get(index, "weight_map");
    free(text);
    if (!index)
        status = cot_fail(error, COT_MALFORMED, "'%s': not valid JSON: %s", path, detail.text);
    else if (!json_is_object(map))
        status = cot_fail(error, COT_MALFORMED, "'%s': no object 'weight_map'", path);
    else if (!names)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", path);
    if (status == COT_OK) status = list_files(names, map, path, error);
    if (status == COT_OK) status = open_files(shards, folder, names, error);
    if (status == COT_OK) status = cot_shards_merge(shards, folder, error);
    if (status == COT_OK) status = check_places(shards, map, names, path, error);
    json_decref(index);
    json_decref(names);
    return status;
}

cot_status cot_shards_open(cot_shards *shards, const char *folder, cot_error *error)
{
    *shards = (cot_shards){0};
    char *single = cot_path_join(folder, single_name), *index = cot_path_join(folder, index_name);
    cot_status status;
    if (!single || !index)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
    else
        status = open_single(shards, folder, single, error);
    if (status == COT_NOT_FOUND) {
        cot_shards_close(shards);
        status = open_indexed(shards, folder, index, error);
    }
    free(single);
    free(index);
    if (status != COT_OK) cot_shards_close(shards);
    return status;
}

void cot_shards_close(cot_shards *shards)
{
    for (size_t f = 0; f < shards->file_count && shards->files; f++) cot_safetensors_close(&shards->files[f]);
    for (size_t f = 0; f < shards->file_count && shards->parts; f++) cot_gguf_close(&shards->parts[f]);
    free(shards->files);
    free(shards->parts);
    free(shards->tensors);
    *shards = (cot_shards){0};
}
