/* Which requests run and what the next step computes of them: a queue, rows of the page tables, pages, and the blocks
 * that stay in them for requests that begin alike (prefix.h). It knows numbers only: no model, no fabric, no clock.
 *
 *   submit -> waiting -> admit -> active -> release -> ended -> sweep
 *               ^                 plan, step, fed, plan, step, fed ...
 *               '----- preempted -----'
 *
 * Requests are admitted in the order in which they came, or where their experts are foretold by these (overlap.h), each as soon as
 * there is a row, and pages for the tokens that it has so far: free ones, idle ones, or such as hold the text that it begins with. Pages are taken as sequences grow. When
 * there are not enough for a step, the request that was admitted last goes back to the head of the queue: its pages are
 * released, its tokens kept, and computed again later. One that runs alone gives up what it holds beyond its own pages,
 * so that the first always gets on. Memory is allocated when a request is made, and nowhere else. */
#ifndef COT_SCHEDULE_SCHEDULER_H
#define COT_SCHEDULE_SCHEDULER_H
#include "coterie/layout.h"
#include "coterie/request.h"
#include "schedule/cost.h"
#include "schedule/overlap.h"
#include "schedule/prefix.h"
#include "schedule/step.h"

/* A request and how far it has come: its KV holds `fed` tokens, `known` are told so far. */
typedef struct cot_request_state {
    uint64_t id;
    void *beside; // what whoever submitted it keeps with it, which the scheduler neither reads nor fills
    bool forced, all_logits, ended;
    int32_t home, row;  // row: which of the page tables is its own; -1 while it waits
    int32_t recorded;   // the sequence of recorded routing that it replays
    uint64_t after;     // the request that it waits for; 0: none, or no longer
    int64_t admissions; // how often it became active
    int64_t overtaken;  // by how many that came later, while it waited and could have been admitted
    const uint8_t *
        share; // [limits.foresight.cells] what is expected of it (overlap.h); NULL: nothing is known, or asked
    int64_t sat_out;       // steps since it last had a part in one, or became active
    int64_t prompt_tokens; // so many of `tokens`, the first ones, are the prompt
    int64_t text_begin;    // where generated text begins: behind the prompt, or in one that ends with some
    int64_t limit;         // most tokens that it may come to
    int64_t fed;           // tokens that its KV holds
    int64_t known;         // tokens of the prompt, and those generated or, of forced ones, revealed so far
    int64_t told;          // positions whose logits and routing were told, also before a preemption
    cot_prefix_salt *salt;
    int32_t node;    // of the prefix cache: the last whole block that it holds; -1: none
    int64_t blocks;  // how many whole blocks it holds
    int64_t found;   // how many of them were there when it became active
    int64_t fork;    // tokens of its prompt that blocks held then, and no snapshot; 0: none
    int32_t resumes; // the snapshot that its first span goes on from; -1: none
    int32_t passing; // the node with the last snapshot behind its prompt, which the next replaces; -1: none
    bool alone;      // it holds no blocks any more, nor lets others have its own
    int64_t pages_held, maps_told;  // pages that it has; how many of them a plan has told the ranks
    int64_t shared, copied;         // pages shared with others; positions copied to the page behind them
    int32_t copied_from;            // the page that those positions are copied from
    int32_t *tokens;                // [limit]
    int32_t *pages;                 // [pages of limit]
    struct cot_request_state *next; // in the list of those that wait, or of those that ended
} cot_request_state;

/* Whether what comes behind the span is to be drawn, from the logits of its last token: the span feeds all that is known of a
 * text that goes on and is not forced. */
static inline bool cot_request_draws(const cot_request_state *request, const cot_span *span)
{
    return !request->forced && span->position + span->tokens == request->known &&
           request->known < request->limit;
}

