/* Pre-tokenizers: text to words, which merges then do not cross. */
#ifndef COT_TOKENIZER_PRETOKENIZE_H
#define COT_TOKENIZER_PRETOKENIZE_H
#include "tokenizer/regex.h"

/* What is done with the matches of a Split. */
typedef enum cot_split_behavior {
    COT_SPLIT_ISOLATED,
    COT_SPLIT_REMOVED,
    COT_SPLIT_MERGED_WITH_PREVIOUS,
    COT_SPLIT_MERGED_WITH_NEXT,
    COT_SPLIT_CONTIGUOUS,
} cot_split_behavior;

/* A file's ByteLevel is up to three of these: PREFIX, SPLIT, BYTES; its Metaspace REPLACE, PREFIX, SPLIT. */
typedef enum cot_pretokenizer_kind {
    COT_PRETOKENIZER_SPLIT,   // each piece at the matches of `pattern`
    COT_PRETOKENIZER_REPLACE, // `content` for each match of `pattern`
    COT_PRETOKENIZER_PREFIX,  // `content` in front of each piece that does not begin with it
    COT_PRETOKENIZER_BYTES,   // each byte becomes its character of the byte-level alphabet
} cot_pretokenizer_kind;

typedef struct cot_pretokenizer_step {
    cot_pretokenizer_kind kind;
    cot_split_behavior behavior;
    bool invert;     // SPLIT: what lies between the matches is what is matched
    bool first_only; // PREFIX: the piece at the start of the text alone
    cot_regex *pattern;
    char content[5]; // PREFIX, REPLACE: one character, NUL-terminated
} cot_pretokenizer_step;

typedef struct cot_pretokenizer {
    cot_pretokenizer_step steps[COT_TOKENIZER_MAX_STEPS * 3];
    size_t count;
    bool start_moves; // the text's start is not where it was: a character was put before it, or taken
} cot_pretokenizer;

typedef struct cot_text_piece {
    size_t start, end; // in the text; never empty
    bool first;        // it begins where the whole text begins
} cot_text_piece;

/* A text and the pieces it is cut into; all zero at the start. */
typedef struct cot_text_pieces {
    cot_buffer text;
    cot_text_piece *items;
    size_t count, capacity;
} cot_text_pieces;

/* Loads the file's "pre_tokenizer" (NULL is fine); closed by the caller also on failure. `start_moves` says whether the
 * normaliser may change the text's start (cot_normalizer_moves_start). Then prepend_scheme 'first' is refused: which
 * piece Hugging Face tokenizers takes for the first depends on how it counts offsets. Errors: UNSUPPORTED, MALFORMED,
 * OUT_OF_MEMORY. */
cot_status cot_pretokenizer_load(cot_pretokenizer *pretokenizer, const json_t *json, bool start_moves,
                                 cot_error *error);
void cot_pretokenizer_close(cot_pretokenizer *pretokenizer);

/* Cuts pieces->text (valid UTF-8) into words; `first` says whether it begins where the whole text does.
 * `spare` is working space. Once it is certain that there are more than `most` words the rest may be left out. Errors:
 * MALFORMED (a pattern backtracks beyond its limit), OUT_OF_MEMORY. */
cot_status cot_pretokenizer_run(const cot_pretokenizer *pretokenizer, cot_regex_scratch *scratch,
                                cot_text_pieces *pieces, cot_text_pieces *spare, bool first, size_t most,
                                cot_error *error);
void cot_text_pieces_free(cot_text_pieces *pieces);

#endif
