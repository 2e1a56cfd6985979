/* Who computes: an engine in this process (engine_backend.h), later others. The API hands it jobs, a sequence each, and is
 * told what becomes of them.
 *
 * All functions are called on the thread of the server's loop, and so are the jobs' callbacks. Tokens become text on the
 * backend's own thread, so that a stop string ends a sequence before its next token is computed. */
#ifndef COT_SERVER_BACKEND_H
#define COT_SERVER_BACKEND_H
#include "coterie/engine.h"
#include "coterie/text.h"

typedef struct cot_job cot_job;

typedef enum cot_job_event_kind {
    COT_JOB_ADMITTED,     // computing begins
    COT_JOB_PROMPT_TOKEN, // what the model thought of a token of the prompt, from its second on (all_logits)
    COT_JOB_TOKEN,        // a token was sampled
    COT_JOB_OVER,         // without a last token's event: nothing to generate, cancelled, or failed
} cot_job_event_kind;

/* What it points to is valid during the callback. */
typedef struct cot_job_event {
    cot_job_event_kind kind;
    int64_t at_ns;         // when it happened, of the monotonic clock
    int64_t cached_tokens; // ADMITTED: of the prompt, found in the cache
    cot_sampled sampled;   // PROMPT_TOKEN, TOKEN
    const char *text;      // TOKEN, OVER: text [bytes] that is now sure
    size_t bytes;
    bool last;              // the job is over with this event, always so with OVER
    cot_finish finish;      // where it is the last
    int stopped_by;         // where it is the last: the stop string that ended it; -1: none did
    const cot_error *error; // OVER: not NULL when it failed
} cot_job_event;

/* One sequence. Its owner fills in the first part; keeps it, and what `request` points to, until its last event. */
struct cot_job {
    cot_request request;   // `after` is the backend's
    int home;              // rank that holds it; COT_HOME_ANY
    const cot_job *leader; // earlier in the same submit: its prompt's pages are shared; NULL: none
    cot_text_stream *text; // used on the backend's thread until the job is over; the owner closes it then
    bool show_ending;      // whether the token that ends the text has text too
    void (*on_event)(cot_job *job, const cot_job_event *event); // on the last one the owner may free the job
    void *owner;
    /* The backend's own. */
    uint64_t id;
    bool is_over, is_cancelled; // of the backend's thread; of the loop's
    cot_error error;
    void *backend;
    cot_job *next, *next_cancelled;     // among orders
    cot_job *live_before, *live_behind; // among those that the backend has
};

/* How a backend stands. */
typedef struct cot_backend_state {
    cot_engine_load load;
    int64_t prompt_tokens; // since the start: of admitted jobs, cancelled or not, without output_tokens
    bool lives;            // all that compute are there, as far as can be seen at once
    bool failed;           // nothing is computed any more; `error` says why
    cot_error error;
} cot_backend_state;

enum { COT_VIEW_SEQUENCES = 256 };

/* What the backend is at, between two steps; what was counted by then take_stats has. */
typedef struct cot_backend_view {
    size_t sequences; // in all; the first ones:
    cot_engine_sequence sequence[COT_VIEW_SEQUENCES];
} cot_backend_view;

typedef struct cot_backend cot_backend;
typedef struct cot_backend_table {
    /* Takes `count` jobs, which run in this order as far as there is room. */
    void (*submit)(cot_backend *backend, cot_job *const *jobs, size_t count);
    /* Ends a job early, once: one more event follows soon, OVER. */
    void (*cancel)(cot_backend *backend, cot_job *job);
    void (*state)(cot_backend *backend, cot_backend_state *state);
    /* What was counted up to a second ago, or since the backend last had something to do; moved to `*stats`, which was
     * cleared or is empty. False where there is nothing newer than what was taken last. */
    bool (*take_stats)(cot_backend *backend, cot_stats *stats);
    /* Has the backend's thread come round soon, though nothing is ordered: it looks after events of the KV cache. */
    void (*attend)(cot_backend *backend);
    /* Has a view taken between two steps, soon: on_view is called with it, once for all who asked before. Not where the
     * backend has failed, or does before. */
    void (*look)(cot_backend *backend);
    /* Ends what runs and frees; jobs that are not over are told OVER, cancelled. NULL is fine. */
    void (*close)(cot_backend *backend);
} cot_backend_table;

struct cot_backend {
    const cot_backend_table *table;
    int64_t vocab, context_tokens; // context_tokens: most tokens of a sequence
    int ranks;
    void (*on_failure)(void *owner); // set by the owner: nothing is computed any more; called once
    void (*on_gone)(
        void *owner); // set by the owner: after a failure, nobody is left of those that computed; called once
    void (*on_view)(void *owner, const cot_backend_view *view); // set by the owner; NULL: there is none
    void *owner;
};

#endif
