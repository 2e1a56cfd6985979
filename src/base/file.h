/* Whole files: mapped to read, replaced to write. */
#ifndef COT_BASE_FILE_H
#define COT_BASE_FILE_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct cot_file_map {
    const uint8_t *data;
    size_t bytes;
} cot_file_map;

/* Maps a regular file read-only; links are followed. An empty file maps to {NULL, 0}.
 * Errors: NOT_FOUND, IO (also: not a regular file). */
cot_status cot_file_map_open(cot_file_map *map, const char *path, cot_error *error);
void cot_file_map_close(cot_file_map *map);
/* Tells the kernel that [offset, offset + bytes) has been read and its pages may leave this process. */
void cot_file_map_drop(const cot_file_map *map, size_t offset, size_t bytes);

/* Reads a whole file, at most `limit` bytes, into malloc'd memory with a NUL after it. The caller frees
 * `*text`. */
cot_status cot_file_read(char **text, size_t *bytes, const char *path, size_t limit, cot_error *error);

/* A file that appears whole or not at all: written without a name in its folder, so that a program that is
 * killed leaves nothing behind (under a temporary name where the file system knows no such files), named and
 * renamed by commit. What is not a regular file (/dev/stdout, a pipe) is written directly. */
typedef struct cot_file_writer {
    FILE *stream;
    char *path, *temporary; // temporary is NULL while there is none
    bool nameless;
} cot_file_writer;
cot_status cot_file_writer_open(cot_file_writer *writer, const char *path, cot_error *error);
/* Flushes, closes and renames; on failure nothing is left behind. The writer is spent either way. */
cot_status cot_file_writer_commit(cot_file_writer *writer, cot_error *error);
/* Gives up: closes and removes the temporary file. Fine on a writer that is spent or all zero. */
void cot_file_writer_abort(cot_file_writer *writer);

/* "FOLDER/NAME" in malloc'd memory, NULL when out of memory. */
char *cot_path_join(const char *folder, const char *name);

#endif
