/* Comma-separated counts: a header line that names the columns layer, expert, tokens and, where it is known,
 * source, in any order; then a row for each pair that had tokens. A pair that is missing had none. Semicolons stand for
 * commas as spreadsheets write them where a comma is the decimal point. */
#include "routing/load/reader.h"

#include "base/error.h"
#include "routing/ids.h"
#include "routing/scan.h"
#include "routing/store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LAYER, EXPERT, SOURCE, TOKENS, COLUMNS };
static const char *const names[COLUMNS] = {"layer", "expert", "source", "tokens"};

/* A dense load may have this many cells, or CELLS_A_BYTE for each byte of text: beyond both the text is taken for
 * hostile. */
enum { FREE_CELLS = 1 << 22, CELLS_A_BYTE = 64 };

typedef struct csv_row {
    uint32_t cell[TOKENS];
    double tokens;
} csv_row;

typedef struct csv_text {
    const char *path;
    cot_file_map map;
    char separator;
    int order[COLUMNS], columns; // which of LAYER .. TOKENS stands in each column
    int64_t rows;
    csv_row *row;             // [rows]
    uint32_t largest[TOKENS]; // of each column
} csv_text;

static cot_status read_header(csv_text *csv, cot_scan *scan, cot_error *error)
{
    bool seen[COLUMNS] = {0}, more = true;
    const char *no_row = cot_scan_no_row(scan);
    if (no_row)
        return cot_fail(
            error, COT_UNSUPPORTED,
            "'%s' is no CSV of loads: its first line %s, expected the columns' names layer, expert, "
            "tokens and perhaps source",
            csv->path, no_row);
    const char *line_end = memchr(scan->at, '\n', (size_t)(scan->end - scan->at));
    const size_t line = (size_t)((line_end ? line_end : scan->end) - scan->at);
    csv->separator = memchr(scan->at, ',', line) ? ',' : ';';
    while (more) {
        const char *word = scan->at;
        int which = 0;
        while (scan->at < scan->end && *scan->at != csv->separator && !memchr("\r\n", *scan->at, 2))
            scan->at++;
        size_t length = (size_t)(scan->at - word);
        while (which < COLUMNS && (strlen(names[which]) != length || memcmp(names[which], word, length) != 0))
            which++;
        if (which == COLUMNS || seen[which])
            return cot_fail(error, COT_UNSUPPORTED,
                            "'%s' is no CSV of loads: in its first line column %d is '%.*s', expected layer, "
                            "expert, tokens and "
                            "perhaps source",
                            csv->path, csv->columns + 1, length < 40 ? (int)length : 40, word);
        csv->order[csv->columns++] = which;
        seen[which] = true;
        more = cot_scan_char(scan, csv->separator);
    }
    if (!cot_scan_line_end(scan) || !seen[LAYER] || !seen[EXPERT] || !seen[TOKENS])
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s' is no CSV of loads: expected a first line that names the columns layer, "
                        "expert, tokens and perhaps source",
                        csv->path);
    return COT_OK;
}

/* A count, whose decimal point is a comma where semicolons separate. */
static bool read_tokens(const csv_text *csv, cot_scan *scan, double *tokens)
{
    enum { LONGEST = 64 };
    char copy[LONGEST];
    size_t n = 0;
    if (csv->separator == ',') return cot_scan_decimal(scan, tokens);
    while (n < LONGEST && scan->at + n < scan->end && !memchr(";\r\n", scan->at[n], 3)) {
        copy[n] = scan->at[n] == ',' ? '.' : scan->at[n];
        n++;
    }
    cot_scan cell = {copy, copy + n};
    if (!cot_scan_decimal(&cell, tokens) || cell.at != cell.end) return false;
    scan->at += n;
    return true;
}

static cot_status read_row(csv_text *csv, csv_row *row, cot_scan *scan, cot_error *error)
{
    static const uint32_t limits[TOKENS] = {INT32_MAX, COT_TRACE_MAX_EXPERTS - 1, COT_LOAD_MAX_SOURCES - 1};
    const char *no_row = cot_scan_no_row(scan);
    if (no_row)
        return cot_fail(error, COT_MALFORMED, "'%s' line %" PRId64 " %s: in a CSV of loads a row is expected",
                        csv->path, csv->rows + 1, no_row);
    for (int column = 0; column < csv->columns; column++) {
        int which = csv->order[column];
        bool good = !column || cot_scan_char(scan, csv->separator);
        if (which == TOKENS && !(good && read_tokens(csv, scan, &row->tokens) && row->tokens >= 0))
            return cot_fail(error, COT_MALFORMED,
                            "'%s' line %" PRId64 ": column %d (tokens) is no finite number of 0 or more",
                            csv->path, csv->rows + 1, column + 1);
        if (which != TOKENS && !(good && cot_scan_number(scan, limits[which], &row->cell[which])))
            return cot_fail(error, COT_MALFORMED,
                            "'%s' line %" PRId64 ": column %d (%s) is no number from 0 to %" PRIu32,
                            csv->path, csv->rows + 1, column + 1, names[which], limits[which]);
    }
    if (!cot_scan_line_end(scan))
        return cot_fail(error, COT_MALFORMED, "'%s' line %" PRId64 ": expected %d columns", csv->path,
                        csv->rows + 1, csv->columns);
    for (int which = 0; which < TOKENS; which++)
        if (row->cell[which] > csv->largest[which]) csv->largest[which] = row->cell[which];
    return COT_OK;
}

