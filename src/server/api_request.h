/* A request of the API as data: its JSON checked field by field, its text still text.
 *
 *   body --cot_api_read_json--> JSON --cot_api_parse--> cot_api_request --cot_prepare (prepare.h)--> prompts as ids
 *
 * A field that would change the answer and is not supported is refused by name; one that nobody here knows is
 * ignored. null is as if a field were not there. */
#ifndef COT_SERVER_API_REQUEST_H
#define COT_SERVER_API_REQUEST_H
#include "coterie/constraint.h"
#include "coterie/request.h"
#include "coterie/status.h"
#include "access/api_error.h"
#include "access/api_json.h"

typedef enum cot_api_kind {
    COT_API_COMPLETION,
    COT_API_CHAT,
    COT_API_TOKENIZE,
    COT_API_DETOKENIZE
} cot_api_kind;

enum {
    COT_API_MAX_N = 128,        // choices of a prompt
    COT_API_MAX_CHOICES = 1024, // of a request
    COT_API_MAX_STOPS = 64,
    COT_API_MAX_STOP_BYTES = 1024,
    COT_API_MAX_LOGPROBS = 20,
};

/* Token ids; owned. */
typedef struct cot_api_ids {
    int32_t *ids;
    size_t count;
} cot_api_ids;

typedef struct cot_api_prompt {
    const char *text; // NULL: it came as ids; else in the request's JSON, or in `owned_text`
    size_t bytes;
    char *owned_text;
    cot_api_ids tokens; // what it came as, or what prepare made of the text
} cot_api_prompt;

/* What a text has to be. */
typedef struct cot_api_constraint {
    cot_constraint_kind kind;
    const char *name;         // of the field that said it, a constant
    char *text;               // owned; NULL: nothing was said
    bool is_of_calls;         // calls are held to it
    bool lets_text;           // of calls: anything may come outside them
    char *format;             // owned; of calls: the schema that `text` holds other answers to; NULL: none
    cot_constraint *compiled; // owned, of no text: choices copy it; NULL until prepare has made it
} cot_api_constraint;

/* Whether the answer calls tools. */
typedef enum cot_api_tool_choice {
    COT_API_TOOLS_NONE,
    COT_API_TOOLS_AUTO,
    COT_API_TOOLS_REQUIRED,
    COT_API_TOOLS_NAMED
} cot_api_tool_choice;

/* Tools that the answer may call. */
typedef struct cot_api_tools {
    json_t *list; // OpenAI's tools, owned; NULL: none
    cot_api_tool_choice choice;
    const char *named; // NAMED: in `list`
    bool parallel;     // several calls may be
    bool legacy;       // they came as functions, and a call is told as a function_call
} cot_api_tools;

typedef struct cot_api_request {
    cot_api_kind kind;
    json_t *json;      // owned: texts below point into it
    const char *model; // NULL: not said
    bool stream, include_usage, continuous_usage_stats;
    bool echo, return_token_ids, return_token_strs, include_stop_str, skip_special_tokens, add_special_tokens;
    bool add_generation_prompt, continue_final_message;
    bool names_ids;       // tokens of logprobs are "token_id:ID"
    bool truncates_right; // of a prompt that is truncated the first tokens stay, else the last
    int64_t n;
    int64_t max_tokens;             // -1: not said
    int64_t truncate_prompt_tokens; // 0: not said; -1: as many as fit
    int64_t logprobs;               // -1: none; else so many of the likeliest beside the chosen one
    bool seeded;                    // a seed was given; else one is drawn
    cot_sampling
        sampling; // its arrays point below; max_tokens is filled in when the prompt's length is known
    cot_api_ids stop_tokens, bias_tokens, logprob_tokens; // of the last the chances are told, if any are
    float *bias;                                          // [bias_tokens.count]
    const char **stops;                                   // [stop_count]
    size_t stop_count;
    cot_api_constraint constraint;
    cot_api_tools tools;
    bool include_reasoning;
    bool opens_reasoning;          // the prompt ends within reasoning, which prepare finds
    int64_t thinking_token_budget; // most tokens of reasoning; -1: any number
    const char *cache_salt;        // NULL: none
    size_t cache_salt_bytes;
    cot_api_prompt *prompts; // [prompt_count]; of a conversation one, filled in by prepare
    size_t prompt_count;
    cot_api_ids *continued; // [prompt_count * n] of choice i: output that was delivered before; NULL: none
    json_t *conversation;   // of COT_API_CHAT and of messages to tokenize: what the template is given; owned
    char *chat_template_kwargs; // JSON text, owned; NULL: none
    cot_api_ids detokenize;     // of COT_API_DETOKENIZE
    char unknown[128];          // names of fields that were ignored, for the log
} cot_api_request;

/* Sampling where a request says nothing: the model's generation_config.json, else OpenAI's. */
typedef struct cot_api_defaults {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
    int64_t max_tokens; // most that a request may ask for; 0: no such limit
} cot_api_defaults;

/* The defaults of a model folder. A missing file is none's error. Errors: MALFORMED, IO. */
cot_status cot_api_defaults_read(cot_api_defaults *defaults, const char *folder, cot_error *error);

/* Checks and fills in `request`; takes `json` over either way. False, with `error` filled in, when something is wrong;
 * cot_api_request_clear is called either way. `vocab` bounds token ids: the
 * model's, and of COT_API_DETOKENIZE the tokenizer's. Thread-safe. */
bool cot_api_parse(cot_api_request *request, cot_api_kind kind, json_t *json,
                   const cot_api_defaults *defaults, int64_t vocab, cot_api_error *error);
void cot_api_request_clear(cot_api_request *request);

/* Choices that the request asks for in all. */
static inline size_t cot_api_choices(const cot_api_request *request)
{
    return request->prompt_count * (size_t)request->n;
}

#endif
