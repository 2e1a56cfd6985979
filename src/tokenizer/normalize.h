/* Normalisers: text to text, before words are made. */
#ifndef COT_TOKENIZER_NORMALIZE_H
#define COT_TOKENIZER_NORMALIZE_H
#include "tokenizer/regex.h"

typedef enum cot_normalizer_kind {
    COT_NORMALIZER_NFC,
    COT_NORMALIZER_PREPEND, // `content` in front, of what is not empty
    COT_NORMALIZER_REPLACE, // `content` for each match of `pattern`
} cot_normalizer_kind;

typedef struct cot_normalizer_step {
    cot_normalizer_kind kind;
    cot_regex *pattern;
    cot_text content; // owned by the step
} cot_normalizer_step;

typedef struct cot_normalizer {
    cot_normalizer_step steps[COT_TOKENIZER_MAX_STEPS];
    size_t count;
} cot_normalizer;

/* Loads the file's "normalizer" (NULL is fine); closed by the caller also on failure. Errors: UNSUPPORTED,
 * MALFORMED, OUT_OF_MEMORY. */
cot_status cot_normalizer_load(cot_normalizer *normalizer, const json_t *json, cot_error *error);
/* Whether it may put something before a text's first character or in its place. */
bool cot_normalizer_moves_start(const cot_normalizer *normalizer);
void cot_normalizer_close(cot_normalizer *normalizer);
/* Normalises `text`, valid UTF-8, in place; `spare` is working space. `own` (NULL where nobody asks) has 0 or 1 for each
 * byte of the text, and does so afterwards: a byte that was made of several has the least of theirs. */
cot_status cot_normalizer_run(const cot_normalizer *normalizer, cot_regex_scratch *scratch, cot_buffer *text,
                              cot_buffer *own, cot_buffer *spare, cot_error *error);

/* Replaces `text`, valid UTF-8, by its NFC. */
cot_status cot_nfc(cot_buffer *text, cot_error *error);

/* A copy of `text` in memory of its own: `data` is NULL when out of memory. */
cot_text cot_text_copy(cot_text text);

#endif
