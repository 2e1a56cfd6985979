/* Attention of one rank's heads: projections, norms, RoPE, the KV cache, and the two forms of heads, GQA and
 * MLA. MLA has one form for prefill and decode, the absorbed one (DeepSeek-V2, section 2.1): queries are
 * taken to the latent's space, so that attention runs over the latents themselves as over one KV head. */
#include "base/integers.h"
#include "kernels/pack.h"
#include "model/runner_state.h"

#include <math.h>

/* ---- memory ---- */

void cot_runner_lay_out_head_weights(cot_runner *r, cot_arena *arena, cot_loader *load)
{
    const cot_config *c = r->c;
    if (r->o.data_parallel) {
        r->heads.weights = r->o.whole->attention;
        return;
    }
    for (int64_t l = 0; l < c->layers; l++)
        cot_attention_heads(&r->heads.own_weights[l], c, r->fabric->rank, r->fabric->ranks);
    cot_attention_weights_walk(r->heads.own_weights, r->o.checkpoint, r->o.precision, arena, load);
    r->heads.weights = r->heads.own_weights;
}

static int64_t value_width(const cot_config *c)
{
    return c->attention == COT_ATTENTION_MLA ? c->kv_lora_rank : c->head_dim;
}

cot_attend_scratch *cot_runner_lay_out_attention(cot_arena *arena, const cot_runner_options *o)
{
    return cot_attend_scratch_lay_out(arena, o->precision.type,
                                      value_width(cot_checkpoint_config(o->checkpoint)), o->threads);
}

void cot_runner_lay_out_heads(cot_runner *r, cot_arena *arena)
{
    const cot_config *c = r->c;
    cot_runner_heads *s = &r->heads;
    bool mla = c->attention == COT_ATTENTION_MLA;
    size_t n = (size_t)r->o.step_tokens, w = cot_dtype_bytes(r->o.precision.type);
    cot_attention_weights heads; // of this rank
    cot_attention_heads(&heads, c, r->o.data_parallel ? 0 : r->fabric->rank,
                        r->o.data_parallel ? 1 : r->fabric->ranks);
    size_t q = (size_t)heads.heads, qk = (size_t)(c->nope_dim + c->rope_dim), lora = (size_t)c->kv_lora_rank;
    size_t columns =
        mla ? (size_t)c->q_lora_rank + (c->q_lora_rank ? 0 : q * qk) + lora + (size_t)c->rope_dim
            : (q * (c->attention_gated ? 2 : 1) + 2 * (size_t)heads.kv_heads) * (size_t)c->head_dim;
    s->kv = (cot_kv){.type = r->o.precision.type,
                     .layers = c->layers,
                     .heads = heads.kv_heads,
                     .key_width = mla ? c->kv_lora_rank + c->rope_dim : c->head_dim,
                     .value_width = value_width(c),
                     .pages = r->o.pages,
                     .sequences = r->o.sequences,
                     .pages_a_sequence = cot_page_count(c->max_context)};
    cot_kv_lay_out(&s->kv, arena);
    size_t key = (size_t)s->kv.key_width, value = (size_t)s->kv.value_width;
    s->attend =
        cot_attend_lay_out(arena, r->o.attention_scratch, heads.kv_heads, heads.heads, r->o.step_tokens);
    s->input = cot_arena_take(arena, n * columns, sizeof(float));
    s->queries = cot_arena_take(arena, n * q * key, w);
    s->values = s->output = cot_arena_take(arena, n * q * value, w);
    if (mla) {
        s->q = cot_arena_take(arena, n * q * qk, sizeof(float));
        s->q_latent = cot_arena_take(arena, n * (size_t)c->q_lora_rank, w);
        s->q_nope = cot_arena_take(arena, n * q * (size_t)c->nope_dim, w);
        s->absorbed = cot_arena_take(arena, n * q * lora, sizeof(float));
        s->expanded = cot_arena_take(arena, n * q * (size_t)c->v_dim, sizeof(float));
        s->output = cot_arena_take(arena, n * q * (size_t)c->v_dim, w);
    }
    s->width_sums = cot_arena_take(arena, 2 * n, sizeof(float));
    s->cosines = cot_arena_take(arena, n * (size_t)c->rope_width / 2, sizeof(float));
    s->sines = cot_arena_take(arena, n * (size_t)c->rope_width / 2, sizeof(float));
    s->gemms = cot_arena_take(arena, (size_t)cot_larger(heads.heads, 1), sizeof(cot_gemm));
    s->runs = cot_arena_take(arena, n, sizeof *s->runs);
}

