/* Where the hub's layouts keep whole numbers of 4 and 8 bits, and E2M1, their scales and zero points.
 *
 *   GPTQ                 X.qweight [in / per][out], X.scales [groups][out], X.qzeros [groups][out / per]; X.g_idx [in], the group of
 *                        each column, which must be its own: they are read in their order
 *   AWQ                  X.qweight [in][out / per], X.scales and X.qzeros as GPTQ's; codes of a word in an order of its own
 *   compressed-tensors   X.weight_packed [out][in / per], X.weight_scale [out][groups], X.weight_zero_point [out / per][groups]
 *                        X.weight [out][in] of signed bytes, the scales alike, X.weight_zero_point [out][groups] of bytes
 *                        X.weight_packed [out][in / 2] of bytes of E2M1, X.weight_scale [out][in / 32] of E8M0; NVFP4: [out][in / 16] of
 *                        E4M3, and X.weight_global_scale, by which all are divided
 *   ModelOpt             NVFP4: X.weight [out][in / 2], X.weight_scale [out][in / 16], X.weight_scale_2, by which all are multiplied
 *
 * `per` is 32 / bits: words are of 32 bits. */
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/stored.h"

#include <inttypes.h>
#include <stdio.h>

enum { MAX_NAME = 200 };

/* The tensor whose name is `name` with "weight" at its end replaced. */
static const cot_shard_tensor *beside(const cot_checkpoint *checkpoint, const char *name, const char *end)
{
    char other[MAX_NAME];
    snprintf(other, sizeof other, "%.*s%s", (int)(strlen(name) - strlen("weight")), name, end);
    return cot_shards_find(&checkpoint->shards, other);
}

static cot_status must_be_beside(const cot_shard_tensor **tensor, const cot_checkpoint *checkpoint,
                                 const char *name, const char *end, cot_error *error)
{
    if ((*tensor = beside(checkpoint, name, end))) return COT_OK;
    return cot_fail(error, COT_NOT_FOUND, "tensor '%.*s%s' is missing",
                    (int)(strlen(name) - strlen("weight")), name, end);
}

static cot_status expect(const cot_shard_tensor *tensor, int64_t rows, int64_t columns, cot_error *error)
{
    return cot_stored_expect_shape(tensor->tensor, (const int64_t[]){rows, columns}, 2, error);
}

static cot_status expect_words(const cot_shard_tensor *tensor, int64_t rows, int64_t columns,
                               cot_error *error)
{
    const cot_dtype type = tensor->tensor->dtype;
    if (type != COT_I32 && type != COT_U32) return cot_stored_refuse_dtype(tensor->tensor, "I32", error);
    return expect(tensor, rows, columns, error);
}

static cot_status expect_order(const cot_stored *stored, cot_error *error)
{
    if (!stored->whole.order) return COT_OK;
    const cot_tensor *order = stored->whole.order->tensor;
    if (order->dtype != COT_I32) return cot_stored_refuse_dtype(order, "I32", error);
    return cot_stored_expect_shape(order, &stored->columns, 1, error);
}

/* compressed-tensors' copy of a matrix's shape; what it holds is looked at when the matrix is read. */
static cot_status find_shape(cot_stored *stored, const cot_checkpoint *checkpoint, const char *name,
                             cot_error *error)
{
    if (!(stored->whole.shape = beside(checkpoint, name, "weight_shape"))) return COT_OK;
    const cot_tensor *shape = stored->whole.shape->tensor;
    if (shape->dtype != COT_I64 && shape->dtype != COT_I32)
        return cot_stored_refuse_dtype(shape, "I64 or I32", error);
    return cot_stored_expect_shape(shape, (const int64_t[]){2}, 1, error);
}

