/* Builds archives as torch.save lays them out, with any pickle in them. */
#ifndef COT_TESTS_HARNESS_ROUTING_TORCH_ARCHIVE_H
#define COT_TESTS_HARNESS_ROUTING_TORCH_ARCHIVE_H
#include <stddef.h>
#include <stdint.h>

typedef struct archive {
    uint8_t bytes[1 << 16];
    size_t used;
    struct {
        const char *name;
        size_t offset, size;
    } member[16];
    size_t members;
} archive;

/* Bytes as they are, and the low `bytes` of a number, at its end. */
void archive_put(archive *a, const void *data, size_t bytes);
void archive_number(archive *a, uint64_t n, int bytes);

/* A stored member; `name` must outlive the archive. */
void archive_add(archive *a, const char *name, const void *data, size_t bytes);

/* The directory; `wide`: every number in the 64-bit fields. */
void archive_end(archive *a, int wide);

/* An archive of one pickle and a storage of six int32, 0 to 5. */
void archive_pickle(archive *a, const void *pickle, size_t bytes, int wide);

#endif
