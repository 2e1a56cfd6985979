/* From generated tokens to text as it may be shown: whole characters, and nothing that is or may become a
 * stop string. */
#ifndef COTERIE_TEXT_H
#define COTERIE_TEXT_H
#include "coterie/status.h"
#include "coterie/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_text_stream cot_text_stream;

/* Fill with cot_text_options_init, which sets the defaults, then change what differs. */
typedef struct cot_text_options {
    size_t size;              /* sizeof this structure */
    const char *const *stops; /* [stop_count] stop strings, none of them empty; default none. Copied. */
    size_t stop_count;
    bool include_stop;        /* the text ends behind its stop string instead of before it; default false */
    bool keep_special_tokens; /* special tokens have text too; default false */
    /* Every added token has text, between two bytes that UTF-8 does not have: 0xFF before one that decoding may skip, 0xFE before
     * any other, 0xFD behind it; default false. So text that spells a token is told from the token. Stop strings are looked for in
     * the text without marks, and without special tokens unless these are kept; one may cut a token, whose 0xFD is missing then. */
    bool mark_added_tokens;
    int64_t
        stop_after_tokens; /* no stop string is looked for in the text of so many first tokens; default 0 */
} cot_text_options;
void cot_text_options_init(cot_text_options *options);

/* A stream for one sequence. The tokenizer must outlive it; `options` may be NULL, for the defaults. Errors:
 * INVALID_ARGUMENT (an empty stop string), OUT_OF_MEMORY. One thread at a time. */
cot_status cot_text_stream_open(cot_text_stream **stream, const cot_tokenizer *tokenizer,
                                const cot_text_options *options, cot_error *error);
void cot_text_stream_close(cot_text_stream *stream); /* NULL is fine */
/* Adds a token. *piece (*bytes long, possibly none; owned by the stream, valid until the next call) is text
 * that is now sure. *stopped: a stop string has come; the text ends before it, and no more is pushed. Errors:
 * INVALID_ARGUMENT, OUT_OF_MEMORY. */
cot_status cot_text_stream_push(cot_text_stream *stream, int32_t token, const char **piece, size_t *bytes,
                                bool *stopped, cot_error *error);
/* The rest, when the sequence ended otherwise: what was held back. */
cot_status cot_text_stream_finish(cot_text_stream *stream, const char **piece, size_t *bytes,
                                  cot_error *error);
/* Index of the stop string that has come; -1: none has. */
int cot_text_stream_stopped_by(const cot_text_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
