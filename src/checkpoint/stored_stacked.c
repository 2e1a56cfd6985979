/* Tensors that hold all experts of a layer.
 *
 *   gpt-oss          gate_up_proj [E][H][2 I] and down_proj [E][I][H], input-major, gate in even places and up in odd ones, biases
 *                    gate_up_proj_bias [E][2 I] and down_proj_bias [E][H]; in MXFP4 X_blocks [E][out][in / 32][16] of nibbles,
 *                    output-major, and X_scales [E][out][in / 32]
 *   transformers 5   gate_up_proj [E][2 I][H], gate's rows before up's, and down_proj [E][H][I]; in FP8 with X_scale_inv [E][blocks
 *                    of the rows][blocks of a row] */
#include "base/error.h"
#include "checkpoint/stored.h"

#include <inttypes.h>
#include <stdio.h>

/* Experts in MXFP4: blocks [E][out][in / 32][16] of nibbles, scales [E][out][in / 32]. */
static cot_status find_mxfp4(cot_stored *stored, const cot_checkpoint *checkpoint, int64_t out,
                             int64_t expert, const char *name, const char *scale_name, cot_error *error)
{
    int64_t in = stored->columns, shape[4] = {checkpoint->config.gate.experts, out, in / 32, 16};
    const cot_tensor *blocks = stored->tensor->tensor;
    if (in % 32)
        return cot_fail(error, COT_MALFORMED,
                        "tensor '%s' is MXFP4, in which %" PRId64 " columns are not whole blocks of 32", name,
                        in);
    if (!(stored->scales = cot_shards_find(&checkpoint->shards, scale_name)))
        return cot_stored_fail_missing(scale_name, error);
    const cot_tensor *scales = stored->scales->tensor;
    cot_status status = cot_stored_expect_shape(blocks, shape, 4, error);
    if (status == COT_OK) status = cot_stored_expect_shape(scales, shape, 3, error);
    if (status == COT_OK && blocks->dtype != COT_U8) status = cot_stored_refuse_dtype(blocks, "U8", error);
    if (status == COT_OK && scales->dtype != COT_U8 && scales->dtype != COT_F8_E8M0)
        status = cot_stored_refuse_dtype(scales, "U8 or F8_E8M0", error);
    stored->storage = COT_STORAGE_MXFP4;
    stored->origin += expert * out * in;
    return status;
}

cot_status cot_stored_find_interleaved(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                                       cot_weight weight, const char *name, int64_t expert, cot_error *error)
{
    const cot_shards *shards = &checkpoint->shards;
    char blocks[COT_STORED_NAME + 8], scales[COT_STORED_NAME + 8];
    snprintf(blocks, sizeof blocks, "%s_blocks", name);
    snprintf(scales, sizeof scales, "%s_scales", name);
    bool bias = weight >= COT_WEIGHT_EXPERT_GATE_BIAS,
         up = weight == COT_WEIGHT_EXPERT_UP || weight == COT_WEIGHT_EXPERT_UP_BIAS;
    bool paired = weight != COT_WEIGHT_EXPERT_DOWN && weight != COT_WEIGHT_EXPERT_DOWN_BIAS;
    int64_t step = paired ? 2 : 1, out = (bias ? stored->columns : stored->rows) * step,
            experts = checkpoint->config.gate.experts;
    stored->tensor = bias ? NULL : cot_shards_find(shards, blocks);
    if (stored->tensor) {
        *found = true;
        stored->name = stored->tensor->tensor->name;
        stored->row_step = step * stored->columns;
        stored->column_step = 1;
        stored->origin = up ? stored->columns : 0;
        return find_mxfp4(stored, checkpoint, out, expert, blocks, scales, error);
    }
    if (!(stored->tensor = cot_shards_find(shards, name))) return COT_OK;
    *found = true;
    const cot_tensor *tensor = stored->tensor->tensor;
    stored->name = tensor->name;
    int64_t in = bias ? 1 : stored->columns, matrix[3] = {experts, in, out}, vector[2] = {experts, out};
    stored->origin = expert * in * out + up;
    stored->row_step = bias ? 0 : step;
    stored->column_step = bias ? step : out;
    cot_status status = bias ? cot_stored_expect_shape(tensor, vector, 2, error)
                             : cot_stored_expect_shape(tensor, matrix, 3, error);
    if (status == COT_OK && !cot_stored_is_plain(tensor->dtype))
        status = cot_stored_refuse_dtype(tensor, "F32, BF16 or F16", error);
    return status;
}

