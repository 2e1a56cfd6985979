/* The shape of every weight, as the configuration implies it. */
#include "checkpoint/stored.h"

bool cot_weight_is_layered(cot_weight weight)
{
    return weight != COT_WEIGHT_EMBEDDING && weight != COT_WEIGHT_FINAL_NORM && weight != COT_WEIGHT_OUTPUT &&
           weight != COT_WEIGHT_FINAL_NORM_BIAS && weight != COT_WEIGHT_OUTPUT_BIAS;
}

bool cot_weight_is_expert(cot_weight weight)
{
    return weight >= COT_WEIGHT_EXPERT_GATE && weight <= COT_WEIGHT_EXPERT_DOWN_BIAS;
}

bool cot_weight_is_norm(cot_weight weight)
{
    return weight == COT_WEIGHT_FINAL_NORM || weight == COT_WEIGHT_ATTENTION_NORM ||
           weight == COT_WEIGHT_FFN_NORM || weight == COT_WEIGHT_Q_NORM || weight == COT_WEIGHT_K_NORM ||
           weight == COT_WEIGHT_Q_A_NORM || weight == COT_WEIGHT_KV_A_NORM ||
           weight == COT_WEIGHT_ATTENTION_AFTER_NORM || weight == COT_WEIGHT_FFN_AFTER_NORM;
}

const char *cot_weight_name(cot_weight weight)
{
    static const char *const names[] = {
#define COT_WEIGHT_NAME(name) #name,
        COT_WEIGHT_LIST(COT_WEIGHT_NAME)
#undef COT_WEIGHT_NAME
    };
    return names[weight];
}

typedef struct shape {
    int64_t rows, columns;
} shape;

static shape matrix(bool exists, int64_t rows, int64_t columns)
{
    return exists ? (shape){rows, columns} : (shape){0, 0};
}

static shape vector(bool exists, int64_t n)
{
    return matrix(exists, 1, n);
}

static shape delta_shape(const cot_config *c, cot_weight weight, bool delta)
{
    const int64_t qk = 2 * c->delta.keys * c->delta.key_dim, v = c->delta.values * c->delta.value_dim,
                  heads = c->delta.values;
    const bool by_head = c->delta.by_head;
    switch (weight) {
    case COT_WEIGHT_DELTA_QKV:
        return matrix(delta, qk + (by_head ? 2 : 1) * v, c->hidden);
    case COT_WEIGHT_DELTA_Z:
        return matrix(delta && !by_head, v, c->hidden);
    case COT_WEIGHT_DELTA_BETA:
        return matrix(delta, (by_head ? 2 : 1) * heads, c->hidden);
    case COT_WEIGHT_DELTA_DECAY:
        return matrix(delta && !by_head, heads, c->hidden);
    case COT_WEIGHT_DELTA_CONVOLUTION:
        return matrix(delta, qk + v, c->delta.taps);
    case COT_WEIGHT_DELTA_DECAY_BIAS:
    case COT_WEIGHT_DELTA_DECAY_LOG:
        return vector(delta, heads);
    case COT_WEIGHT_DELTA_NORM:
        return vector(delta, c->delta.value_dim);
    default:
        return matrix(delta, c->hidden, v); // DELTA_O
    }
}

