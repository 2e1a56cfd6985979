/* From the stored form to rows of numbers. */
#include "checkpoint/stored.h"

#include "base/rng.h"
#include "kernels/blocks.h"

#include <math.h>

bool cot_stored_is_direct(const cot_stored *stored)
{
    return stored->storage == COT_STORAGE_PLAIN && stored->column_step == 1;
}

static float load(const uint8_t *data, cot_dtype type, int64_t i)
{
    uint16_t half;
    float value;
    if (type == COT_F32) {
        memcpy(&value, data + 4 * i, 4);
        return value;
    }
    memcpy(&half, data + 2 * i, 2);
    return type == COT_BF16 ? cot_bf16_to_f32(half) : cot_f16_to_f32(half);
}

/* Walks the tensor in the order in which it lies: a column of the weight is a stretch of it. */
static void gather(float *out, const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                   int64_t columns)
{
    const cot_tensor *tensor = stored->tensor->tensor;
    for (int64_t c = 0; c < columns; c++) {
        int64_t at = stored->origin + row * stored->row_step + (column + c) * stored->column_step;
        for (int64_t r = 0; r < rows; r++)
            out[r * columns + c] = load(tensor->data, tensor->dtype, at + r * stored->row_step);
    }
}

static void decode_fp8(float *out, const cot_checkpoint *checkpoint, const cot_stored *stored, int64_t row,
                       int64_t rows, int64_t column, int64_t columns)
{
    const cot_tensor *scales = stored->scales->tensor;
    int64_t across = (stored->columns + stored->block_columns - 1) / stored->block_columns;
    for (int64_t r = 0; r < rows; r++, out += columns) {
        const uint8_t *in = (const uint8_t *)stored->tensor->tensor->data + stored->origin +
                            (row + r) * stored->columns + column;
        for (int64_t c = 0; c < columns;) {
            int64_t block = (column + c) / stored->block_columns,
                    end = (block + 1) * stored->block_columns - column;
            int64_t at = stored->scale_origin + (row + r) / stored->block_rows * across + block;
            float scale = scales->dtype == COT_F8_E8M0 ? checkpoint->e8m0[((const uint8_t *)scales->data)[at]]
                                                       : load(scales->data, scales->dtype, at);
            if (end > columns) end = columns;
            for (; c < end; c++) out[c] = checkpoint->e4m3[in[c]] * scale;
        }
    }
}

/* ---- codes as they are stored ---- */

/* Columns that share a scale. */
static int64_t group_of(const cot_stored *stored)
{
    return stored->storage == COT_STORAGE_FP8 ? stored->block_columns : stored->whole.group;
}

static float scale_at(const cot_checkpoint *checkpoint, const cot_stored *stored, int64_t row, int64_t group)
{
    const cot_tensor *scales = stored->scales->tensor;
    int64_t at = row * stored->whole.scale_row + group * stored->whole.scale_group;
    if (stored->storage == COT_STORAGE_FP8)
        at = stored->scale_origin + group +
             row / stored->block_rows *
                 ((stored->columns + stored->block_columns - 1) / stored->block_columns);
    return scales->dtype == COT_F8_E8M0 ? checkpoint->e8m0[((const uint8_t *)scales->data)[at]]
                                        : load(scales->data, scales->dtype, at);
}

static uint32_t word_at(const cot_tensor *tensor, int64_t i)
{
    uint32_t word;
    memcpy(&word, (const uint8_t *)tensor->data + 4 * i, 4);
    return word;
}