/* Scales [E][blocks of the rows][blocks of a row], or one for each matrix: [E][matrices], too. */
static cot_status find_fused_fp8(cot_stored *stored, const cot_checkpoint *checkpoint, int64_t expert,
                                 int64_t matrices, int64_t matrix, cot_error *error)
{
    const cot_config *config = &checkpoint->config;
    char name[COT_STORED_NAME + 16];
    snprintf(name, sizeof name, "%s_scale_inv", stored->name);
    stored->scales = cot_shards_find(&checkpoint->shards, name);
    if (!stored->scales) return cot_stored_fail_missing(name, error);
    const cot_tensor *scales = stored->scales->tensor;
    stored->storage = COT_STORAGE_FP8;
    if (!cot_stored_is_plain(scales->dtype) && scales->dtype != COT_F8_E8M0)
        return cot_stored_refuse_dtype(scales, "F32, BF16, F16 or F8_E8M0", error);
    stored->block_rows = config->fp8_block_rows ? config->fp8_block_rows : stored->rows;
    stored->block_columns = config->fp8_block_rows ? config->fp8_block_columns : stored->columns;
    if (matrices > 1 && stored->rows % stored->block_rows)
        return cot_fail(error, COT_UNSUPPORTED,
                        "tensor '%s' has blocks of %" PRId64 " rows, which %" PRId64
                        " rows of gate and of up are not divided by",
                        stored->name, stored->block_rows, stored->rows);
    const int64_t down = (stored->rows + stored->block_rows - 1) / stored->block_rows,
                  across = (stored->columns + stored->block_columns - 1) / stored->block_columns;
    stored->scale_origin = (expert * matrices + matrix) * down * across;
    const int dims = !config->fp8_block_rows && scales->dims == 2 ? 2 : 3;
    return cot_stored_expect_shape(scales, (const int64_t[]){config->gate.experts, matrices * down, across},
                                   dims, error);
}

cot_status cot_stored_find_fused(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                                 cot_weight weight, const char *name, int64_t expert, cot_error *error)
{
    const char *of_all = weight == COT_WEIGHT_EXPERT_DOWN ? "down_proj" : "gate_up_proj",
               *experts = strstr(name, ".experts.");
    char fused[COT_STORED_NAME + 16];
    if (!experts) return COT_OK;
    snprintf(fused, sizeof fused, "%.*s.experts.%s", (int)(experts - name), name, of_all);
    if (!(stored->tensor = cot_shards_find(&checkpoint->shards, fused))) return COT_OK;
    *found = true;
    const cot_tensor *tensor = stored->tensor->tensor;
    const int64_t matrices = weight == COT_WEIGHT_EXPERT_DOWN ? 1 : 2,
                  matrix = weight == COT_WEIGHT_EXPERT_UP ? 1 : 0,
                  shape[3] = {checkpoint->config.gate.experts, matrices * stored->rows, stored->columns};
    stored->name = tensor->name;
    stored->origin = (expert * matrices + matrix) * stored->rows * stored->columns;
    stored->row_step = stored->columns;
    stored->column_step = 1;
    const cot_status status = cot_stored_expect_shape(tensor, shape, 3, error);
    if (status != COT_OK || cot_stored_is_plain(tensor->dtype)) return status;
    if (tensor->dtype == COT_F8_E4M3)
        return find_fused_fp8(stored, checkpoint, expert, matrices, matrix, error);
    return cot_stored_refuse_dtype(tensor, "F32, BF16, F16 or F8_E4M3", error);
}
