/* Where weights lie in GGUF: a matrix in a tensor of its own, of all experts, or beside others.
 *
 *     attn_qkv           [q + k + v][H]: their rows, where attn_q, attn_k and attn_v are missing
 *     ffn_gate_up_exps   [E][2 I][H]: of each expert the gate's rows before up's, where ffn_gate_exps and ffn_up_exps are missing
 *     ffn_gate.0         [I][H]: an expert's own tensor, as in early files, where there is no tensor of all
 *     attn_k_b, attn_v_b [heads][kv_lora][nope], [heads][v][kv_lora]: MLA's kv_b cut in two, one half turned */
#include "base/error.h"
#include "kernels/blocks.h"
#include "checkpoint/stored.h"

#include <inttypes.h>
#include <stdio.h>

static cot_status check_type(const cot_stored *stored, const cot_checkpoint *checkpoint,
                             const cot_tensor *tensor, cot_error *error)
{
    char scale[COT_STORED_NAME];
    const char *dot = strrchr(tensor->name, '.');
    if (tensor->blocks && (!cot_blocks_are_read(tensor->blocks) || tensor->blocks == COT_BLOCKS_NVFP4))
        return cot_fail(error, COT_UNSUPPORTED, "tensor '%s' is stored as %s, which is not supported",
                        tensor->name, cot_tensor_type_name(tensor));
    if (!tensor->blocks && !cot_stored_is_plain(tensor->dtype))
        return cot_stored_refuse_dtype(tensor, "F32, BF16, F16 or blocks", error);
    snprintf(scale, sizeof scale, "%.*s.scale", dot ? (int)(dot - tensor->name) : 0, tensor->name);
    if (stored->rows > 1 && cot_shards_find(&checkpoint->shards, scale))
        return cot_fail(error, COT_UNSUPPORTED, "tensor '%s' is multiplied by '%s', which is not supported",
                        tensor->name, scale);
    return COT_OK;
}

/* `stored->tensor` is [shape...]; the weight begins with its row `row`. */
static cot_status take(cot_stored *stored, const cot_checkpoint *checkpoint, const int64_t *shape, int dims,
                       int64_t row, cot_error *error)
{
    const cot_tensor *tensor = stored->tensor->tensor;
    stored->name = tensor->name;
    stored->origin = row * stored->columns;
    stored->row_step = stored->columns;
    stored->column_step = 1;
    stored->storage = tensor->blocks ? COT_STORAGE_BLOCKS : COT_STORAGE_PLAIN;
    const cot_status status = cot_stored_expect_shape(tensor, shape, dims, error);
    return status == COT_OK ? check_type(stored, checkpoint, tensor, error) : status;
}

static bool find(cot_stored *stored, const cot_checkpoint *checkpoint, int64_t layer, const char *name)
{
    char full[COT_STORED_NAME];
    snprintf(full, sizeof full, "blk.%" PRId64 ".%s", layer, name);
    stored->tensor = cot_shards_find(&checkpoint->shards, full);
    return stored->tensor;
}

static cot_status find_expert(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                              cot_weight weight, int64_t layer, int64_t expert, cot_error *error)
{
    static const char *const own[] = {"gate", "up", "down"};
    const int64_t rows = stored->rows, columns = stored->columns, experts = checkpoint->config.gate.experts;
    char name[40];
    *found = true;
    if (stored->tensor) { // rows of biases are one for each expert
        const bool bias = weight >= COT_WEIGHT_EXPERT_GATE_BIAS;
        const int64_t matrices[] = {experts, rows, columns}, vectors[] = {experts, columns};
        return take(stored, checkpoint, bias ? vectors : matrices, bias ? 2 : 3, expert * rows, error);
    }
    if ((weight == COT_WEIGHT_EXPERT_GATE || weight == COT_WEIGHT_EXPERT_UP) &&
        find(stored, checkpoint, layer, "ffn_gate_up_exps.weight"))
        return take(stored, checkpoint, (const int64_t[]){experts, 2 * rows, columns}, 3,
                    (2 * expert + (weight == COT_WEIGHT_EXPERT_UP)) * rows, error);
    if (weight <= COT_WEIGHT_EXPERT_DOWN) {
        snprintf(name, sizeof name, "ffn_%s.%" PRId64 ".weight", own[weight - COT_WEIGHT_EXPERT_GATE],
                 expert);
        if (find(stored, checkpoint, layer, name))
            return take(stored, checkpoint, (const int64_t[]){rows, columns}, 2, 0, error);
    }
    *found = false;
    return COT_OK;
}