/* The place in a word of the code of row r, of the rows that share it. */
static int place_of(const cot_whole_layout *w, int64_t r)
{
    static const int interleaved[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int place = (int)(r % (32 / w->bits));
    return w->bits * (w->interleaved ? interleaved[place] : place);
}

/* What is added to the whole numbers of a group: the middle less its zero point. */
static float offset_at(const cot_stored *stored, int64_t row, int64_t group)
{
    const cot_whole_layout *w = &stored->whole;
    const cot_tensor *zeros = w->zeros->tensor;
    if (zeros->dtype == COT_I8)
        return -(float)((const int8_t *)zeros->data)[row * w->zero_row + group * w->zero_group];
    const uint32_t mask = (1u << w->bits) - 1, ones = w->ones_less ? UINT32_MAX / mask : 0;
    const uint32_t word = word_at(zeros, row / (32 / w->bits) * w->zero_row + group * w->zero_group) + ones;
    return (float)((1 << (w->bits - 1)) - (int)(word >> place_of(w, row) & mask));
}

static void read_codes(int8_t *out, const cot_stored *stored, int64_t row, int64_t column, int64_t columns)
{
    const cot_whole_layout *w = &stored->whole;
    const cot_tensor *tensor = stored->tensor->tensor;
    if (stored->storage == COT_STORAGE_FP8 || w->bytes) {
        memcpy(out, (const uint8_t *)tensor->data + stored->origin + row * stored->columns + column,
               (size_t)columns);
        return;
    }
    const int per = 32 / w->bits, middle = 1 << (w->bits - 1);
    const uint32_t mask = (1u << w->bits) - 1;
    const int place = w->rows_share ? place_of(w, row) : 0;
    const int64_t first = (w->rows_share ? row / per : row) * stored->row_step;
    uint32_t word = 0;
    for (int64_t c = column; c < column + columns; c++) {
        if (w->rows_share) {
            word = word_at(tensor, first + c * stored->column_step) >> place;
        } else if (c == column || c % per == 0) {
            word = word_at(tensor, first + c / per * stored->column_step) >> c % per * w->bits;
        }
        *out++ = (int8_t)((int)(word & mask) - middle);
        if (!w->rows_share) word >>= w->bits;
    }
}

static size_t codes_room(int64_t rows, int64_t columns)
{
    return ((size_t)rows * (size_t)columns + 63) / 64 * 64;
}

/* Groups of a piece. */
static int64_t groups_of(int64_t columns, int64_t group)
{
    return group ? (columns + group - 1) / group : 1;
}

size_t cot_stored_codes_bytes(int64_t rows, int64_t columns, int64_t group)
{
    return codes_room(rows, columns) + (size_t)(rows * groups_of(columns, group)) * 2 * sizeof(float);
}

/* Groups are blocks, or parts of them. */
static cot_codes block_codes(const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                             int64_t columns, void *scratch)
{
    const int64_t group = COT_BLOCKS_GROUP, groups = columns / group;
    cot_codes out = {.codes = scratch,
                     .scales = (float *)(void *)((uint8_t *)scratch + codes_room(rows, columns))};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++)
            out.scales[r * groups + g] =
                cot_blocks_codes(out.codes + r * columns + g * group, stored->tensor->tensor->data,
                                 stored->tensor->tensor->blocks,
                                 stored->origin + (row + r) * stored->row_step + column + g * group);
    return out;
}

cot_pack_source cot_stored_turn(const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                                int64_t columns, void *scratch)
{
    const int64_t groups = columns / COT_BLOCKS_GROUP;
    uint8_t *data = scratch, *scales = data + rows * columns / 2;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++)
            cot_blocks_turn(data + (r * groups + g) * 16, scales + r * groups + g,
                            stored->tensor->tensor->data,
                            stored->origin + (row + r) * stored->row_step + column + g * COT_BLOCKS_GROUP);
    return (cot_pack_source){data, scales, columns / 2, groups};
}

cot_codes cot_stored_codes(const cot_checkpoint *checkpoint, const cot_stored *stored, int64_t row,
                           int64_t rows, int64_t column, int64_t columns, int64_t group, void *scratch)
{
    if (stored->storage == COT_STORAGE_BLOCKS)
        return block_codes(stored, row, rows, column, columns, scratch);
    const int64_t groups = groups_of(columns, group);
    cot_codes out = {.codes = scratch,
                     .scales = (float *)(void *)((uint8_t *)scratch + codes_room(rows, columns))};
    out.offsets = out.scales + rows * groups;
    for (int64_t r = 0; r < rows; r++) {
        read_codes(out.codes + r * columns, stored, row + r, column, columns);
        for (int64_t g = 0; g < groups; g++) {
            const int64_t in_file = (column + g * group) / group_of(stored);
            out.scales[r * groups + g] = scale_at(checkpoint, stored, row + r, in_file);
            out.offsets[r * groups + g] = stored->whole.zeros ? offset_at(stored, row + r, in_file) : 0;
        }
    }
    return out;
}

