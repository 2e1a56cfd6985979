#include "model/weights.h"

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

/* The format of a weight. */
static cot_format format_of(const struct walk *walk, cot_weight_rule rule, cot_weight weight, int64_t layer)
{
    return cot_weight_format(&walk->precision, rule,
                             cot_checkpoint_stored(walk->checkpoint, weight, layer, 0));
}

/* That of attention's output, of which some heads' columns may be wanted. */
static cot_format output_format(const struct walk *walk, const cot_attention_weights *w, int64_t layer,
                                int64_t width)
{
    cot_format stored = cot_checkpoint_stored(walk->checkpoint, COT_WEIGHT_O, layer, 0);
    if (w->heads < walk->config->heads) stored = cot_format_cut(stored, width);
    const cot_format format = cot_weight_format(&walk->precision, walk->precision.attention, stored);
    if (!cot_format_blocks(format)) return format;
    return cot_format_skip(format, w->head0 * width % cot_tensor_block_elements(cot_format_blocks(format)));
}

/* Rows of a weight that are columns of a matrix. */
struct side {
    cot_weight weight;
    int64_t row0, rows;
};

/* Weights side by side, packed: one matrix where one format holds them all as they are, else a part for each. */
static cot_packed_parts side_by_side(const struct walk *walk, cot_weight_rule rule, const struct side *sides,
                                     int count, int64_t k, int64_t layer)
{
    cot_packed_parts to = {0};
    cot_format format[sizeof to.part / sizeof *to.part], all = COT_FORMATS;
    for (int i = 0; i < count; i++) {
        format[i] = format_of(walk, rule, sides[i].weight, layer);
        all = i ? cot_format_join(all, format[i]) : format[i];
        to.n += sides[i].rows;
    }
    cot_loader_chain(walk->load);
    if (all != COT_FORMATS) to.part[to.parts++] = room_for(walk, all, k, to.n);
    int64_t n0 = 0;
    for (int i = 0; i < count; i++) {
        if (all == COT_FORMATS) {
            to.part[to.parts++] = room_for(walk, format[i], k, sides[i].rows);
            n0 = 0;
        }
        pack(walk, &to.part[to.parts - 1],
             (cot_weight_piece){sides[i].weight, layer, 0, sides[i].row0, sides[i].rows, 0, k}, n0);
        n0 += sides[i].rows;
    }
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

void cot_expert_walk(const cot_networks *networks, const cot_moe_weights *weights, int64_t layer,
                     int64_t expert, uint8_t *slot, cot_loader *load)
{
    network(cot_networks_expert(networks, layer, expert), weights, COT_WEIGHT_EXPERT_GATE, layer, expert,
            slot, load);
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
    const cot_config *c = walk->config;
    cot_loader *load = walk->load;
    int64_t d = c->head_dim, q = w->heads * d, kv = w->kv_heads * d, n = q + 2 * kv, q0 = w->head0 * d,
            kv0 = w->kv_head0 * d;
    const struct side sides[] = {{COT_WEIGHT_Q, q0, q},
                                 {COT_WEIGHT_K, kv0, kv},
                                 {COT_WEIGHT_V, kv0, kv},
                                 {COT_WEIGHT_ATTENTION_GATE, q0, q}};
    w->input = side_by_side(walk, walk->precision.attention, sides, c->attention_gated ? 4 : 3, c->hidden, l);
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
        w->q_norm = vector(walk, COT_WEIGHT_Q_NORM, l, 0, d);
        w->k_norm = vector(walk, COT_WEIGHT_K_NORM, l, 0, d);
    } else if (c->qk_norm == COT_QK_NORM_WIDTH) {
        w->q_norm = vector(walk, COT_WEIGHT_Q_NORM, l, q0, q);
        w->k_norm = vector(walk, COT_WEIGHT_K_NORM, l, kv0, kv);
    }
    if (c->sinks) w->sinks = vector(walk, COT_WEIGHT_SINKS, l, w->head0, w->heads);
    w->output = matrix(walk, COT_WEIGHT_O, l, 0, c->hidden, q0, q, output_format(walk, w, l, d));
}

