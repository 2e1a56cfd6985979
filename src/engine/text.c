#include "coterie/text.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

struct cot_text_stream {
    cot_detokenizer *detokenizer;
    char **stops;
    size_t stop_count;
    size_t known_tokens; // ids that the tokenizer has
    char *held;          // text not handed out yet, after `shown` bytes that were
    size_t shown, held_bytes, room;
};

cot_status cot_text_stream_open(cot_text_stream **out, const cot_tokenizer *tokenizer,
                                const char *const *stops, size_t stop_count, cot_error *error)
{
    cot_text_stream *s = *out = calloc(1, sizeof *s);
    cot_status status = COT_OK;
    if (s) s->stops = calloc(stop_count + 1, sizeof *s->stops);
    if (s) s->known_tokens = cot_tokenizer_size(tokenizer);
    if (!s || !s->stops) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a text stream");
    for (; status == COT_OK && s->stop_count < stop_count; s->stop_count++) {
        if (!*stops[s->stop_count])
            status = cot_fail(error, COT_INVALID_ARGUMENT, "a stop string is empty");
        else if (!(s->stops[s->stop_count] = strdup(stops[s->stop_count])))
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a text stream");
        if (status != COT_OK) break;
    }
    if (status == COT_OK) status = cot_detokenizer_open(&s->detokenizer, tokenizer, true, error);
    if (status != COT_OK) {
        cot_text_stream_close(s);
        *out = NULL;
    }
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

/* Where the first stop string begins in the held text; its length if there is none. */
static size_t first_stop(const cot_text_stream *s)
{
    size_t first = s->held_bytes;
    for (size_t i = 0; i < s->stop_count; i++) {
        const char *at = memmem(s->held, s->held_bytes, s->stops[i], strlen(s->stops[i]));
        if (at && (size_t)(at - s->held) < first) first = (size_t)(at - s->held);
    }
    return first;
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
    if (status == COT_OK) status = hold(s, *piece, *bytes, error);
    if (status != COT_OK) return status;
    size_t stop = first_stop(s);
    *stopped = stop < s->held_bytes;
    s->shown = *stopped ? stop : s->held_bytes - doubtful(s);
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
    s->shown = first_stop(s);
    *piece = s->held;
    *bytes = s->shown;
    return COT_OK;
}
