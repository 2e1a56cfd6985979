/* Who computes behind the API, whatever it is: an engine in this process (of_engine.c), or a mock (mock.c). Its owner, a
 * server, hands it jobs, a sequence each, and is told what becomes of them.
 *
 * All functions are called on the thread of the owner's loop, and so are the owner's. Tokens become text on the backend's
 * own thread, if it has one, so that a stop string ends a sequence before its next token is computed. */
#ifndef COT_WORKER_BACKEND_H
#define COT_WORKER_BACKEND_H
#include "coterie/request.h"
#include "coterie/status.h"
#include "coterie/text.h"
#include "worker/endpoint.h"
#include "worker/kv_config.h"

#include <jansson.h>

struct event_base;
typedef struct cot_backend cot_backend; // as coterie/worker.h has it, which knows engines
typedef struct cot_job cot_job;

/* ---- jobs ---- */

typedef enum cot_job_event_kind {
    COT_JOB_ADMITTED,     // computing begins
    COT_JOB_PROMPT_TOKEN, // what the model thought of a token of the prompt, from its second on (all_logits)
    COT_JOB_TOKEN,        // a token was sampled
    COT_JOB_OVER,         // without a last token's event: nothing to generate, cancelled, or failed
} cot_job_event_kind;

/* What it points to is valid during the call. */
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
    bool busy;              // OVER that failed: for want of room alone, so that others may be asked, or later
} cot_job_event;

/* One sequence. Its owner fills in the first part; keeps it, and what `request` points to, until its last event. */
struct cot_job {
    cot_request request;   // `after` is the backend's
    uint64_t number;       // what events call it, never given twice by its owner
    int home;              // rank that holds it; COT_HOME_ANY
    const cot_job *leader; // earlier in the same submit: its prompt's pages are shared; NULL: none
    cot_text_stream
        *text;        // used by the backend, on its thread, until the job is over; the owner closes it then
    bool show_ending; // whether the token that ends the text has text too
    /* The backend's own. */
    uint64_t id;
    bool is_over, is_cancelled; // of the backend's thread; of the loop's
    cot_error error;
    void *backend;
    cot_job *next, *next_cancelled;     // among orders
    cot_job *live_before, *live_behind; // among those that the backend has
};

/* ---- what a backend says of itself ---- */

/* Constant. */
typedef struct cot_backend_info {
    const char *architecture, *precision, *payload, *op, *combine, *attention, *isa; // how it computes
    int ranks, threads;
    int homes; // ranks that hold a KV cache of their own; 1 where every rank holds its part of all pages
    int64_t block_tokens;   // of the prefix cache; 0: there is none
    int64_t sequences;      // that run at once, at most
    int64_t vocab;          // ids are less
    int64_t context_tokens; // most tokens of a sequence
    bool constrains;        // it takes requests with a constraint
    const int32_t *eos;     // [eos_count] ids that end a text
    size_t eos_count;
    uint64_t model_hash; // of what chooses experts; 0: not known
    char fingerprint
        [24]; // "fp_" and 16 hexadecimal digits: of all that an answer's bits depend on besides the request
} cot_backend_info;

/* How it stands. */
typedef struct cot_backend_state {
    cot_engine_load load;
    int64_t prompt_tokens; // since the start: of admitted jobs, cancelled or not, without output_tokens
    bool lives;            // all that compute are there, as far as can be seen at once
    bool failed;           // nothing is computed any more; `error` says why
    cot_error error;
    bool publishes_cache;                 // events of the KV cache; of these:
    uint64_t cache_batches, cache_losses; // published; how often some were lost and the whole cache went anew
} cot_backend_state;

/* What became of the tokens at home on one rank, over MoE layers: each token counts once a layer. */
typedef struct cot_backend_rank {
    uint64_t tokens;
    uint64_t activations, local;               // (token, expert); of those served on this rank
    uint64_t sends;                            // (token, other rank that serves it)
    uint64_t distinct_experts;                 // experts that were called, each once a layer and step
    uint64_t served, served_experts, received; // of its experts, whose tokens ever (coterie/engine.h)
} cot_backend_rank;

