#include "kernels/blocks.h"
#include "checkpoint/stored.h"

#include "base/error.h"
#include "base/rng.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

cot_status cot_stored_fail_missing(const char *name, cot_error *error)
{
    return cot_fail(error, COT_NOT_FOUND, "tensor '%s' is missing", name);
}

void cot_stored_print_shape(char *out, size_t room, const int64_t *shape, int dims)
{
    size_t at = 0;
    out[0] = 0;
    for (int d = 0; d < dims && at < room; d++)
        at += (size_t)snprintf(out + at, room - at, "[%" PRId64 "]", shape[d]);
}

cot_status cot_stored_expect_shape(const cot_tensor *tensor, const int64_t *shape, int dims, cot_error *error)
{
    if (tensor->dims == dims && !memcmp(tensor->shape, shape, (size_t)dims * sizeof *shape)) return COT_OK;
    char found[64], expected[64];
    cot_stored_print_shape(found, sizeof found, tensor->shape, tensor->dims);
    cot_stored_print_shape(expected, sizeof expected, shape, dims);
    return cot_fail(error, COT_MALFORMED, "tensor '%.100s' has shape %s, expected %s", tensor->name, found,
                    expected);
}

cot_status cot_stored_refuse_dtype(const cot_tensor *tensor, const char *expected, cot_error *error)
{
    return cot_fail(error, COT_UNSUPPORTED, "tensor '%s' is stored as %s, expected %s", tensor->name,
                    cot_tensor_type_name(tensor), expected);
}

/* The one block size that cuts n into `blocks`, or 0 where several would: any that is at least n makes one
 * block. */
static int64_t only_block_size(int64_t n, int64_t blocks)
{
    if (blocks < 1 || blocks > n) return 0;
    if (blocks == 1) return n;
    int64_t least = (n + blocks - 1) / blocks, most = (n - 1) / (blocks - 1);
    return least == most ? least : 0;
}

/* Scales multiply, whatever they are called: "_scale" in compressed-tensors, in ModelOpt and, of whole tensors, in "fp8" too. */
static cot_status find_fp8(cot_stored *stored, const cot_checkpoint *checkpoint, cot_error *error)
{
    const cot_config *config = &checkpoint->config;
    const bool compressed = config->quantisation.method == COT_QUANTISED_COMPRESSED ||
                            config->quantisation.method == COT_QUANTISED_MODELOPT;
    char usual[COT_STORED_NAME], other[COT_STORED_NAME];
    snprintf(usual, sizeof usual, "%s%s", stored->name, compressed ? "_scale" : "_scale_inv");
    snprintf(other, sizeof other, "%s_scale", stored->name);
    stored->scales = cot_shards_find(&checkpoint->shards, usual);
    if (!stored->scales) stored->scales = cot_shards_find(&checkpoint->shards, other);
    if (!stored->scales) return cot_stored_fail_missing(usual, error);
    const cot_tensor *scales = stored->scales->tensor;
    stored->storage = COT_STORAGE_FP8;
    if (!cot_stored_is_plain(scales->dtype) && scales->dtype != COT_F8_E8M0)
        return cot_stored_refuse_dtype(scales, "F32, BF16, F16 or F8_E8M0", error);
    const bool blocks_alone = config->fp8_block_rows && config->quantisation.method == COT_QUANTISED_NOT,
               one = cot_tensor_elements(scales) == 1,
               channels = !one && scales->shape[0] == stored->rows &&
                          (scales->dims == 1 || (scales->dims == 2 && scales->shape[1] == 1));
    if (!blocks_alone && (one || channels)) {
        stored->block_rows = channels ? 1 : stored->rows;
        stored->block_columns = stored->columns;
        return COT_OK;
    }
    stored->block_rows = config->fp8_block_rows;
    stored->block_columns = config->fp8_block_columns;
    if (!stored->block_rows && scales->dims == 2) {
        const bool published = scales->shape[0] == (stored->rows + 127) / 128 &&
                               scales->shape[1] == (stored->columns + 127) / 128; // as DeepSeek-V3 ships them
        stored->block_rows = published ? 128 : only_block_size(stored->rows, scales->shape[0]);
        stored->block_columns = published ? 128 : only_block_size(stored->columns, scales->shape[1]);
    }
    if (!stored->block_rows || !stored->block_columns)
        return cot_fail(error, COT_UNSUPPORTED,
                        "tensor '%s' is FP8, and neither config.json's weight_block_size nor its scales "
                        "tell the blocks",
                        stored->name);
    int64_t shape[2] = {(stored->rows + stored->block_rows - 1) / stored->block_rows,
                        (stored->columns + stored->block_columns - 1) / stored->block_columns};
    return cot_stored_expect_shape(scales, shape, 2, error);
}

