/* Replayed routing on the command line: a trace's sequences as requests. */
#ifndef COT_CLI_REPLAY_H
#define COT_CLI_REPLAY_H
#include "engine_settings.h"
#include "growing_text.h"
#include "coterie/eval.h"

typedef struct replay_settings {
    const char *routing, *prompt_tokens, *trace_layers, *shape;
} replay_settings;

/* A group of rows for cot_options, over a replay_settings. */
extern const cot_option cot_replay_option_rows[];

typedef struct replay {
    bool drawn;    // `lar:X`: the requests are others'
    bool recorded; // `trace:FILE`: they are these
    cot_trace trace;
    int32_t first_layer, layers; // of the trace
    cot_engine_routing routing;
    cot_eval_sequence
        *sequences;       // those of the trace that `tables` did not learn from, the rest is passed over
    size_t count, learnt; // of them; of those that are passed over
    growing_text remarks; // lines
    char *names;
    model_shape shape;
} replay;

/* Reads what the settings, which replay_check has passed, name; `tables` (may be NULL) are the file of --tables. What is odd, and what
 * is replayed, are remarks of the needs. Returns false after a line on stderr; close either way. */
bool replay_open(replay *replay, const replay_settings *settings, const engine_settings *engine);
void replay_close(replay *replay);
/* Adds to what an engine needs. */
void replay_need(engine_needs *needs, const replay *replay);
/* Whether the settings are written as they must be, and there is a model to run: a folder, or where requests are a trace's a
 * shape, and not both. False after a line on stderr that says how they are to be used. Nothing is opened for it. */
bool replay_check(const replay_settings *settings, const char *model, bool traced);
/* Whether requests are a trace's sequences. */
bool replay_is_of_trace(const replay_settings *settings);

#endif
