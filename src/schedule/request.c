#include "coterie/request.h"

#include <xxhash.h>

void cot_sampling_init(cot_sampling *sampling)
{
    *sampling =
        (cot_sampling){.size = sizeof *sampling, .top_p = 1, .repetition_penalty = 1, .max_tokens = 256};
}

void cot_request_init(cot_request *request)
{
    *request = (cot_request){.logprobs = -1};
    cot_sampling_init(&request->sampling);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "hashes of blocks read numbers as they are in memory");

uint64_t cot_cache_local_hash(const int32_t *ids, size_t tokens)
{
    return XXH3_64bits_withSeed(ids, tokens * sizeof *ids, COT_CACHE_SEED);
}

uint64_t cot_cache_sequence_hash(uint64_t parent, uint64_t local)
{
    const uint64_t link[] = {parent, local};
    return XXH3_64bits_withSeed(link, sizeof link, COT_CACHE_SEED);
}

uint64_t cot_cache_salt_hash(const void *salt, size_t bytes)
{
    return XXH3_64bits_withSeed(salt, bytes, COT_CACHE_SEED);
}
