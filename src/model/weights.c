#include "model/weights.h"

cot_ffn_shape cot_model_expert_shape(const cot_config *config, cot_precision precision)
{
    return (cot_ffn_shape){.type = precision.type,
                           .rounded = precision.rounded,
                           .up = precision.experts,
                           .down = precision.experts,
                           .hidden = config->hidden,
                           .intermediate = config->moe_intermediate,
                           .biased = config->expert_bias,
                           .limit = config->swiglu_limit,
                           .alpha = config->swiglu_alpha};
}

cot_ffn_shape cot_model_shared_shape(const cot_config *config, cot_precision precision)
{
    return (cot_ffn_shape){.type = precision.type,
                           .rounded = precision.rounded,
                           .up = precision.shared,
                           .down = precision.shared,
                           .hidden = config->hidden,
                           .intermediate = config->shared_intermediate,
                           .biased = config->ffn_bias};
}

cot_ffn_shape cot_model_dense_shape(const cot_config *config, cot_precision precision)
{
    return (cot_ffn_shape){.type = precision.type,
                           .rounded = precision.rounded,
                           .up = precision.dense,
                           .down = precision.dense,
                           .hidden = config->hidden,
                           .intermediate = config->dense_intermediate,
                           .biased = config->ffn_bias};
}

void cot_attention_heads(cot_attention_weights *w, const cot_config *config, int rank, int ranks)
{
    *w = (cot_attention_weights){.head0 = cot_share_begin(config->heads, rank, ranks)};
    w->heads = cot_share_begin(config->heads, rank + 1, ranks) - w->head0;
    if (!w->heads) return;
    int64_t group = config->heads / config->kv_heads;
    w->kv_head0 = w->head0 / group;
    w->kv_heads = (w->head0 + w->heads - 1) / group + 1 - w->kv_head0;
}

/* What a walk goes over, and where to. */
struct walk {
    const cot_checkpoint *checkpoint;
    const cot_config *config;
    cot_precision precision;
    cot_arena *arena;
    cot_loader *load;
};

static struct walk walk_of(const cot_checkpoint *checkpoint, cot_precision precision, cot_arena *arena,
                           cot_loader *load)
{
    return (struct walk){checkpoint, cot_checkpoint_config(checkpoint), precision, arena, load};
}

/* Rows of a large matrix that one thread packs at a time. */
enum { ROWS_A_GROUP = 64 * COT_PANEL };

/* A vector of `columns` floats in fp32. */
static float *vector(const struct walk *walk, cot_weight weight, int64_t layer, int64_t column0,
                     int64_t columns)
{
    float *to = cot_arena_take(walk->arena, (size_t)columns, sizeof *to);
    cot_loader_read(walk->load, (cot_weight_piece){weight, layer, 0, 0, 1, column0, columns}, to);
    return to;
}

/* Room for a matrix [k][n]. */
static cot_packed room_for(const struct walk *walk, cot_format format, int64_t k, int64_t n)
{
    return (cot_packed){.b = cot_arena_take(walk->arena, 1, (size_t)cot_packed_bytes(format, k, n)),
                        .format = format,
                        .rounded = walk->precision.rounded &&
                                   cot_format_multiplies(format, walk->precision.type, true),
                        .k = k,
                        .n = n};
}

/* The piece becomes columns n0 .. n0 + rows - 1 of a matrix, which only who loads it writes. */
static void pack(const struct walk *walk, const cot_packed *to, cot_weight_piece piece, int64_t n0)
{
    cot_loader_pack(walk->load, piece, (uint8_t *)(uintptr_t)to->b, to->format, to->n, n0);
}

/* A matrix [rows][columns] packed whole, in several groups where it is large. */
static cot_packed matrix(const struct walk *walk, cot_weight weight, int64_t layer, int64_t row0,
                         int64_t rows, int64_t column0, int64_t columns, cot_format format)
{
    const cot_packed to = room_for(walk, format, columns, rows);
    for (int64_t r = 0; r < rows; r += ROWS_A_GROUP) {
        int64_t n = rows - r < ROWS_A_GROUP ? rows - r : ROWS_A_GROUP;
        cot_loader_chain(walk->load);
        pack(walk, &to, (cot_weight_piece){weight, layer, 0, row0 + r, n, column0, columns}, r);
    }
    cot_loader_chain(walk->load);
    return to;
}

