/* Multi-head latent attention. It has one form for prefill and decode, the absorbed one (DeepSeek-V2, section 2.1): queries are
 * taken to the latent's space, so that attention runs over the latents themselves as over one KV head. */
#include "model/mixer.h"
#include "model/runner_state.h"

/* ---- weights ---- */

/* A half of kv_b of each head: as stored, or the precision's own; packed [k][n] one after the other. */
static cot_packed half_of(const cot_loader_walk *walk, const cot_attention_weights *w, cot_weight weight,
                          int64_t l, int64_t k, int64_t n, size_t *head_bytes)
{
    const cot_weight_rule rule = {walk->precision.attention.kind, cot_format_of(walk->precision.type)};
    const cot_format format = cot_loader_format(walk, rule, weight, l);
    *head_bytes = (size_t)cot_packed_bytes(format, k, n);
    uint8_t *to = cot_arena_take(walk->arena, (size_t)w->heads, *head_bytes);
    for (int64_t h = 0; h < w->heads && to; h++) {
        cot_loader_chain(walk->load);
        cot_loader_pack(walk->load, (cot_weight_piece){weight, l, 0, (w->head0 + h) * n, n, 0, k},
                        to + (size_t)h * *head_bytes, format, n, 0);
    }
    return (cot_packed){.b = to, .format = format, .k = k, .n = n};
}

/* For each head a matrix out of kv_b_proj's rows [nope | v] of kv_lora columns; widened, since one of them is transposed. */
static void walk_absorbed(const cot_loader_walk *walk, cot_attention_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
    int64_t rows, columns;
    if (cot_checkpoint_shape(walk->checkpoint, COT_WEIGHT_K_B, l, 0, &rows, &columns, NULL) == COT_OK) {
        w->absorb = half_of(walk, w, COT_WEIGHT_K_B, l, c->nope_dim, c->kv_lora_rank, &w->absorb_bytes);
        w->expand = half_of(walk, w, COT_WEIGHT_V_B, l, c->kv_lora_rank, c->v_dim, &w->expand_bytes);
        return;
    }
    const cot_format format = cot_format_of(walk->precision.type);
    w->absorb_bytes = (size_t)cot_packed_bytes(format, c->nope_dim, c->kv_lora_rank);
    w->expand_bytes = (size_t)cot_packed_bytes(format, c->kv_lora_rank, c->v_dim);
    uint8_t *absorb = cot_arena_take(walk->arena, (size_t)w->heads, w->absorb_bytes);
    uint8_t *expand = cot_arena_take(walk->arena, (size_t)w->heads, w->expand_bytes);
    for (int64_t h = 0; h < w->heads && absorb; h++) {
        int64_t row0 = (w->head0 + h) * (c->nope_dim + c->v_dim);
        cot_loader_chain(walk->load);
        cot_loader_pack_transposed(
            walk->load, (cot_weight_piece){COT_WEIGHT_KV_B, l, 0, row0, c->nope_dim, 0, c->kv_lora_rank},
            absorb + (size_t)h * w->absorb_bytes, format);
        cot_loader_pack(
            walk->load,
            (cot_weight_piece){COT_WEIGHT_KV_B, l, 0, row0 + c->nope_dim, c->v_dim, 0, c->kv_lora_rank},
            expand + (size_t)h * w->expand_bytes, format, c->v_dim, 0);
    }
    w->absorb = (cot_packed){.b = absorb, .format = format, .k = c->nope_dim, .n = c->kv_lora_rank};
    w->expand = (cot_packed){.b = expand, .format = format, .k = c->kv_lora_rank, .n = c->v_dim};
}

static void mla_walk(const cot_loader_walk *walk, cot_attention_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
    const cot_weight_rule rule = walk->precision.attention;
    cot_loader *load = walk->load;
    int64_t qk = c->nope_dim + c->rope_dim, latent = c->kv_lora_rank + c->rope_dim;
    int64_t q = c->q_lora_rank ? c->q_lora_rank : w->heads * qk, n = q + latent,
            q0 = c->q_lora_rank ? 0 : w->head0 * qk;
    const cot_loader_side sides[] = {cot_loader_rows(c->q_lora_rank ? COT_WEIGHT_Q_A : COT_WEIGHT_Q, q0, q),
                                     cot_loader_rows(COT_WEIGHT_KV_A, 0, latent)};
    w->input = cot_loader_side_by_side(walk, rule, sides, 2, c->hidden, l);
    if (c->qkv_bias) { // q_proj alone has no bias
        float *bias = cot_arena_take(walk->arena, (size_t)n, sizeof *bias);
        if (bias) {
            if (c->q_lora_rank)
                cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_Q_A_BIAS, l, 0, 0, 1, 0, q}, bias);
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_KV_A_BIAS, l, 0, 0, 1, 0, latent}, bias + q);
        }
        w->input_bias = bias;
        w->input_biases = n;
    }
    w->kv_a_norm = cot_loader_vector(walk, COT_WEIGHT_KV_A_NORM, l, 0, c->kv_lora_rank);
    if (c->q_lora_rank) {
        w->q_a_norm = cot_loader_vector(walk, COT_WEIGHT_Q_A_NORM, l, 0, c->q_lora_rank);
        w->q_b = cot_loader_matrix(walk, COT_WEIGHT_Q_B, l, w->head0 * qk, w->heads * qk, 0, c->q_lora_rank,
                                   cot_loader_format(walk, rule, COT_WEIGHT_Q_B, l));
    }
    walk_absorbed(walk, w, l);
    w->output = cot_loader_output(walk, w, COT_WEIGHT_O, l, c->heads, c->v_dim);
}

