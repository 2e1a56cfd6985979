/* Inside the gateway: what its parts share, on the loop's thread.
 *
 *     routes.c   which path does what
 *     relay.c    one request: ids, target, the worker's answer, and whoever goes on when that one dies (relay.h)
 *     prompt.c   ids of a request's prompt, by the gateway's own tokenizer
 *     worker.c   a worker: health, what it says of itself, whether it gets requests
 *     follow.c   what a worker publishes: events of its KV cache, reports of its steps
 *     experts.c  what requests call, as workers publish it
 *     heat.c     which experts workers' texts call lately, for people to look at
 *     tables.c   the same as experts.c, as tables foretell it of prompts of which no worker has told
 *     placed.c   where a worker of several home ranks has its experts
 *     peers.c    other routers before the same workers (peer_message.h)
 *     fleet.c    the list of workers
 *     discover.c  workers that a name of DNS stands for
 *     decisions.c  where the last requests went, and why */
#ifndef COT_GATEWAY_STATE_H
#define COT_GATEWAY_STATE_H
#include "access/ending.h"
#include "base/hash.h"
#include "coterie/gateway.h"
#include "coterie/predict.h"
#include "gateway/ask.h"
#include "gateway/decisions.h"
#include "gateway/discover.h"
#include "gateway/fleet.h"
#include "net/http_server.h"
#include "net/prometheus.h"
#include "net/subscriber.h"
#include "net/wake.h"
#include "route/feed.h"
#include "route/signatures.h"
#include "routing/signature.h"

#include <jansson.h>

struct event;
struct event_base;
struct cot_publisher;
typedef struct cot_gateway_peer cot_gateway_peer;
typedef struct cot_gateway_worker cot_gateway_worker;
typedef struct cot_relay cot_relay;

/* Targets; and behind them places of the book that get no requests, by which costs are learnt, one for all workers of a fingerprint.
 * One that has little to do is seen to take a whole step for a request, a busy one far less: each by itself, they could not be told from
 * a slow and a fast one. */
enum {
    COT_GATEWAY_TARGETS = 1024,
    COT_GATEWAY_LEARNERS = 32,
    COT_GATEWAY_NAMES = 16, // of DNS
    COT_GATEWAY_PLACES = COT_GATEWAY_TARGETS + COT_GATEWAY_LEARNERS
};

typedef enum cot_gateway_state {
    COT_GATEWAY_NEW,       // has not said yet what it is
    COT_GATEWAY_UP,        // gets requests, unless it is drained
    COT_GATEWAY_SUSPENDED, // did not answer for a while, or broke a connection
    COT_GATEWAY_FORGOTTEN, // did not answer for long: what it holds is forgotten
    COT_GATEWAY_REFUSED,   // serves another model, or in other blocks
    COT_GATEWAY_STATES
} cot_gateway_state;
extern const char *const cot_gateway_state_names[COT_GATEWAY_STATES];

/* A target: a worker, or a home rank in it. */
typedef struct cot_gateway_target {
    cot_gateway_worker *worker;
    int rank;
    cot_route_feed *feed;
    cot_subscriber *events; // NULL: it tells of nothing
    uint64_t asked_from;    // of a replay
    int64_t asked_ns;       // INT64_MIN: none was asked for
    int64_t turned_ns;      // when a prompt there last had its first token
    uint64_t running;       // requests
    uint32_t named_groups;  // of layers whose blocks have another size, a bit each: the log names each once
} cot_gateway_target;

/* What a worker tells of calls lately; counts NULL: nothing. */
typedef struct cot_gateway_heat {
    size_t layers, experts, homes;
    double *tokens; // [homes]
    float *counts;  // [homes][layers][experts]
} cot_gateway_heat;

struct cot_gateway_worker {
    cot_gateway *gateway;
    cot_gateway_worker *next;
    cot_fleet_entry entry;
    char *authorization;  // NULL: none
    bool of_file, listed; // from the file; still there (one that is not goes when its requests are over)
    const cot_discovery *discovery; // that it is of; NULL: of none
    bool drains;
    cot_gateway_state state;
    cot_error why;                   // it is refused; its message is empty where it is not
    cot_http_client *http, *probing; // requests; /health and what it says of itself
    cot_ask health, description, snapshot, placement;
    int64_t heard_ns;     // it answered /health
    int64_t described_ns; // INT64_MIN: it is to be asked
    bool missed;          // it was told once that it could not be asked
    bool again;           // it may hold less than before: a snapshot is wanted
    /* What it says. */
    char *document; // NULL: nothing yet
    bool is_coterie, has_snapshot;
    char *model, *fingerprint; // NULL: not said
    size_t block_tokens;       // 0: it has no prefix cache, or does not say
    size_t first_target, targets, learner;
    cot_subscriber *reports;    // NULL: none
    cot_subscriber *popularity; // NULL: none
    bool is_stranger; // its signatures are of another model than others', or it is not said how to read them
    cot_gateway_heat heat;
    double layers_every;      // of its signatures
    uint64_t placement_epoch; // of the placement that was asked for last; UINT64_MAX: none was
    bool is_placed;           // the book knows where its experts are
    int64_t settles_ns;       // when what it holds is asked for once more; INT64_MAX: it was
    int64_t reported_ns;      // of the last report of a step; INT64_MIN: none
    size_t relays;            // that it answers
    /* Since the start. */
    uint64_t requests, refusals, failures, resumed_from, resumed_to, prompt_tokens, cached_tokens;
    uint64_t signatures, ignored_signatures; // that it told; which were of no use
};

