/* The JSON of answers, as OpenAI's API and vLLM's have it. Functions that return JSON return NULL when memory runs out. */
#ifndef COT_SERVER_WIRE_H
#define COT_SERVER_WIRE_H
#include "worker/backend.h"
#include "server/model.h"

/* What all parts of one answer say. */
typedef struct cot_wire_head {
    const cot_served_model *model;
    bool chat, stream;
    const char *id;
    int64_t created; // seconds of the epoch
} cot_wire_head;

typedef struct cot_wire_usage {
    int64_t prompt_tokens, completion_tokens, cached_tokens;
} cot_wire_usage;

/* Chances of tokens, gathered while they come: of conversations a list of objects, otherwise four lists. */
typedef struct cot_wire_logprobs {
    bool chat;
    bool names_ids;  // tokens are "token_id:ID", else their text
    json_t *content; // of conversations
    json_t *tokens, *token_logprobs, *top_logprobs, *text_offset;
    /* Where in the answer's text tokens begin; of completions. */
    bool skip_special;  // special tokens leave no text
    const char *prompt; // [prompt_bytes] as it came; NULL: what is echoed is what its tokens make
    size_t prompt_bytes;
    int64_t prompt_characters; // of what is echoed
    size_t added;              // tokens that the tokenizer put before the prompt and that are still to come
    cot_detokenizer *text;     // of the prompt, then of the output; NULL before its first token
    int64_t told;              // characters of the tokens so far
} cot_wire_logprobs;
/* Adds a token; the first of a prompt, of which nothing is known, has `known` false. False when memory runs out. */
bool cot_wire_add_logprob(cot_wire_logprobs *logprobs, const cot_served_model *model,
                          const cot_sampled *sampled, bool known);
/* A token that was delivered before: what comes behind it knows where in the text it is. False when memory runs out. */
bool cot_wire_skip_logprob(cot_wire_logprobs *logprobs, const cot_served_model *model, int32_t token);
/* The prompt is echoed, as `text` [bytes]; `given`, which stays while tokens of it are added: that came as text, and
 * the first `added` tokens are none of it; NULL: it came as ids. */
void cot_wire_echo(cot_wire_logprobs *logprobs, const char *text, size_t bytes, const char *given,
                   size_t added);
/* The prompt is over: the next token is the output's first. */
void cot_wire_end_prompt(cot_wire_logprobs *logprobs);
/* What was gathered, which begins anew; json_null() where nothing was. */
json_t *cot_wire_take_logprobs(cot_wire_logprobs *logprobs);
void cot_wire_logprobs_clear(cot_wire_logprobs *logprobs);

/* One choice: of a whole answer or of one event of a stream. */
typedef struct cot_wire_choice {
    size_t index;
    const char *text; // [bytes] UTF-8; of completions
    size_t bytes;
    json_t
        *message; // taken over: of conversations, the message or a stream's delta; NULL: it could not be had
    json_t *logprobs;                     // taken over; NULL: none
    const char *finish_reason;            // NULL: it goes on
    json_t *stop_reason;                  // taken over; NULL: none
    json_t *token_ids, *prompt_token_ids; // taken over; NULL: not asked for
} cot_wire_choice;
json_t *cot_wire_choice_json(const cot_wire_head *head, const cot_wire_choice *choice);

json_t *cot_wire_usage_json(const cot_wire_usage *usage);
/* An answer, or an event of a stream, of these choices (a list, taken over) and usage (taken over; NULL: none is said). */
json_t *cot_wire_answer(const cot_wire_head *head, json_t *choices, json_t *usage);

/* A token's own text, special ones' too: one that is a part of a character has U+FFFD. */
json_t *cot_wire_token(const cot_served_model *model, int32_t token);
json_t *cot_wire_ids(const int32_t *ids, size_t count);

#endif
