/* Grouped-query attention, over all keys or a window of them: heads of one width, several of which read one KV head. */
#include "model/mixer.h"
#include "model/runner_state.h"

#include <math.h>

/* ---- weights ---- */

/* q, k, v of the heads side by side: one product. */
static void gqa_walk(const cot_loader_walk *walk, cot_attention_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
    cot_loader *load = walk->load;
    int64_t d = c->head_dim, q = w->heads * d, kv = w->kv_heads * d, n = q + 2 * kv, q0 = w->head0 * d,
            kv0 = w->kv_head0 * d;
    const cot_loader_side k = cot_loader_rows(COT_WEIGHT_K, kv0, kv),
                          v = cot_loader_rows(COT_WEIGHT_V, kv0, kv),
                          apart[] = {cot_loader_rows(COT_WEIGHT_Q, q0, q), k, v,
                                     cot_loader_rows(COT_WEIGHT_ATTENTION_GATE, q0, q)},
                          together[] = {{COT_WEIGHT_Q, 0, q, d, w->head0, 1, 2 * d},
                                        k,
                                        v,
                                        {COT_WEIGHT_Q, d, q, d, w->head0, 1, 2 * d}};
    w->input =
        cot_loader_side_by_side(walk, walk->precision.attention, c->gates_in_queries ? together : apart,
                                c->attention_gated ? 4 : 3, c->hidden, l);
    if (c->qkv_bias) {
        float *bias = cot_arena_take(walk->arena, (size_t)n, sizeof *bias);
        if (bias) {
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_Q_BIAS, l, 0, 0, 1, q0, q}, bias);
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_K_BIAS, l, 0, 0, 1, kv0, kv}, bias + q);
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_V_BIAS, l, 0, 0, 1, kv0, kv}, bias + q + kv);
        }
        w->input_bias = bias;
        w->input_biases = n;
    }
    if (c->qk_norm == COT_QK_NORM_HEAD) {
        w->q_norm = cot_loader_vector(walk, COT_WEIGHT_Q_NORM, l, 0, d);
        w->k_norm = cot_loader_vector(walk, COT_WEIGHT_K_NORM, l, 0, d);
    } else if (c->qk_norm == COT_QK_NORM_WIDTH) {
        w->q_norm = cot_loader_vector(walk, COT_WEIGHT_Q_NORM, l, q0, q);
        w->k_norm = cot_loader_vector(walk, COT_WEIGHT_K_NORM, l, kv0, kv);
    }
    if (c->sinks) w->sinks = cot_loader_vector(walk, COT_WEIGHT_SINKS, l, w->head0, w->heads);
    w->output = cot_loader_output(walk, w, COT_WEIGHT_O, l, c->heads, d);
}

static cot_mixer_widths gqa_widths(const cot_config *c, const cot_attention_weights *heads)
{
    const int64_t d = c->head_dim, q = heads->heads * d;
    return (cot_mixer_widths){.input = q * (c->attention_gated ? 2 : 1) + 2 * heads->kv_heads * d,
                              .output = q,
                              .queries = q,
                              .key_width = d,
                              .value_width = d};
}

/* ---- rows ---- */

static void clip(float *x, int64_t n, float limit)
{
    for (int64_t i = 0; i < n; i++) x[i] = fminf(fmaxf(x[i], -limit), limit);
}

/* What heads give is multiplied by a sigmoid of the gates behind q, k and v. */
static void gate_values(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    const int64_t n = w->heads * r->c->head_dim;
    float *gate = r->heads.input + (row + 1) * w->input.n - n, *value = r->heads.input + row * w->input.n;
    void *typed = cot_runner_row(r, r->heads.output, row, n);
    r->o.kernels->to_f32(value, typed, r->o.precision.type, n);
    for (int64_t i = 0; i < n; i++) value[i] *= 1 / (1 + expf(-gate[i]));
    r->o.kernels->scale(typed, r->o.precision.type, value, 1.0f, n);
}

struct gqa {
    const cot_attention_weights *w;
    int64_t layer;
};

/* A KV head counts once in a whole-width norm: on the rank of the first query head that reads it. */
static int64_t owned_kv_begin(const cot_runner *r, const cot_attention_weights *w)
{
    int64_t group = r->c->heads / r->c->kv_heads;
    return w->heads && w->kv_head0 * group < w->head0 ? 1 : 0;
}

