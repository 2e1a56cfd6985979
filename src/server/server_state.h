/* Inside the server: what its parts share, on the loop's thread. */
#ifndef COT_SERVER_STATE_H
#define COT_SERVER_STATE_H
#include "coterie/server.h"
#include "net/http_server.h"
#include "net/wake.h"
#include "server/backend.h"
#include "server/metrics.h"
#include "server/model.h"
#include "server/prepare.h"

struct event_base;
struct event;
typedef struct cot_answer cot_answer;

struct cot_server {
    struct event_base *base;
    cot_engine *engine; // the caller's
    cot_http_server *http;
    cot_backend *backend;
    cot_preparer *preparer;
    cot_served_model model;
    cot_server_options options; // its texts are owned copies
    struct event *on_deadline, *on_drained;
    cot_wake stop;   // cot_server_stop was called
    int stops_heard; // 1: it drains; 2: it aborts
    bool is_drained; // nothing is under way; the last bytes leave
    int last_checks;
    cot_metrics metrics;
    cot_answer *answers; // under way, a list
    size_t waiting_jobs, running_jobs;
    size_t preparing;            // requests
    size_t reserved_bytes;       // host memory that requests under way may come to need
    char reported_unknown[1024]; // fields that were ignored and logged, between commas
};

/* One line for the operator. */
void cot_server_log(const cot_server *server, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum { COT_SERVER_FIELDS = 8 };
/* Fields that every answer has; returns how many. `request_id` NULL: what the client sent, if anything. */
size_t cot_server_fields(const cot_server *server, const cot_http_exchange *exchange,
                         cot_http_field fields[COT_SERVER_FIELDS], const char *request_id);
/* Replies with those, and Retry-After where it is 429 or 503. */
void cot_server_reply(cot_server *server, cot_http_exchange *exchange, int status, const char *request_id,
                      const char *type, const char *body, size_t bytes);
/* The same with JSON, which is taken over; NULL (out of memory) is answered 503. */
void cot_server_reply_json(cot_server *server, cot_http_exchange *exchange, int status, json_t *json);
/* The same with an error object, and X-Should-Retry: false where the error is final. */
void cot_server_refuse(cot_server *server, cot_http_exchange *exchange, const cot_api_error *error);
/* Ends the loop when it drains and nothing is under way. */
void cot_server_check_drained(cot_server *server);

#endif
