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

cot_ffn_shape cot_model_dense_shape(const cot_config *config, cot_dtype type)
{
    return (cot_ffn_shape){.type = type,
                           .up = cot_format_of(type),
                           .down = cot_format_of(type),
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

/* Rows of a large matrix that one thread packs at a time. */
enum { ROWS_A_GROUP = 64 * COT_PANEL };

/* A vector of `columns` floats in fp32. */
static float *vector(cot_arena *arena, cot_loader *load, cot_weight weight, int64_t layer, int64_t column0,
                     int64_t columns)
{
    float *to = cot_arena_take(arena, (size_t)columns, sizeof *to);
    cot_loader_read(load, (cot_weight_piece){weight, layer, 0, 0, 1, column0, columns}, to);
    return to;
}

/* A matrix [rows][columns] packed whole, in several groups where it is large. */
static void *matrix(cot_arena *arena, cot_loader *load, cot_weight weight, int64_t layer, int64_t row0,
                    int64_t rows, int64_t column0, int64_t columns, cot_format format)
{
    void *to = cot_arena_take(arena, 1, (size_t)cot_packed_bytes(format, columns, rows));
    for (int64_t r = 0; r < rows; r += ROWS_A_GROUP) {
        int64_t n = rows - r < ROWS_A_GROUP ? rows - r : ROWS_A_GROUP;
        cot_loader_chain(load);
        cot_loader_pack(load, (cot_weight_piece){weight, layer, 0, row0 + r, n, column0, columns}, to, format,
                        rows, r);
    }
    cot_loader_chain(load);
    return to;
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

static uint8_t *whole_network(const cot_ffn_shape *shape, const cot_moe_weights *weights, cot_weight first,
                              int64_t layer, cot_arena *arena, cot_loader *load)
{
    uint8_t *to = cot_arena_take(arena, 1, weights->slot_bytes(shape));
    network(shape, weights, first, layer, 0, to, load);
    return to;
}

/* q, k, v of the heads side by side: one product. */
static void walk_gqa(cot_attention_weights *w, const cot_config *c, int64_t l, cot_format format,
                     cot_arena *arena, cot_loader *load)
{
    int64_t d = c->head_dim, q = w->heads * d, kv = w->kv_heads * d, n = q + 2 * kv, q0 = w->head0 * d,
            kv0 = w->kv_head0 * d;
    w->input_columns = n;
    void *input = cot_arena_take(arena, 1, (size_t)cot_packed_bytes(format, c->hidden, n));
    cot_loader_chain(load);
    cot_loader_pack(load, (cot_weight_piece){COT_WEIGHT_Q, l, 0, q0, q, 0, c->hidden}, input, format, n, 0);
    cot_loader_pack(load, (cot_weight_piece){COT_WEIGHT_K, l, 0, kv0, kv, 0, c->hidden}, input, format, n, q);
    cot_loader_pack(load, (cot_weight_piece){COT_WEIGHT_V, l, 0, kv0, kv, 0, c->hidden}, input, format, n,
                    q + kv);
    w->input = input;
    if (c->qkv_bias) {
        float *bias = cot_arena_take(arena, (size_t)n, sizeof *bias);
        if (bias) {
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_Q_BIAS, l, 0, 0, 1, q0, q}, bias);
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_K_BIAS, l, 0, 0, 1, kv0, kv}, bias + q);
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_V_BIAS, l, 0, 0, 1, kv0, kv}, bias + q + kv);
        }
        w->input_bias = bias;
    }
    if (c->qk_norm == COT_QK_NORM_HEAD) {
        w->q_norm = vector(arena, load, COT_WEIGHT_Q_NORM, l, 0, d);
        w->k_norm = vector(arena, load, COT_WEIGHT_K_NORM, l, 0, d);
    } else if (c->qk_norm == COT_QK_NORM_WIDTH) {
        w->q_norm = vector(arena, load, COT_WEIGHT_Q_NORM, l, q0, q);
        w->k_norm = vector(arena, load, COT_WEIGHT_K_NORM, l, kv0, kv);
    }
    if (c->sinks) w->sinks = vector(arena, load, COT_WEIGHT_SINKS, l, w->head0, w->heads);
    w->output = matrix(arena, load, COT_WEIGHT_O, l, 0, c->hidden, q0, q, format);
}

