#include "kernels/pack.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

/* A panel is a matrix of 32-bit words, 32 to a line: a word is an fp32 element, or a pair of bf16 rows.
 * Columns go in by tiles of TILE rows: a cache line of a bf16 source, and a few kilobytes of panel, which the
 * first cache holds. */
enum { TILE = 32 };

int64_t cot_panel_elements(int64_t k)
{
    return COT_PANEL * (k + k % 2);
}

int64_t cot_panel_stride(cot_dtype type, int64_t k)
{
    return type == COT_I8 ? COT_SCALE_BYTES + (k + 3) / 4 * 4 * COT_PANEL : cot_panel_elements(k);
}

int64_t cot_packed_bytes(cot_dtype type, int64_t k, int64_t n)
{
    return cot_panels(n) * cot_panel_stride(type, k) * (int64_t)cot_dtype_bytes(type);
}

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
static inline int load_words(uint32_t *words, cot_dtype type, const unsigned char *source,
                             cot_dtype source_type, int rows)
{
    if (type == COT_F32) {
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

static inline uint32_t *panel_words(void *b, cot_dtype type, int64_t panel, int64_t k)
{
    return (uint32_t *)b + panel * cot_panel_stride(type, k) * (int64_t)cot_dtype_bytes(type) / 4;
}

static void zero_columns(void *b, cot_dtype type, int64_t k, int64_t n)
{
    if (n % COT_PANEL == 0) return;
    uint32_t *panel = panel_words(b, type, n / COT_PANEL, k);
    int64_t lines = cot_panel_stride(type, k) / COT_PANEL * (int64_t)cot_dtype_bytes(type) / 4,
            used = n % COT_PANEL;
    for (int64_t line = 0; line < lines; line++)
        memset(panel + line * COT_PANEL + used, 0, (size_t)(COT_PANEL - used) * 4);
}

/* One column of an I8 panel from k elements; `out`: its first word of whole numbers. */
static void quantise_column(float *scale, uint32_t *out, const unsigned char *in, cot_dtype type, int64_t k)
{
    const int64_t bytes = (int64_t)cot_dtype_bytes(type);
    float most = 0;
    for (int64_t k0 = 0; k0 < k; k0 += TILE) {
        float wide[TILE];
        int rows = k - k0 < TILE ? (int)(k - k0) : TILE;
        load_f32(wide, in + k0 * bytes, type, rows);
        for (int i = 0; i < rows; i++) most = fabsf(wide[i]) > most ? fabsf(wide[i]) : most;
    }
    const float factor = most > 0 ? 127 / most : 0;
    const bool tiny = factor > 0x1p127f; // its reciprocal is none: such a column is zero
    *scale = tiny ? 0 : most / 127;
    for (int64_t k0 = 0; k0 < k; k0 += TILE) {
        float wide[TILE] = {0};
        int8_t whole[TILE];
        load_f32(wide, in + k0 * bytes, type, k - k0 < TILE ? (int)(k - k0) : TILE);
        for (int i = 0; i < TILE; i++) whole[i] = tiny ? 0 : (int8_t)rintf(wide[i] * factor);
        for (int64_t i = 0; i < TILE && k0 + i < k; i += 4, out += COT_PANEL) memcpy(out, whole + i, 4);
    }
}

static void quantise_columns(void *b, int64_t k, int64_t n0, int64_t count, const unsigned char *source,
                             cot_dtype source_type, int64_t stride)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t *panel = panel_words(b, COT_I8, (n0 + i) / COT_PANEL, k) + (n0 + i) % COT_PANEL;
        quantise_column((float *)(void *)panel, panel + COT_PANEL,
                        source + i * stride * (int64_t)cot_dtype_bytes(source_type), source_type, k);
    }
}

