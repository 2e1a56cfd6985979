/* The router on the device: which experts a token visits, and with what weight, by the rules of src/moe/gate.h. A warp
 * computes the logits of a few tokens and experts at once, and chooses for a few tokens. A token's result depends on that token
 * alone, whatever warps and neighbours it meets. */
#ifndef COT_CUDA_GATE_H
#define COT_CUDA_GATE_H
#include "cuda/call.h"
#include "cuda/ptx.h"

#include <math.h>

namespace cot {

struct gate_tokens {
    const float *x;    // [T][H]; where 4 divides H, aligned to 16 bytes, as g's weights are
    uint16_t *experts; // [T][K] out: ascending within a token
    float *weights;    // [T][K] out
    int32_t tokens;
    /* The lowest token that cannot be routed; it gets experts 0 to K - 1 and weights that are NaN. */
    uint32_t *unsound;
};

COT_DEVICE float warp_sum(float v)
{
    for (int by = 16; by; by /= 2) v += __shfl_xor_sync(ALL_LANES, v, by);
    return v;
}

COT_DEVICE float warp_max(float v)
{
    for (int by = 16; by; by /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, by));
    return v;
}

/* WIDTH values one after another, in one load. */
template <int WIDTH> struct alignas(4 * WIDTH) gate_values {
    float v[WIDTH];
};

/* Adds the products of `AHEAD` times 32 WIDTH values, from h on, to a lane's sums; all loads are under way before the first sum. */
template <int WIDTH, int AHEAD, int ROWS, int TOKENS>
COT_DEVICE void gate_add(float (&sums)[ROWS][TOKENS], const float *const (&w)[ROWS],
                         const float *const (&x)[TOKENS], int h)
{
    using Values = gate_values<WIDTH>;
    Values a[AHEAD][ROWS], b[AHEAD][TOKENS];
    COT_EACH (i, AHEAD) {
        COT_EACH (r, ROWS) a[i][r] = *reinterpret_cast<const Values *>(w[r] + h + i * 32 * WIDTH);
        COT_EACH (t, TOKENS) b[i][t] = *reinterpret_cast<const Values *>(x[t] + h + i * 32 * WIDTH);
    }
    COT_EACH (i, AHEAD)
        COT_EACH (r, ROWS)
            COT_EACH (t, TOKENS)
                COT_EACH (j, WIDTH) sums[r][t] = fmaf(a[i][r].v[j], b[i][t].v[j], sums[r][t]);
}

/* sums[r][t] = w[r] . x[t], in all lanes. A lane adds up every 32nd four products, or, where 4 does not divide H, every 32nd;
 * then the lanes' sums are added in pairs: an order that H alone gives. Where 4 divides H, rows are aligned to 16 bytes. */
template <int WIDTH, int AHEAD, int ROWS, int TOKENS>
COT_DEVICE void gate_sum_by(float (&sums)[ROWS][TOKENS], const float *const (&w)[ROWS],
                            const float *const (&x)[TOKENS], int hidden)
{
    constexpr int STEP = 32 * WIDTH;
    int h = WIDTH * (thread_number() % 32);
    COT_ONE_BY_ONE
    for (; h + (AHEAD - 1) * STEP < hidden; h += AHEAD * STEP) gate_add<WIDTH, AHEAD>(sums, w, x, h);
    COT_ONE_BY_ONE
    for (; h < hidden; h += STEP) gate_add<WIDTH, 1>(sums, w, x, h);
}
template <int AHEAD, int ROWS, int TOKENS>
COT_DEVICE void gate_sum(float (&sums)[ROWS][TOKENS], const float *const (&w)[ROWS],
                         const float *const (&x)[TOKENS], int hidden)
{
    COT_EACH (r, ROWS)
        COT_EACH (t, TOKENS) sums[r][t] = 0;
    if (hidden % 4 == 0)
        gate_sum_by<4, AHEAD>(sums, w, x, hidden);
    else
        gate_sum_by<1, AHEAD>(sums, w, x, hidden);
    COT_EACH (r, ROWS)
        COT_EACH (t, TOKENS) sums[r][t] = warp_sum(sums[r][t]);
}

/* logits[t][e] = x[t] . weight[e] + bias[e] for `count` tokens, at most TOKENS, and experts first to end - 1, ROWS at a
 * time; a token's are `stride` apart. Lane e % 32 writes, and owns, logits[.][e]. */