bool cot_stored_is_symmetric(const cot_stored *stored)
{
    for (int64_t r = 0; r < stored->rows && stored->whole.zeros; r++)
        for (int64_t g = 0; g * stored->whole.group < stored->columns; g++)
            if (offset_at(stored, r, g) != 0) return false;
    return true;
}

const char *cot_stored_scales_fault(int64_t *at, const cot_checkpoint *checkpoint, const cot_stored *stored,
                                    int64_t row, int64_t rows)
{
    const float most = stored->storage == COT_STORAGE_FP8 ? 448 : stored->whole.bits == 4 ? 16 : 256;
    const int64_t group = group_of(stored);
    for (int64_t r = row; r < row + rows; r++)
        for (int64_t g = 0; g * group < stored->columns; g++) {
            const float scale = scale_at(checkpoint, stored, r, g);
            *at = r;
            if (scale == 0) return "a scale of zero";
            if (isnan(scale)) return "a scale that is NaN";
            if (!isfinite(scale * most) && stored->storage == COT_STORAGE_WHOLE)
                return "a scale that is too large";
            if (stored->whole.zeros && stored->whole.symmetric && offset_at(stored, r, g) != 0)
                return "a zero point that is not the middle, though quantization_config says sym";
        }
    return NULL;
}

static void decode_whole(float *out, const cot_checkpoint *checkpoint, const cot_stored *stored, int64_t row,
                         int64_t rows, int64_t column, int64_t columns)
{
    const int64_t group = group_of(stored);
    int8_t *codes = (int8_t *)(out + rows * columns);
    for (int64_t r = 0; r < rows; r++, out += columns) {
        read_codes(codes, stored, row + r, column, columns);
        for (int64_t c = 0; c < columns;) {
            const int64_t g = (column + c) / group, end = (g + 1) * group - column;
            const float scale = scale_at(checkpoint, stored, row + r, g),
                        offset = stored->whole.zeros ? offset_at(stored, row + r, g) : 0;
            for (; c < columns && c < end; c++) out[c] = ((float)codes[c] + offset) * scale;
        }
    }
}

static void decode_mxfp4(float *out, const cot_checkpoint *checkpoint, const cot_stored *stored, int64_t row,
                         int64_t rows, int64_t column, int64_t columns)
{
    static const float e2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    const uint8_t *data = stored->tensor->tensor->data, *scales = stored->scales->tensor->data;
    for (int64_t r = 0; r < rows; r++, out += columns) {
        int64_t first = stored->origin + (row + r) * stored->row_step + column;
        for (int64_t c = 0; c < columns;) {
            int64_t at = first + c, end = c + 32 - at % 32;
            float scale = checkpoint->e8m0[scales[at / 32]];
            if (end > columns) end = columns;
            for (; c < end; c++, at++) out[c] = e2m1[data[at / 2] >> 4 * (at % 2) & 15] * scale;
        }
    }
}

/* ---- NVFP4 ---- */

bool cot_stored_scale_of_all(float *scale, const cot_stored *stored)
{
    const float greatest = 6 * 448.0f, told = load(stored->of_all->tensor->data, COT_F32, 0);
    *scale = stored->divides ? 1 / told : told;
    return *scale > 0 && isfinite(*scale * greatest);
}

static void decode_nvfp4(float *out, const cot_checkpoint *checkpoint, const cot_stored *stored, int64_t row,
                         int64_t rows, int64_t column, int64_t columns)
{
    const uint8_t *data = stored->tensor->tensor->data, *scales = stored->scales->tensor->data;
    float scale;
    (void)cot_stored_scale_of_all(&scale, stored);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t first = stored->origin + (row + r) * stored->row_step + column;
        for (int64_t at = first; at < first + columns; at++) {
            const float element = cot_f4_e2m1_to_f32(data[at / 2] >> at % 2 * 4 & 15);
            *out++ = checkpoint->e4m3[scales[at / 16]] * element * scale;
        }
    }
}

static int64_t nvfp4_bytes(int64_t columns)
{
    const int64_t elements = cot_tensor_block_elements(COT_BLOCKS_NVFP4);
    return (int64_t)cot_blocks_bytes(COT_BLOCKS_NVFP4, (columns + elements - 1) / elements * elements);
}

size_t cot_stored_gathered_bytes(int64_t rows, int64_t columns)
{
    return (size_t)(rows * nvfp4_bytes(columns));
}

