#include "harness/engine/requests.h"

#include "harness/cmocka.h"
#include "harness/memory.h"

#include "coterie/model.h"

cot_request forced_request(const int32_t *ids, int64_t tokens, int64_t prefill)
{
    return (cot_request){.prompt = ids,
                         .prompt_tokens = prefill,
                         .forced = ids + prefill,
                         .forced_tokens = tokens - prefill,
                         .all_logits = true};
}

cot_request generating_from(const int32_t *ids, int64_t prompt_tokens, int64_t max_tokens)
{
    cot_request r;
    cot_request_init(&r);
    r.prompt = ids;
    r.prompt_tokens = prompt_tokens;
    r.sampling.max_tokens = max_tokens;
    return r;
}

uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

cot_expert_map drawn_placement(const char *folder, int ranks, uint64_t *state)
{
    cot_model_info info;
    cot_expert_map map;
    cot_error error;
    if (cot_model_describe(&info, folder, &error) != COT_OK) fail_msg("%s", error.message);
    const int32_t L = (int32_t)info.moe_layers, E = (int32_t)info.experts, slots = 3 * E;
    if (cot_expert_map_new(&map, L, E, ranks, slots, &error) != COT_OK) fail_msg("%s", error.message);
    for (int32_t l = 0; l < L; l++) {
        int32_t *row = map.expert + l * ranks * slots;
        map.layers[l] = info.moe_layer[l];
        for (int32_t e = 0; e < E; e++)
            for (uint64_t copies = 1 + draw(state) % 3; copies; copies--) {
                int32_t *rank = row + (int32_t)(draw(state) % (uint64_t)ranks) * slots, i = 0;
                while (rank[i] >= 0) i++;
                if (i + 1 < slots && draw(state) % 8 == 0) i += rank[i + 1] < 0; // leaves a hole
                rank[i] = e;
            }
    }
    cot_model_info_clear(&info);
    return map;
}

int32_t *drawn_ids(int64_t n, int64_t vocab, uint64_t *state)
{
    int32_t *ids = must_allocate((size_t)n, sizeof *ids);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(draw(state) % (uint64_t)vocab);
    return ids;
}
