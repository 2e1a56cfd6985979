/* Tokenizers out of a list of tokens, as GGUF, SentencePiece and tiktoken have them: what else a tokenizer has is told in the words of
 * tokenizer.json, which the same loaders read. */
#ifndef COT_TOKENIZER_LISTED_H
#define COT_TOKENIZER_LISTED_H
#include "base/file.h"
#include "tokenizer/parts.h"

/* Kinds of tokens, by GGUF's and SentencePiece's numbers. */
enum { COT_TOKEN_NORMAL = 1, COT_TOKEN_UNKNOWN = 2, COT_TOKEN_CONTROL = 3, COT_TOKEN_USER = 4 };

typedef struct cot_vocab_token {
    const char *text; // not 0-terminated; somebody else's
    size_t bytes;
    double score;
    int type;
} cot_vocab_token;

/* Tokens on their way to a vocabulary; free either way. */
typedef struct cot_vocab_list {
    cot_vocab_token *tokens; // [count]
    size_t count, capacity;
    char *names; // of ids that nothing names
} cot_vocab_list;
bool cot_vocab_list_put(cot_vocab_list *list, cot_vocab_token token); // false: out of memory
void cot_vocab_list_free(cot_vocab_list *list);
/* What a folder's tokenizer_config.json says of added tokens, which are put behind the others or are among them;
 * ids between them are called `reserved`, their number and "|>" (NULL: there may be none). *told: tokenizer_config.json, an empty object where
 * there is none; its strings are the tokens' texts. Errors: MALFORMED, IO, OUT_OF_MEMORY. */
cot_status cot_vocab_list_told(cot_vocab_list *list, json_t **told, const char *folder, const char *reserved,
                               cot_error *error);

/* An empty vocabulary gets the tokens, whose ids are their places. Errors: MALFORMED (one that is not UTF-8, two that are alike),
 * OUT_OF_MEMORY. */
cot_status cot_vocab_load_listed(cot_vocab *vocab, const cot_vocab_token *tokens, size_t count,
                                 cot_error *error);
/* Whatever two tokens a token can be cut into merge, by the token's rank; of UINT32_MAX none do. ranks [vocab->size]. */
cot_status cot_bpe_load_cuts(cot_bpe *bpe, const cot_vocab *vocab, const uint32_t *ranks, cot_error *error);
/* "added_tokens": control tokens, and those of the user, which are cut out of a text before anything else. */
json_t *cot_added_listed(const cot_vocab_token *tokens, size_t count);
/* "post_processor": the begin and end tokens, -1 where there is none. */
json_t *cot_template_listed(int64_t begin, int64_t end);
/* Of byte-level BPE: the strings of added tokens are text, not the characters of bytes, and decoding sees that. */
cot_status cot_vocab_spell_added(cot_vocab *vocab, const cot_vocab_token *tokens, size_t count,
                                 cot_error *error);
/* "pre_tokenizer" of byte-level BPE whose words are cut as GGUF's name `pre` says; NULL where that is not known. */
json_t *cot_pretokenizer_named(const char *pre);

/* SentencePiece's BPE: a pair merges if what it makes is a token, that of the highest score first; what has no token is bytes, and a space
 * is U+2581. */
typedef struct cot_tokenizer_pieces {
    int64_t unknown, begin, end; // ids; -1: there is none, or none is added
    bool prefix;                 // a space stands before a text
    bool of_text_alone;          // merges make tokens of text, no control tokens and bytes
} cot_tokenizer_pieces;
cot_status cot_tokenizer_load_pieces(cot_tokenizer *tokenizer, const cot_vocab_token *tokens, size_t count,
                                     const cot_tokenizer_pieces *pieces, cot_error *error);
/* What cot_tokenizer_load_pieces and cot_tokenizer_load_bytes load beside vocabulary and merges, in the words of tokenizer.json; NULL when out of
 * memory. */
json_t *cot_tokenizer_tell_pieces(const cot_vocab_token *tokens, size_t count,
                                  const cot_tokenizer_pieces *pieces);
json_t *cot_tokenizer_tell_bytes(const cot_vocab_token *tokens, size_t count, const char *pre, int64_t begin,
                                 int64_t end);

/* A JSON object of a folder, an empty one where there is no such file. Errors: MALFORMED, IO, OUT_OF_MEMORY. */
cot_status cot_tokenizer_read_json(json_t **out, const char *folder, const char *name, cot_error *error);
/* What byte-level BPE has besides its vocabulary and merges, which are there; words are cut as GGUF's name `pre` says. */
cot_status cot_tokenizer_load_bytes(cot_tokenizer *tokenizer, const cot_vocab_token *tokens, size_t count,
                                    const char *pre, int64_t begin, int64_t end, cot_error *error);

/* Opens a file of a folder that `load` reads. Errors: load's, those of reading. */
typedef cot_status cot_tokenizer_loader(cot_tokenizer *tokenizer, const cot_file_map *map, const char *folder,
                                        cot_error *error);
cot_status cot_tokenizer_open_listed(cot_tokenizer **tokenizer, const char *folder, const char *name,
                                     cot_tokenizer_loader *load, cot_error *error);

/* A folder's tokenizer.model or tiktoken.model; other files of the folder say what these do not. Errors: NOT_FOUND (there is none), MALFORMED,
 * UNSUPPORTED (a kind that is not read: which), IO, OUT_OF_MEMORY. */
cot_status cot_tokenizer_open_sentencepiece(cot_tokenizer **tokenizer, const char *folder, cot_error *error);
cot_status cot_tokenizer_open_tiktoken(cot_tokenizer **tokenizer, const char *folder, cot_error *error);

#endif