cot_pack_source cot_stored_gather(const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                                  int64_t columns, const float *scale, void *scratch)
{
    const int64_t stride = nvfp4_bytes(columns);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = stored->origin + (row + r) * stored->row_step + column;
        cot_blocks_gather((uint8_t *)scratch + r * stride,
                          (const uint8_t *)stored->tensor->tensor->data + at / 2,
                          (const uint8_t *)stored->scales->tensor->data + at / 16, columns);
    }
    return (cot_pack_source){.data = scratch, .scales = (const uint8_t *)scale, .stride = stride};
}

/* ---- GGUF's blocks ---- */

/* Row `row` of a tensor of rows of `width` elements, plain or in blocks, from column `column` on. */
static void decode_row(float *out, const cot_tensor *tensor, int64_t row, int64_t width, int64_t column,
                       int64_t columns)
{
    enum { LONGEST_BLOCK = 256 };
    if (!tensor->blocks) {
        for (int64_t c = 0; c < columns; c++)
            out[c] = load(tensor->data, tensor->dtype, row * width + column + c);
        return;
    }
    const int64_t elements = cot_tensor_block_elements(tensor->blocks);
    for (int64_t c = 0; c < columns;) {
        float whole[LONGEST_BLOCK];
        const int64_t skip = (column + c) % elements;
        const int64_t count = elements - skip < columns - c ? elements - skip : columns - c;
        const uint8_t *block =
            (const uint8_t *)tensor->data + cot_blocks_bytes(tensor->blocks, row * width + column + c - skip);
        cot_blocks_decode(whole, block, tensor->blocks, elements);
        memcpy(out + c, whole + skip, (size_t)count * sizeof *out);
        c += count;
    }
}

static void decode_blocks(float *out, const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                          int64_t columns)
{
    const int64_t first = stored->origin / stored->columns + row;
    for (int64_t r = 0; r < rows; r++)
        decode_row(out + r * columns, stored->tensor->tensor, first + r, stored->columns, column, columns);
}

/* Rows of a head's nope part are columns of its matrix in the file. */
static void decode_heads(float *out, const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                         int64_t columns)
{
    const cot_tensor *keys = stored->tensor->tensor, *values = stored->values->tensor;
    const int64_t nope = keys->shape[2], v = values->shape[1], latent = stored->columns;
    for (int64_t r = 0; r < rows;) {
        const int64_t head = (row + r) / (nope + v), at = (row + r) % (nope + v);
        if (at >= nope) {
            decode_row(out + r * columns, values, head * v + at - nope, latent, column, columns);
            r++;
            continue;
        }
        const int64_t count = nope - at < rows - r ? nope - at : rows - r;
        for (int64_t c = 0; c < columns; c++) { // the rows [at, at + count) of one column lie together
            float *some = out + rows * columns; // scratch behind the numbers, [nope]
            decode_row(some, keys, head * latent + column + c, nope, at, count);
            for (int64_t i = 0; i < count; i++) out[(r + i) * columns + c] = some[i];
        }
        r += count;
    }
}

enum { DRAWN = 256 }; // at a time: a loop of known length

/* Elements first .. first + DRAWN - 1, `first` a multiple of 4: four bf16 numbers out of each 64 random bits,
 * so that a benchmark's weights come about as fast as they could be read. */
static void draw_some(uint16_t out[DRAWN], const cot_stored *stored, uint64_t first)
{
    uint64_t words[DRAWN / 4];
    int16_t numbers[DRAWN];
    float scale = stored->spread / 32768;
    for (uint64_t w = 0; w < DRAWN / 4; w++) words[w] = cot_mix64(stored->stream ^ (first / 4 + w));
    memcpy(numbers, words, sizeof numbers);
    for (int i = 0; i < DRAWN; i++) {
        float value = stored->centre + scale * (float)numbers[i];
        uint32_t bits;
        memcpy(&bits, &value, 4);
        out[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); // cot_f32_to_bf16 of what is never NaN
    }
}