/* What was counted since the start. */
typedef struct cot_backend_metrics {
    int64_t steps, prefill_tokens, decode_tokens;
    int64_t prefill_ns, decode_ns; // of steps that hold prompt tokens, and of the others
    double lar;                    // activations that were served on the token's home rank / all
    double remote_ranks;           // distinct other ranks that a token needs, mean over tokens and MoE layers
    int phases;                    // what ranks send each other for
    const char *const *phase;      // [phases] names
    uint64_t *bytes, *messages;    // [phases] that all ranks together sent
    int ranks;
    cot_backend_rank *rank; // [ranks]
    uint64_t *calls;        // [layers][experts] of the placement: activations of each expert
} cot_backend_metrics;

/* Where the experts of MoE layers are. */
typedef struct cot_backend_placement {
    int32_t layers, experts; // of each layer
    int64_t top_k;
    uint64_t epoch;       // how often that has changed
    int32_t ranks, slots; // slots: of each rank and layer;
    int32_t own_slots;    // so many of them have a place of their own;
    int32_t transit;      // places of a rank beside those, which layers take in turn
    int32_t *layer;       // [layers] the model's numbers of its MoE layers
    int32_t *
        begin; // [layers][experts + 1] replicas of expert e of a layer l are those from first[l] + begin[e] on
    int64_t *first;       // [layers + 1]
    int32_t *rank, *slot; // of each replica
} cot_backend_placement;
void cot_backend_placement_free(cot_backend_placement *placement); // an empty one is fine

enum { COT_BACKEND_OUTCOMES = 8, COT_BACKEND_COPIES = 32, COT_BACKEND_MOVES = 64 };

/* Experts on their way to where a placement wants them; or many such ways, added up. */
typedef struct cot_backend_moves {
    uint64_t id; // from 1; 0: none were asked for
    bool over;
    int64_t copies, copied;     // replicas that are to be made; that were
    int64_t drops, dropped;     // that are too much; that were dropped
    int outcomes;               // why copies were given up
    const char *const *outcome; // [outcomes]
    int64_t given_up[COT_BACKEND_OUTCOMES];
    uint64_t bytes, chunks;    // that were sent
    int64_t epochs;            // placements that followed one another
    int64_t copy_ns, place_ns; // that steps waited for copies, and for ranks to agree on placements
    int copying;               // copies that are under way
    struct cot_backend_copy {
        int32_t layer, expert, from, to; // layer: the model's number; from, to: ranks
        int64_t bytes, of_bytes;
    } copy[COT_BACKEND_COPIES];
} cot_backend_moves;

enum { COT_BACKEND_REASONS = 8 };

/* How pages of the KV cache and replicas of experts share memory, where that moves. */
typedef struct cot_backend_budget {
    int64_t bytes;                      // all; 0: nothing is shared, or the split does not move
    int64_t states_bytes;               // of states that layers have in place of keys
    int64_t pages_bytes, slots_bytes;   // of pages that are open; that replicas may take
    int64_t replicas_bytes;             // that they take
    int reasons;                        // what comes of looks at the split
    const char *const *reason;          // [reasons]
    int64_t looks[COT_BACKEND_REASONS]; // by that
    int last;                           // what came of the last look; -1: there was none
    int64_t turns;                      // looks that moved memory the other way than the move before
    double gain_ns;                     // that a step takes less by the split that the last look found best
} cot_backend_budget;

