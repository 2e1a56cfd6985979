#include "harness/moe/fused_call.h"

#include "harness/cmocka.h"
#include "harness/moe/near.h"
#include "harness/poisoned.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One weight and one expert for each choice, ascending; `hot`: the same for all tokens. */
static void call_draw_routing(struct call *call, const struct world *w, bool hot, struct draw *draw)
{
    const int64_t experts = w->options.experts, top_k = w->options.top_k;
    for (int64_t t = 0; t < call->tokens; t++) {
        int64_t left = top_k;
        uint16_t *to = call->experts + t * top_k;
        for (int64_t e = 0; e < experts && left; e++)
            if (draw_below(draw, experts - e) < left) to[top_k - left--] = (uint16_t)e;
        if (hot && t) memcpy(to, call->experts, (size_t)top_k * sizeof *to);
        for (int64_t k = 0; k < top_k; k++) call->weights[t * top_k + k] = draw_float(draw, 1, COT_F32);
    }
}

static void call_solve(struct call *call, const struct world *w)
{
    const int64_t hidden = w->options.expert.hidden, top_k = w->options.top_k;
    const cot_dtype type = w->options.combine_type;
    double row[64], largest = 0;
    assert_true(hidden <= 64);
    for (int64_t t = 0; t < call->tokens; t++) {
        int64_t experts[COT_MAX_TOP_K];
        double weights[COT_MAX_TOP_K], *y = call->y + t * hidden, logit = 0;
        const float *x = call->x + t * hidden;
        call->sure[t] = call->given || oracle_route(experts, weights, &w->gate, x);
        for (int64_t k = 0; k < top_k; k++) {
            if (call->given) {
                experts[k] = call->experts[t * top_k + k];
                weights[k] = (double)call->weights[t * top_k + k];
            }
            oracle_ffn_apply(row, &w->experts[experts[k]], x);
            for (int64_t h = 0; h < hidden; h++) {
                y[h] += rounded(weights[k] * row[h], type);
                largest = fmax(largest, fabs(weights[k] * row[h]));
            }
        }
        if (!call->shared) continue;
        oracle_ffn_apply(row, &w->shared, x);
        for (int64_t h = 0; h < hidden && w->shared_gate; h++)
            logit += (double)x[h] * (double)w->shared_gate[h];
        for (int64_t h = 0; h < hidden; h++) {
            row[h] *= w->shared_gate ? 1 / (1 + exp(-logit)) : 1;
            y[h] += row[h];
            largest = fmax(largest, fabs(row[h]));
        }
    }
    const bool coarse = w->options.expert.type == COT_BF16 || type == COT_BF16;
    call->tolerance = (1 + largest) * (coarse ? 0.03 : 3e-5);
}

struct call *call_new(const struct world *w, int ranks, int64_t tokens, struct draw *draw)
{
    struct call *call = calloc(1, sizeof *call);
    assert_non_null(call);
    struct world sized = *w;
    sized.tokens = tokens;
    const int64_t hidden = w->options.expert.hidden, kind = draw_below(draw, 4),
                  routing = draw_below(draw, 3);
    call->tokens = tokens;
    call->plan = kind == 0   ? plan_even(&sized, ranks)
                 : kind == 1 ? plan_replicated(&sized, ranks, draw)
                             : plan_drawn(&sized, ranks, draw);
    if (draw_below(draw, 6) == 0) { // all at home on one rank
        const int home = (int)draw_below(draw, ranks);
        for (int r = 0; r <= ranks; r++) call->plan.begin[r] = r > home ? tokens : 0;
    }
    call->given = routing > 0;
    call->shared = w->options.shared.intermediate && draw_below(draw, 3);
    const size_t choices = (size_t)(tokens * w->options.top_k);
    call->experts = calloc(choices + 1, sizeof *call->experts);
    call->weights = calloc(choices + 1, sizeof *call->weights);
    call->x = draw_floats(draw, tokens * hidden, 1);
    call->y = calloc((size_t)(tokens * hidden) + 1, sizeof *call->y);
    call->sure = calloc((size_t)tokens + 1, sizeof *call->sure);
    call->alone = poisoned((size_t)(tokens * hidden) * sizeof(float));
    call->before = poisoned((size_t)(tokens * hidden) * sizeof(float));
    call_draw_routing(call, w, routing == 2, draw);
    call_solve(call, w);
    return call;
}

void call_free(struct call *call)
{
    free(call->experts), free(call->weights), free(call->x), free(call->y), free(call->sure);
    free(call->alone), free(call->before), free(call);
}

struct call call_alone(const struct call *call, const struct world *w)
{
    struct call alone = *call;
    struct world sized = *w;
    sized.tokens = call->tokens;
    alone.plan = plan_even(&sized, 1);
    alone.before = call->alone;
    alone.has_before = false;
    return alone;
}