/* A tensor of its own, [rows][columns] or, a vector, [columns]; or what it is quantised to. */
static cot_status find_single(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                              const char *name, bool of_channels, cot_error *error)
{
    if (!(stored->tensor = cot_shards_find(&checkpoint->shards, name)))
        return cot_stored_find_whole(found, stored, checkpoint, name, error);
    *found = true;
    const cot_tensor *tensor = stored->tensor->tensor;
    stored->name = tensor->name;
    if (tensor->dtype == COT_U8 && cot_stored_is_nvfp4(checkpoint, name))
        return cot_stored_find_nvfp4(stored, checkpoint, name, false, error);
    int64_t shape[2] = {stored->rows, stored->columns};
    const bool vector = stored->rows == 1 && tensor->dims != 2;
    const int64_t channels[3] = {stored->rows, 1, stored->columns}; // of a convolution, each by itself
    cot_status status = of_channels ? cot_stored_expect_shape(tensor, channels, 3, error)
                                    : cot_stored_expect_shape(tensor, shape + vector, vector ? 1 : 2, error);
    if (status != COT_OK) return status;
    stored->row_step = stored->columns;
    stored->column_step = 1;
    if (cot_stored_is_plain(tensor->dtype)) return COT_OK;
    if (tensor->dtype == COT_F8_E4M3 && tensor->dims == 2) return find_fp8(stored, checkpoint, error);
    if (tensor->dtype == COT_I8 && checkpoint->config.quantisation.method == COT_QUANTISED_COMPRESSED)
        return cot_stored_find_bytes(stored, checkpoint, name, error);
    return cot_stored_refuse_dtype(
        tensor, tensor->dims == 2 ? "F32, BF16, F16 or F8_E4M3" : "F32, BF16 or F16", error);
}

cot_format cot_stored_format(const cot_stored *stored)
{
    const cot_whole_layout *w = &stored->whole;
    const bool whole = stored->storage == COT_STORAGE_WHOLE;
    if (stored->storage == COT_STORAGE_MXFP4) return COT_FORMAT_MXFP4;
    if (stored->storage == COT_STORAGE_NVFP4) return COT_FORMAT_NVFP4;
    if (stored->storage == COT_STORAGE_BLOCKS) return cot_blocks_format(stored->tensor->tensor->blocks);
    if (stored->storage != COT_STORAGE_FP8 && !whole) return COT_FORMATS;
    int64_t group = whole ? w->group : stored->block_columns;
    if (group >= stored->columns) group = 0;
    if (group % 32 || group >= 1 << 20) return COT_FORMATS;
    if (!whole) return cot_format_with(COT_FORMAT_FP8, group, COT_F32, false);
    const bool zeros = w->zeros && !w->symmetric;
    if (w->bits == 8) return cot_format_with(COT_FORMAT_INT8, group, COT_F32, zeros);
    return cot_format_with(COT_FORMAT_INT4, group, stored->scales->tensor->dtype, zeros);
}

bool cot_stored_is(const cot_stored *stored, cot_format format)
{
    return format != COT_FORMATS && cot_format_join(cot_stored_format(stored), format) == format;
}

cot_format cot_checkpoint_stored(const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer,
                                 int64_t expert)
{
    const cot_config *config = &checkpoint->config;
    cot_stored stored;
    if (checkpoint->random) {
        const bool whole = config->hidden % 32 == 0 && config->moe_intermediate % 32 == 0; // groups
        return config->mxfp4 && whole && cot_weight_is_expert(weight) ? COT_FORMAT_MXFP4 : COT_FORMATS;
    }
    if (cot_stored_find(&stored, checkpoint, weight, layer, expert, NULL) != COT_OK) return COT_FORMATS;
    return cot_stored_format(&stored);
}

/* Norms close to 1, small vectors, and matrices that keep the size of what they multiply. */
static void find_random(cot_stored *stored, const cot_checkpoint *checkpoint, cot_weight weight,
                        int64_t layer, int64_t expert)
{
    bool matrix = stored->rows > 1 && weight != COT_WEIGHT_EMBEDDING;
    double deviation = matrix ? 1 / sqrt((double)stored->columns) : weight == COT_WEIGHT_EMBEDDING ? 1 : 0.02;
    uint64_t place = ((uint64_t)layer << 16 | (uint64_t)expert) << 8 | (uint64_t)weight;
    stored->storage = COT_STORAGE_RANDOM;
    stored->name = cot_weight_name(weight);
    stored->stream = cot_mix64(cot_mix64(checkpoint->seed) ^ place);
    const bool whole =
        weight == COT_WEIGHT_DELTA_NORM || (cot_weight_is_norm(weight) && !checkpoint->config.zero_centred);
    stored->centre = whole ? 1 : 0;
    stored->spread = (float)(deviation * sqrt(3));
    stored->row_step = stored->columns;
    stored->column_step = 1;
}

/* Weights that a family calls the same lie one after the other in one tensor, in the order of cot_weight. Rows before a weight, and of
 * all of them. */
