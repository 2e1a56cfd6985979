/* Patterns that split or replace text: literal strings, or regular expressions through PCRE2. */
#ifndef COT_TOKENIZER_REGEX_H
#define COT_TOKENIZER_REGEX_H
#include "tokenizer/fields.h"
#include "base/buffer.h"

typedef struct cot_regex cot_regex; // immutable, shared by threads

/* A part of a text; the parts of cot_regex_split cover it in order. */
typedef struct cot_text_span {
    size_t start, end;
    bool matched;
} cot_text_span;

typedef struct cot_text_spans {
    cot_text_span *items;
    size_t count, capacity;
} cot_text_spans;

/* What a thread needs to match; all zero at the start. */
typedef struct cot_regex_scratch {
    struct pcre2_real_match_data_8 *data;
    struct pcre2_real_match_context_8 *context;
    cot_text_spans spans;
} cot_regex_scratch;

/* The versions of PCRE2 and of Unicode that patterns go by: "10.42", "14.0.0". */
void cot_regex_versions(char pcre2[64], char unicode[64]);

/* Errors: MALFORMED (PCRE2's own words), UNSUPPORTED, OUT_OF_MEMORY. */
cot_status cot_regex_open(cot_regex **regex, const char *pattern, size_t bytes, bool literal,
                          cot_error *error);
/* A file's {"String": ...} or {"Regex": ...}. `where` names the component in messages. */
cot_status cot_regex_load(cot_regex **regex, const json_t *pattern, const char *where, cot_error *error);
void cot_regex_close(cot_regex *regex); // NULL is fine

/* Cuts `text` [bytes], valid UTF-8, into matches and what lies between, in scratch->spans. As in Hugging Face
 * tokenizers an empty match counts unless it touches the end of the match before. Once there are more than `most`
 * spans the rest may be left out. Errors: MALFORMED (the pattern backtracks beyond its limit), OUT_OF_MEMORY. */
cot_status cot_regex_split(const cot_regex *regex, cot_regex_scratch *scratch, const char *text, size_t bytes,
                           size_t most, cot_error *error);
/* Appends `text` to `out` with each match replaced by `content`. Errors: INVALID_ARGUMENT (`out` becomes longer than a
 * text may be), and cot_regex_split's. */
cot_status cot_regex_replace(const cot_regex *regex, cot_regex_scratch *scratch, const char *text,
                             size_t bytes, cot_text content, cot_buffer *out, cot_error *error);
void cot_regex_scratch_free(cot_regex_scratch *scratch);

#endif
