/* Attention of one rank's heads: projections, norms, RoPE, the KV cache, and the two forms of heads, GQA and
 * MLA. MLA has one form for prefill and decode, the absorbed one (DeepSeek-V2, section 2.1): queries are
 * taken to the latent's space, so that attention runs over the latents themselves as over one KV head. */
#include "kernels/pack.h"
#include "model/runner_state.h"

#include <math.h>

/* RMSNorm in place over n elements whose squares sum to `sum` over `width` elements. */
static void normalise(const cot_runner *r, float *x, int64_t n, float sum, int64_t width, float epsilon,
                      const float *weight)
{
    r->o.kernels->scale_by(x, x, 1.0f / sqrtf(sum / (float)width + epsilon), weight, n);
}

static void rotate(const cot_runner *r, float *head, int64_t row)
{
    int64_t half = r->c->rope_width / 2;
    r->o.kernels->rope(head, r->s.cosines + row * half, r->s.sines + row * half, half,
                       r->c->rope_interleaved);
}

static void clip(float *x, int64_t n, float limit)
{
    for (int64_t i = 0; i < n; i++) x[i] = fminf(fmaxf(x[i], -limit), limit);
}

static void add_bias(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    r->o.kernels->add(r->s.input + row * w->input.n, w->input_bias, COT_F32, w->input.n);
}

/* ---- GQA ---- */

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
    const float *q = r->s.input + row * w->input.n, *k = q + w->heads * d;
    r->s.width_sums[2 * row] = w->heads ? r->o.kernels->sum_squares(q, w->heads * d) : 0;
    r->s.width_sums[2 * row + 1] =
        w->kv_heads > skip ? r->o.kernels->sum_squares(k + skip * d, (w->kv_heads - skip) * d) : 0;
}

static void finish_gqa_row(cot_runner *r, int64_t row, const void *context)
{
    const struct gqa *g = context;
    const cot_attention_weights *w = g->w;
    const cot_config *c = r->c;
    int64_t d = c->head_dim;
    float *q = r->s.input + row * w->input.n, *k = q + w->heads * d, *v = k + w->kv_heads * d;
    if (c->qk_norm == COT_QK_NORM_WIDTH) {
        normalise(r, q, w->heads * d, r->s.width_sums[2 * row], c->heads * d, c->norm_eps, w->q_norm);
        normalise(r, k, w->kv_heads * d, r->s.width_sums[2 * row + 1], c->kv_heads * d, c->norm_eps,
                  w->k_norm);
    }
    for (int64_t h = 0; h < w->heads + w->kv_heads && c->qk_norm == COT_QK_NORM_HEAD; h++)
        normalise(r, q + h * d, d, r->o.kernels->sum_squares(q + h * d, d), d, c->norm_eps,
                  h < w->heads ? w->q_norm : w->k_norm);
    if (c->clip_qkv > 0) clip(q, w->input.n, c->clip_qkv);
    for (int64_t h = 0; h < w->heads + w->kv_heads; h++) rotate(r, q + h * d, row);
    r->o.kernels->scale(cot_runner_row(r, r->s.queries, row, w->heads * d), r->o.precision.type, q, 1.0f,
                        w->heads * d);
    for (int64_t h = 0; h < w->kv_heads; h++)
        cot_kv_store(&r->kv, r->s.sequence[row], r->s.position[row], g->layer, h, k + h * d, v + h * d);
}

static cot_status gqa_queries(cot_runner *r, const cot_attention_weights *w, int64_t layer, cot_error *error)
{
    struct gqa g = {w, layer};
    cot_status status = COT_OK;
    if (r->c->qk_norm == COT_QK_NORM_WIDTH) {
        cot_runner_rows(r, r->s.rows, square_widths, &g);
        if (cot_runner_splits_heads(r))
            status = r->o.pipeline.direct ? cot_runner_add_up(r, r->s.width_sums, 2 * r->s.rows, error)
                                          : cot_allreduce(r->collectives, r->s.width_sums, 2 * r->s.rows,
                                                          COT_F32, COT_PHASE_METADATA, error);
    }
    if (status == COT_OK && w->heads) cot_runner_rows(r, r->s.rows, finish_gqa_row, &g);
    return status;
}

/* ---- MLA ---- */

static void normalise_q_latent(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    float *q = r->s.input + row * w->input.n;
    int64_t n = r->c->q_lora_rank;
    normalise(r, q, n, r->o.kernels->sum_squares(q, n), n, r->c->mla_norm_eps, w->q_a_norm);
    r->o.kernels->scale(cot_runner_row(r, r->s.q_latent, row, n), r->o.precision.type, q, 1.0f, n);
}

/* Where row's queries [heads][nope + rope] are. */
static float *mla_queries(const cot_runner *r, const cot_attention_weights *w, int64_t row)
{
    int64_t qk = r->c->nope_dim + r->c->rope_dim;
    return r->c->q_lora_rank ? r->s.q + row * w->heads * qk : r->s.input + row * w->input.n;
}

