/* What a tokenizer is made of. */
#ifndef COT_MODEL_TOKENIZER_PARTS_H
#define COT_MODEL_TOKENIZER_PARTS_H
#include "coterie/tokenizer.h"
#include "model/tokenizer/added.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/decoder.h"
#include "model/tokenizer/normalize.h"
#include "model/tokenizer/pretokenize.h"
#include "model/tokenizer/template.h"

struct cot_tokenizer {
    cot_vocab vocab;
    cot_added_set raw, normalized;
    cot_normalizer normalizer;
    cot_pretokenizer pretokenizer;
    cot_bpe bpe;
    cot_template template;
    cot_decoder decoder;
};

#endif
