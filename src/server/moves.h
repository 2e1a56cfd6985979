/* Experts that move while the server serves: PUT /placement and POST /rebalance ask for it, GET /placement says where they are, and /rebalance/ID how
 * far they are. */
#ifndef COT_SERVER_MOVES_H
#define COT_SERVER_MOVES_H
#include "server/server_state.h"

#define COT_REBALANCE_PATH "/rebalance/" // a number of moves follows
enum { COT_PLACEMENT_BYTES = 8 << 20 };  // of a body that says where experts go

void cot_server_show_placement(cot_server *server, cot_http_exchange *exchange);
/* Answers once the backend has said whether it goes there. */
void cot_server_put_placement(cot_server *server, cot_http_exchange *exchange);
/* Answers once the backend has said what moves, or would. */
void cot_server_post_rebalance(cot_server *server, cot_http_exchange *exchange);
void cot_server_show_rebalance(cot_server *server, cot_http_exchange *exchange);
void cot_server_cancel_rebalance(cot_server *server, cot_http_exchange *exchange);
/* For a backend: what has come of asking for moves. */
void cot_server_on_moves(void *server, uint64_t id, const cot_error *error);
/* The same of asking for a cycle; takes `cycle`. */
void cot_server_on_cycle(void *server, json_t *cycle, const cot_error *error);
/* The caller's; NULL: out of memory. */
json_t *cot_server_moves_json(const cot_backend_moves *moves);
json_t *cot_server_rebalancing_json(const cot_backend_rebalancing *rebalancing);

#endif
