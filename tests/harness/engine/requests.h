/* Requests, token ids and placements drawn for an engine. */
#ifndef COT_TESTS_HARNESS_ENGINE_REQUESTS_H
#define COT_TESTS_HARNESS_ENGINE_REQUESTS_H
#include "coterie/engine.h"

#include <stdint.h>

/* The whole sequence is fed: `prefill` tokens at once, the others one at a time. */
cot_request forced_request(const int32_t *ids, int64_t tokens, int64_t prefill);

cot_request generating_from(const int32_t *ids, int64_t prompt_tokens, int64_t max_tokens);

uint64_t draw(uint64_t *state);

/* A placement of the folder's experts, each in one to three slots of any ranks: some ranks have many, some none, some
 * slots stay empty, an expert may be twice on a rank. */
cot_expert_map drawn_placement(const char *folder, int ranks, uint64_t *state);

int32_t *drawn_ids(int64_t n, int64_t vocab, uint64_t *state);

#endif