static void walk_mla(cot_attention_weights *w, const cot_config *c, int64_t l, cot_format format,
                     cot_arena *arena, cot_loader *load)
{
    int64_t qk = c->nope_dim + c->rope_dim, latent = c->kv_lora_rank + c->rope_dim;
    int64_t q = c->q_lora_rank ? c->q_lora_rank : w->heads * qk, n = q + latent;
    w->input_columns = n;
    void *input = cot_arena_take(arena, 1, (size_t)cot_packed_bytes(format, c->hidden, n));
    cot_loader_chain(load);
    if (c->q_lora_rank)
        cot_loader_pack(load, (cot_weight_piece){COT_WEIGHT_Q_A, l, 0, 0, q, 0, c->hidden}, input, format, n,
                        0);
    else
        cot_loader_pack(load, (cot_weight_piece){COT_WEIGHT_Q, l, 0, w->head0 * qk, q, 0, c->hidden}, input,
                        format, n, 0);
    cot_loader_pack(load, (cot_weight_piece){COT_WEIGHT_KV_A, l, 0, 0, latent, 0, c->hidden}, input, format,
                    n, q);
    w->input = input;
    if (c->qkv_bias) { // q_proj alone has no bias
        float *bias = cot_arena_take(arena, (size_t)n, sizeof *bias);
        if (bias) {
            if (c->q_lora_rank)
                cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_Q_A_BIAS, l, 0, 0, 1, 0, q}, bias);
            cot_loader_read(load, (cot_weight_piece){COT_WEIGHT_KV_A_BIAS, l, 0, 0, 1, 0, latent}, bias + q);
        }
        w->input_bias = bias;
    }
    w->kv_a_norm = vector(arena, load, COT_WEIGHT_KV_A_NORM, l, 0, c->kv_lora_rank);
    if (c->q_lora_rank) {
        w->q_a_norm = vector(arena, load, COT_WEIGHT_Q_A_NORM, l, 0, c->q_lora_rank);
        w->q_b =
            matrix(arena, load, COT_WEIGHT_Q_B, l, w->head0 * qk, w->heads * qk, 0, c->q_lora_rank, format);
    }
    w->absorb_bytes = (size_t)cot_packed_bytes(format, c->nope_dim, c->kv_lora_rank);
    w->expand_bytes = (size_t)cot_packed_bytes(format, c->kv_lora_rank, c->v_dim);
    uint8_t *absorb = cot_arena_take(arena, (size_t)w->heads, w->absorb_bytes);
    uint8_t *expand = cot_arena_take(arena, (size_t)w->heads, w->expand_bytes);
    for (int64_t h = 0; h < w->heads && absorb;
         h++) { // kv_b_proj: for each head [nope | v] rows of kv_lora columns
        int64_t row0 = (w->head0 + h) * (c->nope_dim + c->v_dim);
        cot_loader_chain(load);
        cot_loader_pack_transposed(
            load, (cot_weight_piece){COT_WEIGHT_KV_B, l, 0, row0, c->nope_dim, 0, c->kv_lora_rank},
            absorb + (size_t)h * w->absorb_bytes, format);
        cot_loader_pack(
            load, (cot_weight_piece){COT_WEIGHT_KV_B, l, 0, row0 + c->nope_dim, c->v_dim, 0, c->kv_lora_rank},
            expand + (size_t)h * w->expand_bytes, format, c->v_dim, 0);
    }
    w->absorb = absorb;
    w->expand = expand;
    w->output =
        matrix(arena, load, COT_WEIGHT_O, l, 0, c->hidden, w->head0 * c->v_dim, w->heads * c->v_dim, format);
}

