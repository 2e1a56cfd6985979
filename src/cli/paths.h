/* Paths that the user gave, judged before any work is done for them. */
#ifndef COT_CLI_PATHS_H
#define COT_CLI_PATHS_H
#include <stdbool.h>

/* Both write a line on stderr before they return false. */

/* Whether `path` is a folder with a config.json. */
bool cot_check_model(const char *path);
/* Whether a file can be made at `path`, as far as can be told without making it; NULL is fine. */
bool cot_check_output(const char *path);

#endif
