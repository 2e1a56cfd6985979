#include "tokenizer/parts.h"

#include "base/error.h"
#include "tokenizer/utf8.h"

/* One call's working space. */
typedef struct encoding {
    const cot_tokenizer *tokenizer;
    const cot_tokenizer_limits *limits;
    cot_error *error;
    cot_buffer ids; // of int32_t
    size_t most;    // ids; SIZE_MAX where there is no limit
    cot_parts raw, normalized;
    cot_buffer text, spare; // a part between added tokens, normalised
    cot_buffer marks;       // of that part, where the caller says which bytes may spell added tokens
    cot_text_pieces pieces, spare_pieces;
    cot_regex_scratch regex;
    cot_bpe_scratch bpe;
} encoding;

static cot_status fail_memory(cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
}

/* Fails when there are too many ids, with at least `more` of them to come, or when nobody wants them. */
static cot_status check_limits(const encoding *e, size_t more)
{
    const size_t count = e->ids.bytes / sizeof(int32_t);
    if (count > e->most || more > e->most - count)
        return cot_fail(e->error, COT_TOO_LONG, "the text has more than %zu tokens", e->most);
    if (e->limits->is_stopped && e->limits->is_stopped(e->limits->context))
        return cot_fail(e->error, COT_TIMED_OUT, "stopped");
    return COT_OK;
}

static cot_status add_id(encoding *e, int32_t id)
{
    if (!cot_buffer_append(&e->ids, &id, sizeof id)) return fail_memory(e->error);
    return check_limits(e, 0);
}

/* Normalised text without added tokens. */
static cot_status encode_words(encoding *e, const char *text, size_t bytes, bool first)
{
    const cot_tokenizer *tokenizer = e->tokenizer;
    e->pieces.text.bytes = 0;
    if (!cot_buffer_append(&e->pieces.text, text, bytes)) return fail_memory(e->error);
    cot_status status =
        cot_pretokenizer_run(&tokenizer->pretokenizer, &e->regex, &e->pieces, &e->spare_pieces, first,
                             tokenizer->longest ? e->most : SIZE_MAX, e->error);
    for (size_t i = 0; i < e->pieces.count && status == COT_OK; i++) {
        cot_text_piece piece = e->pieces.items[i];
        const size_t length = piece.end - piece.start;
        if (!(i % 256) || length > 4096)
            status = check_limits(e, tokenizer->longest ? length / tokenizer->longest : 0);
        if (status == COT_OK)
            status = cot_bpe_encode(&tokenizer->bpe, &tokenizer->vocab, &e->bpe, &e->ids,
                                    e->pieces.text.data + piece.start, length, e->error);
    }
    return status == COT_OK ? check_limits(e, 0) : status;
}

/* Text as it came, without the added tokens that are looked for in it. */
static cot_status encode_part(encoding *e, const char *text, size_t bytes, const uint8_t *own, bool first)
{
    const cot_tokenizer *tokenizer = e->tokenizer;
    cot_buffer *marks = own ? &e->marks : NULL;
    e->text.bytes = e->marks.bytes = 0;
    if (!cot_buffer_append(&e->text, text, bytes)) return fail_memory(e->error);
    if (own && !cot_buffer_append(marks, own, bytes)) return fail_memory(e->error);
    cot_status status =
        cot_normalizer_run(&tokenizer->normalizer, &e->regex, &e->text, marks, &e->spare, e->error);
    if (status != COT_OK) return status;
    if (!cot_added_split(&tokenizer->normalized, e->text.data, e->text.bytes,
                         own ? (const uint8_t *)e->marks.data : NULL, e->most, &e->normalized))
        return fail_memory(e->error);
    for (size_t i = 0; i < e->normalized.count && status == COT_OK; i++) {
        cot_part part = e->normalized.items[i];
        status = part.id >= 0 ? add_id(e, part.id)
                              : encode_words(e, e->text.data + part.start, part.end - part.start,
                                             first && !part.start);
    }
    return status;
}

static cot_status encode_text(encoding *e, const char *text, size_t bytes, const uint8_t *own)
{
    if (!cot_added_split(&e->tokenizer->raw, text, bytes, own, e->most, &e->raw))
        return fail_memory(e->error);
    cot_status status = COT_OK;
    for (size_t i = 0; i < e->raw.count && status == COT_OK; i++) {
        cot_part part = e->raw.items[i];
        status = part.id >= 0 ? add_id(e, part.id)
                              : encode_part(e, text + part.start, part.end - part.start,
                                            own ? own + part.start : NULL, !part.start);
    }
    return status;
}

static cot_status add_ids(encoding *e, const cot_buffer *ids)
{
    if (!cot_buffer_append(&e->ids, ids->data, ids->bytes)) return fail_memory(e->error);
    return check_limits(e, 0);
}

static void encoding_free(encoding *e)
{
    cot_buffer_free(&e->ids);
    cot_buffer_free(&e->text);
    cot_buffer_free(&e->spare);
    cot_buffer_free(&e->marks);
    free(e->raw.items);
    free(e->normalized.items);
    cot_text_pieces_free(&e->pieces);
    cot_text_pieces_free(&e->spare_pieces);
    cot_regex_scratch_free(&e->regex);
    cot_bpe_scratch_free(&e->bpe);
}

cot_status cot_tokenizer_encode(const cot_tokenizer *tokenizer, int32_t **ids, size_t *count,
                                const char *text, size_t bytes, bool add_special, cot_error *error)
{
    return cot_tokenizer_encode_within(tokenizer, ids, count, text, bytes, NULL, add_special, NULL, error);
}

cot_status cot_tokenizer_encode_within(const cot_tokenizer *tokenizer, int32_t **ids, size_t *count,
                                       const char *text, size_t bytes, const uint8_t *own, bool add_special,
                                       const cot_tokenizer_limits *limits, cot_error *error)
{
    static const cot_tokenizer_limits none;
    *ids = NULL;
    *count = 0;
    if (bytes > COT_TOKENIZER_LONGEST_TEXT)
        return cot_fail(error, COT_INVALID_ARGUMENT, "the text has %zu bytes, more than %d", bytes,
                        COT_TOKENIZER_LONGEST_TEXT);
    size_t valid = cot_utf8_check(text, bytes);
    if (valid < bytes)
        return cot_fail(error, COT_INVALID_ARGUMENT, "the text is not UTF-8: byte 0x%02x at offset %zu",
                        (unsigned)(unsigned char)text[valid], valid);
    encoding e = {.tokenizer = tokenizer, .limits = limits ? limits : &none, .error = error};
    e.most = e.limits->most_tokens > 0 ? (size_t)e.limits->most_tokens : SIZE_MAX;
    e.bpe.is_stopped = e.limits->is_stopped;
    e.bpe.context = e.limits->context;
    cot_status status = add_special ? add_ids(&e, &tokenizer->template.before) : COT_OK;
    if (status == COT_OK) status = encode_text(&e, text, bytes, own);
    if (status == COT_OK && add_special) status = add_ids(&e, &tokenizer->template.after);
    if (status == COT_OK && e.ids.bytes) {
        *ids = (int32_t *)(void *)e.ids.data;
        *count = e.ids.bytes / sizeof **ids;
        e.ids = (cot_buffer){0};
    }
    encoding_free(&e);
    return status;
}