template <int ROWS, int TOKENS = GATE_TOKENS_A_WARP>
COT_DEVICE void gate_logits(const gate_rules &g, const float *x, int count, int first, int end, float *logits,
                            int stride)
{
    const int lane = thread_number() % 32;
    constexpr int AHEAD = ROWS > 1 ? 1 : TOKENS > 1 ? 4 : 8;
    const float *w[ROWS], *rows[TOKENS];
    COT_EACH (t, TOKENS) // what is not there is computed as the last one, and kept nowhere
        rows[t] = x + static_cast<int64_t>(t < count ? t : count - 1) * g.hidden;
    COT_ONE_BY_ONE
    for (int e = first; e < end; e += ROWS) {
        float sums[ROWS][TOKENS];
        COT_EACH (r, ROWS) w[r] = g.weight + static_cast<int64_t>(e + r < end ? e + r : end - 1) * g.hidden;
        gate_sum<AHEAD>(sums, w, rows, g.hidden);
        COT_EACH (r, ROWS)
            if (e + r < end && lane == (e + r) % 32)
                COT_EACH (t, TOKENS)
                    if (t < count)
                        logits[t * stride + e + r] = g.bias ? sums[r][t] + g.bias[e + r] : sums[r][t];
    }
}

/* Whether experts outside the chosen groups keep a score of 0 or are out. */
COT_DEVICE bool gate_masks_at_zero(const gate_rules &g)
{
    return g.score == gate_score::softmax && !g.correction;
}

COT_DEVICE float gate_choice(const gate_rules &g, const float *scores, int e)
{
    return g.correction ? scores[e] + g.correction[e] : scores[e];
}

/* Overwrites the scores of experts outside the best group_limit groups; of equal groups the lower wins. */
COT_DEVICE void gate_mask_groups(const gate_rules &g, float *scores, float *by_group)
{
    const int lane = thread_number() % 32, size = g.experts / g.groups;
    COT_UNLESS(gate_scores_before_groups) __syncwarp();
    for (int group = lane; group < g.groups; group += 32) {
        float first = -INFINITY, second = -INFINITY;
        for (int e = group * size; e < (group + 1) * size; e++) {
            const float score = gate_choice(g, scores, e);
            second = fmaxf(second, fminf(first, score));
            first = fmaxf(first, score);
        }
        by_group[group] = g.group_score == gate_group_score::top2_sum ? first + second : first;
    }
    COT_UNLESS(gate_groups_before_masks) __syncwarp();
    for (int e = lane; e < g.experts; e += 32) {
        const int group = e / size;
        int better = 0;
        for (int other = 0; other < g.groups; other++)
            better +=
                by_group[other] > by_group[group] || (by_group[other] == by_group[group] && other < group);
        if (better >= g.group_limit) scores[e] = gate_masks_at_zero(g) ? 0 : -INFINITY;
    }
}

/* The K experts of the highest choice, of equal ones the lower: bit i of a lane's word is expert 32 i + lane. */
COT_DEVICE uint64_t gate_choose(const gate_rules &g, const float *scores)
{
    const int lane = thread_number() % 32;
    uint64_t chosen = 0;
    for (int k = 0; k < g.top_k; k++) {
        float best = -INFINITY;
        int best_expert = 0x7fffffff;
        for (int i = 0, e = lane; e < g.experts; i++, e += 32) {
            if (chosen >> i & 1) continue;
            const float score = gate_choice(g, scores, e);
            if (best_expert == 0x7fffffff || score > best) best = score, best_expert = e;
        }
        for (int by = 16; by; by /= 2) {
            const float other = __shfl_xor_sync(ALL_LANES, best, by);
            const int other_expert = __shfl_xor_sync(ALL_LANES, best_expert, by);
            if (other > best || (other == best && other_expert < best_expert))
                best = other, best_expert = other_expert;
        }
        if (best_expert % 32 == lane) chosen |= uint64_t{1} << (best_expert / 32);
    }
    return chosen;
}

