/* Workers: what a server serves. One is made of an engine; or it is a mock, which computes nothing and answers as it is
 * told to. */
#ifndef COTERIE_WORKER_H
#define COTERIE_WORKER_H
#include "coterie/engine.h"
#include "coterie/status.h"
#include "coterie/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What computes behind a server, whatever it is. A server takes it over (cot_server_open). */
typedef struct cot_backend cot_backend;

/* A worker over an engine, which was opened on the model `folder`, outlives it, and is used by it alone. It computes on a
 * thread of its own once a server has it. `*backend` is NULL on failure. Errors: IO (a file of the model cannot be read),
 * OUT_OF_MEMORY. */
cot_status cot_worker_of_engine(cot_backend **backend, cot_engine *engine, const char *folder,
                                cot_error *error);
/* Workers that compute nothing: they answer at times and with tokens that a SPEC gives, keep a prefix cache and tell of it, and
 * fail as they are told to. A token depends on the SPEC's seed, the request (its prompt, and, where it has a temperature, its
 * seed) and the token's place alone, not on the worker: a text that is continued elsewhere goes on as it would have. */
typedef struct cot_mock cot_mock;
/* `spec` is a JSON object, whose keys docs/SERVING.md lists; `name` is used in messages. Texts are made of the tokenizer's words;
 * the last of its ids ends them. `*mock` is NULL on failure. Errors: MALFORMED (no such object, a value), UNSUPPORTED (a key, a
 * fault that is not known), each named; OUT_OF_MEMORY. */
cot_status cot_mock_open(cot_mock **mock, const char *spec, size_t bytes, const char *name,
                         const cot_tokenizer *tokenizer, cot_error *error);
/* When none of its workers is left; NULL is fine. */
void cot_mock_close(cot_mock *mock);
int cot_mock_workers(const cot_mock *mock); /* how many the SPEC wants */
int cot_mock_ranks(const cot_mock *mock);   /* of each; every one holds a KV cache of its own */
/* The worker `index`, from 0; it does all its work on its server's loop. `*backend` is NULL on failure. Errors:
 * OUT_OF_MEMORY. */
cot_status cot_worker_of_mock(cot_backend **backend, const cot_mock *mock, int index, cot_error *error);
/* Where a worker publishes, as cot_server_options has it; NULL: nothing. */
typedef struct cot_mock_published {
    char *kv_events_config, *step_reports_endpoint;
} cot_mock_published;
/* Of the worker `index`, by what one server would be told (NULL: nothing): events of its ranks go to ports `ranks` higher for each
 * worker before it, reports of steps one higher. `http_port` is its own (0: not known yet). The caller frees `*published`, which
 * is empty on failure. Errors: INVALID_ARGUMENT, as of a server (a value; ports of all workers that are not apart);
 * OUT_OF_MEMORY. */
cot_status cot_mock_ports(cot_mock_published *published, const cot_mock *mock, int index,
                          const char *kv_events_config, const char *step_reports_endpoint, int http_port,
                          bool no_auth, cot_error *error);
void cot_mock_published_free(cot_mock_published *published); /* an empty one is fine */
/* A tokenizer for mocks of no model: id b is byte b, 256 ends a text. Errors: OUT_OF_MEMORY. */
cot_status cot_mock_tokenizer_open(cot_tokenizer **tokenizer, cot_error *error);

/* Frees a worker that no server has taken over; NULL is fine. */
void cot_worker_close(cot_backend *backend);

#ifdef __cplusplus
}
#endif
#endif
