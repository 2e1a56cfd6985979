/* A server of the API over HTTP behind which nothing computes: the test is its backend, and says what becomes of each job
 * and when. Model tiny's tokenizer, and no engine: what asks for one is not to be called. */
#ifndef COT_TESTS_HARNESS_SERVER_SCRIPTED_H
#define COT_TESTS_HARNESS_SERVER_SCRIPTED_H
#include "harness/http_peer.h"

#include "server/choice.h"
#include "server/server_state.h"

enum { SCRIPTED_JOBS = 64, SCRIPTED_RANKS = 3, SCRIPTED_CONTEXT = 64, SCRIPTED_GOES_ON = -1 };

typedef struct scripted_server {
    cot_backend backend;
    cot_server *server;
    cot_tokenizer *tokenizer;
    const cot_chat_template *chat; // the test's; NULL: there is none
    cot_job *jobs[SCRIPTED_JOBS];  // in the order of their submits; NULL once it is over
    size_t submitted, cancelled;
    char log[8192]; // lines for the operator, each with its end
    test_peer peer; // the last one that asked
    test_answer answer;
} scripted_server;

/* A test's setup and teardown: *state becomes a scripted_server whose server is not open yet. */
int scripted_set_up(void **state);
int scripted_tear_down(void **state);

/* Opens the server as these options say (lists and texts are copied) on a free port; a context of SCRIPTED_CONTEXT tokens,
 * SCRIPTED_RANKS ranks. A second call closes the first server. */
void scripted_open(scripted_server *f, const cot_server_options *options);

/* Sends a request from a new client: f->peer. `fields`: more lines of its head, each with its end; "" where there are none. */
void scripted_post(scripted_server *f, const char *path, const char *fields, const char *body);
/* The same, and turns the loop until so many jobs more were submitted. */
void scripted_post_jobs(scripted_server *f, const char *path, const char *fields, const char *body,
                        size_t jobs);
/* Turns the loop until f->peer has an answer, in f->answer. The JSON of its body, which the caller frees; NULL: it is none. */
json_t *scripted_answer(scripted_server *f);
/* Both, of a request that is refused: its status; `*error` is the answer's error object, borrowed from `*json`. */
int scripted_refused(scripted_server *f, const char *path, const char *fields, const char *body,
                     json_t **json);

/* The choice of a job: when it began, what it was given. */
cot_choice *scripted_choice(scripted_server *f, size_t job);

/* What the backend tells of a job; times are nanoseconds since the request came. */
void scripted_admit(scripted_server *f, size_t job, int64_t cached_tokens, int64_t ns);
void scripted_prompt_token(scripted_server *f, size_t job, int32_t token, float logprob);
/* A token and its text, as the job's stream has it. `finish`: how the sequence ends with it, SCRIPTED_GOES_ON where it does
 * not; a stop string ends it anyway. */
void scripted_token(scripted_server *f, size_t job, int32_t token, int finish, int64_t ns);
/* The end without a token. `error` NULL: nothing failed. */
void scripted_over(scripted_server *f, size_t job, cot_finish finish, const cot_error *error, int64_t ns);

/* Turns the loop until the server has nothing under way. */
void scripted_await_rest(scripted_server *f);

#endif
