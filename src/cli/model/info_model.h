/* `coterie info MODEL`. */
#ifndef COT_CLI_MODEL_INFO_MODEL_H
#define COT_CLI_MODEL_INFO_MODEL_H
#include <stdbool.h>

/* Describes a model folder on stdout, with its sizes on so many ranks (0: 1, 2, 4 and 8). Returns a CLI_EXIT_ value. */
int cli_info_model(const char *model, int ranks, bool json);

#endif
