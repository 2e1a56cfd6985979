/* Any bytes are a tokenizer.json or a refusal; a tokenizer makes of any text ids of its own that decode to
 * text, at once and in pieces alike. The input is the JSON, a NUL, a text; without the NUL the JSON is the
 * text too. */
#include "coterie/tokenizer.h"

#include "tokenizer/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_pieces(const cot_tokenizer *tokenizer, const int32_t *ids, size_t count, const char *text,
                         size_t bytes)
{
    cot_detokenizer *detokenizer;
    const char *piece;
    size_t n, at = 0;
    if (cot_detokenizer_open(&detokenizer, tokenizer, false, NULL)) return;
    for (size_t i = 0; i <= count; i++) {
        cot_status status = i < count ? cot_detokenizer_push(detokenizer, ids[i], &piece, &n, NULL)
                                      : cot_detokenizer_finish(detokenizer, &piece, &n, NULL);
        if (status != COT_OK) break; // a pattern of the decoder that backtracks for too long
        if (n > bytes - at || memcmp(piece, text + at, n) || cot_utf8_check(piece, n) < n) abort();
        at += n;
        if (i == count && at != bytes) abort();
    }
    cot_detokenizer_close(detokenizer);
}

static void use(const cot_tokenizer *tokenizer, const char *text, size_t bytes)
{
    int32_t *ids;
    char *decoded;
    size_t count, n;
    if (cot_tokenizer_encode(tokenizer, &ids, &count, text, bytes, true, NULL)) return;
    for (size_t i = 0; i < count; i++)
        if (!cot_tokenizer_token(tokenizer, ids[i])) abort();
    if (!cot_tokenizer_decode(tokenizer, &decoded, &n, ids, count, false, NULL)) {
        if (cot_utf8_check(decoded, n) < n) abort();
        check_pieces(tokenizer, ids, count, decoded, n);
        free(decoded);
    }
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *json = (const char *)data, *end = bytes ? memchr(json, 0, bytes) : NULL;
    size_t json_bytes = end ? (size_t)(end - json) : bytes;
    cot_tokenizer *tokenizer;
    cot_error error;
    if (cot_tokenizer_parse(&tokenizer, json, json_bytes, "f", &error) != COT_OK) {
        if (tokenizer || !error.message[0]) abort();
        return 0;
    }
    use(tokenizer, end ? end + 1 : json, end ? bytes - json_bytes - 1 : bytes);
    cot_tokenizer_close(tokenizer);
    return 0;
}
