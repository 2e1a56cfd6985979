/* Weights out of a checkpoint, by blocks of rows that the cache holds: made or pointed at, checked, handed
 * on. */
#include "base/error.h"
#include "kernels/pack.h"
#include "kernels/blocks.h"
#include "checkpoint/stored.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum {
    BLOCK_BYTES = 512 << 10,  // of a block; it is checked and then packed out of the second cache
    DROP_BYTES = 8 << 20,     // mapped pages that a thread holds at most, so that loading costs little memory
    DROP_ALIGNMENT = 2 << 20, // a fault maps as much around it as lies together in memory, up to a huge page
};

/* A piece on its way. */
typedef struct piece {
    const cot_checkpoint *checkpoint;
    cot_stored stored;
    int64_t row0, rows, column0, columns;
    bool as_stored;
    int64_t skipped; // of blocks: columns of the first one that are not the piece's
    int64_t group;   // columns of those that are, 0: all are one
    void *scratch;
    int64_t block_rows;
} piece;

/* Blocks of `as` are taken as they are stored; COT_FORMATS: as rows of numbers. */
static cot_status piece_open(piece *p, const cot_checkpoint *checkpoint, const cot_weight_piece *wanted,
                             cot_format as, cot_error *error)
{
    const int64_t row0 = wanted->row0, rows = wanted->rows, column0 = wanted->column0,
                  columns = wanted->columns;
    *p = (piece){checkpoint, .row0 = row0, .rows = rows, .column0 = column0, .columns = columns};
    cot_status status =
        cot_stored_find(&p->stored, checkpoint, wanted->weight, wanted->layer, wanted->expert, error);
    if (status != COT_OK) return status;
    const cot_stored *s = &p->stored;
    if (row0 < 0 || rows < 0 || row0 > s->rows - rows || column0 < 0 || columns < 0 ||
        column0 > s->columns - columns)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' of [%" PRId64 "][%" PRId64 "] has no piece [%" PRId64 "][%" PRId64
                        "] at [%" PRId64 "][%" PRId64 "]",
                        s->name, s->rows, s->columns, rows, columns, row0, column0);
    if (!cot_stored_in_order(s))
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "tensor '%s': the groups of its columns do not lie in order (g_idx), which is not supported",
            s->name);
    if (!cot_stored_shape_is_told(s))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "tensor '%s' is of [%" PRId64 "][%" PRId64 "], its weight_shape says otherwise",
                        s->name, s->rows, s->columns);
    int64_t block = columns ? BLOCK_BYTES / (columns * 4) / COT_PANEL * COT_PANEL : rows;
    p->block_rows = block < COT_PANEL ? COT_PANEL : block;
    if (p->block_rows > rows) p->block_rows = rows;
    p->as_stored = cot_stored_is(s, as);
    if (s->storage == COT_STORAGE_RANDOM)
        p->as_stored = as == COT_FORMAT_MXFP4 && s->columns % 32 == 0; // drawn so where groups are whole
    const int64_t group = as == COT_FORMATS ? 0 : cot_format_group(as);
    if (group && (column0 % group || (columns % group && column0 + columns != s->columns)))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' cannot be cut inside its groups of %" PRId64 " columns", s->name, group);
    p->group = group;
    const bool blocks = as != COT_FORMATS && cot_format_blocks(as);
    if (blocks) p->skipped = cot_format_skipped(as);
    if (blocks && (!p->as_stored || column0 % cot_tensor_block_elements(cot_format_blocks(as)) != p->skipped))
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' has no blocks of %s from column %" PRId64 " on",
                        s->name, cot_format_row_of(as)->name, column0);
    const bool gathered = s->storage == COT_STORAGE_NVFP4 && p->as_stored,
               mapped = (s->storage == COT_STORAGE_MXFP4 || blocks) && p->as_stored && !gathered;
    if (cot_stored_is_direct(s) || mapped || !rows || !columns) return COT_OK;
    size_t bytes = cot_stored_scratch_bytes(s, p->block_rows, columns);
    if (gathered)
        bytes = cot_stored_gathered_bytes(p->block_rows, p->skipped + columns);
    else if (p->as_stored && s->storage != COT_STORAGE_RANDOM)
        bytes = cot_stored_codes_bytes(p->block_rows, columns, group);
    if (!(p->scratch = malloc(bytes)))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to read '%s'", s->name);
    return COT_OK;
}