bool cot_stored_shape_is_told(const cot_stored *stored)
{
    if (!stored->whole.shape) return true;
    const cot_tensor *shape = stored->whole.shape->tensor;
    int64_t wide[2];
    int32_t narrow[2];
    if (shape->dtype == COT_I64) {
        memcpy(wide, shape->data, sizeof wide);
        return wide[0] == stored->rows && wide[1] == stored->columns;
    }
    memcpy(narrow, shape->data, sizeof narrow);
    return narrow[0] == stored->rows && narrow[1] == stored->columns;
}

bool cot_stored_in_order(const cot_stored *stored)
{
    const cot_whole_layout *w = &stored->whole;
    for (int64_t c = 0; w->order && c < stored->columns; c++) {
        int32_t group;
        memcpy(&group, (const uint8_t *)w->order->tensor->data + 4 * c, 4);
        if (group != c / w->group) return false;
    }
    return true;
}

cot_status cot_stored_refuse_order(const cot_stored *stored, const char *told, const char *missing,
                                   cot_error *error)
{
    return cot_fail(
        error, COT_UNSUPPORTED,
        "tensor '%s': config.json says %s, and there is no %s that says in which order groups lie",
        stored->name, told, missing);
}

static cot_status fail_divide(const cot_stored *stored, int64_t n, const char *what, int64_t by,
                              cot_error *error)
{
    return cot_fail(error, COT_MALFORMED, "tensor '%s': %" PRId64 " %s are not divided by %" PRId64,
                    stored->name, n, what, by);
}

static void begin(cot_stored *stored, const cot_shard_tensor *tensor, int bits)
{
    stored->tensor = tensor;
    stored->name = tensor->tensor->name;
    stored->storage = COT_STORAGE_WHOLE;
    stored->origin = 0;
    stored->whole.bits = bits;
}

/* GPTQ and AWQ: transposed, with scales [groups][out]. */
static cot_status find_transposed(cot_stored *stored, const cot_checkpoint *checkpoint, const char *name,
                                  const cot_shard_tensor *codes, cot_error *error)
{
    const cot_quantisation *q = &checkpoint->config.quantisation;
    const bool awq = q->method == COT_QUANTISED_AWQ;
    const int64_t in = stored->columns, out = stored->rows, per = 32 / q->bits,
                  group = q->group ? q->group : in,
                  groups = (in + group - 1) / group; // the last may be a part
    cot_whole_layout *w = &stored->whole;
    begin(stored, codes, q->bits);
    stored->row_step = 1;
    stored->column_step = awq ? out / per : out;
    *w = (cot_whole_layout){.bits = q->bits,
                            .rows_share = awq,
                            .interleaved = awq,
                            .group = group,
                            .scale_row = 1,
                            .scale_group = out,
                            .zero_row = 1,
                            .zero_group = out / per,
                            .ones_less = q->ones_less,
                            .symmetric = q->symmetric,
                            .order = beside(checkpoint, name, "g_idx")};
    if (out % per) return fail_divide(stored, out, "rows", per, error);
    if (!awq && in % per) return fail_divide(stored, in, "columns", per, error);
    if (q->reordered && !w->order && groups > 1)
        return cot_stored_refuse_order(stored, "desc_act", "g_idx", error);
    cot_status status = must_be_beside(&stored->scales, checkpoint, name, "scales", error);
    if (status == COT_OK) status = must_be_beside(&w->zeros, checkpoint, name, "qzeros", error);
    if (status == COT_OK) status = expect_words(codes, awq ? in : in / per, awq ? out / per : out, error);
    if (status == COT_OK) status = expect_words(w->zeros, groups, out / per, error);
    if (status == COT_OK) status = expect(stored->scales, groups, out, error);
    if (status == COT_OK) status = expect_order(stored, error);
    if (status == COT_OK && !cot_stored_is_plain(stored->scales->tensor->dtype))
        status = cot_stored_refuse_dtype(stored->scales->tensor, "F32, BF16 or F16", error);
    return status;
}