/* ---- rows ---- */

/* RMSNorm in place over n elements whose squares sum to `sum` over `width` elements. */
static void normalise(const cot_runner *r, float *x, int64_t n, float sum, int64_t width, float epsilon,
                      const float *weight)
{
    r->o.kernels->scale_by(x, x, 1.0f / sqrtf(sum / (float)width + epsilon), weight, n);
}

static void rotate(const cot_runner *r, float *head, int64_t row)
{
    int64_t half = r->c->rope_width / 2;
    r->o.kernels->rope(head, r->heads.cosines + row * half, r->heads.sines + row * half, half,
                       r->c->rope_interleaved);
}

/* What queries at the row's position are multiplied by. */
static float query_scale(const cot_runner *r, int64_t row)
{
    const cot_config *c = r->c;
    return c->query_beta == 0
               ? 1
               : (float)(1 + c->query_beta * log1p(floor(r->rows.position[row] / c->query_tokens)));
}

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
    void *typed = cot_runner_row(r, r->heads.values, row, n);
    r->o.kernels->to_f32(value, typed, r->o.precision.type, n);
    for (int64_t i = 0; i < n; i++) value[i] *= 1 / (1 + expf(-gate[i]));
    r->o.kernels->scale(typed, r->o.precision.type, value, 1.0f, n);
}

static void add_bias(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    r->o.kernels->add(r->heads.input + row * w->input.n, w->input_bias, COT_F32, w->input_biases);
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
        normalise(r, q + h * d, d, r->o.kernels->sum_squares(q + h * d, d), d, r->c->norm_eps,
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
        normalise(r, q, w->heads * d, r->heads.width_sums[2 * row], c->heads * d, c->norm_eps, w->q_norm);
        normalise(r, k, w->kv_heads * d, r->heads.width_sums[2 * row + 1], c->kv_heads * d, c->norm_eps,
                  w->k_norm);
    }
    if (!c->qk_norm_late) normalise_heads(r, w, q);
    if (c->clip_qkv > 0) clip(q, w->input.n, c->clip_qkv);
    for (int64_t h = 0; h < w->heads + w->kv_heads && !c->layer[g->layer].unrotated; h++)
        rotate(r, q + h * d, row);
    if (c->qk_norm_late) normalise_heads(r, w, q);
    r->o.kernels->scale(cot_runner_row(r, r->heads.queries, row, w->heads * d), r->o.precision.type, q,
                        query_scale(r, row), w->heads * d);
    for (int64_t h = 0; h < w->kv_heads; h++)
        cot_kv_store(&r->heads.kv, r->rows.sequence[row], r->rows.position[row], g->layer, h, k + h * d,
                     v + h * d);
}

static cot_status gqa_queries(cot_runner *r, const cot_attention_weights *w, int64_t layer, cot_error *error)
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

/* ---- MLA ---- */

static void normalise_q_latent(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    float *q = r->heads.input + row * w->input.n;
    int64_t n = r->c->q_lora_rank;
    normalise(r, q, n, r->o.kernels->sum_squares(q, n), n, r->c->mla_norm_eps, w->q_a_norm);
    r->o.kernels->scale(cot_runner_row(r, r->heads.q_latent, row, n), r->o.precision.type, q, 1.0f, n);
}

/* Where row's queries [heads][nope + rope] are. */
static float *mla_queries(const cot_runner *r, const cot_attention_weights *w, int64_t row)
{
    int64_t qk = r->c->nope_dim + r->c->rope_dim;
    return r->c->q_lora_rank ? r->heads.q + row * w->heads * qk : r->heads.input + row * w->input.n;
}

static void store_latent(cot_runner *r, int64_t row, const void *context)
{
    const struct gqa *g = context;
    const cot_config *c = r->c;
    int64_t n = c->kv_lora_rank, qk = c->nope_dim + c->rope_dim;
    float *latent = r->heads.input + (row + 1) * g->w->input.n - (n + c->rope_dim);
    normalise(r, latent, n, r->o.kernels->sum_squares(latent, n), n, c->mla_norm_eps, g->w->kv_a_norm);
    rotate(r, latent + n, row);
    cot_kv_store(&r->heads.kv, r->rows.sequence[row], r->rows.position[row], g->layer, 0, latent, latent);
    float *q = mla_queries(r, g->w, row);
    for (int64_t h = 0; h < g->w->heads; h++) {
        rotate(r, q + h * qk + c->nope_dim, row);
        r->o.kernels->scale(cot_runner_row(r, r->heads.q_nope, row * g->w->heads + h, c->nope_dim),
                            r->o.precision.type, q + h * qk, 1.0f, c->nope_dim);
    }
}