static void drop(const cot_shards *shards, const cot_shard_tensor *tensor, size_t begin, size_t end)
{
    const cot_file_map *map = cot_shards_map(shards, tensor);
    size_t base = (size_t)((const uint8_t *)tensor->tensor->data - map->data);
    begin = (base + begin) / DROP_ALIGNMENT * DROP_ALIGNMENT;
    end = (base + end + DROP_ALIGNMENT - 1) / DROP_ALIGNMENT * DROP_ALIGNMENT;
    if (end > map->bytes) end = map->bytes;
    if (begin < end) cot_file_map_drop(map, begin, end - begin);
}

/* Bytes of the tensor before element `at`. */
static size_t bytes_before(const cot_stored *stored, int64_t at)
{
    if (stored->storage == COT_STORAGE_MXFP4 || stored->storage == COT_STORAGE_NVFP4) return (size_t)at / 2;
    if (stored->storage == COT_STORAGE_BLOCKS) return cot_blocks_bytes(stored->tensor->tensor->blocks, at);
    if (stored->storage == COT_STORAGE_WHOLE && !stored->whole.bytes) return (size_t)at * 4;
    return (size_t)at * cot_dtype_bytes(stored->tensor->tensor->dtype);
}

/* Lets go of the pages of rows [row, row + rows). Rows that do not lie one after the other go with the last
 * of them: all rows of an input-major matrix lie on the same pages. */
static void drop_rows(const piece *p, int64_t row, int64_t rows, bool last)
{
    const cot_stored *s = &p->stored;
    const cot_shards *shards = &p->checkpoint->shards;
    if (s->storage == COT_STORAGE_RANDOM) return;
    if (s->storage == COT_STORAGE_HEADS) {
        if (last) drop(shards, s->tensor, 0, s->tensor->tensor->bytes);
        if (last) drop(shards, s->values, 0, s->values->tensor->bytes);
        return;
    }
    const bool in_words = s->storage == COT_STORAGE_WHOLE && !s->whole.bytes;
    if (in_words && s->column_step != 1) { // transposed
        if (last) drop(shards, s->tensor, 0, s->tensor->tensor->bytes);
    } else if (s->column_step == 1) {
        int64_t begin = s->origin + row * s->row_step, end = begin + rows * s->row_step;
        drop(shards, s->tensor, bytes_before(s, begin), bytes_before(s, end));
        if (s->storage == COT_STORAGE_MXFP4) drop(shards, s->scales, (size_t)begin / 32, (size_t)end / 32);
        if (s->storage == COT_STORAGE_NVFP4) drop(shards, s->scales, (size_t)begin / 16, (size_t)end / 16);
    } else if (last) {
        int64_t end = s->origin + s->columns * s->column_step;
        drop(shards, s->tensor, bytes_before(s, s->origin), bytes_before(s, end));
    }
    if (last && (s->storage == COT_STORAGE_FP8 || s->storage == COT_STORAGE_WHOLE))
        drop(shards, s->scales, 0, s->scales->tensor->bytes);
    if (last && s->of_all) drop(shards, s->of_all, 0, s->of_all->tensor->bytes);
    if (last && s->whole.shape) drop(shards, s->whole.shape, 0, s->whole.shape->tensor->bytes);
}

static cot_status fail_not_finite(const piece *p, const cot_block *block, int64_t row, int64_t rows,
                                  cot_error *error)
{
    int64_t bytes = (int64_t)cot_dtype_bytes(block->type), r = 0;
    while (r < rows - 1 &&
           cot_all_finite((const uint8_t *)block->data + r * block->stride * bytes, block->type, p->columns))
        r++;
    return cot_fail(error, COT_INVALID_ARGUMENT, "tensor '%s' holds a NaN or an infinity in row %" PRId64,
                    p->stored.name, row + r);
}

static bool block_is_finite(const cot_block *block, int64_t rows, int64_t columns)
{
    int64_t bytes = (int64_t)cot_dtype_bytes(block->type);
    if (block->stride == columns) return cot_all_finite(block->data, block->type, rows * columns);
    for (int64_t r = 0; r < rows; r++)
        if (!cot_all_finite((const uint8_t *)block->data + r * block->stride * bytes, block->type, columns))
            return false;
    return true;
}

/* Whether MXFP4 stands for a number that is none, or too large: a scale that is NaN, or one of the greatest. */
static bool stored_is_finite(const cot_pack_source *stored, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < columns / 32; g++) {
            const uint8_t scale = stored->scales[r * stored->scale_stride + g],
                          *group = stored->data + r * stored->stride + 16 * g;
            if (scale < 253) continue; // 6 times 2^125 is a number
            for (int i = 0; i < 32; i++)
                if (!isfinite(cot_f4_e2m1_to_f32(group[i / 2] >> i % 2 * 4 & 15) * cot_f8_e8m0_to_f32(scale)))
                    return false;
        }
    return true;
}

