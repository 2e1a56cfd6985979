/* The shipped model as a folder of links in a temporary folder, and ways to break one thing of it. */
#ifndef COT_TESTS_HARNESS_CLI_BROKEN_H
#define COT_TESTS_HARNESS_CLI_BROKEN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TINY COT_SOURCE "/models/tiny"

/* A new temporary folder, with nothing in it; false where none can be made. The model is "m" in it. */
bool broken_folder(char folder[64]);
/* Removes it with all that is in it; false where that fails. */
bool broken_folder_remove(const char *folder);

/* The path of a file of the model. */
void path_in(char path[256], const char *folder, const char *name);

/* The model whole: links to the files of the shipped one. */
void fresh_model(const char *folder);

/* A file in place of a link: `head`, then `data`. */
void spill(const char *path, const void *head, size_t head_bytes, const void *data, size_t bytes);

enum how { NOTHING, REMOVE, WHOLE, REPLACE, HEADER, CUT, LENGTH, FILL, FOLDER };

/* A fresh model of which one file, `name`, is removed; written anew as `to`; its first `from` turned into `to`, in the
 * text or in the header of a safetensors file; cut by `n` bytes; its header's length said to be `n`; every 16-bit element
 * of its tensor `from` set to `n`; or made a folder. */
void break_model(const char *folder, enum how how, const char *name, const char *from, const char *to,
                 uint64_t n);

/* The tokenizer keeps its first ids alone, and no merges. */
void shrink_tokenizer(const char *folder, int64_t ids);

#endif
