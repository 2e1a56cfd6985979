/* Ids of a vocabulary for tokens that a trace knows by their strings. */
#ifndef COT_CLI_PLAN_TOKEN_IDS_H
#define COT_CLI_PLAN_TOKEN_IDS_H
#include "coterie/trace.h"

/* Replaces the trace's ids, made from strings, by those that the tokenizer at `path` gives to the same texts; unknown
 * where it has no such token. `*ids` [n_tokens] holds them from then on and is freed by the caller after the trace is
 * closed. Returns a CLI_EXIT_ value after saying what is wrong. */
int cli_map_token_ids(cot_trace *trace, int32_t **ids, const char *path);

#endif
