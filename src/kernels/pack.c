#include "kernels/pack.h"

#include "kernels/quantise.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

/* Columns go in by tiles of TILE rows: a cache line of a bf16 source, and a few kilobytes of panel, which the
 * first cache holds. */
enum { TILE = 32 };

static inline void load_f32(float *restrict out, const unsigned char *source, cot_dtype type, int count)
{
    uint16_t halves[TILE];
    if (type == COT_F32) {
        memcpy(out, source, (size_t)count * 4);
        return;
    }
    memcpy(halves, source, (size_t)count * 2);
    if (type == COT_BF16)
        for (int i = 0; i < count; i++) out[i] = cot_bf16_to_f32(halves[i]);
    else
        for (int i = 0; i < count; i++) out[i] = cot_f16_to_f32(halves[i]);
}

static inline void load_bf16(uint16_t *restrict out, const unsigned char *source, cot_dtype type, int count)
{
    float wide[TILE];
    if (type == COT_BF16) {
        memcpy(out, source, (size_t)count * 2);
        return;
    }
    load_f32(wide, source, type, count);
    for (int i = 0; i < count; i++) out[i] = cot_f32_to_bf16(wide[i]);
}

/* The words of `rows` <= TILE elements of one column; returns how many words that is. */
static inline int load_words(uint32_t *words, cot_format format, const unsigned char *source,
                             cot_dtype source_type, int rows)
{
    if (format == COT_FORMAT_FP32) {
        float wide[TILE] = {0};
        load_f32(wide, source, source_type, rows);
        memcpy(words, wide, sizeof wide);
        return rows + rows % 2;
    }
    uint16_t halves[TILE] = {0};
    load_bf16(halves, source, source_type, rows);
    for (int i = 0; i < TILE / 2; i++) words[i] = halves[2 * i] | (uint32_t)halves[2 * i + 1] << 16;
    return (rows + 1) / 2;
}

static inline uint32_t *panel_words(void *b, cot_format format, int64_t panel, int64_t k)
{
    return (uint32_t *)b + panel * (cot_panel_bytes(format, k) / 4);
}

/* Of the last panel: scales, offsets and words, 32 columns a line. */
static void zero_columns(void *b, cot_format format, int64_t k, int64_t n)
{
    if (n % COT_PANEL == 0) return;
    const size_t used = (size_t)(n % COT_PANEL), beyond = COT_PANEL - used;
    const cot_panel_blocks blocks = cot_panel_blocks_of(format, k);
    const int64_t groups = cot_format_groups(format, k), step = cot_format_step(format),
                  unit = cot_format_row_of(format)->unit;
    const size_t scale = (size_t)(blocks.scale_bytes / COT_PANEL);
    uint8_t *panel = (uint8_t *)panel_words(b, format, n / COT_PANEL, k);
    for (int64_t g = 0; g < groups; g++) {
        memset(panel + cot_scales_at(&blocks, g) + used * scale, 0, beyond * scale);
        if (cot_format_zeros(format))
            memset(panel + cot_scales_offsets_at(&blocks, g) + used * 2, 0, beyond * 2);
    }
    for (int64_t row = 0; row < (k + unit - 1) / unit * unit; row += step)
        memset(panel + cot_words_at(&blocks, row) + used * 4, 0, beyond * 4);
}

/* TILE codes of a column, those beyond `count` zero, to its words from `out` on. */
static inline void put_codes(uint32_t *out, cot_format format, const int8_t *codes, int64_t count)
{
    uint8_t all[TILE] = {0};
    memcpy(all, codes, (size_t)count);
    if (cot_format_row_of(format)->bits == 8) {
        for (int i = 0; i < TILE; i += 4, out += COT_PANEL) memcpy(out, all + i, 4);
        return;
    }
    for (int i = 0; i < TILE; i += 8, out += COT_PANEL) {
        uint32_t word = 0;
        for (int r = 0; r < 8; r++) word |= (uint32_t)(all[i + r] & 15) << (r % 2 * 16 + r / 2 * 4);
        *out = word;
    }
}

static inline void put_scale(uint8_t *scales, cot_dtype type, int64_t column, float scale)
{
    uint16_t half = type == COT_F16 ? cot_f32_to_f16(scale) : cot_f32_to_bf16(scale);
    int exponent;
    if (type == COT_F32) {
        memcpy(scales + column * 4, &scale, 4);
    } else if (type == COT_F8_E8M0) {
        (void)frexpf(scale, &exponent); // 2^(exponent - 1)
        scales[column] = (uint8_t)(exponent + 126);
    } else {
        memcpy(scales + column * 2, &half, 2);
    }
}

