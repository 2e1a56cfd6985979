#include "model/replay.h"

#include "base/rng.h"

#include <math.h>

static void choose_recorded(uint16_t *experts, float *weights, const cot_replay *replay,
                            const cot_replay_token *of)
{
    const cot_trace *t = replay->trace;
    const int32_t layer = replay->first_layer + of->moe_layer;
    const int64_t token = t->sequence_offsets[of->recorded] + of->position;
    for (int32_t k = 0; k < t->top_k; k++) { // by insertion: there are few
        const uint16_t expert = (uint16_t)cot_trace_expert(t, layer, token, k);
        const float weight = t->weights ? cot_trace_weight(t, layer, token, k) : 1.0F / (float)t->top_k;
        int32_t at = k;
        for (; at > 0 && experts[at - 1] > expert; at--) {
            experts[at] = experts[at - 1];
            weights[at] = weights[at - 1];
        }
        experts[at] = expert;
        weights[at] = weight;
    }
}

/* How many of the choices of the first n tokens of a rank stay there. */
static int64_t stay(double lar, int64_t top_k, int64_t n)
{
    const double rounding = 1e-9; // lar is a decimal
    return (int64_t)floor((double)n * (double)top_k * lar + rounding);
}

static void choose_drawn(uint16_t *experts, float *weights, const cot_replay *replay,
                         const cot_replay_token *of)
{
    const cot_expert_replicas *r = of->replicas;
    const uint64_t stream =
        cot_mix64((uint64_t)of->moe_layer) ^ ((uint64_t)of->sequence << 32 | (uint64_t)of->position);
    int64_t left[2] = {0, 0}, wanted[2]; // elsewhere, here
    for (int64_t e = 0; e < replay->experts; e++) left[r->rank[r->begin[e]] == of->rank]++;
    wanted[1] = stay(replay->lar, replay->top_k, of->place + 1) - stay(replay->lar, replay->top_k, of->place);
    wanted[0] = replay->top_k - wanted[1];
    int64_t chosen = 0;
    for (int64_t e = 0; e < replay->experts && chosen < replay->top_k;
         e++) { // selection sampling, in both at once
        const int here = r->rank[r->begin[e]] == of->rank;
        const double u = cot_random_uniform(0, stream, (uint64_t)e);
        if (u * (double)left[here]-- >= (double)wanted[here]) continue;
        wanted[here]--;
        experts[chosen] = (uint16_t)e;
        weights[chosen++] = 1.0F / (float)replay->top_k;
    }
}

cot_replay cot_replay_of(const cot_trace *trace, int32_t first_layer, double lar, int64_t experts,
                         int64_t top_k)
{
    return (cot_replay){trace ? choose_recorded : choose_drawn, experts, top_k, trace, first_layer, lar};
}

bool cot_replay_can_draw(double lar, int64_t top_k, int64_t own, int64_t experts)
{
    const int64_t least = stay(lar, top_k, 1), most = (int64_t)ceil((double)top_k * lar - 1e-9);
    return most <= own && top_k - least <= experts - own;
}
