/* Texts that a command takes from a file or from standard input. */
#ifndef COT_CLI_FRAME_WHOLE_FILE_H
#define COT_CLI_FRAME_WHOLE_FILE_H
#include <stddef.h>

/* All of the file at `path` (- for standard input) in malloc'd memory, at most 1 GiB, with a NUL behind it; NULL after a line on stderr. */
char *cli_read_whole(const char *path, size_t *bytes);

#endif