/* compressed-tensors' scales [out][groups], of a channel or of the tensor, and zero points if there are any. */
static cot_status find_compressed_scales(cot_stored *stored, const cot_checkpoint *checkpoint,
                                         const char *name, cot_error *error)
{
    cot_whole_layout *w = &stored->whole;
    const int64_t in = stored->columns, out = stored->rows;
    cot_status status = must_be_beside(&stored->scales, checkpoint, name, "weight_scale", error);
    if (status != COT_OK) return status;
    const cot_tensor *scales = stored->scales->tensor;
    const bool one = cot_tensor_elements(scales) == 1 && out > 1;
    const int64_t groups = one || scales->dims != 2 ? 1 : scales->shape[1];
    if (!cot_stored_is_plain(scales->dtype))
        return cot_stored_refuse_dtype(scales, "F32, BF16 or F16", error);
    if (!one)
        status = scales->dims == 1 ? cot_stored_expect_shape(scales, &out, 1, error)
                                   : expect(stored->scales, out, groups, error);
    if (status != COT_OK) return status;
    if (groups < 1 || in % groups) return fail_divide(stored, in, "columns", groups, error);
    w->group = in / groups;
    w->scale_row = one ? 0 : groups;
    w->scale_group = 1;
    if (!(w->zeros = beside(checkpoint, name, "weight_zero_point"))) return COT_OK;
    w->symmetric = checkpoint->config.quantisation.symmetric;
    w->zero_group = 1;
    w->zero_row = one ? 0 : groups;
    if (!one && !w->bytes && w->zeros->tensor->dtype != COT_I8)
        return expect_words(w->zeros, (out * w->bits + 31) / 32, groups, error);
    if (w->zeros->tensor->dtype != COT_I8) return cot_stored_refuse_dtype(w->zeros->tensor, "I8", error);
    if (one && cot_tensor_elements(w->zeros->tensor) == 1) return COT_OK;
    return expect(w->zeros, one ? 1 : out, groups, error);
}

cot_status cot_stored_find_bytes(cot_stored *stored, const cot_checkpoint *checkpoint, const char *name,
                                 cot_error *error)
{
    begin(stored, stored->tensor, 8);
    stored->whole.bytes = true;
    stored->whole.order = beside(checkpoint, name, "weight_g_idx");
    const cot_status status = expect_order(stored, error);
    return status == COT_OK ? find_compressed_scales(stored, checkpoint, name, error) : status;
}

/* E2M1, two a byte. */
static cot_status find_compressed_mxfp4(cot_stored *stored, const cot_checkpoint *checkpoint,
                                        const char *name, cot_error *error)
{
    const int64_t in = stored->columns;
    if (in % 32) return fail_divide(stored, in, "columns", 32, error);
    cot_status status = must_be_beside(&stored->scales, checkpoint, name, "weight_scale", error);
    if (status == COT_OK) status = expect(stored->tensor, stored->rows, in / 2, error);
    if (status == COT_OK) status = expect(stored->scales, stored->rows, in / 32, error);
    if (status == COT_OK && stored->scales->tensor->dtype != COT_U8 &&
        stored->scales->tensor->dtype != COT_F8_E8M0)
        status = cot_stored_refuse_dtype(stored->scales->tensor, "U8 or F8_E8M0", error);
    stored->storage = COT_STORAGE_MXFP4;
    stored->row_step = in;
    stored->column_step = 1;
    return status;
}

bool cot_stored_is_nvfp4(const cot_checkpoint *checkpoint, const char *name)
{
    return cot_path_ends(name, ".weight") && beside(checkpoint, name, "weight_scale_2");
}

