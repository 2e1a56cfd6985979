/* What a request says that its text has to be, under all names that clients have for it, and constraints made of that. */
#ifndef COT_SERVER_CONSTRAINTS_H
#define COT_SERVER_CONSTRAINTS_H
#include "server/api_request.h"

#include <pthread.h>

/* Fills in r->constraint. False, with `error` filled in, where something is wrong, not supported, or said twice. */
bool cot_api_read_constraint(cot_api_request *r, cot_api_error *error);

/* The compiler of a served model's constraints, opened when the first is asked for: it takes a while, and memory. */
typedef struct cot_served_constraints {
    const cot_tokenizer *tokenizer;
    int64_t vocab;
    const int32_t *eos; // [eos_count]
    size_t eos_count;
    pthread_mutex_t lock; // of the compiler
    cot_constraint_compiler *compiler;
} cot_served_constraints;

void cot_served_constraints_open(cot_served_constraints *constraints, const cot_tokenizer *tokenizer,
                                 int64_t vocab, const int32_t *eos, size_t eos_count);
/* Compiles what the request says. False, with `error` filled in, where that is nothing that a text can be, or the library is not
 * there. Thread-safe; may take seconds. */
bool cot_served_constraints_compile(cot_served_constraints *constraints, cot_api_constraint *constraint,
                                    cot_api_error *error);
/* Once no request has a constraint any more. */
void cot_served_constraints_close(cot_served_constraints *constraints);

#endif
