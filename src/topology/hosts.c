#include "topology/reader.h"

#include "base/error.h"
#include "base/file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Cuts the next field, up to a comma, off `*at` and trims it. */
static char *field(char **at)
{
    char *start = *at, *comma = strchr(start, ',');
    *at = comma ? comma + 1 : start + strlen(start);
    if (comma) *comma = 0;
    while (isspace((unsigned char)*start)) start++;
    for (char *last = start + strlen(start); last > start && isspace((unsigned char)last[-1]);) *--last = 0;
    if (*start == '"' && start[1] && start[strlen(start) - 1] == '"') {
        start[strlen(start) - 1] = 0;
        start++;
    }
    return start;
}

static cot_status read_line(cot_host_rows *rows, char *line, int32_t number, const char *path,
                            cot_error *error)
{
    char *at = line;
    cot_host_row row = {.line = number};
    row.host = field(&at);
    row.gpu = field(&at);
    row.adapter = field(&at);
    row.domain = field(&at);
    if (!*row.host && !*row.gpu && !*row.adapter) return COT_OK;
    if (!rows->count && !strcmp(row.host, "host") && !strcmp(row.adapter, "adapter")) return COT_OK;
    if (!*row.host || !*row.adapter || *at)
        return cot_fail(error, COT_MALFORMED, "'%s': line %d is no host,gpu,adapter[,domain]", path, number);
    if (rows->count == COT_TOPOLOGY_MAX_RANKS)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' has more than %d ranks", path, COT_TOPOLOGY_MAX_RANKS);
    rows->rows[rows->count++] = row;
    return COT_OK;
}

cot_status cot_host_rows_read(cot_host_rows *rows, const char *path, cot_error *error)
{
    size_t bytes, lines = 1;
    int32_t number = 0;
    *rows = (cot_host_rows){0};
    cot_status status = cot_file_read(&rows->text, &bytes, path, 1 << 24, error);
    if (status != COT_OK) return status;
    for (size_t i = 0; i < bytes; i++) lines += rows->text[i] == '\n';
    rows->rows = malloc(lines * sizeof *rows->rows);
    if (!rows->rows) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", path);
    for (char *line = rows->text; status == COT_OK && line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = 0;
        status = read_line(rows, line, ++number, path, error);
        line = next;
    }
    if (status == COT_OK && !rows->count)
        status = cot_fail(error, COT_MALFORMED, "'%s' seats no rank: expected lines host,gpu,adapter", path);
    if (status != COT_OK) cot_host_rows_free(rows);
    return status;
}

void cot_host_rows_free(cot_host_rows *rows)
{
    free(rows->text);
    free(rows->rows);
    *rows = (cot_host_rows){0};
}