/* The format of a matrix of `count` weights side by side. */
static cot_format format_of(const struct walk *walk, cot_weight_rule rule, const cot_weight *weights,
                            int count, int64_t layer)
{
    return cot_weight_format(&walk->precision, rule,
                             cot_checkpoint_format(walk->checkpoint, weights, count, layer));
}

/* That of attention's output, of which some heads' columns may be wanted. */
static cot_format output_format(const struct walk *walk, const cot_attention_weights *w, int64_t layer,
                                int64_t width)
{
    static const cot_weight output = COT_WEIGHT_O;
    cot_format stored = cot_checkpoint_format(walk->checkpoint, &output, 1, layer);
    if (w->heads < walk->config->heads) stored = cot_format_cut(stored, width);
    return cot_weight_format(&walk->precision, walk->precision.attention, stored);
}

/* A feed-forward network: three matrices and perhaps three biases from `first` on, in the order of cot_ffn_part. */
static void network(const cot_ffn_shape *shape, const cot_moe_weights *weights, cot_weight first,
                    int64_t layer, int64_t expert, uint8_t *to, cot_loader *load)
{
    const int64_t h = shape->hidden, i = shape->intermediate;
    const struct {
        int64_t rows, columns;
    } part[] = {[COT_FFN_GATE] = {i, h},      [COT_FFN_UP] = {i, h},      [COT_FFN_DOWN] = {h, i},
                [COT_FFN_GATE_BIAS] = {1, i}, [COT_FFN_UP_BIAS] = {1, i}, [COT_FFN_DOWN_BIAS] = {1, h}};
    const cot_ffn_part parts = shape->biased ? COT_FFN_DOWN_BIAS : COT_FFN_DOWN;
    for (cot_ffn_part p = COT_FFN_GATE; p <= parts; p++) {
        if (p <= COT_FFN_DOWN) cot_loader_chain(load);
        const cot_weight_piece piece = {first + (cot_weight)p, layer, expert,         0,
                                        part[p].rows,          0,     part[p].columns};
        cot_loader_store_expert(load, piece, weights, to, shape, p);
    }
}

void cot_expert_walk(const cot_config *config, cot_precision precision, const cot_moe_weights *weights,
                     int64_t layer, int64_t expert, uint8_t *slot, cot_loader *load)
{
    cot_ffn_shape shape = cot_model_expert_shape(config, precision);
    network(&shape, weights, COT_WEIGHT_EXPERT_GATE, layer, expert, slot, load);
}

static uint8_t *whole_network(const struct walk *walk, const cot_ffn_shape *shape,
                              const cot_moe_weights *weights, cot_weight first, int64_t layer)
{
    uint8_t *to = cot_arena_take(walk->arena, 1, weights->slot_bytes(shape));
    network(shape, weights, first, layer, 0, to, walk->load);
    return to;
}

