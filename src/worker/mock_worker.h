/* Inside a worker of the mock: its state, and what becomes of its jobs (mock_tokens.c, mock_jobs.c). */
#ifndef COT_WORKER_MOCK_WORKER_H
#define COT_WORKER_MOCK_WORKER_H
#include "worker/kv_events.h"
#include "worker/mock.h"
#include "worker/step_reports.h"

enum { COT_MOCK_PAGE_TOKENS = 64 };

/* A sequence. */
typedef struct cot_mock_job {
    cot_job *job;
    int home;
    const struct cot_mock_job *leader; // waits for its first token; NULL: does not wait
    struct cot_mock_job *next;         // of those that wait, or run
    uint64_t key;                      // of its tokens
    int32_t *told;                     // [told_count] tokens, with those that the prompt's end has
    int64_t told_count, stored;        // stored: tokens of prompt and text whose blocks were looked after
    int64_t cached_tokens;
    int64_t due_ns; // its next token
    /* Its faults. */
    bool refuses, twice;
    int64_t late_ns, stall_after; // stall_after -1: never
} cot_mock_job;

typedef struct cot_mock_worker {
    cot_backend base;
    const cot_mock *mock;
    int index;
    cot_backend_info info;
    cot_backend_owner owner;
    struct event_base *loop;
    struct event *turn; // NULL: not started
    cot_kv_events *kv;  // NULL: nobody follows the cache
    cot_step_reports *reports;
    bool views, dead, failure_told;
    cot_mock_job *waiting, **last_waiting, *running;
    cot_job *lost;         // by `next`: memory ran out for them, which the next turn tells
    cot_mock_cache *cache; // [homes]
    cot_backend_rank *ranks;
    cot_home_load *homes;
    cot_backend_state state;
    cot_backend_metrics metrics;
    int64_t requests, tokens, refused, stalled; // since the start; stalled: sequences
    cot_backend_report step;                    // what this turn told
} cot_mock_worker;

static inline int64_t cot_mock_ns(double ms)
{
    return (int64_t)(ms * 1e6);
}

/* ---- what is told of a job ---- */

/* What the tokens of a text are drawn by: what it began with, and the request's seed where it is not greedy. */
uint64_t cot_mock_key(const cot_mock_worker *b, const cot_request *r);
void cot_mock_tell(const cot_mock_worker *b, const cot_mock_job *m, cot_job_event *event);
/* Tells the end of a job that is in neither list any more, and forgets it. */
void cot_mock_tell_over(cot_mock_worker *b, cot_mock_job *m, cot_finish finish, const cot_error *error,
                        bool busy);
/* The next token. True: it was the last, and the job is gone. */
bool cot_mock_tell_token(cot_mock_worker *b, cot_mock_job *m);

/* ---- jobs that wait, and that run ---- */

/* Pages of the KV cache that it takes, with what is told so far. */
int64_t cot_mock_pages(const cot_mock_job *m);
/* Jobs of one request wait behind all others, or are lost for want of memory. Faults hit all of them. */
void cot_mock_add(cot_mock_worker *b, cot_job *const *jobs, size_t count);
void cot_mock_admit(cot_mock_worker *b); // as many as may run
void cot_mock_end_lost(cot_mock_worker *b);
void cot_mock_end_cancelled(cot_mock_worker *b);
void cot_mock_end(cot_mock_worker *b, const cot_error *error); // all; NULL: cancelled
/* Whether the worker is at its end, which is told. */
bool cot_mock_dies(cot_mock_worker *b);
/* Tells the tokens that are due. Callbacks may submit and cancel; running jobs come and go here alone. */
void cot_mock_tell_due(cot_mock_worker *b, int64_t now_ns);

#endif
