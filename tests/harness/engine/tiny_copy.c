#include "harness/engine/tiny_copy.h"

#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/memory.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_weights(const char *path, tiny_edit *edit, const void *what)
{
    cot_safetensors file;
    assert_int_equal(cot_safetensors_open(&file, TINY "/model.safetensors", NULL), COT_OK);
    cot_tensor *tensors = must_allocate(file.count, sizeof *tensors);
    uint16_t **edited = must_allocate(file.count, sizeof *edited);
    for (size_t i = 0; i < file.count; i++) {
        tensors[i] = file.tensors[i];
        assert_int_equal(tensors[i].dtype, COT_BF16);
        edited[i] = must_allocate(tensors[i].bytes, 1);
        memcpy(edited[i], tensors[i].data, tensors[i].bytes);
        if (edit) edit(edited[i], &tensors[i], what);
        tensors[i].data = edited[i];
    }
    assert_int_equal(cot_safetensors_write(path, tensors, file.count, NULL, 0, NULL), COT_OK);
    for (size_t i = 0; i < file.count; i++) free(edited[i]);
    cot_safetensors_close(&file);
    free(edited);
    free(tensors);
}

void tiny_copy_make(char *folder, tiny_edit *edit, const void *what)
{
    char path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    write_weights(path, edit, what);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(symlink(TINY "/config.json", path), 0);
}

void tiny_copy_remove(const char *folder)
{
    char path[512];
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    for (const struct dirent *entry; (entry = readdir(entries));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        assert_int_equal(unlink(path), 0);
    }
    closedir(entries);
    assert_int_equal(rmdir(folder), 0);
}
