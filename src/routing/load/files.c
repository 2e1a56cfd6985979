/* The files behind the paths that a user gives. */
#include "routing/load/reader.h"

#include "base/error.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int is_torch(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return entry->d_name[0] != '.' && n > 3 && !strcmp(entry->d_name + n - 3, ".pt");
}

static int is_tensorrt(const struct dirent *entry)
{
    return cot_load_is_tensorrt(entry->d_name);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static cot_status no_memory(const char *path, cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", path);
}

/* Appends `path`, which is malloc'd, or NULL when there was no memory for it. */
static cot_status append(cot_load_paths *list, char *path, const char *given, cot_error *error)
{
    char **longer = path ? realloc(list->paths, (list->count + 1) * sizeof *longer) : NULL;
    if (!longer) {
        free(path);
        return no_memory(given, error);
    }
    list->paths = longer;
    list->paths[list->count++] = path;
    return COT_OK;
}

static cot_status append_folder(cot_load_paths *list, const char *folder, cot_error *error)
{
    struct dirent **entries = NULL;
    cot_status status = COT_OK;
    int n = scandir(folder, &entries, is_torch, by_name);
    if (!n) {
        free(entries);
        entries = NULL;
        n = scandir(folder, &entries, is_tensorrt, by_name);
    }
    if (n < 0) return cot_fail(error, COT_IO, "cannot list '%s'", folder);
    for (int i = 0; i < n; i++) {
        if (status == COT_OK) status = append(list, cot_path_join(folder, entries[i]->d_name), folder, error);
        free(entries[i]);
    }
    free(entries);
    return n || status != COT_OK ? status
                                 : append(list, strdup(folder), folder, error); // routing data, perhaps
}

cot_status cot_load_paths_open(cot_load_paths *list, const char *const *paths, size_t count, cot_error *error)
{
    cot_status status = COT_OK;
    *list = (cot_load_paths){0};
    for (size_t i = 0; status == COT_OK && i < count; i++) {
        struct stat info;
        bool folder = !stat(paths[i], &info) && S_ISDIR(info.st_mode);
        status =
            folder ? append_folder(list, paths[i], error) : append(list, strdup(paths[i]), paths[i], error);
    }
    if (status != COT_OK) cot_load_paths_close(list);
    return status;
}

bool cot_load_has_torch(const char *folder)
{
    struct dirent **entries = NULL;
    const int n = scandir(folder, &entries, is_torch, NULL);
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    return n > 0;
}

void cot_load_paths_close(cot_load_paths *list)
{
    for (size_t i = 0; i < list->count; i++) free(list->paths[i]);
    free(list->paths);
    *list = (cot_load_paths){0};
}
