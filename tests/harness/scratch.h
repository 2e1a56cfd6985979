/* A folder to write in, which is gone after the test; what the library says meanwhile, and numbers drawn for it. */
#ifndef COT_TESTS_HARNESS_SCRATCH_H
#define COT_TESTS_HARNESS_SCRATCH_H
#include "harness/cmocka.h"

#include <stddef.h>
#include <stdint.h>

/* What the tests of a group share: cmocka hands it to each as its state. One thread at a time uses it. */
typedef struct scratch_pad {
    char path[256]; // of the folder
    uint64_t seed, draws;
    char notes[4096]; // what `hear` was told, a line each
    char names[8][512];
    unsigned next_name;
} scratch_pad;

/* A group's setup and teardown: *state becomes a scratch_pad with an empty folder and the seed of this run. */
int scratch_open(void **state);
int scratch_close(void **state);

/* Removes a file, or a folder and all that is in it; what is not there is no error. */
void remove_tree(const char *path);

/* "FOLDER/NAME", which lasts for the next seven calls. */
const char *in_scratch(scratch_pad *pad, const char *name);

void put_file(scratch_pad *pad, const char *name, const void *data, size_t bytes);
void put_text(scratch_pad *pad, const char *name, const char *text);

/* A number below n. */
uint32_t pad_draw(scratch_pad *pad, uint32_t n);

/* K distinct experts of E. */
void draw_experts(scratch_pad *pad, uint16_t *experts, int K, int E);

/* A cot_trace_say whose context is a scratch_pad: adds a line to the notes, while there is room. */
void hear(void *pad, const char *line);

#endif