/* Tables of `coterie group`. */
typedef struct cot_gateway_tables {
    cot_predictor *predictor;             // NULL: there are none, or the workers' model is another one
    char model_hash[COT_HASH_TEXT_BYTES]; // empty: it is not said
    cot_signature_shape shape;
    float *share;   // [cells]
    float *scratch; // [COT_PREDICT_TEXT_TOKENS][E]
} cot_gateway_tables;

typedef enum cot_gateway_stage { COT_STAGE_TOKENISE, COT_STAGE_DECIDE, COT_STAGES } cot_gateway_stage;

typedef struct cot_gateway_figures {
    uint64_t requests, refused, resumptions, broken_streams, gaps, untokenised, foretold;
    cot_prometheus_histogram stage[COT_STAGES];
} cot_gateway_figures;

struct cot_gateway {
    cot_gateway_options options; // its texts are owned copies; what `access` has is not here
    cot_access access;
    struct event_base *base;
    cot_http_server *http;
    struct cot_tls *tls; // to workers; NULL: none is spoken to so
    cot_wake reload;
    cot_access_ending ending;
    int64_t ticked_ns;                              // when on_second last came; 0: not yet
    struct event *on_second, *on_watch, *on_window; // on_window NULL: nobody has waited yet
    void *zmq;
    cot_discovery *discovery[COT_GATEWAY_NAMES];
    size_t discoveries;
    cot_gateway_worker *workers; // in the order that they were listed
    char file_stamp[96];         // of the file as it was last read
    cot_route_index *index;
    cot_route_book *book;
    size_t block_tokens; // 0: no worker has said yet: index and book are not there
    cot_gateway_tables tables;
    cot_route_signatures *signatures; // NULL: nothing tells what requests call
    size_t cells;                     // of signatures; 0: the same
    char *model_hash;                 // whose cells these are; empty: it is not said
    bool cells_are_told;              // by a worker; false: tables alone say them
    cot_gateway_target target[COT_GATEWAY_TARGETS];
    size_t learners;   // that were given away
    cot_relay *relays; // under way
    cot_relay *waiting
        [COT_ROUTE_MOST_TOGETHER]; // [waiting_count] for others, to be assigned together; NULL: it has left
    size_t waiting_count;
    uint64_t drawn; // seeds
    cot_gateway_peer *peers;
    struct cot_publisher *peer_publisher; // NULL: nobody is told
    cot_buffer peer_message;              // that is written
    uint64_t router_id, told_ids; // by which this router is known; the last of a request that was told
    cot_gateway_figures figures;
    cot_decisions decisions;
};

/* ---- worker.c ---- */

/* Takes the entry over. Errors: those of cot_http_client_open. */
cot_status cot_gateway_add_worker(cot_gateway *g, cot_fleet_entry *entry, bool of_file, cot_error *error);
/* It gets no more requests, and goes when it has answered those that it has. */
void cot_gateway_remove_worker(cot_gateway_worker *w);
void cot_gateway_free_workers(cot_gateway *g);
/* One that is listed; NULL: there is none. */
cot_gateway_worker *cot_gateway_find_worker(const cot_gateway *g, const char *name);
/* Each second: asks for health, and draws conclusions. */
void cot_gateway_tick_workers(cot_gateway *g, int64_t now_ns);
/* The gateway was `late_ns` late itself: that much of each worker's silence does not count. */
void cot_gateway_excuse_workers(cot_gateway *g, int64_t now_ns, int64_t late_ns);
/* A connection to it broke, or what it sent over one cannot be right. */
void cot_gateway_worker_failed(cot_gateway_worker *w, int64_t now_ns);
/* Whether it gets requests. */
bool cot_gateway_is_usable(const cot_gateway_worker *w);
/* Lets its targets be chosen, or not, as it stands. */
void cot_gateway_set_usable(const cot_gateway_worker *w);
void cot_gateway_drain_worker(cot_gateway_worker *w, bool drains);
json_t *cot_gateway_worker_json(const cot_gateway_worker *w);

/* ---- follow.c ---- */

/* Follows what the worker's targets publish. `document`: what it says of itself; NULL: nothing. */
void cot_gateway_follow(cot_gateway_worker *w, const json_t *document);
void cot_gateway_unfollow(cot_gateway_worker *w);
/* The worker may have begun anew: what it holds is asked for. */
void cot_gateway_refollow(cot_gateway_worker *w);
/* Several times a second: learns of the steps that were reported what requests cost. */
void cot_gateway_take_reports(cot_gateway *g);
/* Each second: asks for what is missing. */
void cot_gateway_tick_follow(cot_gateway_worker *w, int64_t now_ns);