/* Where a column is. */
struct place {
    uint8_t *panel;
    int64_t column;
    cot_panel_blocks blocks;
};

static struct place place_of(void *b, cot_format format, int64_t k, int64_t column)
{
    return (struct place){(uint8_t *)panel_words(b, format, column / COT_PANEL, k), column % COT_PANEL,
                          cot_panel_blocks_of(format, k)};
}
static inline uint32_t *place_words(const struct place *at, int64_t k)
{
    return (uint32_t *)(void *)(at->panel + cot_words_at(&at->blocks, k)) + at->column;
}

void cot_pack_codes(void *b, cot_format format, int64_t k, int64_t n, int64_t n0, int64_t count,
                    const cot_codes *rows)
{
    const int64_t groups = cot_format_groups(format, k);
    const cot_dtype type = cot_format_scale(format);
    struct place at = place_of(b, format, k, n0);
    for (int64_t i = 0; i < count; i++) {
        at.panel = (uint8_t *)panel_words(b, format, (n0 + i) / COT_PANEL, k);
        at.column = (n0 + i) % COT_PANEL;
        for (int64_t g = 0; g < groups; g++)
            put_scale(at.panel + cot_scales_at(&at.blocks, g), type, at.column, rows->scales[i * groups + g]);
        for (int64_t g = 0; g < groups && cot_format_zeros(format); g++)
            put_scale(at.panel + cot_scales_offsets_at(&at.blocks, g), COT_BF16, at.column,
                      rows->offsets[i * groups + g]);
    }
    for (int64_t i0 = 0; i0 < count; i0 += COT_PANEL)
        for (int64_t k0 = 0; k0 < k; k0 += TILE)
            for (int64_t i = i0; i < count && i < i0 + COT_PANEL; i++) {
                at.panel = (uint8_t *)panel_words(b, format, (n0 + i) / COT_PANEL, k);
                at.column = (n0 + i) % COT_PANEL;
                put_codes(place_words(&at, k0), format, rows->codes + i * k + k0,
                          k - k0 < TILE ? k - k0 : TILE);
            }
    if (n0 + count == n) zero_columns(b, format, k, n);
}

/* One column that is quantised as it is packed. */
static void quantise_column(const struct place *at, cot_format format, const unsigned char *in,
                            cot_dtype type, int64_t k)
{
    const int64_t bytes = (int64_t)cot_dtype_bytes(type), group = cot_format_group(format);
    const cot_dtype scales = cot_format_scale(format);
    float wide[TILE], most = 0;
    int8_t codes[TILE];
    for (int64_t k0 = 0; !group && k0 < k; k0 += TILE) {
        const int rows = k - k0 < TILE ? (int)(k - k0) : TILE;
        load_f32(wide, in + k0 * bytes, type, rows);
        for (int i = 0; i < rows; i++) most = fabsf(wide[i]) > most ? fabsf(wide[i]) : most;
    }
    if (!group) put_scale(at->panel, scales, at->column, cot_quantise_scale(format, most));
    for (int64_t k0 = 0; k0 < k; k0 += TILE) {
        const int rows = k - k0 < TILE ? (int)(k - k0) : TILE;
        load_f32(wide, in + k0 * bytes, type, rows);
        if (group)
            put_scale(at->panel + cot_scales_at(&at->blocks, k0 / TILE), scales, at->column,
                      cot_quantise_group(codes, format, wide, rows));
        else
            cot_quantise_by_most(codes, format, wide, rows, most);
        put_codes(place_words(at, k0), format, codes, rows);
    }
}

