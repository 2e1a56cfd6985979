/* Text to token ids and back, as a model's tokenizer.json says and as Hugging Face tokenizers computes it.
 *
 *     text -> added tokens split out -> normaliser -> pre-tokenizer -> BPE a word -> post-processor -> ids
 *     ids -> vocabulary strings -> decoders -> text
 *
 * Text is UTF-8 with a length, so it may hold NULs. Ids run from 0 to cot_tokenizer_size() - 1. */
#ifndef COTERIE_TOKENIZER_H
#define COTERIE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "coterie/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Immutable once open: any number of threads may use one at a time. */
typedef struct cot_tokenizer cot_tokenizer;

/* Reads `path`: a tokenizer.json, a model folder that holds one (else tiktoken.model of a model type that is known, or SentencePiece's
 * tokenizer.model of BPE, with what tokenizer_config.json says), or a GGUF file, whose metadata are the tokenizer (models gpt2, of the
 * `pre` names that are known, and llama). On success the caller owns `*tokenizer`;
 * on failure it is NULL. Errors: NOT_FOUND (of a folder that has a vocabulary in another form this is
 * named), IO, MALFORMED (not JSON, or not a consistent tokenizer), UNSUPPORTED (a type or option that is not implemented,
 * by name; a file in another form), OUT_OF_MEMORY. */
cot_status cot_tokenizer_open(cot_tokenizer **tokenizer, const char *path, cot_error *error);
/* The same on the `bytes` of a tokenizer.json in memory, which need not outlive the call; `name` is used in
 * messages only. */
cot_status cot_tokenizer_parse(cot_tokenizer **tokenizer, const char *text, size_t bytes, const char *name,
                               cot_error *error);
/* Frees it; NULL is fine. No detokenizer of it may be in use. */
void cot_tokenizer_close(cot_tokenizer *tokenizer);

/* Encodes `text` (UTF-8, at most 1 GiB). With `add_special` the post-processor adds its tokens (a begin
 * token, say); special tokens that the text itself spells are recognised either way. On success `*ids` is
 * malloc'd [count], to be freed by the caller, NULL when count is 0; on failure it is NULL. Errors:
 * INVALID_ARGUMENT (not UTF-8: the message names the byte offset; or too long), MALFORMED (the tokenizer's
 * unknown token is not in its vocabulary, a regular expression that backtracks beyond its limit),
 * OUT_OF_MEMORY. Thread-safe. */
cot_status cot_tokenizer_encode(const cot_tokenizer *tokenizer, int32_t **ids, size_t *count,
                                const char *text, size_t bytes, bool add_special, cot_error *error);

/* Where an encoding ends early. All zero: nowhere. */
typedef struct cot_tokenizer_limits {
    int64_t most_tokens; /* more are TOO_LONG; 0: any number */
    /* Asked every few milliseconds of work; true: nobody wants the ids any more. NULL: somebody does. */
    bool (*is_stopped)(void *context);
    void *context;
} cot_tokenizer_limits;

/* The same within limits (NULL: none), of a text of which only some bytes may spell added tokens: those where `own`
 * [bytes] is not 0, NULL: all. (Added tokens of nothing but white space are text, and found everywhere.) A text that has
 * too many tokens is given up once that is certain: what it costs in time and memory beyond a few copies of it depends
 * on most_tokens, not on its length, as long as the vocabulary covers every character. Further errors: TOO_LONG,
 * TIMED_OUT (it was stopped). */
cot_status cot_tokenizer_encode_within(const cot_tokenizer *tokenizer, int32_t **ids, size_t *count,
                                       const char *text, size_t bytes, const uint8_t *own, bool add_special,
                                       const cot_tokenizer_limits *limits, cot_error *error);

/* Decodes `ids` [count] to UTF-8; bytes that are not UTF-8 become U+FFFD. With `skip_special` special tokens
 * leave no text. On success `*text` is malloc'd, `*bytes` long with a NUL after it, to be freed by the
 * caller; on failure it is NULL. Errors: INVALID_ARGUMENT (an id outside of [0, size): named), OUT_OF_MEMORY.
 * Thread-safe. */
