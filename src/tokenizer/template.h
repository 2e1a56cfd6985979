/* Post-processors: the special tokens around an encoded text. */
#ifndef COT_TOKENIZER_TEMPLATE_H
#define COT_TOKENIZER_TEMPLATE_H
#include "tokenizer/fields.h"
#include "tokenizer/vocab.h"

typedef struct cot_template {
    cot_buffer before, after; // arrays of int32_t
} cot_template;

/* Loads the file's "post_processor" (NULL is fine); closed by the caller also on failure. Errors:
 * UNSUPPORTED, MALFORMED (also: an id that `vocab` does not have), OUT_OF_MEMORY. */
cot_status cot_template_load(cot_template *out, const cot_vocab *vocab, const json_t *json, cot_error *error);
void cot_template_close(cot_template *out);

#endif
