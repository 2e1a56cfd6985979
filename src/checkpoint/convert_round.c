#include "base/error.h"
#include "base/integers.h"
#include "kernels/quantise.h"
#include "checkpoint/convert.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum { BLOCK_ELEMENTS = 256 << 10 }; // that one thread reads, rounds and writes at a time

int64_t cot_convert_code_bytes(cot_format format, int64_t columns)
{
    const int bits = cot_format_row_of(format)->bits;
    if (format == COT_FORMAT_BF16 || format == COT_FORMAT_FP32) return columns * bits / 8;
    return format == COT_FORMAT_MXFP4 ? columns / 2 : (columns * bits + 31) / 32 * 4;
}

int64_t cot_convert_scale_bytes(cot_format format, int64_t columns)
{
    const int64_t groups = cot_format_groups(format, columns);
    return groups ? groups * (int64_t)cot_dtype_bytes(cot_format_scale(format)) : 0;
}

static void put_codes(uint8_t *out, cot_format format, const int8_t *codes, int64_t columns)
{
    const int bits = cot_format_row_of(format)->bits, per = 32 / bits;
    for (int64_t c = 0; format == COT_FORMAT_MXFP4 && c < columns; c += 2)
        *out++ = (uint8_t)((codes[c] & 15) | (codes[c + 1] & 15) << 4);
    for (int64_t c = 0; format != COT_FORMAT_MXFP4 && c < columns; c += per, out += 4) {
        uint32_t word = 0;
        for (int i = 0; i < per && c + i < columns; i++)
            word |= (uint32_t)(codes[c + i] + (1 << (bits - 1))) << i * bits;
        memcpy(out, &word, 4);
    }
}

static void put_scales(uint8_t *out, cot_dtype type, const float *scales, int64_t groups)
{
    for (int64_t g = 0; g < groups; g++) {
        const uint16_t half = type == COT_F16 ? cot_f32_to_f16(scales[g]) : cot_f32_to_bf16(scales[g]);
        int exponent;
        if (type == COT_F32) {
            memcpy(out + 4 * g, &scales[g], 4);
        } else if (type == COT_BF16 || type == COT_F16) {
            memcpy(out + 2 * g, &half, 2);
        } else {
            (void)frexpf(scales[g], &exponent); // 2^(exponent - 1)
            out[g] = (uint8_t)(exponent + 126);
        }
    }
}

/* A matrix on its way. */
typedef struct work {
    const cot_convert_unit *unit;
    const cot_checkpoint *checkpoint;
    int64_t expert, block_rows;
    uint8_t *codes, *scales;
    pthread_mutex_t mutex;
    cot_error first; // of errors
} work;

static void put_row(work *w, int64_t row, const float *x, int8_t *codes, float *scales)
{
    const cot_format format = w->unit->format;
    const int64_t columns = w->unit->columns, at = row * cot_convert_code_bytes(format, columns);
    if (format == COT_FORMAT_FP32) {
        memcpy(w->codes + at, x, (size_t)columns * sizeof *x);
        return;
    }
    if (format == COT_FORMAT_BF16) {
        for (int64_t c = 0; c < columns; c++) {
            const uint16_t half = cot_f32_to_bf16(x[c]);
            memcpy(w->codes + at + 2 * c, &half, 2);
        }
        return;
    }
    cot_quantise_row(codes, scales, format, x, columns);
    put_codes(w->codes + at, format, codes, columns);
    put_scales(w->scales + row * cot_convert_scale_bytes(format, columns), cot_format_scale(format), scales,
               cot_format_groups(format, columns));
}

/* The row that row r of the file becomes: of a head first the even ones, then the odd ones. */
static int64_t row_of(const cot_convert_unit *u, int64_t r)
{
    if (!u->turned) return r;
    const int64_t i = r % u->turned;
    return r - i + i / 2 + i % 2 * (u->turned / 2);
}

/* Rows that lie in the file as they are written; they come to every `step`th row from `first` on, row0 to the first of them. */
typedef struct taking {
    work *w;
    int64_t row0, first, step;
} taking;