/* q, k and v as the rows of one matrix, or the parts of one bias. */
static cot_status find_in_qkv(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                              cot_weight weight, int64_t layer, cot_error *error)
{
    const cot_config *c = &checkpoint->config;
    const bool bias = weight >= COT_WEIGHT_Q_BIAS;
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, all = q + 2 * kv;
    const cot_weight part = bias ? weight - COT_WEIGHT_Q_BIAS + COT_WEIGHT_Q : weight;
    const int64_t begin = part == COT_WEIGHT_Q ? 0 : part == COT_WEIGHT_K ? q : q + kv;
    *found = find(stored, checkpoint, layer, bias ? "attn_qkv.bias" : "attn_qkv.weight");
    if (!*found) return COT_OK;
    if (!bias) return take(stored, checkpoint, (const int64_t[]){all, stored->columns}, 2, begin, error);
    const cot_status status = take(stored, checkpoint, &all, 1, 0, error);
    stored->origin = begin;
    return status;
}

static cot_status find_halves(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                              int64_t layer, cot_error *error)
{
    const cot_config *c = &checkpoint->config;
    *found = false;
    if (!find(stored, checkpoint, layer, "attn_v_b.weight")) return COT_OK;
    stored->values = stored->tensor;
    if (!find(stored, checkpoint, layer, "attn_k_b.weight")) return COT_OK;
    *found = true;
    stored->storage = COT_STORAGE_HEADS;
    stored->name = stored->tensor->tensor->name;
    stored->column_step = 1;
    const int64_t keys[] = {c->heads, c->kv_lora_rank, c->nope_dim},
                  values[] = {c->heads, c->v_dim, c->kv_lora_rank};
    cot_status status = cot_stored_expect_shape(stored->tensor->tensor, keys, 3, error);
    if (status == COT_OK) status = cot_stored_expect_shape(stored->values->tensor, values, 3, error);
    if (status == COT_OK) status = check_type(stored, checkpoint, stored->tensor->tensor, error);
    if (status == COT_OK) status = check_type(stored, checkpoint, stored->values->tensor, error);
    return status;
}

cot_status cot_stored_find_half(cot_stored *stored, const cot_checkpoint *checkpoint, cot_weight weight,
                                int64_t layer, cot_error *error)
{
    const cot_config *c = &checkpoint->config;
    const bool keys = weight == COT_WEIGHT_K_B;
    const int64_t rows = keys ? c->kv_lora_rank : c->v_dim, columns = keys ? c->nope_dim : c->kv_lora_rank;
    if (!c->gguf || !find(stored, checkpoint, layer, keys ? "attn_k_b.weight" : "attn_v_b.weight"))
        return cot_fail(error, COT_INVALID_ARGUMENT, "there is no weight %s", cot_weight_name(weight));
    stored->rows = c->heads * rows;
    stored->columns = columns;
    return take(stored, checkpoint, (const int64_t[]){c->heads, rows, columns}, 3, 0, error);
}

cot_status cot_stored_find_gguf(cot_stored *stored, const cot_checkpoint *checkpoint, cot_weight weight,
                                int64_t layer, int64_t expert, cot_error *error)
{
    char name[COT_STORED_NAME];
    bool found = false;
    cot_status status = COT_OK;
    cot_stored_name(name, &checkpoint->config, weight, layer, 0, "");
    stored->tensor = cot_shards_find(&checkpoint->shards, name);
    if (cot_weight_is_expert(weight)) {
        status = find_expert(&found, stored, checkpoint, weight, layer, expert, error);
    } else if (stored->tensor) { // a vector may be a matrix of one row
        const bool vector = stored->rows == 1 && stored->tensor->tensor->dims == 1;
        const int64_t shape[] = {stored->rows, stored->columns};
        return take(stored, checkpoint, shape + vector, vector ? 1 : 2, 0, error);
    } else if (weight == COT_WEIGHT_KV_B) {
        status = find_halves(&found, stored, checkpoint, layer, error);
    } else if ((weight >= COT_WEIGHT_Q && weight <= COT_WEIGHT_V) ||
               (weight >= COT_WEIGHT_Q_BIAS && weight <= COT_WEIGHT_V_BIAS)) {
        status = find_in_qkv(&found, stored, checkpoint, weight, layer, error);
    }
    return found || status != COT_OK ? status : cot_stored_fail_missing(name, error);
}