static void rows_together(int64_t *before, int64_t *all, const cot_config *config, cot_weight weight,
                          int64_t layer)
{
    const char *name = cot_weight_template(config->family, weight);
    *before = *all = 0;
    for (int w = 0; w < COT_WEIGHTS; w++) {
        const char *other = cot_weight_template(config->family, (cot_weight)w);
        int64_t rows, columns;
        if (!other || strcmp(other, name) != 0) continue;
        cot_weight_shape(config, (cot_weight)w, layer, &rows, &columns);
        if (w < (int)weight) *before += rows;
        *all += rows;
    }
}

/* A part of a tensor: of one of several weights, or, of an expert whose name has no place for its number, of all experts
 * [experts][rows of all][columns]. `*found` stays false where a weight has a tensor of its own. */
static cot_status find_part(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                            cot_weight weight, int64_t layer, int64_t expert, const char *name,
                            cot_error *error)
{
    const cot_config *config = &checkpoint->config;
    const bool of_all =
        cot_weight_is_expert(weight) && !strstr(cot_weight_template(config->family, weight), "{expert}");
    int64_t before, all;
    rows_together(&before, &all, config, weight, layer);
    if ((all == stored->rows && !of_all) || !(stored->tensor = cot_shards_find(&checkpoint->shards, name)))
        return COT_OK;
    const cot_tensor *tensor = stored->tensor->tensor;
    const int64_t shape[] = {config->gate.experts, all, stored->columns};
    *found = true;
    stored->name = tensor->name;
    stored->origin = ((of_all ? expert * all : 0) + before) * stored->columns;
    stored->row_step = stored->columns;
    stored->column_step = 1;
    const cot_status status = cot_stored_expect_shape(tensor, shape + !of_all, 2 + of_all, error);
    if (status != COT_OK || cot_stored_is_plain(tensor->dtype)) return status;
    return cot_stored_refuse_dtype(tensor, "F32, BF16 or F16", error);
}

/* The tensor of a name, in any of its spellings. */
static cot_status find_spelled(cot_stored *stored, const cot_checkpoint *checkpoint, cot_weight weight,
                               int64_t layer, int64_t expert, cot_error *error)
{
    const cot_family *family = checkpoint->config.family;
    const bool of_experts = cot_weight_is_expert(weight);
    char name[COT_STORED_NAME], spelt[COT_STORED_NAME];
    bool found = false;
    cot_status status = COT_OK;
    cot_stored_name(name, &checkpoint->config, weight, layer, expert, "");
    const int ways = checkpoint->config.nested ? COT_STORED_SPELLINGS : COT_STORED_NESTED;
    for (int way = 0; way < ways && !found && status == COT_OK; way++) {
        if (!cot_stored_spelling(spelt, name, way)) continue;
        if (!family->stacked)
            status = find_part(&found, stored, checkpoint, weight, layer, expert, spelt, error);
        if (found || status != COT_OK) break;
        if (of_experts && family->stacked)
            status = cot_stored_find_interleaved(&found, stored, checkpoint, weight, spelt, expert, error);
        else
            status =
                find_single(&found, stored, checkpoint, spelt, weight == COT_WEIGHT_DELTA_CONVOLUTION, error);
        if (of_experts && !family->stacked && !found && status == COT_OK)
            status = cot_stored_find_fused(&found, stored, checkpoint, weight, spelt, expert, error);
    }
    if (found || status != COT_OK) return status;
    const bool blocks = of_experts && family->stacked && weight <= COT_WEIGHT_EXPERT_DOWN;
    cot_stored_name(name, &checkpoint->config, weight, layer, expert,
                    blocks ? "_blocks" : ""); // as the hub has them
    return cot_stored_fail_missing(name, error);
}

cot_status cot_stored_find(cot_stored *stored, const cot_checkpoint *checkpoint, cot_weight weight,
                           int64_t layer, int64_t expert, cot_error *error)
{
    const cot_config *config = &checkpoint->config;
    *stored = (cot_stored){0};
    if (!cot_weight_is_layered(weight)) layer = 0;
    if (!cot_weight_is_expert(weight)) expert = 0;
    if (weight == COT_WEIGHT_OUTPUT && config->tied_embeddings) weight = COT_WEIGHT_EMBEDDING;
    if (weight == COT_WEIGHT_K_B || weight == COT_WEIGHT_V_B)
        return cot_stored_find_half(stored, checkpoint, weight, layer, error);
    bool inside = layer >= 0 && layer < config->layers && expert >= 0 && expert < config->gate.experts;
    if (inside) cot_weight_shape(config, weight, layer, &stored->rows, &stored->columns);
    if (!stored->rows)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%s has no weight %s in layer %" PRId64 ", expert %" PRId64, config->architecture,
                        cot_weight_name(weight), layer, expert);
    if (checkpoint->random) {
        find_random(stored, checkpoint, weight, layer, expert);
        return COT_OK;
    }
    if (config->gguf) return cot_stored_find_gguf(stored, checkpoint, weight, layer, expert, error);
    return find_spelled(stored, checkpoint, weight, layer, expert, error);
}