void cot_pack_columns(void *b, cot_dtype type, int64_t k, int64_t n, int64_t n0, int64_t count,
                      const void *source, cot_dtype source_type, int64_t stride)
{
    const int64_t source_bytes = (int64_t)cot_dtype_bytes(source_type), end = n0 + count;
    const int64_t tile_words = type == COT_F32 ? TILE : TILE / 2;
    if (type == COT_I8) quantise_columns(b, k, n0, count, source, source_type, stride);
    for (int64_t column = n0; column < end && type != COT_I8;) {
        int64_t panel = column / COT_PANEL, first = column % COT_PANEL;
        int64_t columns = COT_PANEL - first < end - column ? COT_PANEL - first : end - column;
        uint32_t *out = panel_words(b, type, panel, k) + first;
        const unsigned char *in = (const unsigned char *)source + (column - n0) * stride * source_bytes;
        for (int64_t k0 = 0; k0 < k; k0 += TILE, in += TILE * source_bytes, out += tile_words * COT_PANEL) {
            int rows = k - k0 < TILE ? (int)(k - k0) : TILE;
            for (int64_t c = 0; c < columns; c++) {
                uint32_t words[TILE];
                int used = load_words(words, type, in + c * stride * source_bytes, source_type, rows);
                for (int w = 0; w < used; w++) out[w * COT_PANEL + c] = words[w];
            }
        }
        column += columns;
    }
    if (end == n) zero_columns(b, type, k, n);
}

void cot_pack_rows(void *b, cot_dtype type, int64_t k, int64_t n, int64_t k0, int64_t count,
                   const void *source, cot_dtype source_type, int64_t stride)
{
    assert(type != COT_I8 && k0 % 2 == 0 && (count % 2 == 0 || k0 + count == k));
    const int64_t source_bytes = (int64_t)cot_dtype_bytes(source_type);
    for (int64_t row = 0; row < count; row += 2) {
        const unsigned char *in = (const unsigned char *)source + row * stride * source_bytes;
        const unsigned char *in1 = row + 1 < count ? in + stride * source_bytes : NULL;
        for (int64_t panel = 0; panel < cot_panels(n); panel++) {
            int columns = n - panel * COT_PANEL < COT_PANEL ? (int)(n - panel * COT_PANEL) : COT_PANEL;
            int64_t at = panel * COT_PANEL * source_bytes;
            if (type == COT_F32) {
                float pair[2][COT_PANEL] = {{0}};
                load_f32(pair[0], in + at, source_type, columns);
                if (in1) load_f32(pair[1], in1 + at, source_type, columns);
                memcpy(panel_words(b, type, panel, k) + (k0 + row) * COT_PANEL, pair, sizeof pair);
            } else {
                uint16_t pair[2][COT_PANEL] = {{0}};
                load_bf16(pair[0], in + at, source_type, columns);
                if (in1) load_bf16(pair[1], in1 + at, source_type, columns);
                uint32_t *out = panel_words(b, type, panel, k) + (k0 + row) / 2 * COT_PANEL;
                for (int c = 0; c < COT_PANEL; c++) out[c] = pair[0][c] | (uint32_t)pair[1][c] << 16;
            }
        }
    }
}

void cot_pack_column(void *b, cot_dtype type, int64_t panel_stride, int64_t column, const float *x, int64_t k)
{
    int64_t panel = column / COT_PANEL * panel_stride, at = column % COT_PANEL;
    if (type == COT_F32) {
        float *out = (float *)b + panel + at;
        for (int64_t i = 0; i < k; i++) out[i * COT_PANEL] = x[i];
    } else {
        uint16_t *out = (uint16_t *)b + panel + 2 * at;
        for (int64_t i = 0; i < k; i++) out[i / 2 * 2 * COT_PANEL + i % 2] = cot_f32_to_bf16(x[i]);
    }
}

void cot_pack_row(void *b, cot_dtype type, int64_t panel_stride, int64_t row, const float *x, int64_t n)
{
    for (int64_t column = 0; column < n; column += COT_PANEL) {
        int64_t panel = column / COT_PANEL * panel_stride;
        int columns = n - column < COT_PANEL ? (int)(n - column) : COT_PANEL;
        if (type == COT_F32) {
            memcpy((float *)b + panel + row * COT_PANEL, x + column, (size_t)columns * 4);
        } else {
            uint16_t *out = (uint16_t *)b + panel + row / 2 * 2 * COT_PANEL + row % 2;
            for (int c = 0; c < columns; c++) out[2 * c] = cot_f32_to_bf16(x[column + c]);
        }
    }
}