static void assemble_query(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    const cot_config *c = r->c;
    int64_t n = c->kv_lora_rank, width = n + c->rope_dim, qk = c->nope_dim + c->rope_dim;
    const float scale = query_scale(r, row);
    for (int64_t h = 0; h < w->heads; h++) {
        int64_t head = row * w->heads + h;
        uint8_t *to = cot_runner_row(r, r->heads.queries, head, width);
        r->o.kernels->scale(to, r->o.precision.type, r->heads.absorbed + head * n, scale, n);
        r->o.kernels->scale(cot_runner_row(r, to, n, 1), r->o.precision.type,
                            mla_queries(r, w, row) + h * qk + c->nope_dim, scale, c->rope_dim);
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
        cot_gemm *g = &r->heads.gemms[h];
        *g = cot_packed_gemm(&head, r->o.precision.type, r->rows.count, 0, b->n);
        g->a = (const uint8_t *)a + (size_t)(h * b->k) * element;
        g->a_stride = w->heads * b->k;
        g->c = c + h * b->n;
        g->c_stride = w->heads * b->n;
    }
    cot_matmul(r->o.kernels, r->o.pool, r->heads.gemms, w->heads);
}

static void mla_make_queries(cot_runner *r, const cot_attention_weights *w, int64_t layer)
{
    const cot_config *c = r->c;
    struct gqa g = {w, layer};
    if (c->q_lora_rank) {
        cot_runner_rows(r, r->rows.count, normalise_q_latent, w);
        cot_runner_product(r, r->heads.q_latent, r->rows.count, &w->q_b, r->heads.q);
    }
    cot_runner_rows(r, r->rows.count, store_latent, &g);
    products_by_head(r, w, r->heads.q_nope, &w->absorb, w->absorb_bytes, r->heads.absorbed);
    cot_runner_rows(r, r->rows.count, assemble_query, w);
}

static void narrow_expanded(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    int64_t n = w->heads * r->c->v_dim;
    r->o.kernels->scale(cot_runner_row(r, r->heads.output, row, n), r->o.precision.type,
                        r->heads.expanded + row * n, 1.0f, n);
}

/* ---- both ---- */

cot_status cot_runner_attention(cot_runner *r, int64_t layer, cot_error *error)
{
    const cot_config *c = r->c;
    const cot_attention_weights *w = &r->heads.weights[layer];
    bool mla = c->attention == COT_ATTENTION_MLA;
    cot_status status = COT_OK;
    if (w->heads && r->rows.count) {
        cot_runner_norm(r, &r->o.whole->layers[layer].attention_norm, r->rows.x, r->rows.count);
        cot_runner_products(r, r->rows.typed, r->rows.count, &w->input, r->heads.input);
        if (w->input_bias) cot_runner_rows(r, r->rows.count, add_bias, w);
    }
    if (!mla)
        status = gqa_queries(r, w, layer, error);
    else if (w->heads && r->rows.count)
        mla_make_queries(r, w, layer);
    if (status != COT_OK || !r->rows.count) return status;
    if (!w->heads) {
        for (int64_t i = 0; i < r->rows.count * c->hidden; i++) r->rows.branch[i] = 0;
        return COT_OK;
    }
    cot_attend_run(r->heads.attend, &(cot_attend_args){.kernels = r->o.kernels,
                                                       .pool = r->o.pool,
                                                       .kv = &r->heads.kv,
                                                       .weights = w,
                                                       .group = mla ? c->heads : c->heads / c->kv_heads,
                                                       .layer = layer,
                                                       .window = c->layer[layer].window,
                                                       .scale = c->softmax_scale,
                                                       .runs = r->heads.runs,
                                                       .run_count = r->heads.run_count,
                                                       .q = r->heads.queries,
                                                       .out = r->heads.values});
    if (c->attention_gated) cot_runner_rows(r, r->rows.count, gate_values, w);
    if (mla) {
        products_by_head(r, w, r->heads.values, &w->expand, w->expand_bytes, r->heads.expanded);
        cot_runner_rows(r, r->rows.count, narrow_expanded, w);
    }
    cot_runner_product(r, r->heads.output, r->rows.count, &w->output, r->rows.branch);
    return COT_OK;
}
