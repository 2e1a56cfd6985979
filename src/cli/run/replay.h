/* Replayed routing on the command line: a trace's sequences as requests. */
#ifndef COT_CLI_RUN_REPLAY_H
#define COT_CLI_RUN_REPLAY_H
#include "cli/run/engine_settings.h"
#include "cli/frame/growing_text.h"
#include "coterie/eval.h"

typedef struct cli_replay_settings {
    const char *routing, *prompt_tokens, *trace_layers, *shape;
} cli_replay_settings;

/* A group of rows for cli_options, over a cli_replay_settings. */
extern const cli_option cli_replay_option_rows[];

typedef struct cli_replay {
    bool drawn;    // `lar:X`: the requests are others'
    bool recorded; // `trace:FILE`: they are these
    cot_trace trace;
    int32_t first_layer, layers; // of the trace
    cot_engine_routing routing;
    cot_eval_sequence
        *sequences;           // those of the trace that `tables` did not learn from, the rest is passed over
    size_t count, learnt;     // of them; of those that are passed over
    cli_growing_text remarks; // lines
    char *names;
    cli_model_shape shape;
} cli_replay;

/* Reads what the settings, which cli_replay_check has passed, name; `tables` (may be NULL) are the file of --tables. What is odd, and what
 * is replayed, are remarks of the needs. Returns false after a line on stderr; close either way. */
bool cli_replay_open(cli_replay *replay, const cli_replay_settings *settings,
                     const cli_engine_settings *engine);
void cli_replay_close(cli_replay *replay);
/* Adds to what an engine needs. */
void cli_replay_need(cli_engine_needs *needs, const cli_replay *replay);
/* Whether the settings are written as they must be, and there is a model to run: a folder, or where requests are a trace's a
 * shape, and not both. False after a line on stderr that says how they are to be used. Nothing is opened for it. */
bool cli_replay_check(const cli_replay_settings *settings, const char *model, bool traced);
/* Whether requests are a trace's sequences. */
bool cli_replay_is_of_trace(const cli_replay_settings *settings);

#endif
