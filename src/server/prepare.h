/* From a body to a request that an engine can take: parsed, checked, tokenised. It takes as long as its text is long - a
 * template may even loop - and so it is done on threads of its own, in lanes: who sends a short prompt does not wait for
 * who sent a giant one, nor for a conversation.
 *
 *   loop: cot_preparer_start --lane's thread: cot_prepare--> loop: done
 *
 * Constraints are compiled in a lane of their own by several threads, so that a costly one does not hold up the others.
 *
 * Of long bodies one is prepared at a time, so that the memory that this takes is that of one. What nobody wants any more
 * is dropped, or, where it has begun, ended at its next step: before the template and before each prompt, and every few
 * milliseconds while a text becomes ids. */
#ifndef COT_SERVER_PREPARE_H
#define COT_SERVER_PREPARE_H
#include "server/model.h"

#include <stdatomic.h>

struct event_base;

typedef struct cot_preparation {
    cot_api_kind kind;
    char *body; // owned, freed once it is read
    size_t bytes;
    cot_api_request request; // cleared by who is told
    cot_api_error error;     // http_status != 0: the request is refused
    char *text; // of COT_API_TOKENIZE and COT_API_DETOKENIZE: the reply, [text_bytes], owned by who is told
    size_t text_bytes;
    void (*done)(struct cot_preparation *preparation); // on the loop's thread
    void *owner;
    atomic_bool unwanted;         // set by cot_preparer_cancel
    struct cot_preparation *next; // in a lane
} cot_preparation;

/* All of it but constraints, on the caller's thread. Fills in request or error. Thread-safe. False: the request is good so far, and
 * wants a constraint. */
bool cot_prepare(cot_preparation *preparation, const cot_served_model *model);
/* That. Thread-safe. */
void cot_prepare_constraint(cot_preparation *preparation, const cot_served_model *model);

typedef struct cot_preparer cot_preparer;
/* Starts the lanes. Errors: OUT_OF_MEMORY, IO. */
cot_status cot_preparer_open(cot_preparer **preparer, const cot_served_model *model, struct event_base *base,
                             cot_error *error);
/* Takes a preparation; `done` is called later, from the loop, or for a short text at once. */
void cot_preparer_start(cot_preparer *preparer, cot_preparation *preparation);
/* Nobody wants it any more. True: it had not begun, and is the caller's again without `done` being called; false: `done`
 * will be called soon, with whatever came of it. From the loop. */
bool cot_preparer_cancel(cot_preparer *preparer, cot_preparation *preparation);
/* Waits for what is under way; what has not begun is told as refused (503). NULL is fine. */
void cot_preparer_close(cot_preparer *preparer);

#endif