/* What has come of cycles in which a backend sees whether experts should move. */
typedef struct cot_backend_rebalancing {
    const char *mode;               // by what it goes
    int64_t moved, stayed, refused; // cycles: moves began; there were none to be made; they could not begin
    int64_t given_up;               // of those that moved: moves took longer than their bytes should
    int64_t turns;                  // cycles that left out what was called before the last one
    int reasons;                    // what became of a MoE layer in a cycle
    const char *const *reason;      // [reasons]
    int64_t layers[COT_BACKEND_REASONS]; // in all cycles
    int64_t last[COT_BACKEND_REASONS];   // in the last one
    int64_t compared;                    // moves whose steps before and after were
    double foreseen_ns, realised_ns;     // of the last of those: what a step was to take less, and takes less
    int64_t copies, drops;               // of replicas, asked for
    double saving_ns;                    // that a step was to take less by the last cycle
    int64_t since_ns;                    // since the last cycle, or the start
    int64_t plan_ns;                     // that cycles took beside steps
    cot_backend_budget budget;           // they look at that, too
} cot_backend_rebalancing;

/* What calls of experts are worth lately: one counts 1 when it comes, and half as much a half-life later. */
typedef struct cot_backend_popularity {
    int32_t layers, experts, homes; // 0 layers: nothing is counted, or nothing was yet
    int64_t top_k;
    double half_life_tokens, half_life_seconds; // one of them is 0
    int32_t every;                              // so manieth token of a step is counted
    int32_t cells, layers_every;                // of a signature: cell (l / layers_every) experts + e
    const int32_t *layer;                       // [layers] the model's numbers
    double *tokens;                             // [homes]
    double *counts;                             // [homes][layers][experts]
} cot_backend_popularity;
/* Errors: OUT_OF_MEMORY; *copy is then empty. */
cot_status cot_backend_popularity_copy(cot_backend_popularity *copy, const cot_backend_popularity *popularity,
                                       cot_error *error);
void cot_backend_popularity_free(cot_backend_popularity *popularity); // an empty one is fine

enum { COT_VIEW_SEQUENCES = 256 };

/* What it is at, between two steps. */
typedef struct cot_backend_view {
    size_t sequences; // in all; the first ones:
    cot_engine_sequence sequence[COT_VIEW_SEQUENCES];
} cot_backend_view;

/* A document of the backend's own: GET `path` shows it. */
typedef struct cot_backend_route {
    const char *path;
    json_t *(*show)(cot_backend *backend); // the caller's; NULL: out of memory
} cot_backend_route;

/* ---- the table ---- */

/* Whom it tells; `context` is the owner's. */
typedef struct cot_backend_owner {
    void *context;
    void (*on_event)(void *context, uint64_t job, const cot_job_event *event);
    void (*on_failure)(void *context); // nothing is computed any more; called once
    void (*on_gone)(void *context);    // after a failure, nobody is left of those that computed; called once
    void (*on_view)(void *context, const cot_backend_view *view); // NULL: there is none
    /* All that the KV cache holds, msgpack: {"ranks": [{"data_parallel_rank", "seq": the last batch's number, -1 before the
     * first, "batch": of the blocks that are there}]}; NULL: out of memory. */
    void (*on_snapshot)(void *context, const void *bytes, size_t count);
    /* What became of asking for moves: they go under this number; or, with an error, experts stay. */
    void (*on_moves)(void *context, uint64_t id, const cot_error *error);
    /* What became of asking for a cycle: a document, now the owner's, whose "id" is the number of moves that have begun, or null; or an
     * error. Both NULL: out of memory. */
    void (*on_cycle)(void *context, json_t *cycle, const cot_error *error);
} cot_backend_owner;

typedef struct cot_backend_start {
    struct event_base *base; // the owner's loop
    cot_backend_owner owner;
    cot_kv_config kv;        // how events of the KV cache are published
    cot_endpoint reports;    // where reports of steps are; empty: nowhere
    cot_endpoint popularity; // where signatures of requests and the popularity of experts are; empty: nowhere
} cot_backend_start;