static void square_widths(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = ((const struct gqa *)context)->w;
    int64_t d = r->c->head_dim, skip = owned_kv_begin(r, w);
    const float *q = r->heads.input + row * w->input.n, *k = q + w->heads * d;
    r->heads.width_sums[2 * row] = w->heads ? r->o.kernels->sum_squares(q, w->heads * d) : 0;
    r->heads.width_sums[2 * row + 1] =
        w->kv_heads > skip ? r->o.kernels->sum_squares(k + skip * d, (w->kv_heads - skip) * d) : 0;
}

/* Of each head that has a norm of its own: queries, then keys behind them. */
static void normalise_heads(const cot_runner *r, const cot_attention_weights *w, float *q)
{
    const int64_t d = r->c->head_dim;
    for (int64_t h = 0; h < w->heads + w->kv_heads && r->c->qk_norm == COT_QK_NORM_HEAD; h++)
        cot_runner_normalise(r, q + h * d, d, r->o.kernels->sum_squares(q + h * d, d), d, r->c->norm_eps,
                             h < w->heads ? w->q_norm : w->k_norm);
}

static void finish_gqa_row(cot_runner *r, int64_t row, const void *context)
{
    const struct gqa *g = context;
    const cot_attention_weights *w = g->w;
    const cot_config *c = r->c;
    int64_t d = c->head_dim;
    float *q = r->heads.input + row * w->input.n, *k = q + w->heads * d, *v = k + w->kv_heads * d;
    if (c->qk_norm == COT_QK_NORM_WIDTH) {
        cot_runner_normalise(r, q, w->heads * d, r->heads.width_sums[2 * row], c->heads * d, c->norm_eps,
                             w->q_norm);
        cot_runner_normalise(r, k, w->kv_heads * d, r->heads.width_sums[2 * row + 1], c->kv_heads * d,
                             c->norm_eps, w->k_norm);
    }
    if (!c->qk_norm_late) normalise_heads(r, w, q);
    if (c->clip_qkv > 0) clip(q, w->input.n, c->clip_qkv);
    for (int64_t h = 0; h < w->heads + w->kv_heads && !c->layer[g->layer].unrotated; h++)
        cot_runner_rotate(r, q + h * d, row);
    if (c->qk_norm_late) normalise_heads(r, w, q);
    r->o.kernels->scale(cot_runner_row(r, r->heads.queries, row, w->heads * d), r->o.precision.type, q,
                        cot_runner_query_scale(r, row), w->heads * d);
    for (int64_t h = 0; h < w->kv_heads; h++)
        cot_kv_store(&r->heads.kv, r->rows.sequence[row], r->rows.position[row], c->layer[g->layer].kept, h,
                     k + h * d, v + h * d);
}

static cot_status make_queries(cot_runner *r, const cot_attention_weights *w, int64_t layer, cot_error *error)
{
    struct gqa g = {w, layer};
    cot_status status = COT_OK;
    if (r->c->qk_norm == COT_QK_NORM_WIDTH) {
        cot_runner_rows(r, r->rows.count, square_widths, &g);
        if (cot_runner_splits_heads(r))
            status = r->o.pipeline.direct
                         ? cot_runner_add_up(r, r->heads.width_sums, 2 * r->rows.count, error)
                         : cot_allreduce(r->collectives, r->heads.width_sums, 2 * r->rows.count, COT_F32,
                                         COT_PHASE_METADATA, error);
    }
    if (status == COT_OK && w->heads) cot_runner_rows(r, r->rows.count, finish_gqa_row, &g);
    return status;
}

static cot_status gqa_mix(cot_runner *r, const cot_attention_weights *w, int64_t layer, cot_error *error)
{
    const cot_status status = make_queries(r, w, layer, error);
    if (status != COT_OK || !w->heads || !r->rows.count) return status;
    cot_runner_attend(r, w, layer, r->c->heads / r->c->kv_heads, r->heads.output);
    if (r->c->attention_gated) cot_runner_rows(r, r->rows.count, gate_values, w);
    return COT_OK;
}

const cot_mixer cot_mixer_full = {.name = "full attention",
                                  .keeps_pages = true,
                                  .cut = cot_attention_heads_cut,
                                  .walk = gqa_walk,
                                  .widths = gqa_widths,
                                  .mix = gqa_mix};

/* Pages that no token sees any more stay where they are. */
const cot_mixer cot_mixer_sliding = {.name = "sliding attention",
                                     .keeps_pages = true,
                                     .cut = cot_attention_heads_cut,
                                     .walk = gqa_walk,
                                     .widths = gqa_widths,
                                     .mix = gqa_mix};
