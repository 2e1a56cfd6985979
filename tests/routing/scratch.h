/* A folder to write in, and what the tests of this room share. */
#ifndef COT_TESTS_ROUTING_SCRATCH_H
#define COT_TESTS_ROUTING_SCRATCH_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "coterie/trace.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char scratch[256];
static uint64_t seed, draws;

static void remove_tree(const char *path)
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

static int scratch_open(void **state)
{
    (void)state;
    seed = (uint64_t)cot_now_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    const char *root = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/cot-routing-XXXXXX", root ? root : P_tmpdir);
    return mkdtemp(scratch) ? 0 : -1;
}

static int scratch_close(void **state)
{
    (void)state;
    remove_tree(scratch);
    return 0;
}

/* "SCRATCH/NAME" in one of a few rotating buffers. */
static inline const char *in_scratch(const char *name)
{
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static inline void put_file(const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(in_scratch(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}
static inline void put_text(const char *name, const char *text)
{
    put_file(name, text, strlen(text));
}

/* Below `n`. */
static inline uint32_t draw(uint32_t n)
{
    return (uint32_t)(cot_random_bits(seed, 0, draws++) % n);
}

/* K distinct experts of E. */
static inline void draw_experts(uint16_t *experts, int K, int E)
{
    for (int k = 0; k < K; k++) {
        bool fresh;
        do {
            experts[k] = (uint16_t)draw((uint32_t)E);
            fresh = true;
            for (int j = 0; j < k; j++) fresh &= experts[j] != experts[k];
        } while (!fresh);
    }
}

/* Asserts that `status` failed with a message that holds `words`. */
static inline void assert_refused(cot_status status, const cot_error *error, const char *words)
{
    assert_int_not_equal(status, COT_OK);
    assert_int_equal(status, error->status);
    if (!strstr(error->message, words)) fail_msg("message \"%s\" lacks \"%s\"", error->message, words);
}

#endif
