/* An HTTP/1.1 client on a libevent loop: requests to one server, answers as they come. Connections are kept and used
 * again. Everything belongs to the thread that runs the loop. */
#ifndef COT_NET_HTTP_CLIENT_H
#define COT_NET_HTTP_CLIENT_H
#include "coterie/status.h"
#include "net/http_field.h"
#include <stddef.h>
#include <stdint.h>

struct cot_tls;
struct event_base;

typedef struct cot_http_client cot_http_client;
typedef struct cot_http_call cot_http_call;

/* 0 stands for the default of each. */
typedef struct cot_http_client_options {
    int64_t connect_ms;    // 10 s
    int64_t answer_ms;     // 0: without limit; from the request's last byte to the answer's head
    int64_t silence_ms;    // 0: without limit; between two bytes of an answer
    size_t max_head_bytes; // 64 KiB
    size_t max_idle;       // 256 connections that wait for the next request
    struct cot_tls *
        tls; // for https, of cot_tls_open_client; outlives the client. NULL: one of its own, by the system's certificates
} cot_http_client_options;

typedef struct cot_http_answer {
    /* The head has come. NULL: not asked. */
    void (*head)(void *context, cot_http_call *call, int status);
    /* A piece of the body. NULL: not asked. */
    void (*data)(void *context, cot_http_call *call, const char *bytes, size_t count);
    /* The end: `error` is NULL when the answer came whole. The call may not be used afterwards. */
    void (*done)(void *context, cot_http_call *call, const cot_error *error);
} cot_http_answer;

/* Reads "http://HOST[:PORT][/PREFIX]", or https, and finds HOST's address, waiting for it. Errors: INVALID_ARGUMENT (no such
 * URL), NOT_FOUND (the name has no address), IO (the system's certificates), OUT_OF_MEMORY. `*client` is NULL on failure. */
cot_status cot_http_client_open(cot_http_client **client, struct event_base *base, const char *url,
                                const cot_http_client_options *options, cot_error *error);
/* Closes its connections. Calls in progress end without `done`. NULL is fine. Not from a callback. */
void cot_http_client_close(cot_http_client *client);
/* Descriptors that it holds. */
size_t cot_http_client_connections(const cot_http_client *client);

/* Sends a request; `path` follows the URL's prefix. Callbacks come from the loop only, never from inside this call;
 * `answer` and `context` must live until `done`. `*call` (NULL: not asked) names the request until then. Errors:
 * OUT_OF_MEMORY; whatever else goes wrong is told to `done`: IO (refused, reset, cut short, a certificate that is not good), TIMED_OUT, MALFORMED (no
 * HTTP). */
cot_status cot_http_client_send(cot_http_client *client, const char *method, const char *path,
                                const cot_http_field *fields, size_t count, const void *body, size_t bytes,
                                const cot_http_answer *answer, void *context, cot_http_call **call,
                                cot_error *error);
/* In `head`: the value of the first field of that name (any case); NULL if there is none. */
const char *cot_http_call_header(const cot_http_call *call, const char *name);
/* Ends a call and its connection; no callback of it follows. May be called from its callbacks but `done`. */
void cot_http_call_cancel(cot_http_call *call);
/* In `data`: no more of the answer is wanted, though little of it is left; no callback follows. The rest is read and thrown away, so that
 * the connection carries other requests; one whose rest does not come within a second is closed. */
void cot_http_call_leave(cot_http_call *call);

/* The root of a server whose API is at `url`: without slashes at its end, and without the "/v1" that a user may have
 * copied with it, which the API's paths begin with. malloc'd; NULL when out of memory. */
char *cot_http_api_root(const char *url);

#endif