/* Matrices that are multiplied together may have different scales of all their elements: each is its own. */
cot_status cot_stored_find_nvfp4(cot_stored *stored, const cot_checkpoint *checkpoint, const char *name,
                                 bool packed, cot_error *error)
{
    enum { GROUP = 16 };
    const int64_t in = stored->columns;
    const cot_shard_tensor *before = beside(checkpoint, name, "pre_quant_scale");
    begin(stored, stored->tensor, 4);
    stored->storage = COT_STORAGE_NVFP4;
    stored->row_step = in;
    stored->column_step = 1;
    stored->divides = packed;
    if (before)
        return cot_fail(error, COT_UNSUPPORTED, "tensor '%s' is multiplied by '%s', which is not supported",
                        stored->name, before->tensor->name);
    if (in % GROUP) return fail_divide(stored, in, "columns", GROUP, error);
    cot_status status = must_be_beside(&stored->scales, checkpoint, name, "weight_scale", error);
    if (status == COT_OK)
        status = must_be_beside(&stored->of_all, checkpoint, name,
                                packed ? "weight_global_scale" : "weight_scale_2", error);
    if (status != COT_OK) return status;
    const cot_tensor *of_all = stored->of_all->tensor;
    status = expect(stored->tensor, stored->rows, in / 2, error);
    if (status == COT_OK) status = expect(stored->scales, stored->rows, in / GROUP, error);
    if (status == COT_OK && stored->tensor->tensor->dtype != COT_U8)
        status = cot_stored_refuse_dtype(stored->tensor->tensor, "U8", error);
    if (status == COT_OK && stored->scales->tensor->dtype != COT_F8_E4M3)
        status = cot_stored_refuse_dtype(stored->scales->tensor, "F8_E4M3", error);
    if (status == COT_OK && of_all->dtype != COT_F32) status = cot_stored_refuse_dtype(of_all, "F32", error);
    if (status == COT_OK && cot_tensor_elements(of_all) != 1)
        status = cot_stored_expect_shape(of_all, (const int64_t[]){1}, 1, error);
    return status;
}

/* MXFP4 has others, and no scale of all elements. */
static bool has_nvfp4_scales(const cot_checkpoint *checkpoint, const char *name)
{
    const cot_shard_tensor *scales = beside(checkpoint, name, "weight_scale");
    return beside(checkpoint, name, "weight_global_scale") ||
           (scales && scales->tensor->dtype == COT_F8_E4M3);
}

static cot_status find_compressed(cot_stored *stored, const cot_checkpoint *checkpoint, const char *name,
                                  const cot_shard_tensor *codes, cot_error *error)
{
    const cot_tensor *packed = codes->tensor;
    const int64_t in = stored->columns;
    int bits = 4;
    if (packed->dims == 2 && packed->shape[1] == (in * 8 + 31) / 32) bits = 8;
    begin(stored, codes, bits);
    stored->whole.order = beside(checkpoint, name, "weight_g_idx");
    cot_status status = find_shape(stored, checkpoint, name, error);
    if (status != COT_OK) return status;
    if (packed->dtype == COT_U8 && has_nvfp4_scales(checkpoint, name))
        return cot_stored_find_nvfp4(stored, checkpoint, name, true, error);
    if (packed->dtype == COT_U8) return find_compressed_mxfp4(stored, checkpoint, name, error);
    stored->row_step = (in * bits + 31) / 32;
    stored->column_step = 1;
    status = expect_words(codes, stored->rows, stored->row_step, error);
    if (status == COT_OK) status = expect_order(stored, error);
    return status == COT_OK ? find_compressed_scales(stored, checkpoint, name, error) : status;
}

cot_status cot_stored_find_whole(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                                 const char *name, cot_error *error)
{
    const cot_quantised method = checkpoint->config.quantisation.method;
    const size_t length = strlen(name), end = strlen(".weight");
    *found = false;
    if (method == COT_QUANTISED_NOT || method == COT_QUANTISED_MODELOPT || length < end ||
        strcmp(name + length - end, ".weight") != 0)
        return COT_OK;
    const bool compressed = method == COT_QUANTISED_COMPRESSED;
    const cot_shard_tensor *codes = beside(checkpoint, name, compressed ? "weight_packed" : "qweight");
    if (!codes) return COT_OK;
    *found = true;
    return compressed ? find_compressed(stored, checkpoint, name, codes, error)
                      : find_transposed(stored, checkpoint, name, codes, error);
}