void cot_pack_columns(void *b, cot_format format, int64_t k, int64_t n, int64_t n0, int64_t count,
                      const void *source, cot_dtype source_type, int64_t stride)
{
    const int64_t source_bytes = (int64_t)cot_dtype_bytes(source_type), end = n0 + count;
    const int64_t tile_words = TILE / cot_format_step(format) * COT_PANEL;
    const bool quantised = cot_format_groups(format, k) > 0;
    for (int64_t i = 0; quantised && i < count; i++) {
        const struct place at = place_of(b, format, k, n0 + i);
        quantise_column(&at, format, (const unsigned char *)source + i * stride * source_bytes, source_type,
                        k);
    }
    for (int64_t column = n0; column < end && !quantised;) {
        int64_t panel = column / COT_PANEL, first = column % COT_PANEL;
        int64_t columns = COT_PANEL - first < end - column ? COT_PANEL - first : end - column;
        uint32_t *out = panel_words(b, format, panel, k) + first;
        const unsigned char *in = (const unsigned char *)source + (column - n0) * stride * source_bytes;
        for (int64_t k0 = 0; k0 < k; k0 += TILE, in += TILE * source_bytes, out += tile_words) {
            int rows = k - k0 < TILE ? (int)(k - k0) : TILE;
            for (int64_t c = 0; c < columns; c++) {
                uint32_t words[TILE];
                int used = load_words(words, format, in + c * stride * source_bytes, source_type, rows);
                for (int w = 0; w < used; w++) out[w * COT_PANEL + c] = words[w];
            }
        }
        column += columns;
    }
    if (end == n) zero_columns(b, format, k, n);
}

/* A file's four bytes, of eight elements in order, as a word of MXFP4. */
static inline uint32_t mxfp4_word(const uint8_t *in)
{
    uint32_t all;
    memcpy(&all, in, 4);
    uint32_t even = all & 0x0f0f0f0fu, odd = all >> 4 & 0x0f0f0f0fu;
    even = (even | even >> 4) & 0x00ff00ffu;
    odd = (odd | odd >> 4) & 0x00ff00ffu;
    return ((even | even >> 8) & 0xffffu) | (odd | odd >> 8) << 16;
}

/* Blocks of a column go one line of 32 columns' blocks apart, behind the columns' scales. */
static void pack_blocks(void *b, cot_format format, int64_t k, int64_t n, int64_t n0, int64_t count,
                        const cot_pack_source *source)
{
    const int64_t blocks = cot_format_block_count(format, k);
    const size_t bytes = (size_t)cot_tensor_block_bytes(cot_format_blocks(format));
    const int64_t scales = cot_format_block_scales(format), end = n0 + count,
                  zero_end = end == n ? cot_panels(n) * COT_PANEL : end;
    for (int64_t column = n0; column < zero_end; column++) {
        uint8_t *panel = (uint8_t *)panel_words(b, format, column / COT_PANEL, k),
                *to = panel + scales + (size_t)(column % COT_PANEL) * bytes;
        const uint8_t *from = source->data + (column - n0) * source->stride;
        if (scales && column < end)
            memcpy(panel + column % COT_PANEL * 4, source->scales + (column - n0) * source->scale_stride, 4);
        else if (scales)
            memset(panel + column % COT_PANEL * 4, 0, 4);
        for (int64_t i = 0; i < blocks; i++, to += COT_PANEL * bytes)
            if (column < end)
                memcpy(to, from + (size_t)i * bytes, bytes);
            else
                memset(to, 0, bytes);
    }
}

void cot_pack_stored(void *b, cot_format format, int64_t k, int64_t n, int64_t n0, int64_t count,
                     const cot_pack_source *source)
{
    if (cot_format_blocks(format)) {
        pack_blocks(b, format, k, n, n0, count, source);
        return;
    }
    assert(format == COT_FORMAT_MXFP4 && k % 32 == 0);
    const cot_panel_blocks blocks = cot_panel_blocks_of(format, k);
    const int64_t tile = 512; // rows, of which the first cache keeps all columns
    for (int64_t column = n0, end = n0 + count; column < end;) {
        const int64_t first = column % COT_PANEL,
                      columns = COT_PANEL - first < end - column ? COT_PANEL - first : end - column;
        uint8_t *panel = (uint8_t *)panel_words(b, format, column / COT_PANEL, k);
        const uint8_t *data = source->data + (column - n0) * source->stride,
                      *scale = source->scales + (column - n0) * source->scale_stride;
        for (int64_t k0 = 0; k0 < k; k0 += tile)
            for (int64_t c = 0; c < columns; c++)
                for (int64_t row = k0; row < k && row < k0 + tile; row += 32) {
                    const int64_t g = row / 32;
                    uint32_t *words = (uint32_t *)(void *)(panel + cot_words_at(&blocks, row)) + first + c;
                    panel[cot_scales_at(&blocks, g) + first + c] = scale[c * source->scale_stride + g];
                    for (int64_t w = 0; w < 32 / 8; w++)
                        words[w * COT_PANEL] = mxfp4_word(data + c * source->stride + row / 2 + 4 * w);
                }
        column += columns;
    }
    if (n0 + count == n) zero_columns(b, format, k, n);
}