/* What foretells the experts of requests. */
typedef struct cot_scheduler_foresight {
    int64_t cells; // (MoE layer, expert)s; 0: nothing does
    bool admits;   // requests are admitted, and a step's taken, by it, else in the order in which they came
    /* Fills in share [cells] of the text that begins with the request's prompt; false: nothing is known of it yet. */
    bool (*expect)(const void *context, uint8_t *share, const cot_request *request);
    /* Where experts sit now: homes are chosen by what requests would send from there. NULL: by load alone. */
    const cot_expert_layout *(*layout)(const void *context);
    const void *context;
} cot_scheduler_foresight;

typedef struct cot_scheduler_limits {
    int64_t sequences, pages;         // most sequences that are active at once; pages of the KV cache
    int64_t step_tokens, step_logits; // most tokens of a step, and most rows of logits
    int64_t step_maps;                // most page maps of a step: cot_scheduler_step_maps
    int homes;                        // ranks that a page may be on; 1: it is on all
    int64_t block;                    // tokens of a block of the prefix cache; 0: nothing is kept in it
    int64_t snapshots,
        step_states; // of states, where layers have some; most copies of a step: cot_scheduler_step_states
    int64_t max_wait_steps; // steps that an active sequence may sit out (compose.h)
    int64_t target_ns;      // how long a step should take at most; 0: as long as it takes
    cot_scheduler_foresight foresight;
} cot_scheduler_limits;

struct cot_page_worth;

typedef struct cot_scheduler {
    cot_scheduler_limits limits;
    uint64_t last_id; // ids count from 1
    cot_page_pool pool;
    cot_prefix_cache prefix;
    cot_cost cost;      // of steps; whoever runs them tells it how long they took
    int32_t *free_rows; // a stack of [sequences]
    int64_t free_row_count;
    cot_request_state **active; // [sequences] in the order of admission
    cot_request_state **by_row; // [sequences]
    int64_t active_count, waiting_count;
    cot_request_state *waiting, **waiting_end, *ended;
    float *missing; // [foresight.cells] of the active ones, unless one of them left since
    bool missing_is_old;
    float *left;            // [foresight.cells] scratch: of those that a step takes
    uint8_t *share;         // [foresight.cells] scratch: of a request that has no home yet
    int32_t *ids;           // [step_tokens] what a plan points to
    cot_span *spans;        // [step_tokens]
    cot_page_map *maps;     // [step_maps]
    cot_state_copy *states; // [step_states]
    int32_t state_count;    // of the last plan
    uint64_t waited_steps;  // that active ones sat out
    struct cot_page_worth
        *worth;    // whoever wants to know what more or fewer pages would save; NULL: nobody does
    int64_t plans; // that it was told of
    uint64_t ended_after[COT_RESTART_CLASSES], ended_restarts; // requests, by how often they were preempted
    uint64_t preemptions, queried_tokens, hit_tokens; // tokens are counted when a request is first admitted
} cot_scheduler;

/* Most maps of a step: pages of its tokens, a row's first each time; and what sequences of up to `context` tokens find. */
int64_t cot_scheduler_step_maps(int64_t step_tokens, int64_t sequences, int64_t context, int64_t block);

/* Snapshots are taken in prompts every so many tokens, where they leave what others' blocks hold, at the last whole block that ends
 * COT_SNAPSHOT_TAIL tokens or more before a prompt's end, and behind it at each block, of which the last one stays. What a chat
 * template ends a prompt with, "<think>\n", is often not in what it makes of the same turn later: it is in the tail. */
enum { COT_SNAPSHOT_TOKENS = 1024, COT_SNAPSHOT_TAIL = 8 };
/* Most copies of a step: from a snapshot for each sequence, and to those. 0 without snapshots. */
int64_t cot_scheduler_step_states(int64_t step_tokens, int64_t sequences, int64_t snapshots);

