/* Text files as token sequences of at most a model's context. */
#ifndef COT_CLI_WINDOWS_H
#define COT_CLI_WINDOWS_H
#include "engine_settings.h"
#include "coterie/eval.h"

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
 * included. Returns false after a line on stderr; free either way. */
bool text_windows_read(text_windows *windows, const char *model, cot_list files);
/* What an engine needs to run them, a few windows at a time where each has a home rank. */
engine_needs text_windows_need(const text_windows *windows, const engine_settings *settings);
/* Cuts them into windows of `context` tokens. Returns false after a line on stderr. */
bool text_windows_cut(text_windows *windows, int64_t context);
void text_windows_free(text_windows *windows);

#endif
