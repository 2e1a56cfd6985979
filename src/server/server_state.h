/* Inside the server: what its parts share, on the loop's thread. */
#ifndef COT_SERVER_STATE_H
#define COT_SERVER_STATE_H
#include "access/ending.h"
#include "coterie/server.h"
#include "net/http_server.h"
#include "net/wake.h"
#include "server/jobs.h"
#include "server/metrics.h"
#include "server/model.h"
#include "server/prepare.h"

struct event_base;
struct event;
typedef struct cot_answer cot_answer;

/* Exchanges that are answered once the backend has told what they wait for. */
typedef enum cot_server_waiting_kind {
    COT_WAITING_SNAPSHOT, // of the KV cache (snapshots.c)
    COT_WAITING_EXPERTS,  // view.h
    COT_WAITING_LIVE,
    COT_WAITING_MOVES, // moves.h
    COT_WAITING_CYCLE,
    COT_WAITING_KINDS
} cot_server_waiting_kind;
typedef struct cot_server_waiting {
    cot_http_exchange **exchange; // [count]
    size_t count, room;
} cot_server_waiting;

struct cot_server {
    struct event_base *base;
    cot_http_server *http;
    cot_backend *backend;
    const cot_backend_info *info; // the backend's
    cot_jobs jobs;                // that the backend has
    cot_preparer *preparer;
    cot_kv_config kv;        // where events of the KV cache are published
    cot_endpoint reports;    // where reports of steps are
    cot_endpoint popularity; // where signatures of requests are, and the popularity of experts
    cot_server_waiting waiting[COT_WAITING_KINDS];
    cot_served_model model;
    cot_served_constraints constraints; // of it
    cot_access access;
    cot_server_options options; // `served_names` are owned copies; what `access` has is not here
    struct event *on_rest, *on_watch;
    cot_wake reload; // cot_server_reload was called
    cot_wake stop;   // cot_server_stop was called
    cot_access_ending ending;
    bool fails; // the backend has failed, and those that computed are not all gone yet
    cot_metrics metrics;
    cot_answer *answers; // under way, a list
    cot_answer *lost;    // given up, though the backend has not ended their jobs
    uint64_t strays;     // events of jobs that were over
    size_t waiting_jobs, running_jobs;
    size_t preparing;            // requests
    size_t reserved_bytes;       // host memory that requests under way may come to need
    char reported_unknown[1024]; // fields that were ignored and logged, between commas
};

/* One line for the operator. */
void cot_server_log(const cot_server *server, cot_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Replies with those, and Retry-After where it is 429 or 503. */
void cot_server_reply(cot_server *server, cot_http_exchange *exchange, int status, const char *request_id,
                      const char *type, const char *body, size_t bytes);
/* The same with JSON, which is taken over; NULL (out of memory) is answered 503. */
void cot_server_reply_json(cot_server *server, cot_http_exchange *exchange, int status, json_t *json);
/* The same with an error object, and X-Should-Retry: false where the error is final. */
void cot_server_refuse(cot_server *server, cot_http_exchange *exchange, const cot_api_error *error);
/* Answers with what a router needs to know of the worker. */
void cot_server_show_worker(cot_server *server, cot_http_exchange *exchange);
/* Answers with the special tokens and the chat template. */
void cot_server_show_tokenizer(cot_server *server, cot_http_exchange *exchange);
/* Answers with how popular experts are. */
void cot_server_show_popularity(cot_server *server, cot_http_exchange *exchange);
/* Answers with a snapshot of the KV cache, as soon as there is one. */
void cot_server_send_snapshot(cot_server *server, cot_http_exchange *exchange);
/* For a backend: answers all who wait. NULL: 503. */
void cot_server_on_snapshot(void *server, const void *bytes, size_t count);
/* The exchange waits; false: memory ran out. */
bool cot_server_wait(cot_server *server, cot_server_waiting_kind kind, cot_http_exchange *exchange);
/* The next that waits for this, who does no longer and is to be answered; NULL: nobody does. */
cot_http_exchange *cot_server_take_waiting(cot_server *server, cot_server_waiting_kind kind);
/* A client has left, who may be waiting. */
void cot_server_forget_waiting(cot_server *server, const cot_http_exchange *exchange);
void cot_server_free_waiting(cot_server *server);
/* An answer is over. Ends the loop when it drains and nothing is under way; gives memory back a second after the last answer
 * of many. */
void cot_server_check_rest(cot_server *server);
/* An answer begins: the backend is watched until all are over. */
void cot_server_begin_watch(cot_server *server);

#endif
