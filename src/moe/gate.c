#include "moe/gate.h"

#include "base/error.h"
#include "base/integers.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>

enum { TOKENS_A_TASK = 8 };

/* Whether experts outside the chosen groups keep a score of 0, as DeepSeek-V2 has it, or are out. */
static bool masked_at_zero(const cot_gate *gate)
{
    return gate->score == COT_GATE_SOFTMAX && !gate->correction;
}

cot_status cot_gate_check(const cot_gate *gate, cot_error *error)
{
    long long experts = gate->experts, top_k = gate->top_k, groups = gate->groups, limit = gate->group_limit;
    if (gate->hidden < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a gate needs a hidden size of at least 1");
    if (experts < 1 || experts > COT_MAX_EXPERTS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld experts, expected 1 to %d", experts,
                        COT_MAX_EXPERTS);
    if (top_k < 1 || top_k > experts || top_k > COT_MAX_TOP_K)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld of %lld experts a token, expected 1 to %lld",
                        top_k, experts, experts < COT_MAX_TOP_K ? experts : COT_MAX_TOP_K);
    if (groups < 1 || groups > COT_MAX_GROUPS || experts % groups)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%lld groups of experts, expected 1 to %d that divide %lld experts", groups,
                        COT_MAX_GROUPS, experts);
    if (limit < 1 || limit > groups)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld of %lld groups may be chosen, expected 1 to %lld",
                        limit, groups, groups);
    if (limit == groups) return COT_OK;
    if (gate->group_score == COT_GROUP_TOP2_SUM && experts / groups < 2)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "groups of one expert cannot be scored by their best two");
    if (top_k > limit * (experts / groups) && !masked_at_zero(gate))
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld experts a token, but %lld groups hold only %lld",
                        top_k, limit, limit * (experts / groups));
    return COT_OK;
}

struct routing {
    const cot_gate_tokens *tokens;
    const cot_kernels *kernels;
    const cot_gate *gate;
    _Atomic int64_t failed; // the lowest token that cannot be routed
};

/* What expert e is chosen by. */
static float choice_score(const cot_gate *gate, const float *scores, int64_t e)
{
    return gate->correction ? scores[e] + gate->correction[e] : scores[e];
}

static float group_score(const cot_gate *gate, const float *scores, int64_t begin, int64_t end)
{
    float first = -INFINITY, second = -INFINITY;
    for (int64_t e = begin; e < end; e++) {
        float score = choice_score(gate, scores, e);
        if (score > first) {
            second = first;
            first = score;
        } else if (score > second) {
            second = score;
        }
    }
    return gate->group_score == COT_GROUP_TOP2_SUM ? first + second : first;
}

/* Overwrites the scores of experts outside the best group_limit groups; of equal groups the lower wins. */
static void mask_groups(const cot_gate *gate, float *scores)
{
    float by_group[COT_MAX_GROUPS], masked = masked_at_zero(gate) ? 0 : -INFINITY;
    int64_t size = gate->experts / gate->groups;
    for (int64_t g = 0; g < gate->groups; g++)
        by_group[g] = group_score(gate, scores, g * size, (g + 1) * size);
    for (int64_t g = 0; g < gate->groups; g++) {
        int64_t better = 0;
        for (int64_t other = 0; other < gate->groups; other++)
            better += by_group[other] > by_group[g] || (by_group[other] == by_group[g] && other < g);
        for (int64_t e = g * size; better >= gate->group_limit && e < (g + 1) * size; e++) scores[e] = masked;
    }
}

/* The top_k experts by choice score, of equal ones the lower, in ascending order. */
static void choose(uint16_t *experts, const cot_gate *gate, const float *scores)
{
    float best[COT_MAX_TOP_K]; // descending, experts[] beside it
    int64_t count = 0, k = gate->top_k;
    for (int64_t e = 0; e < gate->experts; e++) {
        float score = choice_score(gate, scores, e);
        if (count == k && !(score > best[k - 1])) continue;
        int64_t i = count < k ? count++ : k - 1;
        for (; i > 0 && score > best[i - 1]; i--) {
            best[i] = best[i - 1];
            experts[i] = experts[i - 1];
        }
        best[i] = score;
        experts[i] = (uint16_t)e;
    }
    for (int64_t i = 1; i < k; i++) {
        uint16_t expert = experts[i];
        int64_t j = i;
        for (; j > 0 && experts[j - 1] > expert; j--) experts[j] = experts[j - 1];
        experts[j] = expert;
    }
}

/* SparseMixer (Liu, Gao, Chen 2023) as it is run: the weight of an expert is a softmax over those experts, without any that was chosen
 * before it, whose logit s is so near to its own, b, that (b - s) / max(|s|, b) <= 2 jitter. */
