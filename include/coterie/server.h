/* A server: an engine behind the OpenAI API over HTTP. */
#ifndef COTERIE_SERVER_H
#define COTERIE_SERVER_H
#include "coterie/chat.h"
#include "coterie/engine.h"
#include "coterie/status.h"
#include "coterie/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_server cot_server;

/* Fill with cot_server_options_init, which sets the defaults, then change what differs. */
typedef struct cot_server_options {
    size_t size; /* sizeof this structure */
    /* Address to listen on. Any but a loopback one needs `api_keys` or `no_auth`. Default "127.0.0.1". */
    const char *host;
    int port; /* 0: any that is free, see cot_server_port. Default 8000 */
    /* Names that clients may call the model by, the first of which answers say; NULL ends. Default: NULL, `folder`. */
    const char *const *served_names;
    /* Keys of which a request must bear one ("Authorization: Bearer KEY"); NULL ends. Default NULL: none is asked for. */
    const char *const *api_keys;
    bool no_auth; /* listens anywhere without keys; default false */
    /* Without keys, on a loopback address: names by which clients may call this host beside localhost, 127.0.0.1 and
     * [::1] (a page on the web may have its name point here); NULL ends. Default NULL. */
    const char *const *allowed_hosts;
    /* Origins whose pages may call (CORS), "*" for all; NULL ends. Default NULL: none. */
    const char *const *allowed_origins;
    /* Most tokens of prompt and output together, 0 or at most what the engine's context and KV cache hold; 0, the
     * default: that. */
    int64_t max_model_len;
    /* Sequences that may wait, beyond those that run; more are refused with 429. 1 to 65536, default 256. */
    int64_t max_queue;
    int64_t max_connections; /* 1 to 65536, default 1024 */
    /* Host memory that requests under way may need for ids, texts and chances, and bodies that wait to be read; more are
     * refused with 429, bodies with 503. Of the body that is being read the values may take as much again; one that would
     * take more is refused with 413. Default 1 GiB. */
    size_t request_bytes;
    int64_t shutdown_ms; /* how long streams may go on after cot_server_stop; default 30,000 */
    /* Gets a line for the operator, on the loop's thread. NULL, the default: nobody does. */
    void (*log)(void *context, const char *line);
    void *log_context;
} cot_server_options;
void cot_server_options_init(cot_server_options *options);

/* Listens, and computes on a thread of its own. `folder` is the model's, whose generation_config.json says how to sample
 * where a request does not; `engine` is opened on it and used by the server alone until that is closed; `chat` may be NULL:
 * conversations are refused then. All three outlive the server; options are copied. `*server` is NULL on failure. Errors:
 * INVALID_ARGUMENT (an option, named), IO (the port is taken, ...), MALFORMED (generation_config.json), OUT_OF_MEMORY. */
cot_status cot_server_open(cot_server **server, const char *folder, cot_engine *engine,
                           const cot_tokenizer *tokenizer, const cot_chat_template *chat,
                           const cot_server_options *options, cot_error *error);
/* The port that it listens on. */
int cot_server_port(const cot_server *server);
/* Most tokens of a sequence. */
int64_t cot_server_max_model_len(const cot_server *server);
/* Serves, on the caller's thread, until cot_server_stop was called and what was under way is answered. Errors: what made
 * the engine fail; nothing can be served then. */
cot_status cot_server_run(cot_server *server, cot_error *error);
/* The first call lets no more requests in and lets those under way end; a second one cuts them. May be called from any
 * thread and from signal handlers. */
void cot_server_stop(cot_server *server);
void cot_server_close(cot_server *server); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
