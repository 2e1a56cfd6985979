/* The message of an answer: content, reasoning and calls of tools, as far as its text has come. */
#ifndef COT_SERVER_SAID_H
#define COT_SERVER_SAID_H
#include "base/buffer.h"
#include "dialect/dialect.h"
#include "server/api_request.h"
#include "server/model.h"

/* A call; what of it a stream has not told yet waits in `arguments`. */
typedef struct cot_said_call {
    char *id, *name;
    cot_buffer arguments;
    bool told;
} cot_said_call;

typedef struct cot_said {
    cot_dialect_parser *parser; // NULL: all of the text is content
    bool legacy;                // its call is told as a function_call
    bool is_single;             // of several calls the first stands
    bool drops_reasoning;       // it is read, and not told
    bool drops_call;            // what comes is of a call that is not told
    bool is_short;              // ids of calls have nine characters
    cot_buffer content, reasoning;
    cot_said_call *calls; // [call_count]
    size_t call_count, call_room;
} cot_said;

/* A message as the request wants it; `opened`: the prompt ended within reasoning. False: memory ran out; to be closed either way. */
bool cot_said_open(cot_said *message, const cot_api_request *request, const cot_served_model *model);
void cot_said_close(cot_said *message);
/* Whether the text is read, so that its added tokens have to be marked (coterie/text.h). */
bool cot_said_reads(const cot_api_request *request, const cot_served_model *model);
/* Text has come. False: memory ran out. */
bool cot_said_take(cot_said *message, const char *text, size_t bytes);
/* The text is over; `is_cut`: not by itself. False: memory ran out. */
bool cot_said_end(cot_said *message, bool is_cut);
/* Forgets what came so far, which the client has: what comes goes on from there. */
void cot_said_forget(cot_said *message);
/* Calls that could not be read. */
size_t cot_said_unread(const cot_said *message);

/* What is new, as a stream's delta, which is told then; or the whole message. NULL: memory ran out. */
json_t *cot_said_delta(cot_said *message, bool role);
json_t *cot_said_whole(const cot_said *message);

#endif
