/* How events of the KV cache are published: vLLM's --kv-events-config, a JSON object. */
#ifndef COT_WORKER_KV_CONFIG_H
#define COT_WORKER_KV_CONFIG_H
#include "coterie/status.h"
#include "worker/endpoint.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct cot_kv_config {
    bool enabled; // something is published
    cot_endpoint endpoint, replay_endpoint;
    char topic[256];
    int64_t buffer_steps, hwm, max_queue_size;
} cot_kv_config;

/* Reads the text; NULL: nothing is published. The members are vLLM's; where one is missing: publisher "zmq" if
 * enable_kv_cache_events, endpoint "tcp://127.0.0.1:5557" (vLLM's listens on every address), no replay_endpoint, topic "",
 * buffer_steps 10,000, hwm 10,000, max_queue_size 16,384. An endpoint is always listened on, whatever it is called. Errors:
 * INVALID_ARGUMENT, naming the member. Thread-safe. */
cot_status cot_kv_config_read(cot_kv_config *config, const char *json, cot_error *error);
/* Whether the ports of `ranks` ranks (rank r: the port given + r), and the server's own, differ, and all addresses are this
 * machine's unless `no_auth`. Errors: INVALID_ARGUMENT. */
cot_status cot_kv_config_check(const cot_kv_config *config, int ranks, int http_port, bool no_auth,
                               cot_error *error);

/* Reads where something else is published, as `option` says it. Its port is none of the server's, of the KV events' of `homes` ranks and of
 * `other` (NULL, or empty: there is none), and its address this machine's unless `no_auth`. `text` NULL: *endpoint is empty. Errors:
 * INVALID_ARGUMENT. Thread-safe. */
cot_status cot_kv_config_read_beside(cot_endpoint *endpoint, const char *option, const char *text,
                                     const cot_kv_config *kv, int homes, int http_port,
                                     const cot_endpoint *other, bool no_auth, cot_error *error);

#endif