/* q, k, v of the heads side by side: one product. */
static void walk_gqa(const struct walk *walk, cot_attention_weights *w, int64_t l)
{
    static const cot_weight inputs[] = {COT_WEIGHT_Q, COT_WEIGHT_K, COT_WEIGHT_V};
    const cot_config *c = walk->config;
    cot_loader *load = walk->load;
    int64_t d = c->head_dim, q = w->heads * d, kv = w->kv_heads * d, n = q + 2 * kv, q0 = w->head0 * d,
            kv0 = w->kv_head0 * d;
    w->input = room_for(walk, format_of(walk, walk->precision.attention, inputs, 3, l), c->hidden, n);
    cot_loader_chain(load);
    pack(walk, &w->input, (cot_weight_piece){COT_WEIGHT_Q, l, 0, q0, q, 0, c->hidden}, 0);
    pack(walk, &w->input, (cot_weight_piece){COT_WEIGHT_K, l, 0, kv0, kv, 0, c->hidden}, q);
    pack(walk, &w->input, (cot_weight_piece){COT_WEIGHT_V, l, 0, kv0, kv, 0, c->hidden}, q + kv);
    if (c->qkv_bias) {
        float *bias = cot_arena_take(walk->arena, (size_t)n, sizeof *bias);
        if (bias) {
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_Q_BIAS, l, 0, 0, 1, q0, q}, bias);
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_K_BIAS, l, 0, 0, 1, kv0, kv}, bias + q);
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_V_BIAS, l, 0, 0, 1, kv0, kv}, bias + q + kv);
        }
        w->input_bias = bias;
    }
    if (c->qk_norm == COT_QK_NORM_HEAD) {
        w->q_norm = vector(walk, COT_WEIGHT_Q_NORM, l, 0, d);
        w->k_norm = vector(walk, COT_WEIGHT_K_NORM, l, 0, d);
    } else if (c->qk_norm == COT_QK_NORM_WIDTH) {
        w->q_norm = vector(walk, COT_WEIGHT_Q_NORM, l, q0, q);
        w->k_norm = vector(walk, COT_WEIGHT_K_NORM, l, kv0, kv);
    }
    if (c->sinks) w->sinks = vector(walk, COT_WEIGHT_SINKS, l, w->head0, w->heads);
    w->output = matrix(walk, COT_WEIGHT_O, l, 0, c->hidden, q0, q, output_format(walk, w, l, d));
}

/* For each head a matrix out of kv_b_proj's rows [nope | v] of kv_lora columns; widened, since one of them is transposed. */
static void walk_absorbed(const struct walk *walk, cot_attention_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
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

static void walk_mla(const struct walk *walk, cot_attention_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
    const cot_weight_rule rule = walk->precision.attention;
    cot_loader *load = walk->load;
    int64_t qk = c->nope_dim + c->rope_dim, latent = c->kv_lora_rank + c->rope_dim;
    int64_t q = c->q_lora_rank ? c->q_lora_rank : w->heads * qk, n = q + latent,
            q0 = c->q_lora_rank ? 0 : w->head0 * qk;
    const cot_weight q_b = COT_WEIGHT_Q_B,
                     inputs[] = {c->q_lora_rank ? COT_WEIGHT_Q_A : COT_WEIGHT_Q, COT_WEIGHT_KV_A};
    w->input = room_for(walk, format_of(walk, rule, inputs, 2, l), c->hidden, n);
    cot_loader_chain(load);
    pack(walk, &w->input, (cot_weight_piece){inputs[0], l, 0, q0, q, 0, c->hidden}, 0);
    pack(walk, &w->input, (cot_weight_piece){COT_WEIGHT_KV_A, l, 0, 0, latent, 0, c->hidden}, q);
    if (c->qkv_bias) { // q_proj alone has no bias
        float *bias = cot_arena_take(walk->arena, (size_t)n, sizeof *bias);
        if (bias) {
            if (c->q_lora_rank)
                cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_Q_A_BIAS, l, 0, 0, 1, 0, q}, bias);
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_KV_A_BIAS, l, 0, 0, 1, 0, latent}, bias + q);
        }
        w->input_bias = bias;
    }
    w->kv_a_norm = vector(walk, COT_WEIGHT_KV_A_NORM, l, 0, c->kv_lora_rank);
    if (c->q_lora_rank) {
        w->q_a_norm = vector(walk, COT_WEIGHT_Q_A_NORM, l, 0, c->q_lora_rank);
        w->q_b = matrix(walk, COT_WEIGHT_Q_B, l, w->head0 * qk, w->heads * qk, 0, c->q_lora_rank,
                        format_of(walk, rule, &q_b, 1, l));
    }
    walk_absorbed(walk, w, l);
    w->output = matrix(walk, COT_WEIGHT_O, l, 0, c->hidden, w->head0 * c->v_dim, w->heads * c->v_dim,
                       output_format(walk, w, l, c->v_dim));
}

void cot_attention_weights_walk(cot_attention_weights *attention, const cot_checkpoint *checkpoint,
                                cot_precision precision, cot_arena *arena, cot_loader *load)
{
    const struct walk walk = walk_of(checkpoint, precision, arena, load);
    for (int64_t l = 0; l < walk.config->layers; l++) {
        cot_attention_weights *w = &attention[l];
        if (!w->heads) continue;
        if (walk.config->attention == COT_ATTENTION_MLA)
            walk_mla(&walk, w, l);
        else
            walk_gqa(&walk, w, l);
    }
}

