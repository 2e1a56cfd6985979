/* One request of the API from its body to the last byte of its answer. */
#ifndef COT_SERVER_ANSWER_H
#define COT_SERVER_ANSWER_H
#include "server/server_state.h"

/* Takes an exchange over: prepares its body, computes, answers. */
void cot_answer_start(cot_server *server, cot_http_exchange *exchange, cot_api_kind kind);
/* The client has left. */
void cot_answer_gone(cot_answer *answer);
/* Ends what is under way, with an error for those who still listen. */
void cot_answer_abort_all(cot_server *server);

#endif
