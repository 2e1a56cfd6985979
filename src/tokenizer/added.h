/* Added tokens: strings that are cut out of a text before anything else sees it. */
#ifndef COT_TOKENIZER_ADDED_H
#define COT_TOKENIZER_ADDED_H
#include "tokenizer/normalize.h"
#include "tokenizer/vocab.h"

typedef struct cot_added_token {
    cot_text text; // what to look for; owned
    int32_t id;
    bool single_word;    // not within a word
    bool lstrip, rstrip; // with the white space before it, after it
    bool blank;          // nothing but white space: text, whoever wrote it
} cot_added_token;

/* Tokens in ascending order of their texts. */
typedef struct cot_added_set {
    cot_added_token *tokens;
    size_t count, capacity;
    bool leads[256]; // the bytes that a text begins with
} cot_added_set;

/* A part of a text: an added token, or what lies between two. */
typedef struct cot_part {
    size_t start, end;
    int32_t id; // -1 for text
} cot_part;

typedef struct cot_parts {
    cot_part *items;
    size_t count, capacity;
} cot_parts;

/* Loads the file's "added_tokens" (NULL is fine) into `vocab` and two sets. The tokens of `raw` are looked for in the
 * text as it came. What lies between them is normalised, and there those of `normalized`, whose texts have been
 * normalised too, are looked for. The sets are closed by the caller also on failure. Errors: MALFORMED, OUT_OF_MEMORY
 * and the normaliser's. */
cot_status cot_added_load(cot_added_set *raw, cot_added_set *normalized, cot_vocab *vocab,
                          const cot_normalizer *normalizer, const json_t *list, cot_error *error);
void cot_added_close(cot_added_set *set);

/* Cuts `text` [bytes], valid UTF-8, into parts, none empty: at each place the longest token, from the left.
 * As in Hugging Face tokenizers a token that lies in white space which the one before it stripped counts
 * again. `own` [bytes], where it is not NULL, says which bytes may spell a token: one that is not blank is found
 * only where all of its bytes may. Once more than `most` tokens are found the rest may be left out. False when out of
 * memory. */
bool cot_added_split(const cot_added_set *set, const char *text, size_t bytes, const uint8_t *own,
                     size_t most, cot_parts *parts);

#endif
