/* Files that torch.save wrote. */
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

#endif
