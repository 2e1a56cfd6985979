/* Numbers of 106 bits, as the sum of two doubles that do not overlap (Dekker 1971): what proves an optimum is summed
 * in them. They need strict IEEE arithmetic: no contraction, no reassociation. */
#ifndef COT_PLACEMENT_DOUBLE_DOUBLE_H
#define COT_PLACEMENT_DOUBLE_DOUBLE_H
#include <stdbool.h>

typedef struct cot_double_double {
    double high, low;
} cot_double_double;

static inline cot_double_double cot_double_double_of(double x)
{
    return (cot_double_double){x, 0};
}

/* a + b, exactly, |a| >= |b| */
static inline cot_double_double cot_double_double_quick(double a, double b)
{
    double sum = a + b;
    return (cot_double_double){sum, b - (sum - a)};
}

static inline cot_double_double cot_double_double_sum(double a, double b)
{
    double sum = a + b, part = sum - a;
    return (cot_double_double){sum, (a - (sum - part)) + (b - part)};
}

/* a * b, exactly (short of underflow) */
static inline cot_double_double cot_double_double_product(double a, double b)
{
    const double split = 134217729; // 2^27 + 1
    double x = split * a, y = split * b, ah = x - (x - a), bh = y - (y - b), al = a - ah, bl = b - bh,
           p = a * b;
    return (cot_double_double){p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
}

static inline cot_double_double cot_double_double_add(cot_double_double a, cot_double_double b)
{
    cot_double_double s = cot_double_double_sum(a.high, b.high), t = cot_double_double_sum(a.low, b.low);
    s = cot_double_double_quick(s.high, s.low + t.high);
    return cot_double_double_quick(s.high, s.low + t.low);
}

static inline cot_double_double cot_double_double_negative(cot_double_double a)
{
    return (cot_double_double){-a.high, -a.low};
}
static inline cot_double_double cot_double_double_subtract(cot_double_double a, cot_double_double b)
{
    return cot_double_double_add(a, cot_double_double_negative(b));
}

/* a times a whole number below 2^53 */
static inline cot_double_double cot_double_double_times(cot_double_double a, double n)
{
    return cot_double_double_add(cot_double_double_product(a.high, n), cot_double_double_product(a.low, n));
}

static inline bool cot_double_double_less(cot_double_double a, cot_double_double b)
{
    return a.high < b.high || (a.high == b.high && a.low < b.low);
}

#endif
