/* How rank 0 gets routing of a step's tokens: all of it where it is kept, else experts of the tokens that the step wants to be known. */
#include "base/integers.h"
#include "model/runner_state.h"

#include <string.h>

/* Homes differ from layer to layer. */
static bool is_shuffled(const cot_runner *r)
{
    return cot_runner_goes_home(r) && r->o.pipeline.s_moe;
}

/* Where homes differ from layer to layer: each rank's routing side by side, in the order of the layer's homes. */
static void send_shuffled_routing(cot_runner *r)
{
    const int64_t k = r->c->gate.top_k, n = r->o.step_tokens;
    for (int64_t l = 0; l < r->c->moe_layers; l++) {
        cot_homes_order(r->homes.order, r->homes.order_begin, r->homes.home + l * n, r->rows.count,
                        r->fabric->ranks);
        const int64_t first = r->homes.order_begin[r->fabric->rank],
                      count = (r->homes.order_begin[r->fabric->rank + 1] - first) * k;
        const uint64_t to = (uint64_t)((l * n + first) * k);
        if (!count) continue;
        cot_put(r->fabric, 0, r->results.routed_experts_at + to * sizeof(uint16_t),
                r->network.experts + l * n * k, (size_t)count * sizeof(uint16_t), COT_PHASE_CONTROL);
        cot_put(r->fabric, 0, r->results.routed_weights_at + to * sizeof(float),
                r->network.weights + l * n * k, (size_t)count * sizeof(float), COT_PHASE_CONTROL);
    }
}

/* Rows of `bytes` that lie in the order of a layer's homes return to their own index. */
static void return_to_index(cot_runner *r, uint8_t *rows, size_t bytes)
{
    uint8_t *shuffled = (uint8_t *)r->results.unordered;
    memcpy(shuffled, rows, (size_t)r->rows.count * bytes);
    for (int64_t at = 0; at < r->rows.count; at++)
        memcpy(rows + (size_t)r->homes.order[at] * bytes, shuffled + (size_t)at * bytes, bytes);
}

void cot_runner_order_routing(cot_runner *r)
{
    if (!is_shuffled(r)) return;
    const int64_t k = r->c->gate.top_k, n = r->o.step_tokens;
    uint16_t *experts = cot_local(r->fabric, r->results.routed_experts_at);
    float *weights = cot_local(r->fabric, r->results.routed_weights_at);
    for (int64_t l = 0; l < r->c->moe_layers; l++) {
        cot_homes_order(r->homes.order, r->homes.order_begin, r->homes.home + l * n, r->rows.count,
                        r->fabric->ranks);
        return_to_index(r, (uint8_t *)(experts + l * n * k), (size_t)k * sizeof *experts);
        return_to_index(r, (uint8_t *)(weights + l * n * k), (size_t)k * sizeof *weights);
    }
}

/* Where they do not: the home rows go to their places on rank 0. */
static void send_ordered_routing(cot_runner *r, const cot_step *step)
{
    int64_t k = r->c->gate.top_k, row = 0, token = 0;
    for (int32_t i = 0; i < step->spans; token += step->span[i++].tokens) {
        const cot_span *span = &step->span[i];
        if (r->o.data_parallel && span->home != r->fabric->rank) continue;
        int64_t first = row > r->rows.home0 ? row : r->rows.home0, last = row + span->tokens;
        if (last > r->rows.home1) last = r->rows.home1;
        for (int64_t l = 0; l < r->c->moe_layers && first < last; l++) {
            int64_t from = (l * r->o.step_tokens + first - r->rows.home0) * k, n = (last - first) * k;
            uint64_t to = (uint64_t)((l * r->o.step_tokens + token + first - row) * k);
            cot_put(r->fabric, 0, r->results.routed_experts_at + to * sizeof(uint16_t),
                    r->network.experts + from, (size_t)n * sizeof(uint16_t), COT_PHASE_CONTROL);
            cot_put(r->fabric, 0, r->results.routed_weights_at + to * sizeof(float),
                    r->network.weights + from, (size_t)n * sizeof(float), COT_PHASE_CONTROL);
        }
        row += span->tokens;
    }
}

/* Experts of rows of the l-th MoE layer, the first of them the row `from` here and the token `to` of the step, go to rank 0. */
static void put_experts(cot_runner *r, int64_t l, int64_t from, int64_t to, int64_t rows)
{
    const int64_t k = r->c->gate.top_k, n = r->o.step_tokens;
    cot_put(r->fabric, 0, r->results.routed_experts_at + (uint64_t)((l * n + to) * k) * sizeof(uint16_t),
            r->network.experts + (l * n + from) * k, (size_t)(rows * k) * sizeof(uint16_t),
            COT_PHASE_CONTROL);
}

/* The same of tokens that are wanted and at home here, where homes differ from layer to layer. */
static void send_shuffled_experts(cot_runner *r, const cot_step *step)
{
    for (int64_t l = 0; l < r->c->moe_layers; l++) {
        cot_homes_order(r->homes.order, r->homes.order_begin, r->homes.home + l * r->o.step_tokens,
                        r->rows.count, r->fabric->ranks);
        const int32_t first = r->homes.order_begin[r->fabric->rank],
                      end = r->homes.order_begin[r->fabric->rank + 1];
        for (int32_t at = first; at < end; at++)
            if (cot_step_wants_routing(step, r->homes.order[at]))
                put_experts(r, l, at - first, r->homes.order[at], 1);
    }
}

/* The same where they do not: all of a span at once, or token by token. */
static void send_experts(cot_runner *r, const cot_step *step)
{
    const bool all = step->routed_every == 1;
    int64_t row = 0, token = 0;
    for (int32_t i = 0; i < step->spans; token += step->span[i++].tokens) {
        const cot_span *span = &step->span[i];
        if (r->o.data_parallel && span->home != r->fabric->rank) continue;
        const int64_t first = cot_larger(row, r->rows.home0),
                      end = cot_smaller(row + span->tokens, r->rows.home1), to = token - row;
        for (int64_t l = 0; l < r->c->moe_layers && first < end; l++) {
            if (all) put_experts(r, l, first - r->rows.home0, first + to, end - first);
            for (int64_t t = first; !all && t < end; t++)
                if (cot_step_wants_routing(step, t + to)) put_experts(r, l, t - r->rows.home0, t + to, 1);
        }
        row += span->tokens;
    }
}

void cot_runner_send_routing(cot_runner *r, const cot_step *step)
{
    if (is_shuffled(r))
        send_shuffled_routing(r);
    else
        send_ordered_routing(r, step);
}

void cot_runner_send_popular(cot_runner *r, const cot_step *step)
{
    if (is_shuffled(r))
        send_shuffled_experts(r, step);
    else
        send_experts(r, step);
}
