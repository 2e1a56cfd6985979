/* What a tokenizer is made of. */
#ifndef COT_TOKENIZER_PARTS_H
#define COT_TOKENIZER_PARTS_H
#include "base/gguf.h"
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
    /* Most bytes of a word that one id stands for, so that a word of n bytes has at least n / longest ids; 0 where nothing
     * is known, since characters may be left out or joined. */
    size_t longest;
};

/* Loads what a tokenizer has besides its vocabulary and merges, which are there: out of a tokenizer.json's members. */
cot_status cot_tokenizer_load_parts(cot_tokenizer *tokenizer, const json_t *root, cot_error *error);
/* The tokenizer of a GGUF file's metadata. */
cot_status cot_tokenizer_open_gguf(cot_tokenizer **tokenizer, const char *path, cot_error *error);
/* The same in the words of tokenizer.json. Errors: those of opening it, UNSUPPORTED (a NUL in a token). */
cot_status cot_tokenizer_tell_gguf(json_t **told, const char *path, cot_error *error);
/* A tokenizer's vocabulary and merges as tokenizer.json has them, with `parts`, its other members; NULL when out of memory. */
json_t *cot_tokenizer_tell(const cot_tokenizer *tokenizer, const json_t *parts);

#endif
