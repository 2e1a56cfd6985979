/* A call from its first pass to its last. */
#include "moe/check.h"
#include "moe/fused/state.h"

static void begin_pass(cot_fused *moe)
{
    const int64_t left = moe->call_tokens - moe->first;
    moe->tokens = left < moe->layout.tokens ? left : moe->layout.tokens;
    moe->times.passes++;
    cot_count_rounds(moe->options.fabric, COT_PHASE_DISPATCH, 1);
    cot_fused_begin_pass(moe);
}

void cot_fused_begin_call(cot_fused *moe, const cot_moe_layer *layer, float *y, const uint16_t *experts,
                          const float *weights, const float *x, int64_t tokens)
{
    const cot_moe_options *o = &moe->options;
    cot_moe_routing_begin(&moe->routing, o, layer, experts, weights, tokens);
    moe->layer = layer;
    moe->slots = cot_local(o->fabric, layer->slots);
    moe->x = x;
    moe->y = y;
    moe->call_tokens = tokens;
    moe->first = 0;
    moe->bad = false;
    begin_pass(moe);
}

/* What a void pass means; every rank finds the same kind of failure. */
static cot_status explain(const cot_fused *moe, cot_error *error)
{
    if (moe->bad) {
        if (error) *error = moe->bad_error;
        return COT_INVALID_ARGUMENT;
    }
    for (int s = 0; s < moe->options.fabric->ranks; s++)
        if (moe->source[s].flags & COT_FUSED_BAD) return cot_moe_fail_with(s, error);
    return cot_moe_fail_empty(error);
}

static bool anyone_has_more(const cot_fused *moe)
{
    unsigned flags = 0;
    for (int s = 0; s < moe->options.fabric->ranks; s++) flags |= moe->source[s].flags;
    return flags & COT_FUSED_MORE;
}

bool cot_fused_end_pass(cot_fused *moe, cot_status *status, uint16_t *experts, float *weights,
                        cot_error *error)
{
    *status = moe->gave_up ? explain(moe, error) : COT_OK;
    if (*status != COT_OK) return false;
    cot_count_rounds(moe->options.fabric, COT_PHASE_COMBINE, 1);
    moe->first += moe->tokens;
    if (anyone_has_more(moe)) {
        begin_pass(moe);
        return true;
    }
    cot_moe_routing_tell(&moe->routing, &moe->options, moe->layer, experts, weights, moe->call_tokens);
    return false;
}
