/* Text files as token sequences of at most a model's context. */
#ifndef COT_CLI_RUN_WINDOWS_H
#define COT_CLI_RUN_WINDOWS_H
#include "cli/run/engine_settings.h"
#include "coterie/eval.h"

/* Positions of KV for the longest of these sequences, as many as can run at once. */
int64_t cli_kv_tokens_of(const cot_eval_sequence *sequences, size_t count);

typedef struct cli_text_windows {
    cot_eval_sequence *sequences; // named FILE or FILE.N, all prefill
    size_t count, room;
    struct cli_text_tokens {
        const char *path;
        int32_t *ids;
        size_t count;
    } * texts; // one a file
    char **names;
    size_t files, name_count;
} cli_text_windows;

/* Encodes each file of the list (- is standard input) as the tokenizer of `model` does, post-processor
 * included. With prefix >= 0 that id stands before each text in place of what a post-processor adds, so that
 * every token of the text is predicted. Returns false after a line on stderr; free either way. */
bool cli_text_windows_read(cli_text_windows *windows, const char *model, cli_list files, int64_t prefix);
/* What an engine needs to run them, a few windows at a time where each has a home rank. */
cli_engine_needs cli_text_windows_need(const cli_text_windows *windows, const cli_engine_settings *settings);
/* Cuts them into windows of `length` tokens, each on its own. Returns false after a line on stderr. */
bool cli_text_windows_cut(cli_text_windows *windows, int64_t length);
/* Cuts them so that every token but a text's first id is predicted once, `length` of them in a window, which
 * begins with the token before the first of them. The last window of a text begins as early as a whole one
 * would: what it predicts has as much before it. Returns false after a line on stderr. */
bool cli_text_windows_roll(cli_text_windows *windows, int64_t length);
void cli_text_windows_free(cli_text_windows *windows);

#endif