static void mix_sparsely(float *weights, const uint16_t *experts, const cot_gate *gate, const float *logits)
{
    for (int64_t k = 0; k < gate->top_k; k++) {
        const int64_t own = experts[k];
        const float best = logits[own];
        float sum = 0;
        for (int64_t e = 0; e < gate->experts; e++) {
            const float s = logits[e];
            bool before = false;
            for (int64_t j = 0; j < gate->top_k; j++)
                before = before || (experts[j] == e && (s > best || (s == best && e < own)));
            if (before || (best - s) / fmaxf(fabsf(s), best) > 2 * gate->jitter) continue;
            sum += expf(s - best);
        }
        weights[k] = 1 / sum;
    }
}

/* Routes one token, whose logits become its scores. False where something is not finite. */
static bool route(uint16_t *experts, float *weights, const cot_kernels *kernels, const cot_gate *gate,
                  float *scores)
{
    int64_t e_count = gate->experts, k_count = gate->top_k;
    if (gate->bias) kernels->add(scores, gate->bias, COT_F32, e_count);
    for (int64_t e = 0; e < e_count; e++)
        if (!isfinite(scores[e]) || (gate->correction && !isfinite(gate->correction[e]))) return false;
    if (gate->score == COT_GATE_SOFTMAX)
        kernels->softmax(scores, COT_F32, scores, e_count, 0, e_count, 1, NULL);
    if (gate->score == COT_GATE_SIGMOID)
        for (int64_t e = 0; e < e_count; e++) scores[e] = 1 / (1 + expf(-scores[e]));
    if (gate->group_limit < gate->groups) mask_groups(gate, scores);
    choose(experts, gate, scores);

    for (int64_t k = 0; k < k_count; k++) weights[k] = scores[experts[k]];
    if (gate->score == COT_GATE_CHOSEN_SOFTMAX)
        kernels->softmax(weights, COT_F32, weights, k_count, 0, k_count, 1, NULL);
    if (gate->score == COT_GATE_SPARSE_MIXER) mix_sparsely(weights, experts, gate, scores);
    float sum = 0;
    for (int64_t k = 0; k < k_count; k++) sum += weights[k];
    bool finite = true;
    for (int64_t k = 0; k < k_count; k++) {
        if (gate->normalise) weights[k] /= sum + gate->epsilon;
        weights[k] *= gate->scaling;
        finite = finite && isfinite(weights[k]);
    }
    return finite;
}

static void mark_unsound(uint16_t *experts, float *weights, int64_t k_count)
{
    for (int64_t k = 0; k < k_count; k++) {
        experts[k] = (uint16_t)k;
        weights[k] = NAN;
    }
}

static void route_some(void *context, int64_t task)
{
    struct routing *r = context;
    const cot_gate_tokens *all = r->tokens;
    const int64_t k = r->gate->top_k, begin = task * TOKENS_A_TASK,
                  end = cot_smaller(begin + TOKENS_A_TASK, all->tokens);
    for (int64_t t = begin; t < end; t++) {
        if (route(all->experts + t * k, all->weights + t * k, r->kernels, r->gate,
                  all->logits + t * r->gate->experts))
            continue;
        if (all->unsound_pass) {
            mark_unsound(all->experts + t * k, all->weights + t * k, k);
            continue;
        }
        int64_t failed = atomic_load(&r->failed);
        while (t < failed && !atomic_compare_exchange_weak(&r->failed, &failed, t)) {}
    }
}

cot_status cot_gate_route(const cot_gate_tokens *tokens, const cot_gate *gate, const cot_kernels *kernels,
                          cot_pool *pool, cot_error *error)
{
    assert(cot_gate_check(gate, NULL) == COT_OK);
    const int64_t count = tokens->tokens;
    if (!count) return COT_OK;
    cot_gemm gemm = {.type = COT_F32,
                     .m = count,
                     .n = gate->experts,
                     .k = gate->hidden,
                     .a = tokens->x,
                     .a_stride = gate->hidden,
                     .b = gate->weight,
                     .b_panel_bytes = cot_panel_bytes(COT_FORMAT_FP32, gate->hidden),
                     .c = tokens->logits,
                     .c_stride = gate->experts};
    cot_matmul(kernels, pool, &gemm, 1);
    struct routing r = {.tokens = tokens, .kernels = kernels, .gate = gate, .failed = count};
    cot_pool_run(pool, cot_divide_up(count, TOKENS_A_TASK), route_some, &r);
    if (r.failed < count)
        return cot_fail(error, COT_INVALID_ARGUMENT, "the router's scores of token %lld are not finite",
                        (long long)(tokens->first + r.failed));
    return COT_OK;
}
