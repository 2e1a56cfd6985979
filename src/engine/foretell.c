/* What an engine foretells of requests that have not run. */
#include "engine/engine_state.h"

#include <math.h>
#include <string.h>

bool cot_engine_foretells(const cot_engine *e)
{
    return e->signatures.tables || (e->profiles.n_layers && e->block_tokens);
}

bool cot_engine_expect(const void *context, uint8_t *share, const cot_request *request)
{
    const cot_engine *e = context;
    const int64_t experts = e->config->gate.experts, cells = e->config->moe_layers * experts;
    const bool by_tokens =
        cot_engine_signature(&e->signatures, share, request->prompt, request->prompt_tokens);
    if (!by_tokens)
        memset(share, (int)lrint((double)e->config->gate.top_k * UINT8_MAX / (double)experts), (size_t)cells);
    return cot_profiles_expect(&e->loop.profiles, share, request) || by_tokens;
}

const cot_expert_layout *cot_engine_layout_now(const void *context)
{
    const cot_engine *e = context;
    return &e->placing.epoch[e->placing.second].layout;
}
