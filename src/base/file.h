/* Whole files: mapped or read here, written as coterie/file.h says. */
#ifndef COT_BASE_FILE_H
#define COT_BASE_FILE_H
#include "coterie/file.h"
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cot_file_map {
    const uint8_t *data;
    size_t bytes;
    int descriptor; // of the file, where there is data
} cot_file_map;

/* Maps a regular file read-only; links are followed. An empty file maps to {NULL, 0}. Bytes that somebody cuts off the
 * file later must not be touched: the system ends a process that does (cot_file_map_read can tell).
 * Errors: NOT_FOUND, IO (also: not a regular file). */
cot_status cot_file_map_open(cot_file_map *map, const char *path, cot_error *error);
void cot_file_map_close(cot_file_map *map);
/* Tells the kernel that [offset, offset + bytes) has been read and its pages may leave this process. */
void cot_file_map_drop(const cot_file_map *map, size_t offset, size_t bytes);
/* Copies [offset, offset + bytes) as the file has them now. False where it is no longer that long, or cannot be read.
 * Thread-safe; allocates nothing. */
bool cot_file_map_read(const cot_file_map *map, void *to, size_t offset, size_t bytes);

/* Reads a whole file, at most `limit` bytes, into malloc'd memory with a NUL after it. The caller frees
 * `*text`. */
cot_status cot_file_read(char **text, size_t *bytes, const char *path, size_t limit, cot_error *error);

/* "FOLDER/NAME" in malloc'd memory, NULL when out of memory. */
char *cot_path_join(const char *folder, const char *name);
bool cot_path_ends(const char *name, const char *end);

/* Opens a file at whose end lines are added, made where it is missing; one that others write to or have renamed is no
 * trouble; a named pipe that nobody reads is refused, not waited for. *descriptor is the caller's, -1 on failure. Errors: IO. */
cot_status cot_file_append_open(int *descriptor, const char *path, cot_error *error);

#endif
