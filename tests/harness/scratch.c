#include "harness/scratch.h"

#include "base/rng.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void remove_tree(const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *e; folder && (e = readdir(folder));) {
        char child[512];
        snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) remove_tree(child);
    }
    if (folder) closedir(folder);
    remove(path);
}

int scratch_open(void **state)
{
    scratch_pad *pad = must_allocate(1, sizeof *pad);
    *pad = (scratch_pad){.seed = test_seed()};
    const char *root = getenv("TMPDIR");
    snprintf(pad->path, sizeof pad->path, "%s/cot-test-XXXXXX", root ? root : P_tmpdir);
    *state = pad;
    return mkdtemp(pad->path) ? 0 : -1;
}

int scratch_close(void **state)
{
    scratch_pad *pad = *state;
    remove_tree(pad->path);
    free(pad);
    return 0;
}

const char *in_scratch(scratch_pad *pad, const char *name)
{
    const size_t names = sizeof pad->names / sizeof *pad->names;
    char path[sizeof *pad->names];
    snprintf(path, sizeof path, "%s/%s", pad->path, name);
    return strcpy(pad->names[pad->next_name++ % names], path);
}

void put_file(scratch_pad *pad, const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(in_scratch(pad, name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

void put_text(scratch_pad *pad, const char *name, const char *text)
{
    put_file(pad, name, text, strlen(text));
}

uint32_t pad_draw(scratch_pad *pad, uint32_t n)
{
    return (uint32_t)(cot_random_bits(pad->seed, 0, pad->draws++) % n);
}

void draw_experts(scratch_pad *pad, uint16_t *experts, int K, int E)
{
    for (int k = 0; k < K; k++) {
        bool fresh;
        do {
            experts[k] = (uint16_t)pad_draw(pad, (uint32_t)E);
            fresh = true;
            for (int j = 0; j < k; j++) fresh &= experts[j] != experts[k];
        } while (!fresh);
    }
}

void hear(void *context, const char *line)
{
    scratch_pad *pad = context;
    if (strlen(pad->notes) + strlen(line) + 2 < sizeof pad->notes) strcat(strcat(pad->notes, line), "\n");
}
