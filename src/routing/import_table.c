/* A tab-separated table: a header line that names the columns layer, expert, token_id and count, in any
 * order, then a row for each (layer, expert, token id) that occurred. Neither E nor K is in the file. */
#include "routing/import.h"

#include "base/error.h"
#include "routing/ids.h"
#include "routing/scan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LAYER, EXPERT, TOKEN, COUNT, COLUMNS };

/* A dense table may be this many times its text: rows of one id in a layer of 512 experts, each count written
 * out in some 15 bytes, make 137. Beyond it the text is taken for hostile. */
enum { MAX_GROWTH = 256 };

typedef struct table_row {
    uint32_t cell[COLUMNS];
} table_row;

typedef struct table_text {
    cot_file_map map;
    const char *path;
    int order[COLUMNS]; // which of LAYER .. COUNT stands in each column
    int64_t rows;
    table_row *row;   // [rows]
    uint32_t largest; // expert
} table_text;

static cot_status read_header(table_text *table, cot_scan *scan, cot_error *error)
{
    static const char *const names[COLUMNS] = {"layer", "expert", "token_id", "count"};
    bool seen[COLUMNS] = {0};
    const char *no_row = cot_scan_no_row(scan);
    if (no_row)
        return cot_fail(
            error, COT_UNSUPPORTED,
            "'%s' is no table of token counts: its first line %s, expected the columns' names layer, "
            "expert, token_id and count",
            table->path, no_row);
    for (int column = 0; column < COLUMNS; column++) {
        int which = 0;
        size_t left = (size_t)(scan->end - scan->at);
        const char *word = scan->at;
        while (scan->at < scan->end && !strchr("\t\r\n", *scan->at)) scan->at++;
        size_t length = (size_t)(scan->at - word);
        while (which < COLUMNS &&
               (strlen(names[which]) != length || length > left || memcmp(names[which], word, length) != 0))
            which++;
        bool last = column == COLUMNS - 1;
        if (which == COLUMNS || seen[which] || !(last ? cot_scan_line_end(scan) : cot_scan_char(scan, '\t')))
            return cot_fail(error, COT_UNSUPPORTED,
                            "'%s' is no table of token counts: column %d is '%.*s', expected layer, "
                            "expert, token_id and count",
                            table->path, column + 1, length < 40 ? (int)length : 40, word);
        table->order[column] = which;
        seen[which] = true;
    }
    return COT_OK;
}

static cot_status read_rows(table_text *table, cot_import *import, cot_error *error)
{
    static const uint32_t limits[COLUMNS] = {INT32_MAX, COT_TRACE_MAX_EXPERTS - 1, INT32_MAX, UINT32_MAX};
    cot_scan scan = cot_scan_file(&table->map);
    int64_t lines = 1;
    cot_status status = read_header(table, &scan, error);
    if (status != COT_OK) return status;
    for (const char *c = scan.at; c < scan.end && (c = memchr(c, '\n', (size_t)(scan.end - c))); c++) lines++;
    if (!(table->row = calloc((size_t)lines, sizeof *table->row))) return cot_import_no_memory(import, error);
    while (scan.at < scan.end) {
        const char *line = scan.at, *no_row = cot_scan_no_row(&scan);
        if (no_row)
            return cot_fail(error, COT_MALFORMED,
                            "'%s' line %" PRId64 " %s: in a table of token counts a row is expected",
                            table->path, table->rows + 2, no_row);
        table_row *next = &table->row[table->rows++];
        for (int column = 0; column < COLUMNS; column++) {
            int which = table->order[column];
            if ((column && !cot_scan_char(&scan, '\t')) ||
                !cot_scan_number(&scan, limits[which], &next->cell[which]))
                return cot_fail(error, COT_MALFORMED,
                                "'%s' line %" PRId64 ": column %d is no number from 0 to %" PRIu32,
                                table->path, table->rows + 1, column + 1, limits[which]);
        }
        if (!cot_scan_line_end(&scan))
            return cot_fail(error, COT_MALFORMED, "'%s' line %" PRId64 ": expected 4 columns", table->path,
                            table->rows + 1);
        if (next->cell[EXPERT] > table->largest) table->largest = next->cell[EXPERT];
        cot_import_advance(import, (uint64_t)(scan.at - line));
    }
    if (table->rows) return COT_OK;
    return cot_fail(error, COT_MALFORMED, "'%s' holds no counts", table->path);
}

/* The distinct values of a column, ascending, in the trace's memory; NULL when out of memory. */
static int32_t *distinct(const table_text *table, cot_trace *trace, int which, int64_t *n)
{
    int32_t *values = cot_trace_alloc(trace, table->rows, sizeof *values);
    for (int64_t i = 0; values && i < table->rows; i++) values[i] = (int32_t)table->row[i].cell[which];
    if (values) *n = cot_ids_sort(values, table->rows);
    return values;
}

