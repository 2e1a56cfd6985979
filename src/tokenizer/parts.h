/* What a tokenizer is made of. */
#ifndef COT_TOKENIZER_PARTS_H
#define COT_TOKENIZER_PARTS_H
#include "coterie/tokenizer.h"
#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/template.h"

struct cot_tokenizer {
    cot_vocab vocab;
    cot_added_set raw, normalized;
    cot_normalizer normalizer;
    cot_pretokenizer pretokenizer;
    cot_bpe bpe;
    cot_template template;
    cot_decoder decoder;
};

/* cot_tokenizer_encode of a text of which only some bytes may spell added tokens: those where `own` [bytes] is not 0.
 * NULL: all. Added tokens of nothing but white space are text, and found everywhere. */
cot_status cot_tokenizer_encode_marked(const cot_tokenizer *tokenizer, int32_t **ids, size_t *count,
                                       const char *text, size_t bytes, const uint8_t *own, bool add_special,
                                       cot_error *error);

#endif
