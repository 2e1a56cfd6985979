/* A call from its first pass to its last. */
#include "base/error.h"
#include "moe/check.h"
#include "moe/fused/state.h"

#include <assert.h>
#include <string.h>

static void begin_pass(cot_moe *moe)
{
    const int64_t left = moe->call_tokens - moe->first;
    moe->tokens = left < moe->layout.tokens ? left : moe->layout.tokens;
    moe->times.passes++;
    cot_fused_begin_pass(moe);
}

void cot_fused_begin_call(cot_moe *moe, const cot_moe_layer *layer, float *y, const uint16_t *experts,
                          const float *weights, const float *x, int64_t tokens)
{
    const cot_moe_options *o = &moe->options;
    const size_t choices = (size_t)(tokens * o->top_k);
    moe->layer = layer;
    moe->slots = cot_local(o->fabric, layer->slots);
    moe->x = x;
    moe->y = y;
    moe->call_tokens = tokens;
    moe->first = 0;
    moe->bad = false;
    if (!layer->gate && choices) {
        memcpy(moe->experts, experts, choices * sizeof *experts);
        memcpy(moe->weights, weights, choices * sizeof *weights);
    }
    begin_pass(moe);
}

/* What a void pass means; every rank finds the same kind of failure. */
static cot_status explain(const cot_moe *moe, cot_error *error)
{
    if (moe->bad) {
        if (error) *error = moe->bad_error;
        return COT_INVALID_ARGUMENT;
    }
    for (int s = 0; s < moe->options.fabric->ranks; s++)
        if (moe->source[s].flags & COT_FUSED_BAD) return cot_moe_fail_with(s, error);
    return cot_moe_fail_empty(error);
}

static bool anyone_has_more(const cot_moe *moe)
{
    unsigned flags = 0;
    for (int s = 0; s < moe->options.fabric->ranks; s++) flags |= moe->source[s].flags;
    return flags & COT_FUSED_MORE;
}

bool cot_fused_end_pass(cot_moe *moe, cot_status *status, uint16_t *experts, float *weights, cot_error *error)
{
    const size_t choices = (size_t)(moe->call_tokens * moe->options.top_k);
    *status = moe->gave_up ? explain(moe, error) : COT_OK;
    if (*status != COT_OK) return false;
    moe->first += moe->tokens;
    if (anyone_has_more(moe)) {
        begin_pass(moe);
        return true;
    }
    if (moe->layer->gate && choices) {
        memcpy(experts, moe->experts, choices * sizeof *experts);
        memcpy(weights, moe->weights, choices * sizeof *weights);
    }
    return false;
}