/* Errors: OUT_OF_MEMORY. Close either way; that frees all requests. */
cot_status cot_scheduler_open(cot_scheduler *scheduler, const cot_scheduler_limits *limits, cot_error *error);
void cot_scheduler_close(cot_scheduler *scheduler);
size_t cot_scheduler_bytes(const cot_scheduler_limits *limits); // of the tables

/* Makes a request that may come to `limit` tokens, which is at least prompt and forced tokens and no more than
 * `pages` hold, and lets it wait, with room for `beside` bytes, aligned for any pointer, that are the caller's while it
 * is there. Returns NULL, with nothing changed, when memory runs out. */
cot_request_state *cot_scheduler_submit(cot_scheduler *scheduler, const cot_request *request, int64_t limit,
                                        int32_t home, size_t beside);
/* One that waits, and for no other request, becomes active if it fits, else NULL: the first, or where there is foresight the one of
 * the first COT_OVERLAP_WINDOW that cot_overlap_admit takes, and the first where that does not fit. One that was preempted is
 * never overtaken. What is found of its beginning counts as fed. */
cot_request_state *cot_scheduler_admit(cot_scheduler *scheduler);
/* What the active ones do next (compose.h); takes the pages for it, preempting for want of them. It points into the
 * scheduler and into no request. */
cot_step cot_scheduler_plan(cot_scheduler *scheduler);
/* The KV of an active one holds so many more tokens. */
void cot_scheduler_fed(cot_scheduler *scheduler, cot_request_state *request, int64_t tokens);
/* What is expected of an active one is told anew: where to [limits.foresight.cells], which it holds then. What stands there is what was
 * told last or, if its `share` was NULL, nothing. NULL: nobody asks. */
uint8_t *cot_scheduler_retell(cot_scheduler *scheduler, cot_request_state *request);
/* One that waits or is active; NULL if there is none with that id. */
cot_request_state *cot_scheduler_find(const cot_scheduler *scheduler, uint64_t id);
/* Ends a request that waits or is active: its row and pages are free at once, itself with the next sweep. */
void cot_scheduler_release(cot_scheduler *scheduler, cot_request_state *request);
void cot_scheduler_sweep(cot_scheduler *scheduler);

/* Between two steps: so many pages are open from now on, or as few more as active requests have; blocks that are kept go for it, those that
 * were used longest ago first. What is in pages that close comes to others: moved [2 * limits.pages] has the pairs (from, to),
 * ascending, in which all froms are behind all tos. Returns how many there are; pool.open says how many pages are open. */
int64_t cot_scheduler_resize(cot_scheduler *scheduler, int64_t open, int32_t *moved);

/* For scheduler.c: a request is admitted; it is about to leave the cache; a step is planned. What that says of pages goes to `worth`. */
void cot_scheduler_weigh_text(const cot_scheduler *scheduler, const cot_request_state *request);
void cot_scheduler_weigh_blocks(const cot_scheduler *scheduler, const cot_request_state *request);
void cot_scheduler_weigh_step(cot_scheduler *scheduler);

/* What there is to do and how the cache fares; whoever runs steps fills in how many there were. */
void cot_scheduler_get_load(const cot_scheduler *scheduler, cot_engine_load *load);
/* The same of each home: [limits.homes]. */
void cot_scheduler_get_homes(const cot_scheduler *scheduler, cot_home_load *homes);
/* Fills in the first `room` of those that run, in the order of admission, then of those that wait. Returns how many there
 * are. */
size_t cot_scheduler_sequences(const cot_scheduler *scheduler, cot_engine_sequence *sequences, size_t room);
/* Which of `homes` homes most of the prompt is kept for, or will be when it is admitted `after` another. Among equals, where
 * foresight has a layout and knows the request, of those that have one request at most more than the one of them that has the
 * fewest: the one from which the next token is expected to ask the fewest other ranks, summed over layers. Else, and among equals
 * again, the one whose requests know the fewest tokens, then the first. */
int cot_scheduler_choose_home(const cot_scheduler *scheduler, const cot_request *request, int homes);

#endif