int64_t call_tiles(const struct world *w, const struct call *call, int rank)
{
    const struct plan *p = &call->plan;
    const int64_t top_k = w->options.top_k, own = p->begin[rank + 1] - p->begin[rank];
    int64_t rows[2 * WORLD_EXPERTS] = {0}, tiles = 0;
    if (!call->given) return -1;
    const cot_expert_replicas placement = {p->rank, p->slot, p->replica_begin};
    for (int home = 0; home < p->ranks; home++)
        for (int64_t t = p->begin[home]; t < p->begin[home + 1]; t++)
            for (int64_t k = 0; k < top_k; k++)
                rows[cot_expert_replica(&placement, call->experts[t * top_k + k], home,
                                        t - p->begin[home])]++;
    for (int32_t i = 0; i < p->replica_begin[w->options.experts]; i++) {
        if (p->rank[i] != rank || !rows[i]) continue;
        if (rows[i] > COT_FFN_TILE_ROWS) return -1;
        tiles++;
    }
    return call->shared ? tiles + (own + COT_FFN_TILE_ROWS - 1) / COT_FFN_TILE_ROWS : tiles;
}

/* A token's routing becomes one that is refused: a weight or an expert that cannot be, in any place. */
static void spoil_routing(const struct world *w, struct part *part, int64_t token)
{
    const int64_t top_k = w->options.top_k, place = token / 3 % top_k, pair = place ? place - 1 : 0;
    uint16_t *experts = part->experts + token * top_k, first = experts[pair];
    float *weights = part->weights + token * top_k;
    switch (token % (top_k > 1 ? 5 : 3)) {
    case 0:
        weights[place] = -INFINITY;
        break;
    case 1:
        weights[place] = NAN;
        break;
    case 2:
        experts[place] = (uint16_t)w->options.experts;
        break;
    case 3: // twice
        experts[pair + 1] = first;
        break;
    default: // out of order
        experts[pair] = experts[pair + 1];
        experts[pair + 1] = first;
    }
}

struct part part_of(const struct world *w, const struct step *step, int rank)
{
    const struct call *call = step->call;
    const int64_t hidden = w->options.expert.hidden, top_k = w->options.top_k, begin = call->plan.begin[rank],
                  tokens = call->plan.begin[rank + 1] - begin;
    const size_t x_bytes = (size_t)(tokens * hidden) * sizeof(float), choices = (size_t)(tokens * top_k);
    struct part part = {tokens, poisoned(x_bytes), poisoned(x_bytes), poisoned(choices * sizeof(float)),
                        poisoned(choices * sizeof(uint16_t))};
    memcpy(part.x, call->x + begin * hidden, x_bytes);
    if (call->given) {
        memcpy(part.experts, call->experts + begin * top_k, choices * sizeof *part.experts);
        memcpy(part.weights, call->weights + begin * top_k, choices * sizeof *part.weights);
    }
    for (int64_t t = step->spoilt; step->guilty == rank && t < tokens;
         t += step->every ? step->every : tokens)
        if (call->given)
            spoil_routing(w, &part, t);
        else
            part.x[t * hidden] = NAN;
    return part;
}

void part_free(struct part *part)
{
    free(part->x), free(part->y), free(part->experts), free(part->weights);
}

static bool is_poison(const void *memory, size_t bytes)
{
    const uint8_t *byte = memory;
    for (size_t i = 0; i < bytes; i++)
        if (byte[i] != 0xff) return false;
    return true;
}

/* An error, and nothing written. */
static void part_is_untouched(const struct world *w, const struct step *step, int rank,
                              const struct part *part, const char *message)
{
    const struct call *call = step->call;
    const int64_t top_k = w->options.top_k, begin = call->plan.begin[rank];
    const size_t choices = (size_t)(part->tokens * top_k);
    assert_true(is_poison(part->y, (size_t)(part->tokens * w->options.expert.hidden) * sizeof(float)));
    if (!call->given) {
        assert_true(is_poison(part->experts, choices * sizeof *part->experts));
        assert_true(is_poison(part->weights, choices * sizeof *part->weights));
    } else if (rank != step->guilty) {
        assert_memory_equal(part->experts, call->experts + begin * top_k, choices * sizeof *part->experts);
        assert_memory_equal(part->weights, call->weights + begin * top_k, choices * sizeof *part->weights);
    }
    char text[64];
    snprintf(text, sizeof text,
             step->guilty == rank ? "token %lld "
             : step->guilty < 0   ? "no rank"
                                  : "rank %lld's",
             step->guilty == rank ? (long long)step->spoilt : (long long)step->guilty);
    if (!strstr(message, text)) fail_msg("'%s' lacks '%s'", message, text);
}

void part_agrees(const struct world *w, const struct step *step, int rank, struct part *part,
                 cot_status status, const char *message)
{
    struct call *call = step->call;
    const int64_t hidden = w->options.expert.hidden, begin = call->plan.begin[rank];
    const size_t bytes = (size_t)(part->tokens * hidden) * sizeof(float);
    if (step->guilty >= 0 || !call->tokens) {
        assert_int_equal(status, COT_INVALID_ARGUMENT);
        part_is_untouched(w, step, rank, part, message);
    } else {
        if (status != COT_OK) fail_msg("rank %d: %s", rank, message);
        for (int64_t t = 0; t < part->tokens; t++)
            for (int64_t h = 0; h < hidden && call->sure[begin + t]; h++)
                near(part->y[t * hidden + h], call->y[(begin + t) * hidden + h], call->tolerance);
        if (call->has_before) assert_memory_equal(part->y, call->before + begin * hidden, bytes);
        memcpy(call->before + begin * hidden, part->y, bytes);
        if (w->options.combine == COT_COMBINE_EXACT && call->plan.ranks > 1)
            assert_memory_equal(part->y, call->alone + begin * hidden, bytes);
    }
    part_free(part);
}
