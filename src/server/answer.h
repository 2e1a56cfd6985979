/* One request of the API from its body to the last byte of its answer. */
#ifndef COT_SERVER_ANSWER_H
#define COT_SERVER_ANSWER_H
#include "server/server_state.h"

/* Takes an exchange over: prepares its body, computes, answers. */
void cot_answer_start(cot_server *server, cot_http_exchange *exchange, cot_api_kind kind);
/* The client has left. */
void cot_answer_gone(cot_answer *answer);
/* For a backend: what became of a job. Of one that is over nothing is taken, and the operator is told. */
void cot_answer_on_event(void *server, uint64_t job, const cot_job_event *event);
/* Looks after answers of which the backend has told nothing for too long: those who listen get an error, and what the backend
 * does not end then is given up. */
void cot_answer_watch(cot_server *server);
/* When the backend is closed: frees what it has not ended. */
void cot_answer_free_all(cot_server *server);
/* Ends what is under way, with an error for those who still listen. */
void cot_answer_abort_all(cot_server *server);

#endif