/* Spreads the rows over `counts` [L][N][E]. */
static cot_status fill(const table_text *table, const cot_trace *trace, uint32_t *counts, cot_error *error)
{
    for (int64_t i = 0; i < table->rows; i++) {
        const uint32_t *cell = table->row[i].cell;
        int64_t l = cot_ids_find(trace->layers, trace->n_layers, (int32_t)cell[LAYER]);
        int64_t t = cot_ids_find(trace->token_ids, trace->n_tokens, (int32_t)cell[TOKEN]);
        uint32_t *count = &counts[(l * trace->n_tokens + t) * trace->n_experts + cell[EXPERT]];
        if (*count && cell[COUNT])
            return cot_fail(error, COT_MALFORMED,
                            "'%s' line %" PRId64 ": layer %" PRIu32 ", expert %" PRIu32 ", token id %" PRIu32
                            " is counted twice",
                            table->path, i + 2, cell[LAYER], cell[EXPERT], cell[TOKEN]);
        *count += cell[COUNT];
    }
    return COT_OK;
}

/* K from the counts. A token that occurs n times in a text is sent n K times in each layer, and at most n
 * times to any one expert: K divides every sum of a token's counts, and is at most sum / largest count. The
 * largest such K is exact as soon as one token occurs once, or the token's numbers of occurrences have no
 * common factor. */
static cot_status derive_top_k(const table_text *table, cot_trace *trace, const cot_import *import,
                               cot_error *error)
{
    uint64_t divisor = 0, bound = (uint64_t)trace->n_experts;
    for (int64_t t = 0; t < trace->n_tokens; t++) {
        uint64_t first = 0;
        for (int32_t l = 0; l < trace->n_layers; l++) {
            const uint32_t *row = trace->counts + (l * trace->n_tokens + t) * trace->n_experts;
            uint64_t sum = 0, largest = 0;
            for (int32_t e = 0; e < trace->n_experts; e++) {
                sum += row[e];
                if (row[e] > largest) largest = row[e];
            }
            if (!l) first = sum;
            if (sum != first)
                return cot_fail(error, COT_MALFORMED,
                                "'%s': token id %" PRId32 " has %" PRIu64 " counts in layer %" PRId32
                                " but %" PRIu64 " in layer %" PRId32,
                                table->path, trace->token_ids[t], sum, trace->layers[l], first,
                                trace->layers[0]);
            if (largest && sum / largest < bound) bound = sum / largest;
            for (uint64_t b = sum; b;) { // divisor = gcd(divisor, sum)
                uint64_t rest = divisor % b;
                divisor = b;
                b = rest;
            }
        }
    }
    uint64_t given = (uint64_t)import->options->top_k, k = given ? given : bound;
    if (!divisor) return cot_fail(error, COT_MALFORMED, "'%s': all counts are 0", table->path);
    if (given && (divisor % given || given > bound))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s': a token cannot have %" PRIu64 " experts: sums of counts are "
                        "multiples of %" PRIu64 ", at most %" PRIu64 " times a count",
                        table->path, given, divisor, bound);
    while (divisor % k) k--;
    trace->top_k = (int32_t)k;
    if (!given)
        cot_import_note(
            import, "%" PRIu64 " experts a token: the counts of every token sum to a multiple of %" PRIu64, k,
            divisor);
    return COT_OK;
}

/* Makes the dense counts of the rows read. */
static cot_status build(cot_trace *trace, cot_import *import, const table_text *table, cot_error *error)
{
    int64_t n_layers = 0, allowed;
    cot_status status = cot_import_experts(trace, import, table->largest, 0, error);
    if (status != COT_OK) return status;
    trace->kind = COT_TRACE_COUNTS;
    if (!(trace->layers = distinct(table, trace, LAYER, &n_layers)) ||
        !(trace->token_ids = distinct(table, trace, TOKEN, &trace->n_tokens)))
        return cot_import_no_memory(import, error);
    int64_t cells = cot_product(n_layers, trace->n_tokens, trace->n_experts);
    if (__builtin_mul_overflow((int64_t)table->map.bytes, MAX_GROWTH / (int)sizeof(uint32_t), &allowed))
        allowed = INT64_MAX;
    if (cells < 0 || cells > allowed || n_layers > COT_TRACE_MAX_LAYERS)
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s': %" PRId64 " layers of %" PRId64 " token ids and %" PRId32
                        " experts are too many for %zu bytes of counts",
                        table->path, n_layers, trace->n_tokens, trace->n_experts, table->map.bytes);
    uint32_t *counts = cot_trace_alloc(trace, cells, sizeof *counts);
    if (!counts) return cot_import_no_memory(import, error);
    trace->n_layers = (int32_t)n_layers;
    trace->counts = counts;
    status = fill(table, trace, counts, error);
    return status == COT_OK ? derive_top_k(table, trace, import, error) : status;
}

cot_status cot_import_table(cot_trace *trace, cot_import *import, cot_error *error)
{
    table_text table = {.path = import->path};
    cot_status status = cot_file_map_open(&table.map, import->path, error);
    import->total_bytes = table.map.bytes;
    if (status == COT_OK) status = read_rows(&table, import, error);
    if (status == COT_OK) status = build(trace, import, &table, error);
    cot_file_map_close(&table.map);
    free(table.row);
    return status;
}