static void draw(uint16_t *out, const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                 int64_t columns)
{
    uint16_t drawn[DRAWN];
    for (int64_t r = 0; r < rows; r++, out += columns) {
        int64_t begin = (row + r) * stored->columns + column;
        for (int64_t c = 0; c < columns;) {
            int64_t skip = (begin + c) % 4, count = DRAWN - skip < columns - c ? DRAWN - skip : columns - c;
            draw_some(drawn, stored, (uint64_t)(begin + c - skip));
            memcpy(out + c, drawn + skip, (size_t)count * sizeof *out);
            c += count;
        }
    }
}

cot_pack_source cot_stored_draw(const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                                int64_t columns, void *scratch)
{
    const float root_mean_square = 2.93f; // of E2M1's numbers
    uint8_t *data = scratch, *scales = data + rows * columns / 2;
    const uint8_t scale = (uint8_t)(127 + lrintf(log2f(stored->spread / sqrtf(3) / root_mean_square)));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += 16) { // 64 random bits
            const uint64_t at = (uint64_t)((row + r) * stored->columns + column + c) / 16,
                           bits = cot_mix64(stored->stream ^ at);
            memcpy(data + (r * columns + c) / 2, &bits, sizeof bits);
        }
    memset(scales, scale, (size_t)(rows * columns / 32));
    return (cot_pack_source){data, scales, columns / 2, columns / 32};
}

size_t cot_stored_scratch_bytes(const cot_stored *stored, int64_t rows, int64_t columns)
{
    const size_t numbers = (size_t)rows * (size_t)columns * sizeof(float);
    if (stored->storage == COT_STORAGE_HEADS)
        return numbers + (size_t)stored->tensor->tensor->shape[2] * sizeof(float); // and a column of a head
    return stored->storage == COT_STORAGE_WHOLE ? numbers + (size_t)columns : numbers; // and a row's codes
}

cot_block cot_stored_block(const cot_checkpoint *checkpoint, const cot_stored *stored, int64_t row,
                           int64_t rows, int64_t column, int64_t columns, void *scratch)
{
    if (cot_stored_is_direct(stored)) {
        const cot_tensor *tensor = stored->tensor->tensor;
        int64_t at = stored->origin + row * stored->row_step + column;
        return (cot_block){(const uint8_t *)tensor->data + at * (int64_t)cot_dtype_bytes(tensor->dtype),
                           tensor->dtype, stored->row_step};
    }
    switch (stored->storage) {
    case COT_STORAGE_PLAIN:
        gather(scratch, stored, row, rows, column, columns);
        break;
    case COT_STORAGE_FP8:
        decode_fp8(scratch, checkpoint, stored, row, rows, column, columns);
        break;
    case COT_STORAGE_MXFP4:
        decode_mxfp4(scratch, checkpoint, stored, row, rows, column, columns);
        break;
    case COT_STORAGE_NVFP4:
        decode_nvfp4(scratch, checkpoint, stored, row, rows, column, columns);
        break;
    case COT_STORAGE_WHOLE:
        decode_whole(scratch, checkpoint, stored, row, rows, column, columns);
        break;
    case COT_STORAGE_BLOCKS:
        decode_blocks(scratch, stored, row, rows, column, columns);
        break;
    case COT_STORAGE_HEADS:
        decode_heads(scratch, stored, row, rows, column, columns);
        break;
    case COT_STORAGE_RANDOM:
        draw(scratch, stored, row, rows, column, columns);
        return (cot_block){scratch, COT_BF16, columns};
    }
    return (cot_block){scratch, COT_F32, columns};
}

bool cot_all_finite(const void *data, cot_dtype type, int64_t n)
{
    /* NaN and infinity are what has every exponent bit set: adding one to the lowest of them carries into the
     * sign's place. Eight bytes at a time; no carry leaves its number. */
    uint64_t exponent = type == COT_F32    ? 0x7f8000007f800000u
                        : type == COT_BF16 ? 0x7f807f807f807f80u
                                           : 0x7c007c007c007c00u;
    uint64_t one = type == COT_F32    ? 0x0080000000800000u
                   : type == COT_BF16 ? 0x0080008000800080u
                                      : 0x0400040004000400u;
    uint64_t sign = type == COT_F32 ? 0x8000000080000000u : 0x8000800080008000u, carried = 0;
    const uint8_t *bytes = data;
    size_t count = (size_t)n * cot_dtype_bytes(type), i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        carried |= (word & exponent) + one;
    }
    if (i < count) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, count - i);
        carried |= (word & exponent) + one;
    }
    return !(carried & sign);
}
