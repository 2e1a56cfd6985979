/* Writing a file so that it appears whole or not at all. What writes to a path that a user gave goes through
 * here. */
#ifndef COTERIE_FILE_H
#define COTERIE_FILE_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A file that is being written. Symbolic links are followed: the file that the last of them names is made or
 * replaced, and the links stay. It is written beside that file without a name, so that a program that is killed
 * leaves nothing behind (under a temporary name where the file system knows no nameless files), and put in its
 * place by commit. What cannot be replaced is written directly and as it goes: devices, pipes, what lies in
 * /proc; /dev/stdout, /dev/fd/N and links to them go on where that descriptor stands.
 * A writer belongs to one thread at a time. */
typedef struct cot_file_writer {
    FILE *stream; /* what the caller writes to; errors of writing are told by commit */
    /* The rest is the writer's own: the path as given, the file that it leads to (NULL: written directly), and
     * the name that this file has until then (NULL: none). */
    char *path, *target, *temporary;
} cot_file_writer;

/* Errors: NOT_FOUND (the folder), IO, OUT_OF_MEMORY; `*writer` is all zero then, and nothing has changed. */
cot_status cot_file_writer_open(cot_file_writer *writer, const char *path, cot_error *error);
/* Flushes, closes, and puts the file in its place. Errors: IO, NOT_FOUND; what was there before is there still.
 * The writer is spent either way. */
cot_status cot_file_writer_commit(cot_file_writer *writer, cot_error *error);
/* Gives up: closes, and removes what was written beside the target. Fine on a writer that is spent or all zero. */
void cot_file_writer_abort(cot_file_writer *writer);
/* Whether opening a writer would succeed, as far as can be told without doing it; errors as there. */
cot_status cot_file_writer_check(const char *path, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
