/* Ids of a request's prompt, by the gateway's own tokenizer. */
#ifndef COT_GATEWAY_PROMPT_H
#define COT_GATEWAY_PROMPT_H
#include "gateway/gateway_state.h"

/* False where there is no tokenizer (of conversations: no template), the body is too long to be read on the loop, or the prompt cannot
 * be encoded: a worker is to be asked. *ids [*count] is the caller's. */
bool cot_prompt_encode(const cot_gateway *gateway, const json_t *json, bool chat, size_t body_bytes,
                       int32_t **ids, size_t *count);

#endif
