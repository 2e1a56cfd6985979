/* What a chat template is made of, and a rendering with all that transformers can be asked for. */
#ifndef COT_TOKENIZER_CHAT_H
#define COT_TOKENIZER_CHAT_H
#include "base/gguf.h"
#include "coterie/chat.h"
#include "tokenizer/jinja/interpret.h"
#include <jansson.h>

/* A template that was read, and the memory that it lives in. */
typedef struct cot_chat_source {
    char *text; // as it was read
    cot_jinja_run run;
    cot_jinja_template tree;
    bool wants_text; // the arguments of a tool call as JSON text, not as an object
} cot_chat_source;

struct cot_chat_template {
    cot_chat_source *plain,
        *tool_use;            // one at least; of conversations with tools it is `tool_use` where there is one
    cot_error tool_use_error; // why the folder's `tool_use` cannot be read; COT_OK: it can, or there is none
    json_t *tokens;           // an object of strings: "bos_token", ...
};

/* What a rendering takes; borrowed. NULL is what the caller did not give. */
typedef struct cot_chat_request {
    const json_t *messages, *tools, *documents, *variables[2]; // the second variables go before the first
    bool add_generation_prompt, continue_final_message;
    bool openai; // tool calls are OpenAI's: the template gets their arguments in the form that it wants
    bool strict; // transformers' rendering or none: parts stay a list, what is null stays away
    const struct tm *now; // NULL: the clock
    cot_jinja_limits limits;
} cot_chat_request;

extern const cot_jinja_limits cot_chat_limits;

/* cot_chat_render of a request; `failure` (NULL is fine) gets the template's own words. */
cot_status cot_chat_render_request(const cot_chat_template *chat, cot_chat_text *out,
                                   const cot_chat_request *request, cot_jinja_failure *failure,
                                   cot_error *error);

/* A value of JSON; `own` says whether its text may spell control tokens. */
cot_jinja_value cot_chat_value(cot_jinja_run *run, const json_t *json, bool own);
/* Whether a message has content that is not null. */
bool cot_chat_has_content(const json_t *message);

/* What a message without content, or with null, has in a template. */
typedef enum cot_chat_no_content {
    COT_CHAT_UNDEFINED, // transformers' way
    COT_CHAT_NONE,
    COT_CHAT_EMPTY
} cot_chat_no_content;

/* The messages as transformers hands them to a template: without what is null, and a reasoning text under each of its
 * names; `without` says what becomes of no content. Content in parts becomes one text where `joined` [messages] says so;
 * `read` [messages] learns of which of the others the template looks at a part. */
cot_jinja_value cot_chat_messages(cot_jinja_run *run, const json_t *messages, cot_chat_no_content without,
                                  const bool *joined, bool *read);
/* Messages of OpenAI's API, in which the arguments of a tool call are JSON text, with the objects that they are, or, with
 * `text`, with text alone. Text that is no object, or has a number beyond 64 bits, stays as it is; none, blank and "null"
 * is an empty object. An empty list of calls goes. On success `*out` is the caller's, on failure NULL. Errors: MALFORMED
 * (objects of more than `bytes`), OUT_OF_MEMORY. */
cot_status cot_chat_openai_messages(json_t **out, const json_t *messages, bool text, size_t bytes,
                                    cot_error *error);
/* Finds out, by renderings of a tool call, in which form each of the template's sources wants its arguments. */
void cot_chat_probe(cot_chat_template *chat);

/* Puts a tag at the end of the last message; returns that message's text. */
const cot_jinja_string *cot_chat_tag_last(cot_jinja_run *run, cot_jinja_value messages);
/* Cuts the rendered text at the tag. */
void cot_chat_cut(cot_jinja_run *run, cot_jinja_builder *text, const cot_jinja_string *message);

/* What the metadata of a GGUF file say, as an object like tokenizer_config.json. Errors: as cot_gguf_open's. */
cot_status cot_chat_gguf_config(json_t **config, const char *path, cot_error *error);

/* Reads a template's text; `*out` is NULL on failure. */
cot_status cot_chat_source_open(cot_chat_source **out, const char *text, size_t bytes, const char *name,
                                cot_error *error);

#endif
