#include "tokenizer/parts.h"

#include "base/error.h"

#include "tokenizer/utf8.h"

#include <inttypes.h>

struct cot_detokenizer {
    const cot_tokenizer *tokenizer;
    bool skip_special;
    cot_decoding decoding;
};

static cot_status push(const cot_tokenizer *tokenizer, cot_decoding *decoding, int32_t id, bool skip_special,
                       cot_error *error)
{
    if (id < 0 || (size_t)id >= tokenizer->vocab.size)
        return cot_fail(error, COT_INVALID_ARGUMENT, "token id %" PRId32 " is not in [0, %zu)", id,
                        tokenizer->vocab.size);
    const cot_vocab_entry *entry = tokenizer->vocab.entries + id;
    if (!entry->used || (skip_special && entry->special)) return COT_OK;
    return cot_decoding_push(decoding, tokenizer->vocab.strings.data + entry->decoded_offset,
                             entry->decoded_bytes, error);
}

cot_status cot_tokenizer_decode(const cot_tokenizer *tokenizer, char **text, size_t *bytes,
                                const int32_t *ids, size_t count, bool skip_special, cot_error *error)
{
    *text = NULL;
    *bytes = 0;
    cot_decoding *decoding = calloc(1, sizeof *decoding);
    if (!decoding) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    decoding->decoder = &tokenizer->decoder;
    cot_status status = COT_OK;
    for (size_t i = 0; i < count && status == COT_OK; i++)
        status = push(tokenizer, decoding, ids[i], skip_special, error);
    if (status == COT_OK) status = cot_decoding_finish(decoding, error);
    if (status == COT_OK && !cot_buffer_append(&decoding->out, "", 0))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    if (status == COT_OK) {
        *text = decoding->out.data;
        *bytes = decoding->out.bytes;
        decoding->out = (cot_buffer){0};
    }
    cot_decoding_free(decoding);
    free(decoding);
    return status;
}

cot_status cot_tokenizer_token_bytes(const cot_tokenizer *tokenizer, char **out, size_t *bytes, int32_t id,
                                     cot_error *error)
{
    cot_status status = cot_tokenizer_decode(tokenizer, out, bytes, &id, 1, false, error);
    if (status != COT_OK || !memmem(*out, *bytes, COT_UTF8_REPLACEMENT, strlen(COT_UTF8_REPLACEMENT)))
        return status;
    const cot_vocab_entry *entry = tokenizer->vocab.entries + id;
    const char *token = tokenizer->vocab.strings.data + entry->decoded_offset;
    cot_buffer own = {0};
    if (!cot_decoder_bytes(&tokenizer->decoder, token, entry->decoded_bytes, &own)) {
        cot_buffer_free(&own);
        free(*out);
        *out = NULL;
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    if (own.bytes) { // else U+FFFD is what it spells
        free(*out);
        *out = own.data;
        *bytes = own.bytes;
    }
    return COT_OK;
}

cot_status cot_detokenizer_open(cot_detokenizer **out, const cot_tokenizer *tokenizer, bool skip_special,
                                cot_error *error)
{
    cot_detokenizer *detokenizer = *out = calloc(1, sizeof *detokenizer);
    // `out` is never without its NUL, so that an empty piece is an empty string.
    if (!detokenizer || !cot_buffer_append(&detokenizer->decoding.out, "", 0)) {
        free(detokenizer);
        *out = NULL;
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    detokenizer->tokenizer = tokenizer;
    detokenizer->skip_special = skip_special;
    detokenizer->decoding.decoder = &tokenizer->decoder;
    return COT_OK;
}

static void begin_piece(cot_detokenizer *detokenizer)
{
    detokenizer->decoding.out.bytes = 0;
    detokenizer->decoding.out.data[0] = 0;
}

cot_status cot_detokenizer_push(cot_detokenizer *detokenizer, int32_t id, const char **piece, size_t *bytes,
                                cot_error *error)
{
    begin_piece(detokenizer);
    detokenizer->decoding.earlier = 0;
    detokenizer->decoding.waiting = detokenizer->decoding.run; // of an id without text
    cot_status status =
        push(detokenizer->tokenizer, &detokenizer->decoding, id, detokenizer->skip_special, error);
    *piece = detokenizer->decoding.out.data;
    *bytes = detokenizer->decoding.out.bytes;
    return status;
}

size_t cot_detokenizer_start(const cot_detokenizer *detokenizer)
{
    const cot_decoding *d = &detokenizer->decoding;
    size_t characters = d->waiting;
    for (size_t i = 0; i < d->earlier; i++) characters += (d->out.data[i] & 0xc0) != 0x80;
    return characters;
}

cot_status cot_detokenizer_finish(cot_detokenizer *detokenizer, const char **piece, size_t *bytes,
                                  cot_error *error)
{
    begin_piece(detokenizer);
    cot_status status = cot_decoding_finish(&detokenizer->decoding, error);
    *piece = detokenizer->decoding.out.data;
    *bytes = detokenizer->decoding.out.bytes;
    return status;
}

void cot_detokenizer_close(cot_detokenizer *detokenizer)
{
    if (!detokenizer) return;
    cot_decoding_free(&detokenizer->decoding);
    free(detokenizer);
}
