/* A client of an HTTP server with JSON and event streams: one call at a time, which blocks. */
#ifndef COTERIE_CLIENT_H
#define COTERIE_CLIENT_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_client cot_client;

/* For a server at "http://HOST[:PORT][/PREFIX]", or https with a certificate that the system trusts; a prefix of "/v1" alone is
 * left out, since paths have it. `api_key` is sent with each request; NULL: none. Errors: INVALID_ARGUMENT (no such URL), NOT_FOUND (the name has no
 * address), OUT_OF_MEMORY. `*client` is NULL on failure. One thread at a time. */
cot_status cot_client_open(cot_client **client, const char *url, const char *api_key, cot_error *error);
void cot_client_close(cot_client *client); /* NULL is fine */

/* GET, or POST where `json` is not NULL. `*body` [*bytes], with a NUL behind it, is the caller's. Errors: IO (no
 * connection, cut short), TIMED_OUT, MALFORMED (no HTTP), INVALID_ARGUMENT (the server refused: its own words),
 * OUT_OF_MEMORY, NOT_FOUND (404). `*body` is NULL then. */
cot_status cot_client_call(cot_client *client, const char *path, const char *json, char **body, size_t *bytes,
                           cot_error *error);
/* POST, answered by an event stream: on_event is called with each event's data [bytes], NUL-terminated, until it returns
 * false, the stream ends, or cot_client_interrupt is called (which *interrupted tells). Errors as cot_client_call's. */
cot_status cot_client_stream(cot_client *client, const char *path, const char *json,
                             bool (*on_event)(void *context, const char *data, size_t bytes), void *context,
                             bool *interrupted, cot_error *error);
/* Ends the stream that another thread, or the code that a signal broke into, is reading; the next one is not affected. May
 * be called from signal handlers. */
void cot_client_interrupt(cot_client *client);

#ifdef __cplusplus
}
#endif
#endif
