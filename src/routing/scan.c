#include "routing/scan.h"

#include <math.h>

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
