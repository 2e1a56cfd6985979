#include "coterie/text.h"

#include "base/error.h"
#include "tokenizer/parts.h"

#include <stdlib.h>
#include <string.h>

/* Bytes around an added token (coterie/text.h). */
enum { MARK_SPECIAL = 0xff, MARK_ADDED = 0xfe, MARK_END = 0xfd };

struct cot_text_stream {
    cot_detokenizer *detokenizer;
    char **stops;
    size_t stop_count;
    bool include_stop;
    bool marks;
    bool keeps_special;
    const cot_tokenizer *tokenizer;
    int stopped_by;
    int64_t unsearched;  // tokens to come whose text is handed out as it is
    size_t known_tokens; // ids that the tokenizer has
    char *held;          // text not handed out yet, after `shown` bytes that were
    size_t shown, held_bytes, room;
    char *
        plain; // [plain_bytes of room] the same as clients read it: without marks and tokens that decoding skips
    size_t plain_bytes;
};

void cot_text_options_init(cot_text_options *options)
{
    *options = (cot_text_options){.size = sizeof *options};
}

static cot_status copy_stops(cot_text_stream *s, const cot_text_options *o, cot_error *error)
{
    s->stops = calloc(o->stop_count + 1, sizeof *s->stops);
    if (!s->stops) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a text stream");
    for (; s->stop_count < o->stop_count; s->stop_count++) {
        const char *stop = o->stops[s->stop_count];
        if (!*stop) return cot_fail(error, COT_INVALID_ARGUMENT, "a stop string is empty");
        s->stops[s->stop_count] = strdup(stop);
        if (!s->stops[s->stop_count])
            return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a text stream");
    }
    return COT_OK;
}

cot_status cot_text_stream_open(cot_text_stream **out, const cot_tokenizer *tokenizer,
                                const cot_text_options *options, cot_error *error)
{
    cot_text_options defaults;
    cot_text_options_init(&defaults);
    const cot_text_options *o = options ? options : &defaults;
    cot_text_stream *s = *out = NULL;
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "text options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    s = calloc(1, sizeof *s);
    if (!s) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a text stream");
    s->include_stop = o->include_stop;
    s->marks = o->mark_added_tokens;
    s->keeps_special = o->keep_special_tokens;
    s->tokenizer = tokenizer;
    s->stopped_by = -1;
    s->unsearched = o->stop_after_tokens;
    s->known_tokens = cot_tokenizer_size(tokenizer);
    cot_status status = copy_stops(s, o, error);
    if (status == COT_OK)
        status = cot_detokenizer_open(&s->detokenizer, tokenizer,
                                      !o->keep_special_tokens && !o->mark_added_tokens, error);
    if (status == COT_OK)
        *out = s;
    else
        cot_text_stream_close(s);
    return status;
}

void cot_text_stream_close(cot_text_stream *s)
{
    if (!s) return;
    for (size_t i = 0; s->stops && i < s->stop_count; i++) free(s->stops[i]);
    free(s->stops);
    free(s->held);
    free(s->plain);
    cot_detokenizer_close(s->detokenizer);
    free(s);
}

/* Drops what was handed out and appends. */
static cot_status hold(cot_text_stream *s, const char *piece, size_t bytes, cot_error *error)
{
    s->held_bytes -= s->shown;
    if (s->held) memmove(s->held, s->held + s->shown, s->held_bytes);
    s->shown = 0;
    if (s->held_bytes + bytes + 1 > s->room) {
        size_t room = 2 * (s->held_bytes + bytes + 1);
        char *held = realloc(s->held, room);
        if (held) s->held = held;
        char *plain = realloc(s->plain, room);
        if (plain) s->plain = plain;
        if (!held || !plain) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a text stream");
        s->room = room;
    }
    memcpy(s->held + s->held_bytes, piece, bytes);
    s->held_bytes += bytes;
    return COT_OK;
}

/* The same of a piece that ends with an added token. */
static cot_status hold_marked(cot_text_stream *s, const cot_vocab_entry *entry, const char *piece,
                              size_t bytes, cot_error *error)
{
    const char *token = s->tokenizer->vocab.strings.data + entry->decoded_offset;
    const size_t length = entry->decoded_bytes;
    if (bytes < length ||
        memcmp(piece + bytes - length, token, length) != 0) // the decoder makes something else of it
        return hold(s, piece, bytes, error);
    cot_buffer marked = {0};
    cot_status status = COT_OK;
    if (!cot_buffer_append(&marked, piece, bytes - length) ||
        !cot_buffer_text(&marked, entry->special ? "\xff" : "\xfe") ||
        !cot_buffer_append(&marked, token, length) || !cot_buffer_text(&marked, "\xfd"))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a text stream");
    if (status == COT_OK) status = hold(s, marked.data, marked.bytes, error);
    cot_buffer_free(&marked);
    return status;
}

/* ---- stop strings: looked for in the text as clients read it ---- */