void cot_attention_weights_walk(cot_attention_weights *attention, const cot_config *config, cot_dtype type,
                                cot_arena *arena, cot_loader *load)
{
    const cot_format format = cot_format_of(type);
    for (int64_t l = 0; l < config->layers; l++) {
        cot_attention_weights *w = &attention[l];
        if (!w->heads) continue;
        if (config->attention == COT_ATTENTION_MLA)
            walk_mla(w, config, l, format, arena, load);
        else
            walk_gqa(w, config, l, format, arena, load);
    }
}

static void walk_moe(cot_layer_weights *w, const cot_config *c, int64_t l, cot_precision precision,
                     const cot_moe_weights *weights, cot_arena *arena, cot_loader *load)
{
    const int64_t experts = c->gate.experts;
    float *gate = cot_arena_take(arena, 1, weights->gate_bytes(c->hidden, experts));
    cot_loader_chain(load);
    cot_loader_store_gate(load, (cot_weight_piece){COT_WEIGHT_GATE, l, 0, 0, experts, 0, c->hidden}, weights,
                          gate);
    cot_loader_chain(load);
    w->gate = c->gate;
    w->gate.weight = gate;
    if (c->gate_bias) w->gate.bias = vector(arena, load, COT_WEIGHT_GATE_BIAS, l, 0, c->gate.experts);
    if (c->gate_correction)
        w->gate.correction = vector(arena, load, COT_WEIGHT_GATE_CORRECTION, l, 0, c->gate.experts);
    cot_ffn_shape shared = cot_model_shared_shape(c, precision);
    if (!shared.intermediate) return;
    w->shared = whole_network(&shared, weights, COT_WEIGHT_SHARED_GATE, l, arena, load);
    if (c->shared_gated) w->shared_mix = vector(arena, load, COT_WEIGHT_SHARED_MIX, l, 0, c->hidden);
}

void cot_whole_weights_walk(cot_whole_weights *weights, const cot_config *config, cot_precision precision,
                            const cot_moe_weights *moe, bool attention, cot_arena *arena, cot_loader *load)
{
    const cot_dtype type = precision.type;
    cot_ffn_shape dense = cot_model_dense_shape(config, type);
    for (int64_t l = 0; l < config->layers; l++) {
        cot_layer_weights *w = &weights->layers[l];
        *w = (cot_layer_weights){.attention_norm =
                                     vector(arena, load, COT_WEIGHT_ATTENTION_NORM, l, 0, config->hidden),
                                 .ffn_norm = vector(arena, load, COT_WEIGHT_FFN_NORM, l, 0, config->hidden)};
        if (config->output_bias)
            w->output_bias = vector(arena, load, COT_WEIGHT_O_BIAS, l, 0, config->hidden);
        if (config->layer[l].moe)
            walk_moe(w, config, l, precision, moe, arena, load);
        else
            w->dense = whole_network(&dense, &cot_moe_packed, COT_WEIGHT_DENSE_GATE, l, arena, load);
    }
    if (!config->tied_embeddings && !cot_arena_measures(arena)) // it stays in the file
        for (int64_t row = 0; row < config->vocab; row += ROWS_A_GROUP) {
            int64_t rows = config->vocab - row < ROWS_A_GROUP ? config->vocab - row : ROWS_A_GROUP;
            cot_loader_chain(load);
            cot_loader_check(load,
                             (cot_weight_piece){COT_WEIGHT_EMBEDDING, 0, 0, row, rows, 0, config->hidden});
        }
    cot_loader_chain(load);
    weights->final_norm = vector(arena, load, COT_WEIGHT_FINAL_NORM, 0, 0, config->hidden);
    weights->output =
        matrix(arena, load, COT_WEIGHT_OUTPUT, 0, 0, config->vocab, 0, config->hidden, cot_format_of(type));
    if (attention) cot_attention_weights_walk(weights->attention, config, type, arena, load);
}
