/* Text files as token sequences of at most a model's context. */
#ifndef COT_CLI_WINDOWS_H
#define COT_CLI_WINDOWS_H
#include "engine_settings.h"
#include "coterie/eval.h"

/* Positions of KV for the longest of these sequences, as many as can run at once. */
int64_t kv_tokens_of(const cot_eval_sequence *sequences, size_t count);

typedef struct text_windows {
    cot_eval_sequence *sequences; // named FILE or FILE.N, all prefill
    size_t count, room;
    struct text_tokens {
        const char *path;
        int32_t *ids;
        size_t count;
    } * texts; // one a file
    char **names;
    size_t files, name_count;
} text_windows;

/* Encodes each file of the list (- is standard input) as the tokenizer of `model` does, post-processor
 * included. With prefix >= 0 that id stands before each text in place of what a post-processor adds, so that
 * every token of the text is predicted. Returns false after a line on stderr; free either way. */
bool text_windows_read(text_windows *windows, const char *model, cot_list files, int64_t prefix);
/* What an engine needs to run them, a few windows at a time where each has a home rank. */
engine_needs text_windows_need(const text_windows *windows, const engine_settings *settings);
/* Cuts them into windows of `length` tokens, each on its own. Returns false after a line on stderr. */
bool text_windows_cut(text_windows *windows, int64_t length);
/* Cuts them so that every token but a text's first id is predicted once, `length` of them in a window, which
 * begins with the token before the first of them. The last window of a text begins as early as a whole one
 * would: what it predicts has as much before it. Returns false after a line on stderr. */
bool text_windows_roll(text_windows *windows, int64_t length);
void text_windows_free(text_windows *windows);

#endif
