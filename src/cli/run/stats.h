/* The engine's counters for people and for programs. */
#ifndef COT_CLI_RUN_STATS_H
#define COT_CLI_RUN_STATS_H
#include "cli/frame/options.h"
#include "coterie/engine.h"

/* Where `wanted`: gathers the counters, prints the table on stderr or, with a file name, writes JSON there:
 * per phase `bytes` and `messages` as [P][P] matrices, source by destination. Returns false after a line on
 * stderr. */
bool cli_show_stats(cot_engine *engine, cli_optional_text wanted);

#endif
