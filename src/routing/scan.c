#include "routing/scan.h"

#include <math.h>
#include <string.h>

static bool is_digit(const cot_scan *scan)
{
    return scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9';
}

bool cot_scan_decimal(cot_scan *scan, double *value)
{
    double mantissa = 0;
    int scale = 0, digits = 0, exponent = 0;
    bool negative = cot_scan_char(scan, '-'), point = false;
    for (;; scan->at++) {
        if (is_digit(scan)) {
            mantissa = mantissa * 10 + (*scan->at - '0');
            scale -= point;
            digits++;
        } else if (!point && scan->at < scan->end && *scan->at == '.') {
            point = true;
        } else {
            break;
        }
        if (digits > 300) return false; // would overflow before it is scaled
    }
    if (!digits) return false;
    if (cot_scan_char(scan, 'e') || cot_scan_char(scan, 'E')) {
        bool below = cot_scan_char(scan, '-');
        if (!below) (void)cot_scan_char(scan, '+');
        if (!is_digit(scan)) return false;
        for (; is_digit(scan); scan->at++)
            if (exponent < 10000) exponent = exponent * 10 + (*scan->at - '0');
        if (below) exponent = -exponent;
    }
    scale += exponent;
    // dividing by a power of ten that is exact rounds once; a product with 10^-n would round twice
    double size = scale < 0 ? mantissa / pow(10, -scale) : mantissa * pow(10, scale);
    *value = negative ? -size : size;
    return isfinite(size);
}

const char *cot_scan_no_row(const cot_scan *scan)
{
    const char *at = scan->at;
    while (at < scan->end && (*at == ' ' || *at == '\t' || *at == '\r')) at++;
    if (at == scan->end || *at == '\n') return "is blank";
    return *at == '#' ? "is a comment" : NULL;
}

cot_scan cot_scan_first_row(const char *text, size_t bytes)
{
    enum { MOST_BYTES = 4096 };
    if (!bytes) return (cot_scan){"", ""}; // of an empty file there is no text at all
    cot_scan scan = {text, text + (bytes < MOST_BYTES ? bytes : MOST_BYTES)};
    while (scan.at < scan.end) {
        const char *line_end = memchr(scan.at, '\n', (size_t)(scan.end - scan.at));
        if (!line_end) line_end = scan.end;
        const cot_scan line = {scan.at, line_end};
        if (!cot_scan_no_row(&line)) return line;
        scan.at = line_end < scan.end ? line_end + 1 : scan.end;
    }
    return scan;
}
