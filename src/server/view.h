/* What is shown of a backend's inside: GET /experts and GET /live. Clients wait until the backend is between two steps. */
#ifndef COT_SERVER_VIEW_H
#define COT_SERVER_VIEW_H
#include "server/server_state.h"

/* Answers once there is a view. */
void cot_server_show_experts(cot_server *server, cot_http_exchange *exchange);
void cot_server_show_live(cot_server *server, cot_http_exchange *exchange);
/* For a backend: answers all who wait. NULL: 503. */
void cot_server_on_view(void *server, const cot_backend_view *view);

#endif
