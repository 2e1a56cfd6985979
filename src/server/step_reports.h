/* Reports of steps on their way from the engine to those who follow them, on a PUB socket of their own:
 *
 *     engine's thread:  step --ring--> loop's thread:  [topic "steps", number, payload] --publisher--> subscribers
 *
 * A payload is a step, a map of msgpack. Nobody is waited for: where the ring is full reports are lost, and the numbers of their
 * steps are missing. */
#ifndef COT_SERVER_STEP_REPORTS_H
#define COT_SERVER_STEP_REPORTS_H
#include "coterie/engine.h"
#include "server/kv_config.h"

struct event_base;
typedef struct cot_step_reports cot_step_reports;

/* Reads where they are published. Its port is none of the server's and of the KV events' of `homes` ranks, and its address this
 * machine's unless `no_auth`. NULL: *endpoint is empty. Errors: INVALID_ARGUMENT. Thread-safe. */
cot_status cot_step_reports_read(cot_endpoint *endpoint, const char *text, const cot_kv_config *kv, int homes,
                                 int http_port, bool no_auth, cot_error *error);
/* Publishes the engine's steps from now on; another thread may then use it. `*reports` is NULL on failure. Errors: IO (the port is
 * taken), INVALID_ARGUMENT (an address that is not here), OUT_OF_MEMORY. */
cot_status cot_step_reports_open(cot_step_reports **reports, const cot_endpoint *endpoint, cot_engine *engine,
                                 struct event_base *base, cot_error *error);
/* When nobody uses the engine. NULL is fine. */
void cot_step_reports_close(cot_step_reports *reports);

#endif
