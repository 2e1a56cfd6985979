#include "kernels/format.h"

const cot_format_row cot_formats[COT_FORMATS] = {
#define COT_FORMAT_ROW(name, text, bits, unit, group, scale, products, blocks)                               \
    {text, bits, unit, group, scale, products, blocks},
    COT_FORMAT_LIST(COT_FORMAT_ROW)
#undef COT_FORMAT_ROW
};

/* A format's number: the kind in its lowest byte, then what is not as the kind's row says; of blocks the rows that are skipped take
 * the place of the group. */
enum { GROUP_SHIFT = 8, GROUP_WHOLE = 0xffff, SCALE_SHIFT = 24, ZEROS_SHIFT = 26 };
static const cot_dtype scale_types[] = {COT_DTYPE_COUNT, COT_F32, COT_F16, COT_BF16}; // the first: the row's

cot_format cot_format_parse(const char *name)
{
    int format = 0;
    while (format < COT_FORMATS &&
           (cot_formats[format].blocks || strcmp(cot_formats[format].name, name) != 0))
        format++;
    return (cot_format)format;
}

cot_format cot_format_with(cot_format kind, int64_t group, cot_dtype scale, bool zeros)
{
    const cot_format_row *row = &cot_formats[kind];
    uint32_t format = (uint32_t)kind | (uint32_t)zeros << ZEROS_SHIFT;
    if (group != row->group)
        format |= (group ? (uint32_t)(group / 32) : (uint32_t)GROUP_WHOLE) << GROUP_SHIFT;
    for (uint32_t t = 1; t < sizeof scale_types / sizeof *scale_types; t++)
        if (scale != row->scale && scale == scale_types[t]) format |= t << SCALE_SHIFT;
    return (cot_format)format;
}

cot_format cot_format_skip(cot_format format, int64_t rows)
{
    return (cot_format)((uint32_t)cot_format_kind(format) | (uint32_t)rows << GROUP_SHIFT);
}

int64_t cot_format_skipped(cot_format format)
{
    return (uint32_t)format >> GROUP_SHIFT & 0xffff;
}

int64_t cot_format_block_count(cot_format format, int64_t k)
{
    const int64_t elements = cot_tensor_block_elements(cot_format_blocks(format));
    return k ? (cot_format_skipped(format) + k + elements - 1) / elements : 0;
}

int64_t cot_format_block_scales(cot_format format)
{
    const cot_dtype scale = cot_format_scale(format);
    return scale == COT_DTYPE_COUNT ? 0 : COT_PANEL * (int64_t)cot_dtype_bytes(scale);
}

int64_t cot_format_group(cot_format format)
{
    if (cot_format_blocks(format)) return 0;
    const uint32_t group = (uint32_t)format >> GROUP_SHIFT & 0xffff;
    return !group ? cot_format_row_of(format)->group : group == GROUP_WHOLE ? 0 : (int64_t)group * 32;
}

cot_dtype cot_format_scale(cot_format format)
{
    const uint32_t scale = (uint32_t)format >> SCALE_SHIFT & 3;
    return scale ? scale_types[scale] : cot_format_row_of(format)->scale;
}

bool cot_format_zeros(cot_format format)
{
    return (uint32_t)format >> ZEROS_SHIFT & 1;
}

/* 0, the whole column, is a multiple of all. */
static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static cot_format with_group(cot_format format, int64_t group)
{
    return cot_format_with(cot_format_kind(format), group, cot_format_scale(format),
                           cot_format_zeros(format));
}

cot_format cot_format_join(cot_format a, cot_format b)
{
    if (a == COT_FORMATS || b == COT_FORMATS) return COT_FORMATS;
    if (cot_format_blocks(a)) return cot_format_kind(a) == cot_format_kind(b) ? b : COT_FORMATS;
    if (with_group(a, 0) != with_group(b, 0)) return COT_FORMATS;
    return with_group(a, common_divisor(cot_format_group(a), cot_format_group(b)));
}

cot_format cot_format_cut(cot_format format, int64_t rows)
{
    if (format == COT_FORMATS || !cot_format_group(format)) return format;
    const int64_t group = common_divisor(cot_format_group(format), rows);
    return group % 32 ? COT_FORMATS : with_group(format, group);
}

bool cot_format_multiplies(cot_format format, cot_dtype type, bool rounded)
{
    const unsigned rows = rounded ? COT_BY_INT8 : type == COT_F32 ? COT_BY_FP32 : COT_BY_BF16;
    return cot_format_row_of(format)->products & rows;
}

int64_t cot_format_groups(cot_format format, int64_t k)
{
    const int64_t group = cot_format_group(format);
    if (cot_format_scale(format) == COT_DTYPE_COUNT) return 0;
    return group ? (k + group - 1) / group : 1;
}

static int64_t rows_of_panel(cot_format format, int64_t k)
{
    const int64_t unit = cot_format_row_of(format)->unit;
    return (k + unit - 1) / unit * unit;
}

cot_panel_blocks cot_panel_blocks_of(cot_format format, int64_t k)
{
    enum { LINE = 64 };
    const int64_t group = cot_format_group(format), rows = rows_of_panel(format, k);
    cot_panel_blocks b = {.rows = rows > 0 ? rows : 1,
                          .row_bytes = COT_WORDS_BYTES / cot_format_step(format)};
    if (cot_format_scale(format) != COT_DTYPE_COUNT) {
        b.scale_bytes = COT_PANEL * (int64_t)cot_dtype_bytes(cot_format_scale(format));
        b.groups = group && b.scale_bytes < LINE ? LINE / b.scale_bytes : 1;
        if (group) b.rows = b.groups * group;
        b.offsets = b.groups * b.scale_bytes;
        b.words = b.offsets + (cot_format_zeros(format) ? b.groups * COT_PANEL * 2 : 0);
        b.words = (b.words + LINE - 1) / LINE * LINE;
    }
    b.bytes = b.words + b.rows * b.row_bytes;
    return b;
}

int64_t cot_panel_bytes(cot_format format, int64_t k)
{
    if (cot_format_blocks(format))
        return cot_format_block_scales(format) + cot_format_block_count(format, k) * COT_PANEL *
                                                     cot_tensor_block_bytes(cot_format_blocks(format));
    const int64_t rows = rows_of_panel(format, k);
    const cot_panel_blocks b = cot_panel_blocks_of(format, k);
    return (rows + b.rows - 1) / b.rows * b.words + rows * b.row_bytes;
}

int64_t cot_packed_bytes(cot_format format, int64_t k, int64_t n)
{
    return cot_panels(n) * cot_panel_bytes(format, k);
}
