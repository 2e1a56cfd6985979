/* Workers: what a server serves. One is made of an engine; or it is a mock, which computes nothing and answers as it is
 * told to. */
#ifndef COTERIE_WORKER_H
#define COTERIE_WORKER_H
#include "coterie/engine.h"
#include "coterie/status.h"

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
/* Frees a worker that no server has taken over; NULL is fine. */
void cot_worker_close(cot_backend *backend);

#ifdef __cplusplus
}
#endif
#endif
