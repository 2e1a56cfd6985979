/* Reading numbers out of mapped text, which has no NUL at its end and may hold anything. */
#ifndef COT_ROUTING_SCAN_H
#define COT_ROUTING_SCAN_H
#include "base/file.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cot_scan {
    const char *at, *end;
} cot_scan;

/* All of a mapped file; an empty one maps to NULL, which may not be added to. */
static inline cot_scan cot_scan_file(const cot_file_map *map)
{
    const char *text = map->data ? (const char *)map->data : "";
    return (cot_scan){text, text + map->bytes};
}

/* Moves past `c` if it comes next. */
static inline bool cot_scan_char(cot_scan *scan, char c)
{
    if (scan->at == scan->end || *scan->at != c) return false;
    scan->at++;
    return true;
}

/* Moves past the end of a line (also of the text): "\n" or "\r\n". */
static inline bool cot_scan_line_end(cot_scan *scan)
{
    if (scan->at == scan->end) return true;
    if (*scan->at == '\r' && scan->end - scan->at > 1 && scan->at[1] == '\n') scan->at++;
    return cot_scan_char(scan, '\n');
}

/* Reads digits that make a number of at most `limit`. */
static inline bool cot_scan_number(cot_scan *scan, uint32_t limit, uint32_t *value)
{
    uint64_t n = 0;
    const char *at = scan->at;
    for (; at < scan->end && *at >= '0' && *at <= '9' && n <= limit; at++) n = n * 10 + (uint64_t)(*at - '0');
    if (at == scan->at || n > limit) return false;
    *value = (uint32_t)n;
    scan->at = at;
    return true;
}

/* What the next line is, where it cannot be a row of a table: "is blank", or "is a comment" (it begins with '#'). NULL: it
 * may be one. Readers of tables take neither, and say so in these words. */
const char *cot_scan_no_row(const cot_scan *scan);

/* The first line of `text` that may be a row, without its end; looked for in the first 4096 bytes. An empty one: there
 * is none. */
cot_scan cot_scan_first_row(const char *text, size_t bytes);

/* Reads a decimal number like -0.0125 or 3e-05, within a few units in the last place of a double. */
bool cot_scan_decimal(cot_scan *scan, double *value);

#endif
