/* One choice of an answer: a sequence, what it has said, and what of that the client still has to be told. */
#ifndef COT_SERVER_CHOICE_H
#define COT_SERVER_CHOICE_H
#include "server/said.h"
#include "server/prepare.h"
#include "server/wire.h"

typedef struct cot_choice {
    cot_job job;
    struct cot_answer *answer; // whose it is
    size_t index, prompt;
    int32_t *tokens; // prompt and continued output, which the job's request points to
    int64_t prompt_tokens, generated, cached_tokens; // generated: with those that were delivered before
    bool shown_prompt;                               // echo: the prompt's text is on its way
    bool told;                                       // something has been sent of it
    /* What has not been sent yet; all of it where nothing is streamed. */
    cot_said said;
    json_t *new_ids; // NULL: not asked for
    cot_wire_logprobs logprobs;
    /* How it ended. */
    bool is_over;
    bool is_counted; // in the metrics, as one that has ended
    bool was_busy;   // it failed for want of room alone
    cot_finish finish;
    int stopped_by;
    int32_t last_token; // -1: none was sampled
    bool last_ends;     // it ended the text
    cot_error error;
    int64_t began_ns, admitted_ns, first_ns, last_ns; // began: the request came, which the owner says
    int64_t heard_ns,
        cancelled_ns; // the backend was last heard of it, and told to end it; cancelled 0: was not
} cot_choice;

/* Makes the choice `index` of a request: its sequence, its stream of text. What was delivered before is replayed; where
 * that already ends the text the choice is over. False, with `error` filled in, where something is wrong. */
bool cot_choice_open(cot_choice *choice, const cot_api_request *request, const cot_served_model *model,
                     size_t index, uint64_t seed, cot_api_error *error);
void cot_choice_close(cot_choice *choice);
/* Takes what the backend tells. False when memory runs out. */
bool cot_choice_take(cot_choice *choice, const cot_api_request *request, const cot_served_model *model,
                     const cot_job_event *event);
/* The JSON of what is new (of everything where nothing is streamed); it is sent then. */
json_t *cot_choice_json(cot_choice *choice, const cot_api_request *request, const cot_wire_head *head);
/* "stop", "length", "tool_calls" or "function_call"; NULL while it is not over. */
const char *cot_choice_finish_reason(const cot_choice *choice);
/* Bytes of host memory that a choice may come to need. */
size_t cot_choice_bytes(const cot_api_request *request, size_t prompt);

#endif
