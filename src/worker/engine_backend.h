/* What the worker of an engine is made of, and its part that moves experts. */
#ifndef COT_WORKER_ENGINE_BACKEND_H
#define COT_WORKER_ENGINE_BACKEND_H
#include "coterie/worker.h"

#include "base/thread.h"
#include "net/wake.h"
#include "worker/kv_events.h"
#include "worker/moves.h"
#include "worker/popularity_topic.h"
#include "worker/records.h"
#include "worker/step_reports.h"

/* Jobs in the order in which they were ordered. */
typedef struct order_list {
    cot_job *first, *last;
} order_list;

typedef struct cot_worker_engine {
    cot_backend base;
    cot_backend_info info;
    cot_engine *engine;
    /* Of the start; constant from then on. */
    cot_backend_owner owner;
    cot_kv_events *kv;           // NULL: nobody follows the cache
    cot_step_reports *reports;   // NULL: nor steps
    cot_popularity_topic *topic; // NULL: nor what is called
    cot_cache_events cache;      // to whom blocks that come and go are told on, all zero: nobody
    bool runs;                   // there is a thread
    pthread_t thread;
    cot_wake news; // there are records

    pthread_mutex_t lock; // of what follows
    pthread_cond_t changed;
    order_list submitted, cancelled;
    bool ends, flushes;                  // flushes: events of the KV cache are to be seen to
    bool views, view_ready, view_failed; // a view is asked for; the loop has not had it yet; there is none
    cot_backend_view view;               // the engine's thread's until it is ready, then the loop's
    cot_records records;                 // of whole steps, for the loop
    cot_backend_state state;
    bool failure_known;          // the loop was woken for it
    bool gone;                   // the ranks are, after a failure
    cot_backend_metrics metrics; // the newest, which the loop has not taken; all zero: none
    cot_worker_moves moves;
    cot_backend_popularity popularity; // the newest; empty: none yet

    /* The engine's thread alone. */
    cot_records step; // what is told since `records` was last taken
    cot_job *live;    // jobs that the engine has
    size_t live_count;
    int64_t prompt_tokens;               // of admitted jobs, without output_tokens
    int64_t gathered_ns, gathered_steps; // when the ranks' counters were last gathered, and of how many steps
    cot_backend_rank *reported;          // [ranks] of the step that is told

    /* The loop's thread alone. */
    cot_records reading;
    cot_backend_metrics shown;
    bool failure_told, gone_told;
} cot_worker_engine;

/* On the engine's thread: what is ordered of moves is done; what the last step has made of them, which may have begun some of its own. */
void cot_worker_order_moves(cot_worker_engine *b);
void cot_worker_follow_moves(cot_worker_engine *b);
/* On the loop's thread: what has come of asking for moves is told. */
void cot_worker_tell_moves(cot_worker_engine *b);

/* The backend's, by the same names. */
cot_status cot_worker_move_experts(cot_backend *backend, const char *text, size_t bytes, cot_error *error);
cot_status cot_worker_rebalance(cot_backend *backend, bool dry, cot_error *error);
bool cot_worker_moves_told(cot_backend *backend, cot_backend_moves *last, cot_backend_moves *all);
bool cot_worker_find_moves(cot_backend *backend, uint64_t id, cot_backend_moves *found);
void cot_worker_cancel_moves(cot_backend *backend, uint64_t id);

#endif
