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

/* A stream for one sequence. The tokenizer must outlive it; stop strings (`stops`, possibly none; empty ones
 * are refused) are copied. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. One thread at a time. */
cot_status cot_text_stream_open(cot_text_stream **stream, const cot_tokenizer *tokenizer,
                                const char *const *stops, size_t stop_count, cot_error *error);
void cot_text_stream_close(cot_text_stream *stream); /* NULL is fine */
/* Adds a token. *piece (*bytes long, possibly none; owned by the stream, valid until the next call) is text
 * that is now sure. *stopped: a stop string has come; the text ends before it, and no more is pushed. Errors:
 * INVALID_ARGUMENT, OUT_OF_MEMORY. */
cot_status cot_text_stream_push(cot_text_stream *stream, int32_t token, const char **piece, size_t *bytes,
                                bool *stopped, cot_error *error);
/* The rest, when the sequence ended otherwise: what was held back. */
cot_status cot_text_stream_finish(cot_text_stream *stream, const char **piece, size_t *bytes,
                                  cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