static unsigned char byte_at(const cot_text_stream *s, size_t at)
{
    return (unsigned char)s->held[at];
}

/* Where the held text goes on that clients read, from `at` on. */
static size_t next_read(const cot_text_stream *s, size_t at)
{
    for (; at < s->held_bytes && byte_at(s, at) >= MARK_END; at++)
        if (byte_at(s, at) == MARK_SPECIAL && !s->keeps_special)
            while (at < s->held_bytes && byte_at(s, at) != MARK_END) at++;
    return at;
}

static void read_held(cot_text_stream *s)
{
    s->plain_bytes = 0;
    for (size_t at = 0; (at = next_read(s, at)) < s->held_bytes; at++)
        s->plain[s->plain_bytes++] = s->held[at];
}

/* Where the byte of the plain text is in the held one; its end: there is no such byte. */
static size_t held_at(const cot_text_stream *s, size_t index)
{
    size_t at = next_read(s, 0);
    while (at < s->held_bytes && index--) at = next_read(s, at + 1);
    return at;
}

/* How much of the held text is before a byte of the plain text: a token that begins with it is cut before its mark. */
static size_t held_before(const cot_text_stream *s, size_t index)
{
    const size_t at = held_at(s, index);
    return at && at < s->held_bytes && byte_at(s, at - 1) > MARK_END ? at - 1 : at;
}

/* The same with that byte, and the mark of a token that ends with it. */
static size_t held_with(const cot_text_stream *s, size_t index)
{
    const size_t behind = held_at(s, index) + 1;
    return behind < s->held_bytes && byte_at(s, behind) == MARK_END ? behind + 1 : behind;
}

/* How much of the held text is shown: up to the first stop string, or behind it where that is included; of several that
 * begin there the first in the list. All of it if there is none. */
static size_t cut_at_stop(cot_text_stream *s)
{
    if (!s->stop_count) return s->held_bytes;
    read_held(s);
    size_t first = s->plain_bytes;
    for (size_t i = 0; i < s->stop_count; i++) {
        const char *at = memmem(s->plain, s->plain_bytes, s->stops[i], strlen(s->stops[i]));
        if (!at || (size_t)(at - s->plain) >= first) continue;
        first = (size_t)(at - s->plain);
        s->stopped_by = (int)i;
    }
    if (s->stopped_by < 0) return s->held_bytes;
    return s->include_stop ? held_with(s, first + strlen(s->stops[s->stopped_by]) - 1)
                           : held_before(s, first);
}

/* How much of the held text is before what may be the beginning of a stop string at its end. */
static size_t before_doubt(const cot_text_stream *s)
{
    size_t most = 0;
    for (size_t i = 0; i < s->stop_count; i++) {
        size_t n = strlen(s->stops[i]) - 1;
        if (n > s->plain_bytes) n = s->plain_bytes;
        while (n > most && memcmp(s->plain + s->plain_bytes - n, s->stops[i], n) != 0) n--;
        if (n > most) most = n;
    }
    return most ? held_before(s, s->plain_bytes - most) : s->held_bytes;
}

cot_status cot_text_stream_push(cot_text_stream *s, int32_t token, const char **piece, size_t *bytes,
                                bool *stopped, cot_error *error)
{
    *bytes = 0;
    *stopped = false;
    cot_status status = COT_OK;
    if (token < 0 || (size_t)token < s->known_tokens)
        status = cot_detokenizer_push(s->detokenizer, token, piece, bytes, error);
    else // a model's vocabulary is often padded beyond its tokenizer's: such a token has no text
        *piece = "";
    const cot_vocab_entry *entry = s->marks ? cot_vocab_entry_of(&s->tokenizer->vocab, token) : NULL;
    if (status == COT_OK)
        status = entry && entry->listed ? hold_marked(s, entry, *piece, *bytes, error)
                                        : hold(s, *piece, *bytes, error);
    if (status != COT_OK) return status;
    const bool searched = s->unsearched <= 0;
    if (!searched) s->unsearched--;
    s->shown = searched ? cut_at_stop(s) : s->held_bytes;
    *stopped = s->stopped_by >= 0;
    if (searched && !*stopped) s->shown = before_doubt(s);
    *piece = s->held;
    *bytes = s->shown;
    return COT_OK;
}

cot_status cot_text_stream_finish(cot_text_stream *s, const char **piece, size_t *bytes, cot_error *error)
{
    *bytes = 0;
    cot_status status = cot_detokenizer_finish(s->detokenizer, piece, bytes, error);
    if (status == COT_OK) status = hold(s, *piece, *bytes, error);
    if (status != COT_OK) return status;
    s->shown = s->unsearched > 0 ? s->held_bytes : cut_at_stop(s);
    *piece = s->held;
    *bytes = s->shown;
    return COT_OK;
}

int cot_text_stream_stopped_by(const cot_text_stream *s)
{
    return s->stopped_by;
}
