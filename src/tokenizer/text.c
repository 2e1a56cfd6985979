#include "coterie/text.h"

#include "base/error.h"
#include "tokenizer/parts.h"

#include <stdlib.h>
#include <string.h>

struct cot_text_stream {
    cot_detokenizer *detokenizer;
    char **stops;
    size_t stop_count;
    bool include_stop;
    bool marks;
    const cot_tokenizer *tokenizer;
    int stopped_by;
    int64_t unsearched;  // tokens to come whose text is handed out as it is
    size_t known_tokens; // ids that the tokenizer has
    char *held;          // text not handed out yet, after `shown` bytes that were
    size_t shown, held_bytes, room;
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
        if (!held) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a text stream");
        s->held = held;
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

/* How much of the held text is shown: up to the first stop string, or behind it where that is included; of several that
 * begin there the first in the list. All of it if there is none. */
static size_t cut_at_stop(cot_text_stream *s)
{
    size_t first = s->held_bytes;
    for (size_t i = 0; i < s->stop_count; i++) {
        const char *at = memmem(s->held, s->held_bytes, s->stops[i], strlen(s->stops[i]));
        if (!at || (size_t)(at - s->held) >= first) continue;
        first = (size_t)(at - s->held);
        s->stopped_by = (int)i;
    }
    return s->stopped_by >= 0 && s->include_stop ? first + strlen(s->stops[s->stopped_by]) : first;
}

/* How much of the end of the held text may be the beginning of a stop string. */
static size_t doubtful(const cot_text_stream *s)
{
    size_t most = 0;
    for (size_t i = 0; i < s->stop_count; i++) {
        size_t n = strlen(s->stops[i]) - 1;
        if (n > s->held_bytes) n = s->held_bytes;
        while (n > most && memcmp(s->held + s->held_bytes - n, s->stops[i], n) != 0) n--;
        if (n > most) most = n;
    }
    return most;
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
    if (searched && !*stopped) s->shown = s->held_bytes - doubtful(s);
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