/* Of FP8 and whole numbers: scales and zero points of the piece's rows; of NVFP4 the scale of all elements. */
static cot_status check_scales(const piece *p, int64_t r, int64_t rows, cot_error *error)
{
    const cot_stored *s = &p->stored;
    int64_t row;
    float of_all;
    if (s->storage == COT_STORAGE_NVFP4 && !cot_stored_scale_of_all(&of_all, s))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "tensor '%s' makes no numbers of '%s': a scale is zero, negative, NaN or too large",
                        s->of_all->tensor->name, s->name);
    if (s->storage != COT_STORAGE_FP8 && s->storage != COT_STORAGE_WHOLE) return COT_OK;
    const char *fault = cot_stored_scales_fault(&row, p->checkpoint, s, p->row0 + r, rows);
    if (!fault) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "tensor '%s' has %s in row %" PRId64, s->name, fault, row);
}

static cot_status hand_on(const piece *p, int64_t r, int64_t rows, cot_checkpoint_taker take, void *context,
                          cot_error *error)
{
    const cot_status status = check_scales(p, r, rows, error);
    if (status != COT_OK) return status;
    const cot_block block =
        cot_stored_block(p->checkpoint, &p->stored, p->row0 + r, rows, p->column0, p->columns, p->scratch);
    if (!block_is_finite(&block, rows, p->columns))
        return fail_not_finite(p, &block, p->row0 + r, rows, error);
    take(context, r, rows,
         &(cot_pack_input){.numbers = block.data, .type = block.type, .stride = block.stride});
    return COT_OK;
}

/* FP8's NaNs, and numbers that its scales make too large. */
static bool fp8_is_finite(const cot_checkpoint *checkpoint, const cot_codes *codes, int64_t row,
                          int64_t columns, int64_t group)
{
    if (!group) group = columns;
    const int64_t groups = (columns + group - 1) / group;
    for (int64_t c = 0; c < columns; c++) {
        const uint8_t code = (uint8_t)codes->codes[row * columns + c];
        if (!isfinite(checkpoint->e4m3[code] * codes->scales[row * groups + c / group])) return false;
    }
    return true;
}

static cot_status hand_on_codes(const piece *p, int64_t r, int64_t rows, cot_checkpoint_taker take,
                                void *context, cot_error *error)
{
    const cot_stored *s = &p->stored;
    const cot_status status = check_scales(p, r, rows, error);
    if (status != COT_OK) return status;
    const cot_codes codes =
        cot_stored_codes(p->checkpoint, s, p->row0 + r, rows, p->column0, p->columns, p->group, p->scratch);
    for (int64_t i = 0; i < rows && s->storage == COT_STORAGE_BLOCKS; i++)
        if (!cot_all_finite(codes.scales + i * (p->columns / p->group), COT_F32, p->columns / p->group))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "tensor '%s' holds a NaN or an infinity in row %" PRId64, s->name,
                            p->row0 + r + i);
    for (int64_t i = 0; i < rows && s->storage == COT_STORAGE_FP8; i++)
        if (!fp8_is_finite(p->checkpoint, &codes, i, p->columns, p->group))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "tensor '%s' holds a NaN or an infinity in row %" PRId64, s->name,
                            p->row0 + r + i);
    take(context, r, rows, &(cot_pack_input){.codes = &codes});
    return COT_OK;
}

static cot_status hand_on_mxfp4(const piece *p, int64_t r, int64_t rows, const cot_pack_source *stored,
                                cot_checkpoint_taker take, void *context, cot_error *error)
{
    if (stored_is_finite(stored, rows, p->columns)) {
        take(context, r, rows, &(cot_pack_input){.stored = stored});
        return COT_OK;
    }
    int64_t first = 0;
    for (cot_pack_source row = *stored; stored_is_finite(&row, 1, p->columns); first++) {
        row.data += row.stride;
        row.scales += row.scale_stride;
    }
    return cot_fail(error, COT_INVALID_ARGUMENT, "tensor '%s' holds a NaN or an infinity in row %" PRId64,
                    p->stored.name, p->row0 + r + first);
}