/* A half of kv_b of each head: as stored, or the precision's own; packed [k][n] one after the other. */
static cot_packed half_of(const struct walk *walk, const cot_attention_weights *w, cot_weight weight,
                          int64_t l, int64_t k, int64_t n, size_t *head_bytes)
{
    const cot_weight_rule rule = {walk->precision.attention.kind, cot_format_of(walk->precision.type)};
    const cot_format format = format_of(walk, rule, weight, l);
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
static void walk_absorbed(const struct walk *walk, cot_attention_weights *w, int64_t l)
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

static void walk_mla(const struct walk *walk, cot_attention_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
    const cot_weight_rule rule = walk->precision.attention;
    cot_loader *load = walk->load;
    int64_t qk = c->nope_dim + c->rope_dim, latent = c->kv_lora_rank + c->rope_dim;
    int64_t q = c->q_lora_rank ? c->q_lora_rank : w->heads * qk, n = q + latent,
            q0 = c->q_lora_rank ? 0 : w->head0 * qk;
    const struct side sides[] = {{c->q_lora_rank ? COT_WEIGHT_Q_A : COT_WEIGHT_Q, q0, q},
                                 {COT_WEIGHT_KV_A, 0, latent}};
    w->input = side_by_side(walk, rule, sides, 2, c->hidden, l);
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
    w->kv_a_norm = vector(walk, COT_WEIGHT_KV_A_NORM, l, 0, c->kv_lora_rank);
    if (c->q_lora_rank) {
        w->q_a_norm = vector(walk, COT_WEIGHT_Q_A_NORM, l, 0, c->q_lora_rank);
        w->q_b = matrix(walk, COT_WEIGHT_Q_B, l, w->head0 * qk, w->heads * qk, 0, c->q_lora_rank,
                        format_of(walk, rule, COT_WEIGHT_Q_B, l));
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
    size_t bytes =
        bytes_of(&w->q_b) + bytes_of(&w->output) + (size_t)w->heads * (w->absorb_bytes + w->expand_bytes);
    for (int i = 0; i < w->input.parts; i++) bytes += bytes_of(&w->input.part[i]);
    return bytes;
}

static void walk_moe(const struct walk *walk, cot_layer_weights *w, int64_t l, const cot_ffn_shape *shared,
                     const cot_moe_weights *weights)
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
    if (!shared->intermediate) return;
    w->shared = whole_network(walk, shared, weights, COT_WEIGHT_SHARED_GATE, l);
    if (c->shared_gated) w->shared_mix = vector(walk, COT_WEIGHT_SHARED_MIX, l, 0, c->hidden);
}

static void walk_norms(const struct walk *walk, cot_layer_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
    const int64_t h = c->hidden;
    if (c->norms != COT_NORMS_AFTER) {
        w->attention_norm.weight = vector(walk, COT_WEIGHT_ATTENTION_NORM, l, 0, h);
        w->ffn_norm.weight = vector(walk, COT_WEIGHT_FFN_NORM, l, 0, h);
    }
    if (c->norms != COT_NORMS_BEFORE) {
        w->attention_after.weight = vector(walk, COT_WEIGHT_ATTENTION_AFTER_NORM, l, 0, h);
        w->ffn_after.weight = vector(walk, COT_WEIGHT_FFN_AFTER_NORM, l, 0, h);
    }
    if (!c->layer_norm) return;
    w->attention_norm.bias = vector(walk, COT_WEIGHT_ATTENTION_NORM_BIAS, l, 0, h);
    w->ffn_norm.bias = vector(walk, COT_WEIGHT_FFN_NORM_BIAS, l, 0, h);
}

void cot_whole_weights_walk(cot_whole_weights *weights, const cot_checkpoint *checkpoint,
                            cot_precision precision, const cot_networks *networks, const cot_moe_weights *moe,
                            bool attention, cot_arena *arena, cot_loader *load)
{
    const struct walk walk = walk_of(checkpoint, precision, arena, load);
    const cot_config *config = walk.config;
    for (int64_t l = 0; l < config->layers; l++) {
        cot_layer_weights *w = &weights->layers[l];
        *w = (cot_layer_weights){0};
        walk_norms(&walk, w, l);
        if (config->output_bias) w->output_bias = vector(&walk, COT_WEIGHT_O_BIAS, l, 0, config->hidden);
        if (config->layer[l].moe)
            walk_moe(&walk, w, l, &networks->shared[l], moe);
        else
            w->dense = whole_network(&walk, &networks->dense[l], &cot_moe_packed, COT_WEIGHT_DENSE_GATE, l);
    }
    if (!config->tied_embeddings && !cot_arena_measures(arena)) // it stays in the file
        for (int64_t row = 0; row < config->vocab; row += ROWS_A_GROUP) {
            int64_t rows = config->vocab - row < ROWS_A_GROUP ? config->vocab - row : ROWS_A_GROUP;
            cot_loader_chain(load);
            cot_loader_check(load,
                             (cot_weight_piece){COT_WEIGHT_EMBEDDING, 0, 0, row, rows, 0, config->hidden});
        }
    cot_loader_chain(load);
    weights->final_norm = (cot_norm){.weight = vector(&walk, COT_WEIGHT_FINAL_NORM, 0, 0, config->hidden)};
    if (config->layer_norm)
        weights->final_norm.bias = vector(&walk, COT_WEIGHT_FINAL_NORM_BIAS, 0, 0, config->hidden);
    weights->output_bias =
        config->head_bias ? vector(&walk, COT_WEIGHT_OUTPUT_BIAS, 0, 0, config->vocab) : NULL;
    weights->output = matrix(&walk, COT_WEIGHT_OUTPUT, 0, 0, config->vocab, 0, config->hidden,
                             format_of(&walk, precision.head, COT_WEIGHT_OUTPUT, 0));
    if (attention) cot_attention_weights_walk(weights->attention, checkpoint, precision, arena, load);
}
