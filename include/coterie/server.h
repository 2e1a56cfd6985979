/* A server: a worker behind the OpenAI API over HTTP. */
#ifndef COTERIE_SERVER_H
#define COTERIE_SERVER_H
#include "coterie/access.h"
#include "coterie/chat.h"
#include "coterie/status.h"
#include "coterie/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_server cot_server;
struct cot_backend; /* coterie/worker.h */

/* Fill with cot_server_options_init, which sets the defaults, then change what differs. */
typedef struct cot_server_options {
    size_t size;               /* sizeof this structure */
    cot_access_options access; /* where it listens, who may call, what is logged */
    /* Names that clients may call the model by, the first of which answers say; NULL ends. Default: NULL, `folder`. */
    const char *const *served_names;
    /* Most tokens of prompt and output together, 0 or at most what the worker's context and KV cache hold; 0, the
     * default: that. */
    int64_t max_model_len;
    /* Sequences that may wait, beyond those that run; more are refused with 429. 1 to 65536, default 256. */
    int64_t max_queue;
    /* Host memory that requests under way may need for ids, texts and chances, and bodies that wait to be read; more are
     * refused with 429, bodies with 503. Of the body that is being read the values may take as much again; one that would
     * take more is refused with 413. Default 1 GiB. */
    size_t request_bytes;
    /* How long nothing may come of a request, ms: then it is answered 504 and cancelled. 1 to 2^31 - 1, default an hour. */
    int64_t answer_timeout_ms;
    int64_t shutdown_ms; /* how long streams may go on after cot_server_stop; default 30,000 */
    /* How events of the KV cache are published over ZeroMQ, as vLLM's --kv-events-config says it: a JSON object. NULL, the
     * default: not at all. Addresses that other machines reach need `kv_events_no_auth`: events have the ids of prompts in
     * them, and nobody is asked for a key. */
    const char *kv_events_config;
    bool kv_events_no_auth;
    /* The family in whose format calls of tools, and reasoning, are read out of the model's text: a name of docs/SERVING.md's list, "none", or
     * "auto" or NULL, the default: what the chat template writes. */
    const char *tool_call_parser, *reasoning_parser;
    /* Where reports of steps are published over ZeroMQ, "tcp://ADDRESS:PORT". Addresses that other machines reach need
     * `kv_events_no_auth`, too. NULL, the default: nowhere. */
    const char *step_reports_endpoint;
    /* The same of what requests and home ranks call: signatures of requests that are over, and popularity each second. NULL, the default:
     * nowhere. */
    const char *popularity_endpoint;
} cot_server_options;
void cot_server_options_init(cot_server_options *options);

/* What can be told of options before a worker is opened for them: who may call, what is published and where, certificates.
 * `kv_homes`: ranks that will hold a cache of their own (cot_engine_info.kv_homes). Errors: INVALID_ARGUMENT, naming the
 * option; of certificates also what reading them gives. Thread-safe. */
cot_status cot_server_check(const cot_server_options *options, int kv_homes, cot_error *error);
/* Listens. `folder` is the model's, whose generation_config.json says how to sample where a request does not (NULL:
 * there is none, and `served_names` are given); the worker is
 * taken over, and closed with the server, or on failure; `chat` may be NULL: conversations are refused then. Tokenizer and
 * template outlive the server; options are copied. `*server` is NULL on failure. Errors: INVALID_ARGUMENT (an option,
 * named), IO (the port is taken, ...), MALFORMED (generation_config.json), OUT_OF_MEMORY. */
cot_status cot_server_open(cot_server **server, const char *folder, struct cot_backend *worker,
                           const cot_tokenizer *tokenizer, const cot_chat_template *chat,
                           const cot_server_options *options, cot_error *error);
/* The port that it listens on. */
int cot_server_port(const cot_server *server);
/* Most tokens of a sequence. */
int64_t cot_server_max_model_len(const cot_server *server);
/* Serves, on the caller's thread, until cot_server_stop was called and what was under way is answered. Errors: what made
 * the worker fail; nothing can be served then. */
cot_status cot_server_run(cot_server *server, cot_error *error);
/* The first call lets no more requests in and lets those under way end; a second one cuts them. May be called from any
 * thread and from signal handlers. */
void cot_server_stop(cot_server *server);
/* Reads the certificate's files again, for connections from now on, and goes on in a new access log, where the old one was
 * renamed. What fails is told in the log, and stays as it was. May be called from any thread and from signal handlers. */
void cot_server_reload(cot_server *server);
void cot_server_close(cot_server *server); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
