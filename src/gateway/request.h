/* A completion or a chat as a router looks at it: what decides where it goes, and what it must set. What is wrong with it the worker
 * says. Pure. */
#ifndef COT_GATEWAY_REQUEST_H
#define COT_GATEWAY_REQUEST_H
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cot_relay_request {
    bool chat, stream, seeded, echo;
    bool wants_ids;   // return_token_ids
    uint64_t choices; // 1 at least
    uint64_t max_tokens;
    const char *salt; // [salt_bytes] of the request's JSON or body; NULL: none
    size_t salt_bytes;
} cot_relay_request;

enum { COT_RELAY_MOST_CHOICES = 1024 };

void cot_relay_read(cot_relay_request *request, const json_t *json, bool chat);
/* The same of a completion's body whose prompt is one list of ids, without making values of it: *ids [*count] is malloc'd. False: it is
 * none, or has something that is better looked at as JSON. The request points into the body. */
bool cot_relay_skim(cot_relay_request *request, int32_t **ids, size_t *count, const char *body, size_t bytes);
/* The ids of the first prompt, where they came as such. *ids [*count] is malloc'd; NULL: they did not, or memory ran out. */
void cot_relay_read_ids(int32_t **ids, size_t *count, const json_t *json);
/* The same of a list. */
void cot_relay_read_list(int32_t **ids, size_t *count, const json_t *list);
/* What /tokenize is asked for the ids of the first prompt or of the conversation; NULL: there is none, or memory ran out. */
char *cot_relay_tokenize_body(const json_t *json, bool chat);

/* The keys of a text's whole blocks (cot_route_key), *blocks of them, malloc'd; NULL: none. */
uint64_t *cot_relay_keys(size_t *blocks, const int32_t *ids, size_t count, size_t block_tokens,
                         const cot_relay_request *request);

#endif