/* Routes one token, whose logits become scores. False, for all lanes, where something is not finite. */
COT_DEVICE bool gate_route_one(const gate_rules &g, float *scores, float *by_group, float *chosen_weights,
                               uint16_t *experts, float *weights)
{
    const int lane = thread_number() % 32, k_count = g.top_k;
    bool finite = true;
    float highest = -INFINITY;
    for (int e = lane; e < g.experts; e += 32) {
        finite = finite && isfinite(scores[e]) && (!g.correction || isfinite(g.correction[e]));
        highest = fmaxf(highest, scores[e]);
    }
    if (!__all_sync(ALL_LANES, finite)) return false;
    if (g.score == gate_score::softmax) {
        highest = warp_max(highest);
        float sum = 0;
        for (int e = lane; e < g.experts; e += 32) sum += scores[e] = expf(scores[e] - highest);
        sum = warp_sum(sum);
        for (int e = lane; e < g.experts; e += 32) scores[e] /= sum;
    }
    if (g.score == gate_score::sigmoid)
        for (int e = lane; e < g.experts; e += 32) scores[e] = 1 / (1 + expf(-scores[e]));
    if (g.group_limit < g.groups) gate_mask_groups(g, scores, by_group);

    const uint64_t chosen = gate_choose(g, scores);
    for (int i = 0, before = 0; 32 * i < g.experts; i++) {
        const bool mine = chosen >> i & 1;
        const uint32_t lanes = __ballot_sync(ALL_LANES, mine);
        if (mine) {
            const int k = before + static_cast<int>(__popc(lanes & ((1u << lane) - 1)));
            experts[k] = static_cast<uint16_t>(32 * i + lane);
            chosen_weights[k] = scores[32 * i + lane];
        }
        before += static_cast<int>(__popc(lanes));
    }
    COT_UNLESS(gate_chosen_before_weights) __syncwarp();
    if (g.score == gate_score::chosen_softmax) highest = chosen_weights[0];
    for (int k = 1; g.score == gate_score::chosen_softmax && k < k_count; k++)
        highest = fmaxf(highest, chosen_weights[k]);
    float sum = 0; // in the order of experts, by every lane
    for (int k = 0; k < k_count; k++)
        sum += g.score == gate_score::chosen_softmax ? expf(chosen_weights[k] - highest) : chosen_weights[k];
    for (int k = lane; k < k_count; k += 32) {
        float w = chosen_weights[k];
        if (g.score == gate_score::chosen_softmax) {
            w = expf(w - highest) / sum;
            if (g.normalise) w /= 1 + g.epsilon;
        } else if (g.normalise) {
            w /= sum + g.epsilon;
        }
        w *= g.scaling;
        weights[k] = w;
        finite = finite && isfinite(w);
    }
    const bool all = __all_sync(ALL_LANES, finite);
    COT_UNLESS(gate_weights_before_next_token) __syncwarp();
    return all;
}

/* Routes tokens first to first + count - 1, at most GATE_TOKENS_A_WARP, whose logits the warp's `scratch` begins with, [count][E]. */
COT_DEVICE void gate_choose_all(const gate_rules &g, const gate_tokens &all, int first, int count,
                                float *scratch)
{
    const int lane = thread_number() % 32;
    float *const by_group = scratch + GATE_TOKENS_A_WARP * g.experts, *const chosen =
                                                                          by_group + GATE_GROUPS_MOST;
    for (int t = 0; t < count; t++) {
        const int64_t at = static_cast<int64_t>(first + t) * g.top_k;
        if (gate_route_one(g, scratch + t * g.experts, by_group, chosen, all.experts + at, all.weights + at))
            continue;
        for (int k = lane; k < g.top_k; k += 32) {
            all.experts[at + k] = static_cast<uint16_t>(k);
            all.weights[at + k] = NAN;
        }
        if (lane == 0) min_relaxed<scope::gpu>(all.unsound, static_cast<uint32_t>(first + t));
    }
}

/* The same, whose logits are computed by this warp, too. */
COT_DEVICE void gate_route(const gate_rules &g, const gate_tokens &all, int first, int count, float *scratch)
{
    gate_logits<4>(g, all.x + static_cast<int64_t>(first) * g.hidden, count, 0, g.experts, scratch,
                   g.experts);
    gate_choose_all(g, all, first, count, scratch);
}

} // namespace cot

/* The router as a kernel of its own. Dynamic shared memory: gate_scratch_floats(E) floats a warp. */
COT_KERNEL cot_cuda_gate_kernel(cot::gate_rules rules, cot::gate_tokens tokens);

#endif
