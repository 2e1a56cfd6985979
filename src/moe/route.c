#include "moe/route.h"

#include "base/error.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void cot_moe_routing_lay_out(cot_moe_routing *r, cot_arena *arena, const cot_moe_options *o)
{
    const size_t choices = (size_t)(o->tokens * o->top_k);
    r->experts = cot_arena_take(arena, choices, sizeof *r->experts);
    r->weights = cot_arena_take(arena, choices, sizeof *r->weights);
    r->chosen = cot_arena_take(arena, choices, sizeof *r->chosen);
}

void cot_moe_routing_begin(cot_moe_routing *r, const cot_moe_options *o, const cot_moe_layer *layer,
                           const uint16_t *experts, const float *weights, int64_t tokens)
{
    const size_t choices = (size_t)(tokens * o->top_k);
    assert(tokens >= 0 && tokens <= o->tokens);
    assert(!layer->gate || (layer->gate->hidden == o->expert.hidden && layer->gate->experts == o->experts &&
                            layer->gate->top_k == o->top_k));
    assert(!layer->shared || o->shared.intermediate);
    if (layer->gate || !choices) return;
    memcpy(r->experts, experts, choices * sizeof *experts);
    memcpy(r->weights, weights, choices * sizeof *weights);
}

/* A given routing: experts below E and ascending within a token, weights finite. */
static cot_status check_given(const cot_moe_routing *r, const cot_moe_options *o, int64_t first,
                              int64_t count, cot_error *error)
{
    const uint16_t *experts = r->experts;
    const int64_t top_k = o->top_k;
    for (int64_t t = first; t < first + count; t++)
        for (int64_t i = t * top_k; i < (t + 1) * top_k; i++) {
            if (experts[i] >= o->experts)
                return cot_fail(error, COT_INVALID_ARGUMENT, "token %lld goes to expert %d of %lld",
                                (long long)t, experts[i], (long long)o->experts);
            if (i > t * top_k && experts[i] <= experts[i - 1])
                return cot_fail(error, COT_INVALID_ARGUMENT,
                                "token %lld goes to expert %d after expert %d, expected ascending",
                                (long long)t, experts[i], experts[i - 1]);
            if (!isfinite(r->weights[i]))
                return cot_fail(error, COT_INVALID_ARGUMENT,
                                "token %lld has a weight that is not finite for expert %d", (long long)t,
                                experts[i]);
        }
    return COT_OK;
}

cot_status cot_moe_route(cot_moe_routing *r, const cot_moe_options *o, const cot_moe_layer *layer,
                         const float *x, int64_t first, int64_t count, float *logits, cot_error *error)
{
    const int64_t begin = first * o->top_k, end = begin + count * o->top_k;
    cot_status status = layer->gate ? cot_gate_route(&(cot_gate_tokens){.x = x + first * o->expert.hidden,
                                                                        .first = first,
                                                                        .tokens = count,
                                                                        .experts = r->experts + begin,
                                                                        .weights = r->weights + begin,
                                                                        .logits = logits,
                                                                        .unsound_pass = layer->unsound_pass},
                                                     layer->gate, o->kernels, o->pool, error)
                                    : check_given(r, o, first, count, error);
    if (status == COT_OK && layer->gate && layer->replayed_experts) {
        const size_t choices = (size_t)(end - begin);
        memcpy(r->experts + begin, layer->replayed_experts + begin, choices * sizeof *r->experts);
        memcpy(r->weights + begin, layer->replayed_weights + begin, choices * sizeof *r->weights);
        status = check_given(r, o, first, count, error);
    }
    for (int64_t i = begin; i < end && status == COT_OK; i++)
        r->chosen[i] =
            (int32_t)cot_expert_replica(&layer->placement, r->experts[i], o->fabric->rank, i / o->top_k);
    return status;
}

void cot_moe_routing_tell(const cot_moe_routing *r, const cot_moe_options *o, const cot_moe_layer *layer,
                          uint16_t *experts, float *weights, int64_t tokens)
{
    const size_t choices = (size_t)(tokens * o->top_k);
    if (!layer->gate || !choices) return;
    memcpy(experts, r->experts, choices * sizeof *experts);
    memcpy(weights, r->weights, choices * sizeof *weights);
}
