#include "harness/moe/world.h"

#include "harness/cmocka.h"
#include "harness/moe/near.h"

#include <math.h>
#include <stdlib.h>

struct world world_new(const cot_moe_operator *op, const cot_moe_options *options, const cot_gate *rules,
                       bool with_bias, bool with_correction, bool shared_gated, int64_t tokens,
                       struct draw *draw)
{
    struct world w = {.op = op, .options = *options, .tokens = tokens};
    w.options.combine_type = options->combine == COT_COMBINE_REDUCED ? COT_F32 : options->expert.type;
    w.options.threads = 4;
    int64_t hidden = options->expert.hidden;
    assert_true(tokens <= WORLD_TOKENS && options->experts <= WORLD_EXPERTS);
    if (!w.options.kernels) assert_int_equal(cot_kernels_choose(&w.options.kernels, NULL, NULL), COT_OK);
    w.options.tokens = tokens ? tokens : 1;
    w.gate = oracle_gate_new(rules, with_bias, with_correction, draw);
    w.experts = calloc((size_t)options->experts, sizeof *w.experts);
    for (int64_t e = 0; e < options->experts; e++) w.experts[e] = oracle_ffn_new(&options->expert, draw);
    if (options->shared.intermediate) w.shared = oracle_ffn_new(&options->shared, draw);
    if (shared_gated) w.shared_gate = draw_floats(draw, hidden, 1);
    w.x = draw_floats(draw, tokens * hidden, 1);
    return w;
}

void world_solve(struct world *w)
{
    int64_t hidden = w->options.expert.hidden, top_k = w->options.top_k;
    cot_dtype type = w->options.expert.type;
    free(w->y), free(w->sure);
    w->y = calloc((size_t)(w->tokens * hidden) + 1, sizeof *w->y);
    w->sure = calloc((size_t)w->tokens + 1, sizeof *w->sure);
    double *row = calloc((size_t)hidden, sizeof *row), largest = 0;
    for (int64_t t = 0; t < w->tokens; t++) {
        int64_t experts[COT_MAX_TOP_K];
        double weights[COT_MAX_TOP_K], *y = w->y + t * hidden, logit = 0;
        const float *x = w->x + t * hidden;
        w->sure[t] = oracle_route(experts, weights, &w->gate, x);
        for (int64_t k = 0; k < top_k; k++) {
            oracle_ffn_apply(row, &w->experts[experts[k]], x);
            for (int64_t h = 0; h < hidden; h++) {
                y[h] += rounded(weights[k] * row[h], type);
                largest = fmax(largest, fabs(weights[k] * row[h]));
            }
        }
        if (!w->options.shared.intermediate) continue;
        oracle_ffn_apply(row, &w->shared, x);
        for (int64_t h = 0; h < hidden && w->shared_gate; h++)
            logit += (double)x[h] * (double)w->shared_gate[h];
        for (int64_t h = 0; h < hidden; h++) {
            row[h] *= w->shared_gate ? 1 / (1 + exp(-logit)) : 1;
            y[h] += row[h];
            largest = fmax(largest, fabs(row[h]));
        }
    }
    w->tolerance = (1 + largest) * (type == COT_BF16 ? 0.02 : 3e-5);
    free(row);
}

void world_free(struct world *w)
{
    for (int64_t e = 0; e < w->options.experts; e++) oracle_ffn_free(&w->experts[e]);
    oracle_ffn_free(&w->shared);
    oracle_gate_free(&w->gate);
    free(w->experts), free(w->shared_gate), free(w->x), free(w->y), free(w->sure);
}
