/* A GGUF file, as a container: whatever it says, what is read lies in it. What its metadata say of a model and a tokenizer is read of
 * small ones, from a file. */
#include "base/gguf.h"
#include "checkpoint/checkpoint.h"
#include "coterie/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch(const cot_gguf *file)
{
    static volatile unsigned sum;
    for (size_t i = 0; i < file->count; i++) {
        const uint8_t *at = file->tensors[i].data;
        sum += at[0] + at[file->tensors[i].bytes - 1];
    }
    for (size_t i = 0; i < file->pair_count; i++) {
        json_decref(cot_gguf_json(&file->pairs[i]));
        for (size_t n = 0; n < file->pairs[i].count; n++) sum += cot_gguf_number(&file->pairs[i], n) > 0;
    }
}

static void open_model(const uint8_t *data, size_t size)
{
    static int descriptor = -1; // of a file in memory, which is gone with the fuzzer
    static char path[40];
    cot_error error;
    cot_checkpoint *checkpoint = NULL;
    cot_tokenizer *tokenizer = NULL;
    char *notes = NULL;
    if (descriptor < 0) descriptor = memfd_create("fuzz.gguf", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    if (descriptor < 0 || ftruncate(descriptor, 0) || pwrite(descriptor, data, size, 0) != (ssize_t)size)
        return;
    cot_checkpoint_open(&checkpoint, path, &notes, &error);
    cot_checkpoint_close(checkpoint);
    free(notes);
    cot_tokenizer_open(&tokenizer, path, &error);
    cot_tokenizer_close(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cot_gguf file;
    cot_error error;
    if (cot_gguf_parse(&file, data, size, "fuzz", &error) != COT_OK) return 0;
    touch(&file);
    cot_gguf_close(&file);
    open_model(data, size);
    return 0;
}