static cot_status read_text(csv_text *csv, cot_error *error)
{
    cot_scan scan = cot_scan_file(&csv->map);
    if (csv->map.bytes >= 3 && !memcmp(scan.at, "\xef\xbb\xbf", 3))
        scan.at += 3; // spreadsheets begin with it
    cot_status status = read_header(csv, &scan, error);
    size_t lines = 1;
    for (const char *c = scan.at; c < scan.end && (c = memchr(c, '\n', (size_t)(scan.end - c))); c++) lines++;
    if (status == COT_OK && !(csv->row = calloc(lines, sizeof *csv->row)))
        return cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", csv->path);
    while (status == COT_OK && scan.at < scan.end) {
        csv_row *row = &csv->row[csv->rows++];
        status = read_row(csv, row, &scan, error);
    }
    if (status == COT_OK && !csv->rows)
        return cot_fail(error, COT_MALFORMED, "'%s' holds no loads", csv->path);
    return status;
}

/* Spreads the rows over the load, whose layers are known. */
static cot_status fill(cot_load_counts *load, const csv_text *csv, cot_error *error)
{
    size_t cells = (size_t)load->n_layers * (size_t)load->n_sources * (size_t)load->n_experts;
    uint8_t *seen = calloc(cells, 1);
    cot_status status = COT_OK;
    if (!seen) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", csv->path);
    for (int64_t i = 0; status == COT_OK && i < csv->rows; i++) {
        const uint32_t *cell = csv->row[i].cell;
        int64_t l = cot_ids_find(load->layers, load->n_layers, (int32_t)cell[LAYER]);
        size_t at =
            ((size_t)l * (size_t)load->n_sources + cell[SOURCE]) * (size_t)load->n_experts + cell[EXPERT];
        if (seen[at])
            status = cot_fail(error, COT_MALFORMED,
                              "'%s' line %" PRId64 ": layer %" PRIu32 ", expert %" PRIu32 ", source %" PRIu32
                              " is counted twice",
                              csv->path, i + 2, cell[LAYER], cell[EXPERT], cell[SOURCE]);
        seen[at] = 1;
        load->tokens[at] = csv->row[i].tokens;
    }
    free(seen);
    return status;
}

static cot_status build(cot_load_counts *load, const csv_text *csv, const cot_load_files *files,
                        cot_error *error)
{
    bool sources = false;
    for (int column = 0; column < csv->columns; column++) sources |= csv->order[column] == SOURCE;
    int32_t *layers = malloc((size_t)csv->rows * sizeof *layers);
    if (!layers) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", csv->path);
    for (int64_t i = 0; i < csv->rows; i++) layers[i] = (int32_t)csv->row[i].cell[LAYER];
    int64_t L = cot_ids_sort(layers, csv->rows), E = (int64_t)csv->largest[EXPERT] + 1;
    int64_t S = (int64_t)csv->largest[SOURCE] + 1, cells = cot_product(L, S, E);
    cot_status status = COT_OK;
    if (L > COT_TRACE_MAX_LAYERS || (cells > FREE_CELLS && (uint64_t)cells / CELLS_A_BYTE > csv->map.bytes))
        status = cot_fail(error, COT_UNSUPPORTED,
                          "'%s': %" PRId64 " layers, %" PRId64 " sources and %" PRId64
                          " experts are too many for %zu bytes of loads",
                          csv->path, L, S, E, csv->map.bytes);
    if (status == COT_OK) status = cot_load_counts_new(load, (int32_t)L, (int32_t)S, (int32_t)E, error);
    if (status == COT_OK) {
        memcpy(load->layers, layers, (size_t)L * sizeof *layers);
        load->sources_known = sources;
        status = fill(load, csv, error);
    }
    if (status == COT_OK)
        cot_load_note(files, "%" PRId64 " experts a layer, from the largest that '%s' names", E, csv->path);
    free(layers);
    return status;
}

cot_status cot_load_read_csv(cot_load_counts *load, const cot_load_files *files, cot_error *error)
{
    csv_text csv = {.path = files->paths[0]};
    cot_status status = cot_load_want_one_file(files, error);
    if (status == COT_OK) status = cot_file_map_open(&csv.map, csv.path, error);
    if (status != COT_OK) return status;
    status = read_text(&csv, error);
    if (status == COT_OK) status = build(load, &csv, files, error);
    cot_file_map_close(&csv.map);
    free(csv.row);
    return status;
}
