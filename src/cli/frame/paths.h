/* Paths that the user gave, judged before any work is done for them. */
#ifndef COT_CLI_FRAME_PATHS_H
#define COT_CLI_FRAME_PATHS_H
#include "coterie/file.h"
#include <jansson.h>

/* Whether `path` is a folder with a config.json; false after a line on stderr. */
bool cli_check_model(const char *path);

/* Files that the user asked for. "-" is standard output, where that does not hold other data. */
bool cli_is_standard_output(const char *path);
/* What the library is to open for `path`. */
const char *cli_output_path(const char *path);
/* Whether `path` can be written, as far as can be told without doing it; NULL is fine. `data` is what standard
 * output holds, so that it cannot be "-", or NULL. Returns false after a line on stderr. */
bool cli_check_output(const char *path, const char *data);
/* Begins and ends a file that appears whole or not at all (cot_file_writer). NULL and false come after a line on
 * stderr; a writer that is all zero is fine to close. */
FILE *cli_open_output(cot_file_writer *writer, const char *path);
bool cli_close_output(cot_file_writer *writer);
/* Writes `json` (NULL: out of memory) to a file and frees it. Returns false after a line on stderr. */
bool cli_write_json(const char *path, json_t *json);

#endif
