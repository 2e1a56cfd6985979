#include "model/weights.h"

#include "model/mixer.h"

void cot_attention_heads(cot_attention_weights *weights, const cot_config *config, int64_t layer, int rank,
                         int ranks)
{
    cot_mixer_of(config, layer)->cut(weights, config, rank, ranks);
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

static uint8_t *whole_network(const cot_loader_walk *walk, const cot_ffn_shape *shape,
                              const cot_moe_weights *weights, cot_weight first, int64_t layer)
{
    uint8_t *to = cot_arena_take(walk->arena, 1, weights->slot_bytes(shape));
    network(shape, weights, first, layer, 0, to, walk->load);
    return to;
}

void cot_attention_weights_walk(cot_attention_weights *attention, const cot_checkpoint *checkpoint,
                                cot_precision precision, cot_arena *arena, cot_loader *load)
{
    const cot_loader_walk walk = cot_loader_walk_of(checkpoint, precision, arena, load);
    for (int64_t l = 0; l < walk.config->layers; l++) {
        cot_attention_weights *w = &attention[l];
        if (w->heads) cot_mixer_of(walk.config, l)->walk(&walk, w, l);
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

static void walk_moe(const cot_loader_walk *walk, cot_layer_weights *w, int64_t l,
                     const cot_ffn_shape *shared, const cot_moe_weights *weights)
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
    if (c->gate_bias) w->gate.bias = cot_loader_vector(walk, COT_WEIGHT_GATE_BIAS, l, 0, c->gate.experts);
    if (c->gate_correction)
        w->gate.correction = cot_loader_vector(walk, COT_WEIGHT_GATE_CORRECTION, l, 0, c->gate.experts);
    if (!shared->intermediate) return;
    w->shared = whole_network(walk, shared, weights, COT_WEIGHT_SHARED_GATE, l);
    if (c->shared_gated) w->shared_mix = cot_loader_vector(walk, COT_WEIGHT_SHARED_MIX, l, 0, c->hidden);
}

static void walk_norms(const cot_loader_walk *walk, cot_layer_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
    const int64_t h = c->hidden;
    if (c->norms != COT_NORMS_AFTER) {
        w->attention_norm.weight = cot_loader_vector(walk, COT_WEIGHT_ATTENTION_NORM, l, 0, h);
        w->ffn_norm.weight = cot_loader_vector(walk, COT_WEIGHT_FFN_NORM, l, 0, h);
    }
    if (c->norms != COT_NORMS_BEFORE) {
        w->attention_after.weight = cot_loader_vector(walk, COT_WEIGHT_ATTENTION_AFTER_NORM, l, 0, h);
        w->ffn_after.weight = cot_loader_vector(walk, COT_WEIGHT_FFN_AFTER_NORM, l, 0, h);
    }
    if (!c->layer_norm) return;
    w->attention_norm.bias = cot_loader_vector(walk, COT_WEIGHT_ATTENTION_NORM_BIAS, l, 0, h);
    w->ffn_norm.bias = cot_loader_vector(walk, COT_WEIGHT_FFN_NORM_BIAS, l, 0, h);
}

void cot_whole_weights_walk(cot_whole_weights *weights, const cot_checkpoint *checkpoint,
                            cot_precision precision, const cot_networks *networks, const cot_moe_weights *moe,
                            bool attention, cot_arena *arena, cot_loader *load)
{
    const cot_loader_walk walk = cot_loader_walk_of(checkpoint, precision, arena, load);
    const cot_config *config = walk.config;
    for (int64_t l = 0; l < config->layers; l++) {
        cot_layer_weights *w = &weights->layers[l];
        *w = (cot_layer_weights){0};
        walk_norms(&walk, w, l);
        if (config->output_bias)
            w->output_bias = cot_loader_vector(&walk, COT_WEIGHT_O_BIAS, l, 0, config->hidden);
        if (config->layer[l].moe)
            walk_moe(&walk, w, l, &networks->shared[l], moe);
        else
            w->dense = whole_network(&walk, &networks->dense[l], &cot_moe_packed, COT_WEIGHT_DENSE_GATE, l);
    }
    if (!config->tied_embeddings && !cot_arena_measures(arena)) // it stays in the file
        for (int64_t row = 0; row < config->vocab; row += COT_LOADER_ROWS) {
            int64_t rows = config->vocab - row < COT_LOADER_ROWS ? config->vocab - row : COT_LOADER_ROWS;
            cot_loader_chain(load);
            cot_loader_check(load,
                             (cot_weight_piece){COT_WEIGHT_EMBEDDING, 0, 0, row, rows, 0, config->hidden});
        }
    cot_loader_chain(load);
    weights->final_norm =
        (cot_norm){.weight = cot_loader_vector(&walk, COT_WEIGHT_FINAL_NORM, 0, 0, config->hidden)};
    if (config->layer_norm)
        weights->final_norm.bias = cot_loader_vector(&walk, COT_WEIGHT_FINAL_NORM_BIAS, 0, 0, config->hidden);
    weights->output_bias =
        config->head_bias ? cot_loader_vector(&walk, COT_WEIGHT_OUTPUT_BIAS, 0, 0, config->vocab) : NULL;
    weights->output = cot_loader_matrix(&walk, COT_WEIGHT_OUTPUT, 0, 0, config->vocab, 0, config->hidden,
                                        cot_loader_format(&walk, precision.head, COT_WEIGHT_OUTPUT, 0));
    if (attention) cot_attention_weights_walk(weights->attention, checkpoint, precision, arena, load);
}