static shape attention_shape(const cot_config *c, cot_weight weight)
{
    bool mla = c->attention == COT_ATTENTION_MLA, lora = c->q_lora_rank > 0,
         wide = c->qk_norm == COT_QK_NORM_WIDTH;
    int64_t q = c->heads * (mla ? c->nope_dim + c->rope_dim : c->head_dim), kv = c->kv_heads * c->head_dim;
    switch (weight) {
    case COT_WEIGHT_Q:
        return matrix(!lora, c->gates_in_queries ? 2 * q : q, c->hidden);
    case COT_WEIGHT_K:
    case COT_WEIGHT_V:
        return matrix(!mla, kv, c->hidden);
    case COT_WEIGHT_O:
        return matrix(true, c->hidden, mla ? c->heads * c->v_dim : q);
    case COT_WEIGHT_Q_BIAS:
        return vector(!mla && c->qkv_bias, q);
    case COT_WEIGHT_K_BIAS:
    case COT_WEIGHT_V_BIAS:
        return vector(!mla && c->qkv_bias, kv);
    case COT_WEIGHT_O_BIAS:
        return vector(c->output_bias, c->hidden);
    case COT_WEIGHT_Q_NORM:
        return vector(c->qk_norm != COT_QK_NORM_NONE, wide ? q : c->head_dim);
    case COT_WEIGHT_K_NORM:
        return vector(c->qk_norm != COT_QK_NORM_NONE, wide ? kv : c->head_dim);
    case COT_WEIGHT_SINKS:
        return vector(c->sinks, c->heads);
    case COT_WEIGHT_Q_A:
        return matrix(lora, c->q_lora_rank, c->hidden);
    case COT_WEIGHT_Q_A_BIAS:
        return vector(lora && c->qkv_bias, c->q_lora_rank);
    case COT_WEIGHT_Q_A_NORM:
        return vector(lora, c->q_lora_rank);
    case COT_WEIGHT_Q_B:
        return matrix(lora, q, c->q_lora_rank);
    case COT_WEIGHT_KV_A:
        return matrix(mla, c->kv_lora_rank + c->rope_dim, c->hidden);
    case COT_WEIGHT_KV_A_BIAS:
        return vector(mla && c->qkv_bias, c->kv_lora_rank + c->rope_dim);
    case COT_WEIGHT_KV_A_NORM:
        return vector(mla, c->kv_lora_rank);
    case COT_WEIGHT_KV_B:
        return matrix(mla, c->heads * (c->nope_dim + c->v_dim), c->kv_lora_rank);
    default:
        return matrix(false, 0, 0);
    }
}

static shape feed_forward_shape(const cot_config *c, cot_weight weight, bool moe)
{
    bool shared = moe && c->shared_intermediate, dense = !moe;
    switch (weight) {
    case COT_WEIGHT_GATE:
        return matrix(moe, c->gate.experts, c->hidden);
    case COT_WEIGHT_GATE_BIAS:
        return vector(moe && c->gate_bias, c->gate.experts);
    case COT_WEIGHT_GATE_CORRECTION:
        return vector(moe && c->gate_correction, c->gate.experts);
    case COT_WEIGHT_EXPERT_GATE:
    case COT_WEIGHT_EXPERT_UP:
        return matrix(moe, c->moe_intermediate, c->hidden);
    case COT_WEIGHT_EXPERT_DOWN:
        return matrix(moe, c->hidden, c->moe_intermediate);
    case COT_WEIGHT_EXPERT_GATE_BIAS:
    case COT_WEIGHT_EXPERT_UP_BIAS:
        return vector(moe && c->expert_bias, c->moe_intermediate);
    case COT_WEIGHT_EXPERT_DOWN_BIAS:
        return vector(moe && c->expert_bias, c->hidden);
    case COT_WEIGHT_SHARED_GATE:
    case COT_WEIGHT_SHARED_UP:
        return matrix(shared, c->shared_intermediate, c->hidden);
    case COT_WEIGHT_SHARED_DOWN:
        return matrix(shared, c->hidden, c->shared_intermediate);
    case COT_WEIGHT_SHARED_GATE_BIAS:
    case COT_WEIGHT_SHARED_UP_BIAS:
        return vector(shared && c->ffn_bias, c->shared_intermediate);
    case COT_WEIGHT_SHARED_DOWN_BIAS:
        return vector(shared && c->ffn_bias, c->hidden);
    case COT_WEIGHT_SHARED_MIX:
        return vector(moe && c->shared_gated, c->hidden);
    case COT_WEIGHT_DENSE_GATE:
    case COT_WEIGHT_DENSE_UP:
        return matrix(dense, c->dense_intermediate, c->hidden);
    case COT_WEIGHT_DENSE_DOWN:
        return matrix(dense, c->hidden, c->dense_intermediate);
    case COT_WEIGHT_DENSE_GATE_BIAS:
    case COT_WEIGHT_DENSE_UP_BIAS:
        return vector(dense && c->ffn_bias, c->dense_intermediate);
    case COT_WEIGHT_DENSE_DOWN_BIAS:
        return vector(dense && c->ffn_bias, c->hidden);
    default:
        return matrix(false, 0, 0);
    }
}

