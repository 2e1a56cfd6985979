#include "tokenizer/decoder.h"

#include "base/error.h"
#include "tokenizer/bytelevel.h"
#include "tokenizer/utf8.h"

/* A fragment of a token on its way through the steps. */
typedef struct fragment {
    const char *text;
    size_t bytes;
    bool last; // with it the token is whole
} fragment;

static cot_status feed(cot_decoding *decoding, size_t s, fragment f, cot_error *error);

static cot_status fail_memory(cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
}

/* Hands on the valid text in front of `held`, U+FFFD for what is not; with `all` also for an unfinished
 * character at its end, which else stays. The first `old` bytes are of tokens before the last. */
static cot_status flow_bytes(cot_decoding *decoding, size_t s, bool all, size_t old, cot_error *error)
{
    cot_buffer *held = &decoding->states[s].held;
    cot_status status = COT_OK;
    size_t at = 0, length;
    while (at < held->bytes && status == COT_OK) {
        size_t valid = cot_utf8_check(held->data + at, held->bytes - at);
        if (valid) status = feed(decoding, s + 1, (fragment){held->data + at, valid, false}, error);
        at += valid;
        if (at == held->bytes || status != COT_OK) break;
        if (cot_utf8_scan(held->data + at, held->bytes - at, &length) == COT_UTF8_INCOMPLETE && !all) break;
        status = feed(decoding, s + 1, (fragment){COT_UTF8_REPLACEMENT, 3, false}, error);
        at += length;
        if (at <= old) decoding->earlier = decoding->out.bytes;
    }
    if (held->bytes) memmove(held->data, held->data + at, held->bytes - at);
    held->bytes -= at;
    return status;
}

static bool is_bytes(const char *token, size_t bytes)
{
    for (size_t at = 0; at < bytes;)
        if (cot_character_byte(cot_utf8_next(token, &at)) < 0) return false;
    return true;
}

static bool append_bytes(cot_buffer *out, const char *token, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const char byte = (char)cot_character_byte(cot_utf8_next(token, &at));
        if (!cot_buffer_append(out, &byte, 1)) return false;
    }
    return true;
}

/* A token whose characters all stand for bytes is those bytes; another one is its own UTF-8. */
static cot_status byte_level(cot_decoding *decoding, size_t s, const cot_buffer *token, cot_error *error)
{
    cot_buffer *held = &decoding->states[s].held;
    const size_t old = held->bytes;
    const bool appended = is_bytes(token->data, token->bytes)
                              ? append_bytes(held, token->data, token->bytes)
                              : cot_buffer_append(held, token->data, token->bytes);
    return appended ? flow_bytes(decoding, s, false, old, error) : fail_memory(error);
}

/* The byte that "<0x41>" stands for; -1 for any other token. */
static int fallback_byte(const char *text, size_t bytes)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    if (bytes != 6 || memcmp(text, "<0x", 3) || text[5] != '>') return -1;
    const char *high = text[3] ? strchr(digits, text[3]) : NULL,
               *low = text[4] ? strchr(digits, text[4]) : NULL;
    return high && low ? (int)((high - digits) % 16 * 16 + (low - digits) % 16) : -1;
}

bool cot_decoder_bytes(const cot_decoder *decoder, const char *token, size_t bytes, cot_buffer *out)
{
    for (size_t s = 0; s < decoder->count; s++) {
        const cot_decoder_kind kind = decoder->steps[s].kind;
        const int byte = kind == COT_DECODER_BYTE_FALLBACK ? fallback_byte(token, bytes) : -1;
        if (byte >= 0) return cot_buffer_append(out, &(char){(char)byte}, 1);
        if (kind == COT_DECODER_BYTE_LEVEL && is_bytes(token, bytes)) return append_bytes(out, token, bytes);
    }
    return true;
}