typedef struct cot_backend_table {
    const cot_backend_info *(*describe)(const cot_backend *backend);
    /* Once, before all that follows. Errors: INVALID_ARGUMENT (nothing to publish, no such address), IO (a port is taken, no
     * thread), OUT_OF_MEMORY. */
    cot_status (*start)(cot_backend *backend, const cot_backend_start *start, cot_error *error);
    /* Takes `count` jobs, which run in this order as far as there is room. */
    void (*submit)(cot_backend *backend, cot_job *const *jobs, size_t count);
    /* Ends a job early: one more event follows soon, OVER. The owner calls it once a job, before its last event. */
    void (*cancel)(cot_backend *backend, cot_job *job);
    void (*state)(cot_backend *backend, cot_backend_state *state);
    /* What was counted up to a second ago, or since the backend last had something to do: there until the next call. NULL:
     * nothing was yet. */
    const cot_backend_metrics *(*metrics)(cot_backend *backend);
    /* The caller frees it. NULL: it has no experts. */
    cot_status (*placement)(cot_backend *backend, cot_backend_placement *placement, cot_error *error);
    /* Experts are to go where a text [bytes] has them, in any format of placements (a NUL follows it), while the backend serves:
     * on_moves is called once, soon, where this is not refused at once. One at a time. `moves` NULL: experts stay where they are.
     * Errors: MALFORMED, INVALID_ARGUMENT, UNSUPPORTED (the text; experts are not to move), NOT_FOUND (the model has none),
     * OUT_OF_MEMORY. */
    cot_status (*move)(cot_backend *backend, const char *text, size_t bytes, cot_error *error);
    /* A cycle is made now, in which the backend sees whether experts should move, and moves them; `dry`: it only says what it would do.
     * on_cycle is called once, soon, where this is not refused at once. Not while moves are asked for. NULL: experts stay where they are.
     * Errors: NOT_FOUND (the model has none), UNSUPPORTED (rebalancing is off), INVALID_ARGUMENT (something is asked for already); with on_cycle
     * INVALID_ARGUMENT where moves are under way, OUT_OF_MEMORY, and what has ended the backend. */
    cot_status (*rebalance)(cot_backend *backend, bool dry, cot_error *error);
    /* False: rebalancing is off. NULL: there is none. */
    bool (*rebalancing)(cot_backend *backend, cot_backend_rebalancing *rebalancing);
    /* The last moves that were asked for, and all since the start. Returns whether there are moves that are not over, or about to
     * begin. */
    bool (*moves)(cot_backend *backend, cot_backend_moves *last, cot_backend_moves *all);
    /* The moves of that number, where they are among the last COT_BACKEND_MOVES; whether they are. */
    bool (*find_moves)(cot_backend *backend, uint64_t id, cot_backend_moves *found);
    /* The moves of that number, which are not over, are to end where they are; soon. */
    void (*cancel_moves)(cot_backend *backend, uint64_t id);
    /* Where experts are, a text that `move` and coterie's other commands read, which the caller frees. NULL: it has none. Errors:
     * NOT_FOUND: the model has none; OUT_OF_MEMORY. */
    cot_status (*write_placement)(cot_backend *backend, char **text, size_t *bytes, cot_error *error);
    /* What was counted up to a second ago, or since the backend last had something to do. The caller frees it. NULL: it counts none.
     * Errors: OUT_OF_MEMORY. */
    cot_status (*popularity)(cot_backend *backend, cot_backend_popularity *popularity, cot_error *error);
    /* Has a view taken between two steps, soon, and the metrics with it: on_view is called, once for all who asked before. Not
     * where the backend has failed, or does before. NULL: nobody can look into it. */
    void (*ask_view)(cot_backend *backend);
    /* The same with on_snapshot, of a backend that publishes events of the KV cache. */
    void (*ask_snapshot)(cot_backend *backend);
    /* Ends what runs and frees; jobs that are not over are told OVER, cancelled. */
    void (*close)(cot_backend *backend);
    const cot_backend_route *routes; // ends with a NULL path; NULL: none
} cot_backend_table;

struct cot_backend {
    const cot_backend_table *table;
};

#endif