static void take_kept(void *context, int64_t row, int64_t rows, const cot_pack_input *in)
{
    const taking *t = context;
    const cot_convert_unit *u = t->w->unit;
    const int64_t codes_bytes = cot_convert_code_bytes(u->format, u->columns),
                  scales_bytes = cot_convert_scale_bytes(u->format, u->columns),
                  groups = cot_format_groups(u->format, u->columns);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t to = row_of(u, t->row0 + row + r) * t->step + t->first;
        uint8_t *codes = t->w->codes + to * codes_bytes, *scales = t->w->scales + to * scales_bytes;
        if (in->stored) {
            memcpy(codes, in->stored->data + r * in->stored->stride, (size_t)codes_bytes);
            memcpy(scales, in->stored->scales + r * in->stored->scale_stride, (size_t)scales_bytes);
            continue;
        }
        int8_t *own = in->codes->codes + r * u->columns;
        float *of_groups = in->codes->scales + r * groups;
        for (int64_t g = 0; g < groups; g++) {
            if (of_groups[g] != 0) continue; // readers refuse it: what it stands for is a group of zeros
            of_groups[g] = 1;
            memset(own + g * cot_format_group(u->format), 0, (size_t)cot_format_group(u->format));
        }
        put_codes(codes, u->format, own, u->columns);
        put_scales(scales, cot_format_scale(u->format), of_groups, groups);
    }
}

/* A piece whose codes and scales stay what they are; and one whose numbers are rounded, or written as they are. */
static cot_status keep_rows(work *w, const cot_weight_piece *piece, int64_t first, int64_t step,
                            cot_error *error)
{
    taking t = {w, piece->row0, first, step};
    return cot_checkpoint_hand_on(w->checkpoint, piece, w->unit->format, take_kept, &t, error);
}

static cot_status read_rows(work *w, const cot_weight_piece *piece, int64_t first, int64_t step,
                            cot_error *error)
{
    const cot_convert_unit *u = w->unit;
    const int64_t groups = cot_format_groups(u->format, u->columns), row0 = piece->row0, rows = piece->rows;
    float *x = malloc((size_t)(rows * u->columns) * sizeof *x),
          *scales = malloc((size_t)(groups + 1) * sizeof *scales);
    int8_t *codes = malloc((size_t)u->columns);
    cot_status status = COT_OK;
    if (!x || !scales || !codes)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to round weights");
    const cot_weight_piece vector = {piece->weight, piece->layer, piece->expert, 0, 1, row0, rows};
    if (status == COT_OK) status = cot_checkpoint_read(w->checkpoint, u->across ? &vector : piece, x, error);
    for (int64_t r = 0; status == COT_OK && r < rows; r++)
        put_row(w, row_of(u, row0 + r) * step + first, x + r * u->columns, codes, scales);
    free(x), free(scales), free(codes);
    return status;
}

/* Rows [row0, row0 + rows) of one of the unit's weights, which come to every `step`th row from `first` on. */
static cot_status round_rows(work *w, cot_weight weight, int64_t row0, int64_t rows, int64_t first,
                             int64_t step)
{
    const cot_convert_unit *u = w->unit;
    const cot_weight_piece piece = {weight, u->layer, w->expert, row0, rows, 0, u->columns};
    cot_error error = {0};
    const cot_status status =
        u->kept ? keep_rows(w, &piece, first, step, &error) : read_rows(w, &piece, first, step, &error);
    if (status != COT_OK) {
        pthread_mutex_lock(&w->mutex);
        if (w->first.status == COT_OK) w->first = error;
        pthread_mutex_unlock(&w->mutex);
    }
    return status;
}

static void round_block(void *context, int64_t block)
{
    work *w = context;
    const cot_convert_unit *u = w->unit;
    const int64_t step = u->paired ? 2 : 1, all = u->rows / step, row0 = block * w->block_rows,
                  rows = cot_smaller(w->block_rows, all - row0);
    for (int i = 0; i < step; i++)
        if (round_rows(w, u->weight + (cot_weight)i, row0, rows, i, step) != COT_OK) return;
}

cot_status cot_convert_round(uint8_t *codes, uint8_t *scales, const cot_convert_unit *unit, int64_t m,
                             const cot_checkpoint *checkpoint, cot_pool *pool, cot_error *error)
{
    work w = {.unit = unit,
              .checkpoint = checkpoint,
              .expert = unit->expert + m,
              .block_rows = cot_larger(BLOCK_ELEMENTS / unit->columns, 1),
              .codes = codes,
              .scales = scales,
              .mutex = PTHREAD_MUTEX_INITIALIZER};
    const int64_t rows = unit->rows / (unit->paired ? 2 : 1);
    cot_pool_run(pool, (rows + w.block_rows - 1) / w.block_rows, round_block, &w);
    return w.first.status == COT_OK ? COT_OK : cot_fail(error, w.first.status, "%s", w.first.message);
}
