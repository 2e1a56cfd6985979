/* Which path does what. */
#ifndef COT_SERVER_ROUTES_H
#define COT_SERVER_ROUTES_H
#include "net/http_server.h"

/* The callbacks of an HTTP server whose context is a cot_server. */
extern const cot_http_handler cot_routes;

#endif
