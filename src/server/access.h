/* Who may call: keys, host names, origins. */
#ifndef COT_SERVER_ACCESS_H
#define COT_SERVER_ACCESS_H
#include "net/http_server.h"
#include "server/api_error.h"
#include "coterie/server.h"

/* Whether a server may listen as these options say: on a loopback address, or with keys, or where it was told that none are
 * needed. Errors: INVALID_ARGUMENT. */
cot_status cot_access_check_options(const cot_server_options *options, cot_error *error);
/* Whether this exchange's head may go on. False with `error` filled in. */
bool cot_access_check(const cot_server_options *options, const cot_http_exchange *exchange,
                      cot_api_error *error);
/* The Origin that an answer must name for a page of it to read the answer; NULL: none. */
const char *cot_access_origin(const cot_server_options *options, const cot_http_exchange *exchange);

#endif