cot_status cot_tokenizer_decode(const cot_tokenizer *tokenizer, char **text, size_t *bytes,
                                const int32_t *ids, size_t count, bool skip_special, cot_error *error);

/* The bytes that an id stands for: its text, as decoding it alone gives it, or, where that has U+FFFD for a part of a
 * character, the bytes of that part. `*out` [*bytes] is malloc'd, NULL on failure. Errors: as cot_tokenizer_decode's.
 * Thread-safe. */
cot_status cot_tokenizer_token_bytes(const cot_tokenizer *tokenizer, char **out, size_t *bytes, int32_t id,
                                     cot_error *error);
/* How many special tokens encoding with `add_special` puts before a text. Thread-safe. */
size_t cot_tokenizer_added_before(const cot_tokenizer *tokenizer);
/* One more than the largest id. Thread-safe. */
size_t cot_tokenizer_size(const cot_tokenizer *tokenizer);
/* The vocabulary string of an id as the file spells it ("\u0120the" for " the" in byte-level vocabularies),
 * NULL for an id outside of [0, size) or one that the vocabulary leaves out. Owned by the tokenizer.
 * Thread-safe. */
const char *cot_tokenizer_token(const cot_tokenizer *tokenizer, int32_t id);

/* The id of the added token that is spelled `text`, which is not white space alone; -1: there is none. Thread-safe. */
int32_t cot_tokenizer_added_token(const cot_tokenizer *tokenizer, const char *text);

/* Writes to `text` [bytes] which libraries tell letters from digits and compose accents, and the version of Unicode
 * that each knows: "PCRE2 10.42 with Unicode 14.0.0, ...". Characters that came later are no letters to them, so that
 * patterns may cut a text that holds some otherwise than the model's makers did. Cut off where it does not fit, with a
 * NUL in any case (bytes > 0). Thread-safe. */
void cot_tokenizer_libraries(char *text, size_t bytes);

/* Decodes ids one at a time, as a model makes them. One thread at a time. */
typedef struct cot_detokenizer cot_detokenizer;

/* `tokenizer` must outlive the detokenizer. The caller owns `*detokenizer`; NULL on failure. Errors:
 * OUT_OF_MEMORY. */
cot_status cot_detokenizer_open(cot_detokenizer **detokenizer, const cot_tokenizer *tokenizer,
                                bool skip_special, cot_error *error);
/* Takes the next id and hands out the text that is now certain: `*piece` [*bytes], NUL-terminated, valid
 * until the next call on this detokenizer. It may be empty, when characters or runs of byte tokens are not
 * complete. Pieces never split a character; all of them up to and with finish's, concatenated, are what
 * cot_tokenizer_decode gives for all ids. Errors: INVALID_ARGUMENT (an id outside of [0, size); nothing is
 * taken, the detokenizer goes on), OUT_OF_MEMORY (the detokenizer is of no more use). */
cot_status cot_detokenizer_push(cot_detokenizer *detokenizer, int32_t id, const char **piece, size_t *bytes,
                                cot_error *error);
/* Where the text of the id that was pushed last begins: so many characters behind what had been handed out before that id.
 * Of several ids that make up a character each begins with it; one that push did not take is an id without text.
 * Thread-safe while nobody pushes. */
size_t cot_detokenizer_start(const cot_detokenizer *detokenizer);
/* The rest of the text, as push hands it out; then the detokenizer is as just opened. Errors: OUT_OF_MEMORY.
 */
cot_status cot_detokenizer_finish(cot_detokenizer *detokenizer, const char **piece, size_t *bytes,
                                  cot_error *error);
/* Frees it; NULL is fine. */
void cot_detokenizer_close(cot_detokenizer *detokenizer);

#ifdef __cplusplus
}
#endif
#endif
