/* Archives of stored (not compressed) members, as torch.save writes them. */
#ifndef COT_ROUTING_TORCH_ZIP_H
#define COT_ROUTING_TORCH_ZIP_H
#include "coterie/status.h"
#include <stddef.h>
#include <stdint.h>

typedef struct cot_zip_member {
    const char *name; // [name_bytes], not NUL-terminated
    size_t name_bytes;
    const uint8_t *data; // lies within the archive
    size_t bytes;
} cot_zip_member;

typedef struct cot_zip {
    cot_zip_member *members;
    size_t count;
} cot_zip;

/* Lists the members of the archive at `data`, which must outlive `*zip`; `path` is for messages. The caller closes it.
 * Errors: MALFORMED (also: a member outside the archive), UNSUPPORTED (compressed, encrypted, in several volumes),
 * OUT_OF_MEMORY. */
cot_status cot_zip_open(cot_zip *zip, const uint8_t *data, size_t bytes, const char *path, cot_error *error);
void cot_zip_close(cot_zip *zip);
/* The member whose name is `folder` [folder_bytes] and then `name`, or NULL. */
const cot_zip_member *cot_zip_find(const cot_zip *zip, const char *folder, size_t folder_bytes,
                                   const char *name, size_t name_bytes);

#endif
