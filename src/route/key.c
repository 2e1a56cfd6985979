#include "coterie/request.h"
#include "coterie/route.h"

#include <string.h>

uint64_t cot_route_key(uint64_t sequence_hash, const char *lora)
{
    if (!lora || !*lora) return sequence_hash;
    return cot_cache_sequence_hash(cot_cache_salt_hash(lora, strlen(lora)), sequence_hash);
}