/* The run of byte tokens is over: it is text, or a U+FFFD for each byte. */
static cot_status end_run(cot_decoding *decoding, size_t s, cot_error *error)
{
    cot_buffer *run = &decoding->states[s].held;
    cot_status status = COT_OK;
    if (!run->bytes) return COT_OK;
    if (cot_utf8_check(run->data, run->bytes) == run->bytes)
        status = feed(decoding, s + 1, (fragment){run->data, run->bytes, true}, error);
    else
        for (size_t i = 0; i < run->bytes && status == COT_OK; i++)
            status = feed(decoding, s + 1, (fragment){COT_UTF8_REPLACEMENT, 3, true}, error);
    run->bytes = decoding->run = 0;
    return status;
}

static cot_status byte_fallback(cot_decoding *decoding, size_t s, const cot_buffer *token, cot_error *error)
{
    int byte = fallback_byte(token->data, token->bytes);
    if (byte >= 0) {
        const char c = (char)byte;
        const bool goes_on = (byte & 0xc0) == 0x80 && decoding->run;
        decoding->waiting = decoding->run - goes_on;
        decoding->run += !goes_on;
        return cot_buffer_append(&decoding->states[s].held, &c, 1) ? COT_OK : fail_memory(error);
    }
    cot_status status = end_run(decoding, s, error);
    decoding->earlier = decoding->out.bytes;
    return status == COT_OK ? feed(decoding, s + 1, (fragment){token->data, token->bytes, true}, error)
                            : status;
}

static cot_status replace(cot_decoding *decoding, size_t s, const cot_buffer *token, cot_error *error)
{
    const cot_decoder_step *step = decoding->decoder->steps + s;
    cot_buffer *held = &decoding->states[s].held;
    held->bytes = 0;
    cot_status status = cot_regex_replace(step->pattern, &decoding->scratch, token->data, token->bytes,
                                          step->content, held, error);
    return status == COT_OK ? feed(decoding, s + 1, (fragment){held->data, held->bytes, true}, error)
                            : status;
}

/* Steps that need a token whole collect its fragments. */
static cot_status feed_whole(cot_decoding *decoding, size_t s, fragment f, cot_error *error)
{
    cot_buffer *token = &decoding->states[s].token;
    if (!cot_buffer_append(token, f.text, f.bytes)) return fail_memory(error);
    if (!f.last) return COT_OK;
    cot_decoder_kind kind = decoding->decoder->steps[s].kind;
    cot_status status = kind == COT_DECODER_BYTE_LEVEL      ? byte_level(decoding, s, token, error)
                        : kind == COT_DECODER_BYTE_FALLBACK ? byte_fallback(decoding, s, token, error)
                                                            : replace(decoding, s, token, error);
    token->bytes = 0;
    return status;
}

static cot_status feed_metaspace(cot_decoding *decoding, size_t s, fragment f, cot_error *error)
{
    const cot_decoder_step *step = decoding->decoder->steps + s;
    cot_decoder_state *state = decoding->states + s;
    bool drop = !state->tokens && step->strip_first;
    cot_status status = COT_OK;
    for (size_t at = 0, length; at < f.bytes && status == COT_OK; at += length) {
        length = cot_utf8_length(f.text[at]);
        bool is_content = length == step->content.bytes && !memcmp(f.text + at, step->content.data, length);
        if (!is_content)
            status = feed(decoding, s + 1, (fragment){f.text + at, length, false}, error);
        else if (!drop)
            status = feed(decoding, s + 1, (fragment){" ", 1, false}, error);
    }
    state->tokens += f.last;
    if (status == COT_OK && f.last) status = feed(decoding, s + 1, (fragment){"", 0, true}, error);
    return status;
}