/* Blocks stay as they are; NVFP4's, whose parts lie apart, become some. */
static cot_status hand_on_blocks(const piece *p, int64_t r, int64_t rows, cot_checkpoint_taker take,
                                 void *context, cot_error *error)
{
    const cot_stored *s = &p->stored;
    const cot_tensor_blocks kind = cot_format_blocks(cot_stored_format(s));
    const int64_t elements = cot_tensor_block_elements(kind),
                  whole = (p->skipped + p->columns + elements - 1) / elements * elements,
                  column = p->column0 - p->skipped;
    cot_pack_source blocks;
    float of_all;
    if (s->storage == COT_STORAGE_NVFP4) {
        const cot_status status = check_scales(p, r, rows, error);
        if (status != COT_OK) return status;
        (void)cot_stored_scale_of_all(&of_all, s);
        blocks =
            cot_stored_gather(s, p->row0 + r, rows, column, p->skipped + p->columns, &of_all, p->scratch);
    } else {
        const int64_t at = s->origin + (p->row0 + r) * s->row_step + column;
        blocks =
            (cot_pack_source){.data = (const uint8_t *)s->tensor->tensor->data + cot_blocks_bytes(kind, at),
                              .stride = (int64_t)cot_blocks_bytes(kind, s->row_step)};
    }
    for (int64_t i = 0; i < rows; i++)
        if (!cot_blocks_are_finite(blocks.data + i * blocks.stride, kind, whole))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "tensor '%s' holds a NaN or an infinity in row %" PRId64, s->name,
                            p->row0 + r + i);
    take(context, r, rows, &(cot_pack_input){.stored = &blocks});
    return COT_OK;
}

static cot_status hand_on_stored(const piece *p, int64_t r, int64_t rows, cot_checkpoint_taker take,
                                 void *context, cot_error *error)
{
    const cot_stored *s = &p->stored;
    if (s->storage == COT_STORAGE_RANDOM) {
        const cot_pack_source drawn =
            cot_stored_draw(s, p->row0 + r, rows, p->column0, p->columns, p->scratch);
        take(context, r, rows, &(cot_pack_input){.stored = &drawn});
        return COT_OK;
    }
    if (cot_format_blocks(cot_stored_format(s))) return hand_on_blocks(p, r, rows, take, context, error);
    if (s->storage == COT_STORAGE_BLOCKS && s->tensor->tensor->blocks == COT_BLOCKS_MXFP4) {
        const cot_pack_source turned =
            cot_stored_turn(s, p->row0 + r, rows, p->column0, p->columns, p->scratch);
        return hand_on_mxfp4(p, r, rows, &turned, take, context, error);
    }
    if (s->storage != COT_STORAGE_MXFP4) return hand_on_codes(p, r, rows, take, context, error);
    const int64_t at = s->origin + (p->row0 + r) * s->row_step + p->column0;
    cot_pack_source stored = {.data = (const uint8_t *)s->tensor->tensor->data + at / 2,
                              .scales = (const uint8_t *)s->scales->tensor->data + at / 32,
                              .stride = s->row_step / 2,
                              .scale_stride = s->row_step / 32};
    return hand_on_mxfp4(p, r, rows, &stored, take, context, error);
}

static cot_status piece_run(piece *p, cot_checkpoint_taker take, void *context, cot_error *error)
{
    const cot_stored *s = &p->stored;
    cot_status status = COT_OK;
    int64_t kept = 0; // first row whose pages are still held
    const bool nowhere = s->storage == COT_STORAGE_RANDOM || s->storage == COT_STORAGE_HEADS;
    int64_t row_bytes = nowhere ? 0 : (int64_t)bytes_before(s, s->row_step);
    for (int64_t r = 0; r < p->rows && p->columns && status == COT_OK; r += p->block_rows) {
        int64_t rows = p->rows - r < p->block_rows ? p->rows - r : p->block_rows;
        if (p->as_stored)
            status = hand_on_stored(p, r, rows, take, context, error);
        else
            status = hand_on(p, r, rows, take, context, error);
        bool last = r + rows == p->rows || status != COT_OK;
        if (last || (r + rows - kept) * row_bytes >= DROP_BYTES) {
            drop_rows(p, p->row0 + kept, r + rows - kept, last);
            kept = r + rows;
        }
    }
    free(p->scratch);
    return status;
}

typedef struct reader {
    float *out;
    int64_t columns;
} reader;

static void read_block(void *context, int64_t row, int64_t rows, const cot_pack_input *block)
{
    const reader *to = context;
    const uint8_t *in = block->numbers;
    for (int64_t r = 0; r < rows; r++, in += block->stride * (int64_t)cot_dtype_bytes(block->type))
        cot_pack_floats(to->out + (row + r) * to->columns, in, block->type, to->columns);
}

