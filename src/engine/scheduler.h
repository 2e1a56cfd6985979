/* Which requests run and what the next step computes of them: a queue, rows of the page tables, pages. It knows
 * numbers only: no model, no fabric, no clock.
 *
 *   submit -> waiting -> admit -> active -> release -> ended -> sweep
 *                                 plan, step, plan, step ...
 *
 * Requests are admitted in the order in which they came, each as soon as there is a row and its longest length
 * can be had in pages. It is counted then, and the pages themselves are taken as the sequence grows: nothing
 * that runs ever lacks one. Memory is allocated when a request is made, and nowhere else. */
#ifndef COT_ENGINE_SCHEDULER_H
#define COT_ENGINE_SCHEDULER_H
#include "coterie/engine.h"
#include "engine/pages.h"
#include "model/step.h"

/* A request and how far it has come: its KV holds `fed` tokens, `known` are told so far. */
typedef struct cot_request_state {
    uint64_t id, told_as; // told_as: the number by which callbacks call it
    cot_events events;
    cot_sampling sampling;
    bool forced, all_logits, ended;
    int32_t home, row; // row: of the page tables; -1 while it waits
    int32_t logprobs;
    uint64_t after;        // the request that it waits for; 0: none, or no longer
    int64_t prompt_tokens, // the first of its tokens
        text_begin,        // of them, or behind them: what was generated
        limit,             // most tokens that it may come to
        fed, known;        // known: of the prompt, then generated or (revealed so far) forced
    int64_t pages_held;
    int32_t *tokens;                // [limit]
    int32_t *pages;                 // [pages of limit]
    struct cot_request_state *next; // among those that wait, or those that ended
} cot_request_state;

typedef struct cot_scheduler_limits {
    int64_t sequences, pages;         // active at once; of the KV cache
    int64_t step_tokens, step_logits; // of a step: tokens, rows of logits
    int homes;                        // ranks that a page may be on; 1: it is on all
} cot_scheduler_limits;

typedef struct cot_scheduler {
    cot_scheduler_limits limits;
    uint64_t last_id; // ids count from 1
    cot_page_pool pool;
    int64_t counted_pages; // of the active at their longest
    int32_t *free_rows;    // a stack of [sequences]
    int64_t free_row_count;
    cot_request_state **active; // [sequences] in the order of admission
    cot_request_state **by_row; // [sequences]
    int64_t active_count, waiting_count;
    cot_request_state *waiting, **waiting_end, *ended;
    int32_t *ids;       // [step_tokens] what a plan points to
    cot_span *spans;    // [step_tokens]
    cot_page_map *maps; // [2 step_tokens]
} cot_scheduler;

/* Errors: OUT_OF_MEMORY. Close either way; that frees all requests. */
cot_status cot_scheduler_open(cot_scheduler *scheduler, const cot_scheduler_limits *limits, cot_error *error);
void cot_scheduler_close(cot_scheduler *scheduler);

/* Makes a request that may come to `limit` tokens, which is at least prompt and forced tokens and no more than
 * `pages` hold, and lets it wait. Fill in who listens. Returns NULL, with nothing changed, when memory runs
 * out. */
cot_request_state *cot_scheduler_submit(cot_scheduler *scheduler, const cot_request *request, int64_t limit,
                                        int32_t home);
/* The first that waits, and for no other request, becomes active if it fits, else NULL. */
cot_request_state *cot_scheduler_admit(cot_scheduler *scheduler);
/* What the active ones do next (compose.h); takes the pages for it. It points into the scheduler and into no
 * request. */
cot_step cot_scheduler_plan(cot_scheduler *scheduler);
/* The request has been fed its prompt, or is over: those that waited for that do so no more. */
void cot_scheduler_free_followers(cot_scheduler *scheduler, const cot_request_state *request);
/* One that waits or is active; NULL if there is none with that id. */
cot_request_state *cot_scheduler_find(const cot_scheduler *scheduler, uint64_t id);
/* Ends a request that waits or is active: its row and pages are free at once, itself with the next sweep. */
void cot_scheduler_release(cot_scheduler *scheduler, cot_request_state *request);
void cot_scheduler_sweep(cot_scheduler *scheduler);

#endif