static void store_latent(cot_runner *r, int64_t row, const void *context)
{
    const struct gqa *g = context;
    const cot_config *c = r->c;
    int64_t n = c->kv_lora_rank, qk = c->nope_dim + c->rope_dim;
    float *latent = r->s.input + (row + 1) * g->w->input.n - (n + c->rope_dim);
    normalise(r, latent, n, r->o.kernels->sum_squares(latent, n), n, c->mla_norm_eps, g->w->kv_a_norm);
    rotate(r, latent + n, row);
    cot_kv_store(&r->kv, r->s.sequence[row], r->s.position[row], g->layer, 0, latent, latent);
    float *q = mla_queries(r, g->w, row);
    for (int64_t h = 0; h < g->w->heads; h++) {
        rotate(r, q + h * qk + c->nope_dim, row);
        r->o.kernels->scale(cot_runner_row(r, r->s.q_nope, row * g->w->heads + h, c->nope_dim),
                            r->o.precision.type, q + h * qk, 1.0f, c->nope_dim);
    }
}

static void assemble_query(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    const cot_config *c = r->c;
    int64_t n = c->kv_lora_rank, width = n + c->rope_dim, qk = c->nope_dim + c->rope_dim;
    for (int64_t h = 0; h < w->heads; h++) {
        int64_t head = row * w->heads + h;
        uint8_t *to = cot_runner_row(r, r->s.queries, head, width);
        r->o.kernels->scale(to, r->o.precision.type, r->s.absorbed + head * n, 1.0f, n);
        r->o.kernels->scale(cot_runner_row(r, to, n, 1), r->o.precision.type,
                            mla_queries(r, w, row) + h * qk + c->nope_dim, 1.0f, c->rope_dim);
    }
}

/* One product a head over all rows: A [rows][heads][k] typed, C [rows][heads][n]; `b` of the first head. */
static void products_by_head(cot_runner *r, const cot_attention_weights *w, const void *a,
                             const cot_packed *b, size_t head_bytes, float *c)
{
    const size_t element = cot_dtype_bytes(r->o.precision.type);
    for (int64_t h = 0; h < w->heads; h++) {
        cot_packed head = *b;
        head.b += (size_t)h * head_bytes;
        cot_gemm *g = &r->s.gemms[h];
        *g = cot_packed_gemm(&head, r->o.precision.type, r->s.rows, 0, b->n);
        g->a = (const uint8_t *)a + (size_t)(h * b->k) * element;
        g->a_stride = w->heads * b->k;
        g->c = c + h * b->n;
        g->c_stride = w->heads * b->n;
    }
    cot_matmul(r->o.kernels, r->o.pool, r->s.gemms, w->heads);
}

static void mla_make_queries(cot_runner *r, const cot_attention_weights *w, int64_t layer)
{
    const cot_config *c = r->c;
    struct gqa g = {w, layer};
    if (c->q_lora_rank) {
        cot_runner_rows(r, r->s.rows, normalise_q_latent, w);
        cot_runner_product(r, r->s.q_latent, r->s.rows, &w->q_b, r->s.q);
    }
    cot_runner_rows(r, r->s.rows, store_latent, &g);
    products_by_head(r, w, r->s.q_nope, &w->absorb, w->absorb_bytes, r->s.absorbed);
    cot_runner_rows(r, r->s.rows, assemble_query, w);
}

static void narrow_expanded(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    int64_t n = w->heads * r->c->v_dim;
    r->o.kernels->scale(cot_runner_row(r, r->s.output, row, n), r->o.precision.type, r->s.expanded + row * n,
                        1.0f, n);
}

/* ---- both ---- */

cot_status cot_runner_attention(cot_runner *r, int64_t layer, cot_error *error)
{
    const cot_config *c = r->c;
    const cot_attention_weights *w = &r->attention[layer];
    bool mla = c->attention == COT_ATTENTION_MLA;
    cot_status status = COT_OK;
    if (w->heads && r->s.rows) {
        cot_runner_norm(r, r->o.whole->layers[layer].attention_norm, r->s.x, r->s.rows);
        cot_runner_product(r, r->s.typed, r->s.rows, &w->input, r->s.input);
        if (w->input_bias) cot_runner_rows(r, r->s.rows, add_bias, w);
    }
    if (!mla)
        status = gqa_queries(r, w, layer, error);
    else if (w->heads && r->s.rows)
        mla_make_queries(r, w, layer);
    if (status != COT_OK || !r->s.rows) return status;
    if (!w->heads) {
        for (int64_t i = 0; i < r->s.rows * c->hidden; i++) r->s.branch[i] = 0;
        return COT_OK;
    }
    cot_attend_run(r->attend, &(cot_attend_args){.kernels = r->o.kernels,
                                                 .pool = r->o.pool,
                                                 .kv = &r->kv,
                                                 .weights = w,
                                                 .group = mla ? c->heads : c->heads / c->kv_heads,
                                                 .layer = layer,
                                                 .window = c->layer[layer].window,
                                                 .scale = c->softmax_scale,
                                                 .runs = r->s.runs,
                                                 .run_count = r->s.run_count,
                                                 .q = r->s.queries,
                                                 .out = r->s.values});
    if (mla) {
        products_by_head(r, w, r->s.values, &w->expand, w->expand_bytes, r->s.expanded);
        cot_runner_rows(r, r->s.rows, narrow_expanded, w);
    }
    cot_runner_product(r, r->s.output, r->s.rows, &w->output, r->s.branch);
    return COT_OK;
}