cot_status cot_checkpoint_read(const cot_checkpoint *checkpoint, const cot_weight_piece *wanted, float *out,
                               cot_error *error)
{
    piece p;
    cot_status status = piece_open(&p, checkpoint, wanted, COT_FORMATS, error);
    if (status == COT_OK) status = piece_run(&p, read_block, &(reader){out, p.columns}, error);
    if (status != COT_OK || !checkpoint->config.zero_centred || !cot_weight_is_norm(wanted->weight))
        return status;
    for (int64_t i = 0; i < p.rows * p.columns; i++) out[i] += 1;
    return COT_OK;
}

typedef struct packer {
    cot_packed_part to;
    int64_t k;
} packer;

static void pack_block(void *context, int64_t row, int64_t rows, const cot_pack_input *in)
{
    const packer *p = context;
    cot_pack_any(p->to.b, p->to.format, p->k, p->to.n, p->to.n0 + row, rows, in);
}

/* Columns of whole rows, which are rounded by one scale before they are cut. */
typedef struct cutter {
    cot_packed_part to;
    int64_t width, column0, columns; // of the row; of those that are packed
    float *row;
    int8_t *codes; // [width]
} cutter;

static void pack_cut_block(void *context, int64_t row, int64_t rows, const cot_pack_input *in)
{
    const cutter *p = context;
    const uint8_t *numbers = in->numbers;
    for (int64_t r = 0; r < rows; r++, numbers += in->stride * (int64_t)cot_dtype_bytes(in->type)) {
        float scale;
        cot_pack_floats(p->row, numbers, in->type, p->width);
        cot_quantise_row(p->codes, &scale, cot_format_kind(p->to.format), p->row, p->width);
        cot_pack_codes(p->to.b, p->to.format, p->columns, p->to.n, p->to.n0 + row + r, 1,
                       &(cot_codes){.codes = p->codes + p->column0, .scales = &scale});
    }
}

static cot_status pack_cut(const cot_checkpoint *checkpoint, const cot_weight_piece *wanted,
                           const cot_packed_part *to, int64_t width, cot_error *error)
{
    piece p;
    cot_weight_piece rows = *wanted;
    rows.column0 = 0;
    rows.columns = width;
    cot_status status = piece_open(&p, checkpoint, &rows, COT_FORMATS, error);
    if (status != COT_OK) return status;
    cutter cut = {.to = *to, .width = width, .column0 = wanted->column0, .columns = wanted->columns};
    cut.row = malloc((size_t)width * (sizeof *cut.row + sizeof *cut.codes));
    if (!cut.row) {
        free(p.scratch);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to read '%s'", p.stored.name);
    }
    cut.codes = (int8_t *)(cut.row + width);
    status = piece_run(&p, pack_cut_block, &cut, error);
    free(cut.row);
    return status;
}

cot_status cot_checkpoint_pack(const cot_checkpoint *checkpoint, const cot_weight_piece *wanted,
                               const cot_packed_part *to, cot_error *error)
{
    piece p;
    cot_status status = piece_open(&p, checkpoint, wanted, to->format, error);
    if (status != COT_OK) return status;
    const bool by_row = !p.as_stored && !p.group && cot_format_groups(to->format, p.columns);
    if (!by_row || p.columns == p.stored.columns || !p.columns)
        return piece_run(&p, pack_block, &(packer){*to, p.columns}, error);
    free(p.scratch);
    return pack_cut(checkpoint, wanted, to, p.stored.columns, error);
}

cot_status cot_checkpoint_hand_on(const cot_checkpoint *checkpoint, const cot_weight_piece *wanted,
                                  cot_format as, cot_checkpoint_taker take, void *context, cot_error *error)
{
    piece p;
    cot_status status = piece_open(&p, checkpoint, wanted, as, error);
    return status == COT_OK ? piece_run(&p, take, context, error) : status;
}

static void pack_block_transposed(void *context, int64_t row, int64_t rows, const cot_pack_input *in)
{
    const packer *p = context;
    cot_pack_rows(p->to.b, p->to.format, p->k, p->to.n, row, rows, in->numbers, in->type, in->stride);
}

cot_status cot_checkpoint_pack_transposed(const cot_checkpoint *checkpoint, const cot_weight_piece *wanted,
                                          void *b, cot_format format, cot_error *error)
{
    piece p;
    cot_status status = piece_open(&p, checkpoint, wanted, COT_FORMATS, error);
    if (status != COT_OK) return status;
    packer rows = {.to = {.b = b, .format = format, .n = p.columns}, .k = p.rows};
    return piece_run(&p, pack_block_transposed, &rows, error);
}