void cot_pack_any(void *b, cot_format format, int64_t k, int64_t n, int64_t n0, int64_t count,
                  const cot_pack_input *rows)
{
    if (rows->stored)
        cot_pack_stored(b, format, k, n, n0, count, rows->stored);
    else if (rows->codes)
        cot_pack_codes(b, format, k, n, n0, count, rows->codes);
    else
        cot_pack_columns(b, format, k, n, n0, count, rows->numbers, rows->type, rows->stride);
}

void cot_pack_floats(float *out, const void *source, cot_dtype source_type, int64_t n)
{
    const unsigned char *in = source;
    for (int64_t i = 0; i < n; i += TILE)
        load_f32(out + i, in + (size_t)i * cot_dtype_bytes(source_type), source_type,
                 n - i < TILE ? (int)(n - i) : TILE);
}

void cot_pack_rows(void *b, cot_format format, int64_t k, int64_t n, int64_t k0, int64_t count,
                   const void *source, cot_dtype source_type, int64_t stride)
{
    assert(format <= COT_FORMAT_BF16 && k0 % 2 == 0 && (count % 2 == 0 || k0 + count == k));
    const int64_t source_bytes = (int64_t)cot_dtype_bytes(source_type);
    for (int64_t row = 0; row < count; row += 2) {
        const unsigned char *in = (const unsigned char *)source + row * stride * source_bytes;
        const unsigned char *in1 = row + 1 < count ? in + stride * source_bytes : NULL;
        for (int64_t panel = 0; panel < cot_panels(n); panel++) {
            int columns = n - panel * COT_PANEL < COT_PANEL ? (int)(n - panel * COT_PANEL) : COT_PANEL;
            int64_t at = panel * COT_PANEL * source_bytes;
            if (format == COT_FORMAT_FP32) {
                float pair[2][COT_PANEL] = {{0}};
                load_f32(pair[0], in + at, source_type, columns);
                if (in1) load_f32(pair[1], in1 + at, source_type, columns);
                memcpy(panel_words(b, format, panel, k) + (k0 + row) * COT_PANEL, pair, sizeof pair);
            } else {
                uint16_t pair[2][COT_PANEL] = {{0}};
                load_bf16(pair[0], in + at, source_type, columns);
                if (in1) load_bf16(pair[1], in1 + at, source_type, columns);
                uint32_t *out = panel_words(b, format, panel, k) + (k0 + row) / 2 * COT_PANEL;
                for (int c = 0; c < COT_PANEL; c++) out[c] = pair[0][c] | (uint32_t)pair[1][c] << 16;
            }
        }
    }
}

void cot_pack_column(void *b, cot_format format, int64_t panel_bytes, int64_t column, const float *x,
                     int64_t k)
{
    uint8_t *word = (uint8_t *)b + column / COT_PANEL * panel_bytes + column % COT_PANEL * 4;
    if (format == COT_FORMAT_FP32) {
        float *out = (float *)(void *)word;
        for (int64_t i = 0; i < k; i++) out[i * COT_PANEL] = x[i];
    } else {
        uint16_t *out = (uint16_t *)(void *)word;
        for (int64_t i = 0; i < k; i++) out[i / 2 * 2 * COT_PANEL + i % 2] = cot_f32_to_bf16(x[i]);
    }
}

void cot_pack_row(void *b, cot_format format, int64_t panel_bytes, int64_t row, const float *x, int64_t n)
{
    for (int64_t column = 0; column < n; column += COT_PANEL) {
        uint8_t *panel = (uint8_t *)b + column / COT_PANEL * panel_bytes;
        int columns = n - column < COT_PANEL ? (int)(n - column) : COT_PANEL;
        if (format == COT_FORMAT_FP32) {
            memcpy(panel + row * COT_WORDS_BYTES, x + column, (size_t)columns * 4);
        } else {
            uint16_t *out = (uint16_t *)(void *)(panel + row / 2 * COT_WORDS_BYTES) + row % 2;
            for (int c = 0; c < columns; c++) out[2 * c] = cot_f32_to_bf16(x[column + c]);
        }
    }
}