static size_t bytes_of(const cot_packed *m)
{
    return m->n ? (size_t)cot_packed_bytes(m->format, m->k, m->n) : 0;
}

size_t cot_attention_weights_bytes(const cot_attention_weights *w)
{
    return bytes_of(&w->input) + bytes_of(&w->q_b) + bytes_of(&w->output) +
           (size_t)w->heads * (w->absorb_bytes + w->expand_bytes);
}

static void walk_moe(const struct walk *walk, cot_layer_weights *w, int64_t l, const cot_moe_weights *weights)
{
    const cot_config *c = walk->config;
    const int64_t experts = c->gate.experts;
    float *gate = cot_arena_take(walk->arena, 1, weights->gate_bytes(c->hidden, experts));
    cot_loader_chain(walk->load);
    cot_loader_store_gate(walk->load, (cot_weight_piece){COT_WEIGHT_GATE, l, 0, 0, experts, 0, c->hidden},
                          weights, gate);
    cot_loader_chain(walk->load);
    w->gate = c->gate;
    w->gate.weight = gate;
    if (c->gate_bias) w->gate.bias = vector(walk, COT_WEIGHT_GATE_BIAS, l, 0, c->gate.experts);
    if (c->gate_correction)
        w->gate.correction = vector(walk, COT_WEIGHT_GATE_CORRECTION, l, 0, c->gate.experts);
    cot_ffn_shape shared = cot_model_shared_shape(c, walk->precision);
    if (!shared.intermediate) return;
    w->shared = whole_network(walk, &shared, weights, COT_WEIGHT_SHARED_GATE, l);
    if (c->shared_gated) w->shared_mix = vector(walk, COT_WEIGHT_SHARED_MIX, l, 0, c->hidden);
}

void cot_whole_weights_walk(cot_whole_weights *weights, const cot_checkpoint *checkpoint,
                            cot_precision precision, const cot_moe_weights *moe, bool attention,
                            cot_arena *arena, cot_loader *load)
{
    static const cot_weight output = COT_WEIGHT_OUTPUT;
    const struct walk walk = walk_of(checkpoint, precision, arena, load);
    const cot_config *config = walk.config;
    cot_ffn_shape dense = cot_model_dense_shape(config, precision);
    for (int64_t l = 0; l < config->layers; l++) {
        cot_layer_weights *w = &weights->layers[l];
        *w = (cot_layer_weights){.attention_norm =
                                     vector(&walk, COT_WEIGHT_ATTENTION_NORM, l, 0, config->hidden),
                                 .ffn_norm = vector(&walk, COT_WEIGHT_FFN_NORM, l, 0, config->hidden)};
        if (config->output_bias) w->output_bias = vector(&walk, COT_WEIGHT_O_BIAS, l, 0, config->hidden);
        if (config->layer[l].moe)
            walk_moe(&walk, w, l, moe);
        else
            w->dense = whole_network(&walk, &dense, &cot_moe_packed, COT_WEIGHT_DENSE_GATE, l);
    }
    if (!config->tied_embeddings && !cot_arena_measures(arena)) // it stays in the file
        for (int64_t row = 0; row < config->vocab; row += ROWS_A_GROUP) {
            int64_t rows = config->vocab - row < ROWS_A_GROUP ? config->vocab - row : ROWS_A_GROUP;
            cot_loader_chain(load);
            cot_loader_check(load,
                             (cot_weight_piece){COT_WEIGHT_EMBEDDING, 0, 0, row, rows, 0, config->hidden});
        }
    cot_loader_chain(load);
    weights->final_norm = vector(&walk, COT_WEIGHT_FINAL_NORM, 0, 0, config->hidden);
    weights->output = matrix(&walk, COT_WEIGHT_OUTPUT, 0, 0, config->vocab, 0, config->hidden,
                             format_of(&walk, precision.head, &output, 1, 0));
    if (attention) cot_attention_weights_walk(weights->attention, checkpoint, precision, arena, load);
}