static cot_mixer_widths mla_widths(const cot_config *c, const cot_attention_weights *heads)
{
    const int64_t q = heads->heads, qk = c->nope_dim + c->rope_dim, key = c->kv_lora_rank + c->rope_dim;
    return (cot_mixer_widths){.input = (c->q_lora_rank ? c->q_lora_rank : q * qk) + key,
                              .output = q * c->v_dim,
                              .queries = q * key,
                              .key_width = key,
                              .value_width = c->kv_lora_rank};
}

static void mla_lay_out(cot_runner *r, cot_arena *arena, const cot_attention_weights *heads)
{
    const cot_config *c = r->c;
    cot_runner_heads *s = &r->heads;
    const size_t n = (size_t)r->o.step_tokens, w = cot_dtype_bytes(r->o.precision.type),
                 q = (size_t)heads->heads, lora = (size_t)c->kv_lora_rank;
    s->q = cot_arena_take(arena, n * q * (size_t)(c->nope_dim + c->rope_dim), sizeof(float));
    s->q_latent = cot_arena_take(arena, n * (size_t)c->q_lora_rank, w);
    s->q_nope = cot_arena_take(arena, n * q * (size_t)c->nope_dim, w);
    s->absorbed = cot_arena_take(arena, n * q * lora, sizeof(float));
    s->values = cot_arena_take(arena, n * q * lora, w);
    s->expanded = cot_arena_take(arena, n * q * (size_t)c->v_dim, sizeof(float));
    s->gemms = cot_arena_take(arena, q, sizeof(cot_gemm));
}

/* ---- rows ---- */

struct latent {
    const cot_attention_weights *w;
    int64_t layer;
};

static void normalise_q_latent(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    float *q = r->heads.input + row * w->input.n;
    int64_t n = r->c->q_lora_rank;
    cot_runner_normalise(r, q, n, r->o.kernels->sum_squares(q, n), n, r->c->mla_norm_eps, w->q_a_norm);
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
    const struct latent *g = context;
    const cot_config *c = r->c;
    int64_t n = c->kv_lora_rank, qk = c->nope_dim + c->rope_dim;
    float *latent = r->heads.input + (row + 1) * g->w->input.n - (n + c->rope_dim);
    cot_runner_normalise(r, latent, n, r->o.kernels->sum_squares(latent, n), n, c->mla_norm_eps,
                         g->w->kv_a_norm);
    cot_runner_rotate(r, latent + n, row);
    cot_kv_store(&r->heads.kv, r->rows.sequence[row], r->rows.position[row], c->layer[g->layer].kept, 0,
                 latent, latent);
    float *q = mla_queries(r, g->w, row);
    for (int64_t h = 0; h < g->w->heads; h++) {
        cot_runner_rotate(r, q + h * qk + c->nope_dim, row);
        r->o.kernels->scale(cot_runner_row(r, r->heads.q_nope, row * g->w->heads + h, c->nope_dim),
                            r->o.precision.type, q + h * qk, 1.0f, c->nope_dim);
    }
}

static void assemble_query(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    const cot_config *c = r->c;
    int64_t n = c->kv_lora_rank, width = n + c->rope_dim, qk = c->nope_dim + c->rope_dim;
    const float scale = cot_runner_query_scale(r, row);
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

static void make_queries(cot_runner *r, const cot_attention_weights *w, int64_t layer)
{
    const cot_config *c = r->c;
    struct latent g = {w, layer};
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

static cot_status mla_mix(cot_runner *r, const cot_attention_weights *w, int64_t layer, cot_error *error)
{
    (void)error;
    if (!w->heads || !r->rows.count) return COT_OK;
    make_queries(r, w, layer);
    cot_runner_attend(r, w, layer, r->c->heads, r->heads.values);
    products_by_head(r, w, r->heads.values, &w->expand, w->expand_bytes, r->heads.expanded);
    cot_runner_rows(r, r->rows.count, narrow_expanded, w);
    return COT_OK;
}

const cot_mixer cot_mixer_mla = {.name = "multi-head latent attention",
                                 .keeps_pages = true,
                                 .cut = cot_attention_heads_cut,
                                 .walk = mla_walk,
                                 .widths = mla_widths,
                                 .lay_out = mla_lay_out,
                                 .mix = mla_mix};
