/* What the server serves: a model's names, its tokenizer and template, and the limits that requests are held to. Constant
 * while the server runs, so that any thread may read it. */
#ifndef COT_SERVER_MODEL_H
#define COT_SERVER_MODEL_H
#include "coterie/chat.h"
#include "coterie/tokenizer.h"
#include "server/constraints.h"
#include "server/dialects.h"

enum { COT_SERVED_PAGE_TOKENS = 64 }; // positions of a page of the KV cache

typedef struct cot_served_model {
    const char *const *names; // [name_count] what clients may call it; the first is what answers say
    size_t name_count;
    const cot_tokenizer *tokenizer;
    const cot_chat_template *chat; // NULL: the model has none
    cot_served_dialects dialects;  // how the model writes calls and reasoning
    cot_api_defaults defaults;
    const int32_t *eos; // [eos_count] ids that end a text
    size_t eos_count;
    int64_t vocab, max_model_len;        // tokens of prompt and output together
    const char *fingerprint;             // "fp_" and 16 hexadecimal digits
    int64_t created;                     // seconds of the epoch
    cot_served_constraints *constraints; // NULL: the worker takes none
    size_t request_bytes;                // of memory that one body may take while it is read
} cot_served_model;

#endif