void cot_weight_shape(const cot_config *config, cot_weight weight, int64_t layer, int64_t *rows,
                      int64_t *columns)
{
    const bool delta = config->layer[layer].mixer == COT_MIXER_DELTA;
    shape s;
    switch (weight) {
    case COT_WEIGHT_EMBEDDING:
    case COT_WEIGHT_OUTPUT:
        s = matrix(true, config->vocab, config->hidden);
        break;
    case COT_WEIGHT_OUTPUT_BIAS:
        s = vector(config->head_bias, config->vocab);
        break;
    case COT_WEIGHT_FINAL_NORM:
        s = vector(true, config->hidden);
        break;
    case COT_WEIGHT_ATTENTION_NORM:
    case COT_WEIGHT_FFN_NORM:
        s = vector(config->norms != COT_NORMS_AFTER, config->hidden);
        break;
    case COT_WEIGHT_ATTENTION_AFTER_NORM:
    case COT_WEIGHT_FFN_AFTER_NORM:
        s = vector(config->norms != COT_NORMS_BEFORE, config->hidden);
        break;
    case COT_WEIGHT_ATTENTION_NORM_BIAS:
    case COT_WEIGHT_FFN_NORM_BIAS:
    case COT_WEIGHT_FINAL_NORM_BIAS:
        s = vector(config->layer_norm, config->hidden);
        break;
    case COT_WEIGHT_ATTENTION_GATE:
        s = matrix(config->attention_gated && !config->gates_in_queries && !delta,
                   config->heads * config->head_dim, config->hidden);
        break;
    default:
        if (weight >= COT_WEIGHT_DELTA_QKV)
            s = delta_shape(config, weight, delta);
        else if (weight >= COT_WEIGHT_GATE)
            s = feed_forward_shape(config, weight, config->layer[layer].moe);
        else
            s = delta ? matrix(false, 0, 0) : attention_shape(config, weight);
    }
    *rows = s.rows;
    *columns = s.columns;
}

cot_status cot_weight_each(const cot_config *config, void *context,
                           cot_status (*visit)(void *context, cot_weight weight, int64_t layer,
                                               int64_t expert))
{
    cot_status status = COT_OK;
    for (int w = 0; w < COT_WEIGHTS; w++) {
        const cot_weight weight = (cot_weight)w;
        const int64_t layers = cot_weight_is_layered(weight) ? config->layers : 1;
        for (int64_t l = 0; l < layers; l++) {
            int64_t rows, columns, experts = cot_weight_is_expert(weight) ? config->gate.experts : 1;
            cot_weight_shape(config, weight, l, &rows, &columns);
            for (int64_t e = 0; rows && e < experts && status == COT_OK; e++)
                status = visit(context, weight, l, e);
            if (status != COT_OK) return status;
        }
    }
    return status;
}

void cot_weight_count(const cot_config *config, int64_t *all, int64_t *active)
{
    *all = *active = 0;
    for (int w = 0; w < COT_WEIGHTS; w++) {
        const cot_weight weight = (cot_weight)w;
        const bool expert = cot_weight_is_expert(weight);
        if (weight == COT_WEIGHT_OUTPUT && config->tied_embeddings) continue;
        for (int64_t l = 0; l < (cot_weight_is_layered(weight) ? config->layers : 1); l++) {
            int64_t rows, columns;
            cot_weight_shape(config, weight, l, &rows, &columns);
            *all += rows * columns * (expert ? config->gate.experts : 1);
            *active += rows * columns * (expert ? config->gate.top_k : 1);
        }
    }
}