/* `held` is the run of content characters at the end so far, at most `stop` of them. */
static cot_status feed_strip(cot_decoding *decoding, size_t s, fragment f, cot_error *error)
{
    const cot_decoder_step *step = decoding->decoder->steps + s;
    cot_decoder_state *state = decoding->states + s;
    cot_status status = COT_OK;
    for (size_t at = 0, length; at < f.bytes && status == COT_OK; at += length) {
        length = cot_utf8_length(f.text[at]);
        bool is_content = length == step->content.bytes && !memcmp(f.text + at, step->content.data, length);
        if (!state->inside && is_content && state->stripped < step->start) {
            state->stripped++;
            continue;
        }
        state->inside = true;
        if (is_content && state->held.bytes / length < step->stop) {
            if (!cot_buffer_append(&state->held, f.text + at, length)) status = fail_memory(error);
            continue;
        }
        // Of a run longer than `stop` the first ones are text; any other character makes all of it text.
        if (!is_content && state->held.bytes) {
            status = feed(decoding, s + 1, (fragment){state->held.data, state->held.bytes, false}, error);
            state->held.bytes = 0;
        }
        if (status == COT_OK) status = feed(decoding, s + 1, (fragment){f.text + at, length, false}, error);
    }
    if (f.last) {
        state->held.bytes = state->stripped = 0;
        state->inside = false;
        if (status == COT_OK) status = feed(decoding, s + 1, (fragment){"", 0, true}, error);
    }
    return status;
}

static cot_status feed_join(cot_decoding *decoding, size_t s, fragment f, cot_error *error)
{
    cot_status status = COT_OK;
    if (decoding->states[s].tokens) status = feed(decoding, s + 1, (fragment){" ", 1, false}, error);
    decoding->states[s].tokens++;
    return status == COT_OK ? feed(decoding, s + 1, f, error) : status;
}

static cot_status feed(cot_decoding *decoding, size_t s, fragment f, cot_error *error)
{
    if (s == decoding->decoder->count)
        return cot_buffer_append(&decoding->out, f.text, f.bytes) ? COT_OK : fail_memory(error);
    switch (decoding->decoder->steps[s].kind) {
    case COT_DECODER_FUSE:
        return feed(decoding, s + 1, (fragment){f.text, f.bytes, false}, error);
    case COT_DECODER_METASPACE:
        return feed_metaspace(decoding, s, f, error);
    case COT_DECODER_STRIP:
        return feed_strip(decoding, s, f, error);
    case COT_DECODER_JOIN:
        return feed_join(decoding, s, f, error);
    case COT_DECODER_BYTE_LEVEL:
    case COT_DECODER_BYTE_FALLBACK:
    case COT_DECODER_REPLACE:
        break;
    }
    return feed_whole(decoding, s, f, error);
}

cot_status cot_decoding_push(cot_decoding *decoding, const char *token, size_t bytes, cot_error *error)
{
    decoding->earlier = decoding->out.bytes;
    decoding->waiting = 0;
    return feed(decoding, 0, (fragment){token, bytes, true}, error);
}

cot_status cot_decoding_finish(cot_decoding *decoding, cot_error *error)
{
    cot_status status = COT_OK;
    for (size_t s = 0; s < decoding->decoder->count && status == COT_OK; s++) {
        cot_decoder_kind kind = decoding->decoder->steps[s].kind;
        if (kind == COT_DECODER_BYTE_FALLBACK) status = end_run(decoding, s, error);
        if (kind == COT_DECODER_BYTE_LEVEL) status = flow_bytes(decoding, s, true, 0, error);
        // These two made one token of all.
        if (status == COT_OK && (kind == COT_DECODER_BYTE_LEVEL || kind == COT_DECODER_FUSE))
            status = feed(decoding, s + 1, (fragment){"", 0, true}, error);
        decoding->states[s].tokens = 0;
    }
    return status;
}

void cot_decoding_free(cot_decoding *decoding)
{
    for (size_t s = 0; s <= COT_TOKENIZER_MAX_STEPS; s++) {
        cot_buffer_free(&decoding->states[s].token);
        cot_buffer_free(&decoding->states[s].held);
    }
    cot_regex_scratch_free(&decoding->scratch);
    cot_buffer_free(&decoding->out);
}
