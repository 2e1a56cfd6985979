/* Files that torch.save wrote: a zip archive of a pickle and its storages, or what torch wrote before 1.6 and still does when
 * asked to, the same one after another (legacy.c). */
#ifndef COT_ROUTING_TORCH_FILE_H
#define COT_ROUTING_TORCH_FILE_H
#include "base/file.h"
#include "routing/torch/value.h"

typedef struct cot_torch_file {
    cot_file_map map;
    cot_zip zip;
    cot_torch_memory memory;
    const cot_torch_value *value; // what was saved
} cot_torch_file;

/* Maps the file and reads what was saved; nothing of it is run. On failure `*file` is empty; the caller closes it.
 * Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED (big-endian too), OUT_OF_MEMORY. */
cot_status cot_torch_open(cot_torch_file *file, const char *path, cot_error *error);
/* The same on bytes in memory, which must outlive `*file`. */
cot_status cot_torch_parse(cot_torch_file *file, const void *data, size_t bytes, const char *path,
                           cot_error *error);
void cot_torch_close(cot_torch_file *file);

/* Whether the bytes begin as a file of torch.save in either form does. */
bool cot_torch_is(const void *data, size_t bytes);
/* The older form alone. */
bool cot_torch_is_legacy(const void *data, size_t bytes);
cot_status cot_torch_parse_legacy(cot_torch_file *file, const uint8_t *data, size_t bytes, const char *path,
                                  cot_error *error);

#endif
