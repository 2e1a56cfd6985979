/* From the stored form to rows of numbers. */
#include "model/stored.h"

#include "base/rng.h"

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
        const uint8_t *in =
            (const uint8_t *)stored->tensor->tensor->data + (row + r) * stored->columns + column;
        for (int64_t c = 0; c < columns;) {
            int64_t block = (column + c) / stored->block_columns,
                    end = (block + 1) * stored->block_columns - column;
            int64_t at = (row + r) / stored->block_rows * across + block;
            float scale = scales->dtype == COT_F8_E8M0 ? checkpoint->e8m0[((const uint8_t *)scales->data)[at]]
                                                       : load(scales->data, scales->dtype, at);
            if (end > columns) end = columns;
            for (; c < end; c++) out[c] = checkpoint->e4m3[in[c]] * scale;
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
