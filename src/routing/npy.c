#include "routing/npy.h"

#include "base/error.h"
#include "routing/scan.h"
#include "routing/torch/value.h"

#include <inttypes.h>

static const char MAGIC[] = "\x93NUMPY";
enum { MAGIC_BYTES = 6, ALIGNMENT = 64 };

static void skip_space(cot_scan *scan)
{
    while (cot_scan_char(scan, ' ')) {}
}

/* Moves past `word` and the spaces after it. */
static bool take(cot_scan *scan, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(scan->end - scan->at) < n || memcmp(scan->at, word, n) != 0) return false;
    scan->at += n;
    skip_space(scan);
    return true;
}

static bool read_descr(cot_npy *array, cot_scan *scan)
{
    static const struct {
        const char *text;
        cot_dtype dtype;
    } types[] = {{"'|b1'", COT_BOOL}, {"'|i1'", COT_I8},  {"'|u1'", COT_U8},  {"'<i2'", COT_I16},
                 {"'<u2'", COT_U16},  {"'<i4'", COT_I32}, {"'<u4'", COT_U32}, {"'<i8'", COT_I64},
                 {"'<u8'", COT_U64},  {"'<f2'", COT_F16}, {"'<f4'", COT_F32}, {"'<f8'", COT_F64}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (take(scan, types[i].text)) {
            array->dtype = types[i].dtype;
            return true;
        }
    return false;
}

/* "(3, 4, 5)", "(3,)" */
static bool read_shape(cot_npy *array, cot_scan *scan)
{
    if (!take(scan, "(")) return false;
    while (!take(scan, ")")) {
        uint32_t n;
        if (array->dims == COT_NPY_MAX_DIMS || !cot_scan_number(scan, INT32_MAX, &n)) return false;
        array->shape[array->dims++] = n;
        skip_space(scan);
        if (!take(scan, ",") && (scan->at == scan->end || *scan->at != ')')) return false;
    }
    return true;
}

/* The header is a Python dict of three keys, in any order. */
static bool read_header(cot_npy *array, cot_scan *scan, bool *column_major)
{
    int seen = 0;
    if (!take(scan, "{")) return false;
    while (!take(scan, "}")) {
        int key = 0;
        bool good = false;
        if (take(scan, "'descr':")) {
            key = 1;
            good = read_descr(array, scan);
        } else if (take(scan, "'fortran_order':")) {
            key = 2;
            *column_major = take(scan, "True");
            good = *column_major || take(scan, "False");
        } else if (take(scan, "'shape':")) {
            key = 4;
            good = !(seen & 4) && read_shape(array, scan);
        }
        if (!good || seen & key) return false;
        seen |= key;
        if (!take(scan, ",") && (scan->at == scan->end || *scan->at != '}')) return false;
    }
    return seen == 7;
}

cot_status cot_npy_parse(cot_npy *array, const char *file, size_t bytes, const char *path, cot_error *error)
{
    const uint8_t *at = (const uint8_t *)file;
    bool column_major = false;
    *array = (cot_npy){.shape = {1, 1, 1, 1}};
    if (bytes < MAGIC_BYTES + 6 || memcmp(file, MAGIC, MAGIC_BYTES) != 0)
        return cot_fail(error, COT_MALFORMED, "'%s' is no .npy file", path);
    size_t before = at[6] == 1 ? 10 : 12, header = (size_t)at[8] | (size_t)at[9] << 8;
    if (at[6] != 1) header |= (size_t)at[10] << 16 | (size_t)at[11] << 24;
    if (at[6] < 1 || at[6] > 3 || header > bytes - before)
        return cot_fail(error, COT_MALFORMED, "'%s': a .npy file of an unknown version, or cut short", path);
    cot_scan scan = {file + before, file + before + header};
    if (!read_header(array, &scan, &column_major))
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s': the .npy header '%.60s' is not that of an array of little-endian numbers",
                        path, file + before);
    size_t need = cot_dtype_bytes(array->dtype);
    for (int d = 0; d < array->dims; d++)
        if (__builtin_mul_overflow(need, (size_t)array->shape[d], &need)) need = SIZE_MAX;
    if (need != bytes - before - header)
        return cot_fail(error, COT_MALFORMED, "'%s': %zu bytes of data, its shape needs %zu", path,
                        bytes - before - header, need);
    int64_t step = 1;
    for (int i = 0; i < array->dims; i++) {
        int d = column_major ? i : array->dims - 1 - i;
        array->stride[d] = step;
        step *= array->shape[d];
    }
    array->data = file + before + header;
    return COT_OK;
}

double cot_npy_number(const cot_npy *array, const int64_t *index)
{
    int64_t at = 0;
    double number = 0;
    for (int d = 0; d < array->dims; d++) at += index[d] * array->stride[d];
    (void)cot_torch_number(&number, array->dtype, array->data + (size_t)at * cot_dtype_bytes(array->dtype));
    return number;
}

void cot_npy_write_header(FILE *stream, const int64_t *shape, int dims)
{
    char text[256];
    int n = snprintf(text, sizeof text, "{'descr': '<i4', 'fortran_order': False, 'shape': (");
    for (int d = 0; d < dims; d++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%" PRId64 ", ", shape[d]);
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    int before = MAGIC_BYTES + 4, padded = (before + n + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT - before;
    fprintf(stream, "%s%c%c%c%c%s%*s", MAGIC, 1, 0, padded & 0xff, padded >> 8, text, padded - n, "\n");
}
