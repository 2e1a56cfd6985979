/* A gateway: many workers behind one address, of which each request goes to the one where it costs least (coterie/route.h), and
 * whose streams go on elsewhere when one dies. */
#ifndef COTERIE_GATEWAY_H
#define COTERIE_GATEWAY_H
#include "coterie/access.h"
#include "coterie/chat.h"
#include "coterie/route.h"
#include "coterie/status.h"
#include "coterie/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_gateway cot_gateway;

/* Fill with cot_gateway_options_init, which sets the defaults, then change what differs. */
typedef struct cot_gateway_options {
    size_t size;               /* sizeof this structure */
    cot_access_options access; /* where it listens, who may call, what is logged */
    /* URLs of workers, "http://HOST[:PORT]" or https, and names, "dns:NAME:PORT", each of whose addresses is a worker's; NULL ends. */
    const char *const *urls;
    /* A file with a list of workers (docs/ROUTER.md), which is read again when it changes. Default NULL: none. */
    const char *file;
    /* Keys for POST /workers; NULL ends. Default NULL: nobody may, but programs of this machine where no API key is asked for. */
    const char *const *admin_keys;
    const char *
        worker_ca_certs; /* a PEM file of certificates that those of workers with https:// must come from; NULL: the system's */
    const char *worker_key;  /* sent to workers that have no key of their own; default NULL: none */
    cot_route_policy policy; /* default COT_ROUTE_JOINT */
    cot_route_scales scales; /* of its terms; default 1 of each */
    /* Where other routers before the same workers tell what they send, "tcp://HOST:PORT"; NULL ends. Default NULL: there are none. */
    const char *const *peers;
    /* Where this one tells them, "tcp://ADDRESS:PORT". Default NULL: nowhere. Any but a loopback address needs peers_no_auth. */
    const char *peer_endpoint;
    bool
        peers_no_auth; /* everybody may read what is told there; default false; without peer_endpoint it is refused */
    /* Requests that come within so many microseconds of the first are assigned together; at most 10,000. Default 0: each by itself. */
    int64_t batch_us;
    /* A file of cot_predictor_write (`coterie group --tables`) for the workers' model, which foretells what a prompt calls of which no worker
     * has told. Default NULL: none. */
    const char *signature_tables;
    const cot_tokenizer *tokenizer; /* of the workers' model; NULL, the default: workers are asked */
    const cot_chat_template *chat;  /* likewise; NULL: conversations are tokenised by workers */
    int64_t block_tokens;           /* of the index where no worker says; default 16 */
    /* A stream of a Coterie worker that had a token goes on elsewhere when none comes for so long, ms, while its worker reports no
     * step, or does not answer /health. Default 10,000. */
    int64_t stall_ms;
    int64_t shutdown_ms; /* how long answers may go on after cot_gateway_stop; default 30,000 */
    uint64_t seed;       /* of the policy `random`; default 0 */
} cot_gateway_options;
void cot_gateway_options_init(cot_gateway_options *options);

/* Listens; workers are asked from then on. Tokenizer and template outlive the gateway; options are copied. `*gateway` is NULL on
 * failure. Errors: INVALID_ARGUMENT (an option, a worker, named), NOT_FOUND (the file, a host),
 * MALFORMED (the file), IO, OUT_OF_MEMORY. */
cot_status cot_gateway_open(cot_gateway **gateway, const cot_gateway_options *options, cot_error *error);
int cot_gateway_port(const cot_gateway *gateway);
size_t cot_gateway_workers(const cot_gateway *gateway); /* that are listed */
/* Serves, on the caller's thread, until cot_gateway_stop was called and what was under way is answered. Errors: IO. */
cot_status cot_gateway_run(cot_gateway *gateway, cot_error *error);
/* The first call lets no more requests in and lets those under way end; a second one cuts them. May be called from any thread
 * and from signal handlers. */
void cot_gateway_stop(cot_gateway *gateway);
/* Reads the certificate's files again, looks names up again, and goes on in a new access log. May be called from any thread and from signal
 * handlers. */
void cot_gateway_reload(cot_gateway *gateway);
void cot_gateway_close(cot_gateway *gateway); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