/* ---- experts.c ---- */

/* Follows what the worker's requests call. Those of another model are counted alone, which is told. Errors: those of cot_subscriber_open. */
cot_status cot_gateway_follow_experts(cot_gateway_worker *w, const json_t *document, const char *endpoint,
                                      cot_error *error);
/* Calls are of so many cells of a model; `model_hash` empty: of which one is not said. False: they are of other cells, or of another model, or
 * memory ran out. */
bool cot_gateway_begin_experts(cot_gateway *g, size_t cells, const char *model_hash);
/* Calls are of no cells any more, as at first; what is known of them goes, and so do placements, which are read by cells. */
void cot_gateway_forget_experts(cot_gateway *g);
/* What a prompt of such blocks will call; NULL: nothing is known. Until the next signature. */
const cot_route_calls *cot_gateway_calls(cot_gateway *g, const uint64_t *keys, size_t blocks);
/* Each second: the book is told what requests call in the mean. */
void cot_gateway_tick_experts(cot_gateway *g);

/* ---- heat.c ---- */

/* `popularity`: of what the worker says of itself. */
void cot_gateway_open_heat(cot_gateway_worker *w, const json_t *popularity);
void cot_gateway_close_heat(cot_gateway_worker *w);
/* A home's counts [layers][experts], float32, little-endian, and the tokens that they are of. False: they are of another shape. */
bool cot_gateway_take_heat(cot_gateway_worker *w, uint64_t home, double tokens, const void *counts,
                           size_t bytes);
/* GET /experts; NULL when memory runs out. */
json_t *cot_gateway_heat_json(const cot_gateway *g);

/* ---- placed.c ---- */

/* Experts had moved so often when the worker's last step began: where they are is asked for if that is new. */
void cot_gateway_follow_placement(cot_gateway_worker *w, uint64_t epoch);
void cot_gateway_forget_placement(cot_gateway_worker *w);

/* ---- tables.c ---- */

/* Errors: those of cot_predictor_open; INVALID_ARGUMENT where there is no token table. */
cot_status cot_gateway_open_tables(cot_gateway *g, cot_error *error);
void cot_gateway_close_tables(cot_gateway *g);
/* Tables of another model than a worker's are not used any more, which is told; what they alone said of calls is forgotten. */
void cot_gateway_check_tables(cot_gateway_worker *w, const json_t *document);
/* Of the layers that calls are of, where no worker says it. */
double cot_gateway_layers_every(const cot_gateway *g);
/* Foretells what a prompt of these ids [count] will call, malloc'd; NULL: the tables do not know. That counts among what is usual until workers
 * tell of enough. */
cot_route_calls *cot_gateway_foretell(cot_gateway *g, const int32_t *ids, size_t count);

/* ---- peers.c ---- */

/* Errors: INVALID_ARGUMENT (an endpoint, named), IO (it is taken), OUT_OF_MEMORY. */
cot_status cot_gateway_open_peers(cot_gateway *g, const cot_gateway_options *options, cot_error *error);
void cot_gateway_close_peers(cot_gateway *g);
/* Others are told, where they are: it was booked there; its first token came; it is over there, with so many tokens. */
void cot_gateway_tell_assigned(cot_relay *relay, const cot_gateway_target *target);
void cot_gateway_tell_began(const cot_relay *relay);
void cot_gateway_tell_ended(cot_relay *relay, uint64_t answered);
/* Each second. */
void cot_gateway_tick_peers(cot_gateway *g, int64_t now_ns);
void cot_gateway_excuse_peers(cot_gateway *g, int64_t now_ns, int64_t late_ns); // as of workers
void cot_gateway_write_peers(const cot_gateway *g, cot_prometheus *out);

/* ---- relay.c ---- */

/* Takes an exchange over. */
void cot_relay_start(cot_gateway *g, cot_http_exchange *exchange);
void cot_relay_gone(cot_relay *relay); // the client has left
/* Several times a second: looks for streams that stall. */
void cot_relay_watch(cot_gateway *g, int64_t now_ns);
/* What the worker computes goes on elsewhere, or ends. */
void cot_relay_leave_worker(cot_gateway_worker *w);
void cot_relay_abort_all(cot_gateway *g);

/* ---- gateway.c ---- */

void cot_gateway_check_rest(cot_gateway *g);
/* Makes index and book; false when memory runs out. */
bool cot_gateway_begin(cot_gateway *g, size_t block_tokens);
void cot_gateway_refuse(cot_gateway *g, cot_http_exchange *exchange, const cot_api_error *error);
void cot_gateway_reply_json(cot_gateway *g, cot_http_exchange *exchange, int status, json_t *json);
/* ---- figures.c ---- */
void cot_gateway_write_figures(cot_gateway *g, cot_prometheus *out);

/* ---- routes.c ---- */
extern const cot_http_handler cot_gateway_routes;

#endif
