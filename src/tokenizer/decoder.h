/* Decoders: the strings of a sequence's tokens to text, by a chain of steps that each turn tokens into
 * tokens.
 *
 * Here the chain is a pipeline that text flows through: a step hands on what it is sure of, as fragments of
 * tokens, and holds what later tokens may change. ByteLevel holds the bytes of an unfinished character;
 * ByteFallback a run of byte tokens, which is text only if all of it is UTF-8; Strip what may turn out to be
 * the end. */
#ifndef COT_TOKENIZER_DECODER_H
#define COT_TOKENIZER_DECODER_H
#include "tokenizer/normalize.h"

typedef enum cot_decoder_kind {
    COT_DECODER_BYTE_LEVEL,    // characters to bytes, all tokens one text
    COT_DECODER_BYTE_FALLBACK, // runs of "<0x41>" to text
    COT_DECODER_FUSE,          // all tokens one token
    COT_DECODER_REPLACE,       // `content` for each match of `pattern`
    COT_DECODER_METASPACE,     // `content` to spaces; in the first token to nothing if `strip_first`
    COT_DECODER_STRIP,         // up to `start` and `stop` characters `content` off a token's ends
    COT_DECODER_JOIN,          // spaces between tokens: what a file without a decoder means
} cot_decoder_kind;

typedef struct cot_decoder_step {
    cot_decoder_kind kind;
    cot_regex *pattern; // REPLACE
    cot_text content;   // owned; REPLACE, METASPACE, STRIP
    size_t start, stop;
    bool strip_first;
} cot_decoder_step;

typedef struct cot_decoder {
    cot_decoder_step steps[COT_TOKENIZER_MAX_STEPS + 1];
    size_t count;
} cot_decoder;

/* Loads the file's "decoder" (NULL is fine); closed by the caller also on failure. Errors: UNSUPPORTED,
 * MALFORMED, OUT_OF_MEMORY. */
cot_status cot_decoder_load(cot_decoder *decoder, const json_t *json, cot_error *error);
void cot_decoder_close(cot_decoder *decoder);

/* What a step holds back. */
typedef struct cot_decoder_state {
    cot_buffer token; // a token's fragments until it is whole, where the step needs it whole
    cot_buffer held;
    size_t tokens;   // how many tokens have come to their end
    size_t stripped; // STRIP: content characters dropped at the start of the token under way
    bool inside;     // STRIP: the start of the token under way has been handed on
} cot_decoder_state;

/* A text being decoded; all zero but `decoder` at the start. */
typedef struct cot_decoding {
    const cot_decoder *decoder;
    cot_regex_scratch scratch;
    cot_buffer out; // the text so far; whoever takes it sets out.bytes to 0
    /* Where the last token's own text begins: behind `earlier` bytes of `out`, and then behind `waiting` characters that
     * are held. */
    size_t earlier, waiting;
    size_t run; // characters that the byte tokens of a run have begun
    cot_decoder_state states[COT_TOKENIZER_MAX_STEPS + 1];
} cot_decoding;

/* Appends to `out` the bytes that a token's string stands for in a step of the decoder; none where it stands for none.
 * False when memory runs out. */
bool cot_decoder_bytes(const cot_decoder *decoder, const char *token, size_t bytes, cot_buffer *out);

/* The next token's string, and the end of the sequence, after which the decoding may start again. */
cot_status cot_decoding_push(cot_decoding *decoding, const char *token, size_t bytes, cot_error *error);
cot_status cot_decoding_finish(cot_decoding *decoding, cot_error *error);
void cot_decoding_free(cot_decoding *decoding);

#endif
