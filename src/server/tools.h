/* Tools that a request offers, which of them the answer has to call, and what the text has to be then. */
#ifndef COT_SERVER_TOOLS_H
#define COT_SERVER_TOOLS_H
#include "server/api_request.h"

enum { COT_API_MAX_TOOLS = 1024, COT_API_MAX_TOOL_NAME = 128 }; // of a request; bytes

/* Fills in r->tools, and r->constraint where a call is forced. `functions` and `function_call` are read as what came after them. False, with
 * `error` filled in, where something is wrong. */
bool cot_api_read_tools(cot_api_request *r, cot_api_error *error);
/* Messages in which former fields, `function_call` and the role "function", are what came after them; NULL: memory ran out. */
json_t *cot_api_tool_messages(json_t *messages);

#endif
