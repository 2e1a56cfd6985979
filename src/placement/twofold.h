/* Numbers of 106 bits, as the sum of two doubles that do not overlap (Dekker 1971): what proves an optimum is summed
 * in them, so that primal and dual of real-valued data come out as the same double. They need strict IEEE arithmetic:
 * no contraction, no reassociation. */
#ifndef COT_PLACEMENT_TWOFOLD_H
#define COT_PLACEMENT_TWOFOLD_H
#include <stdbool.h>

typedef struct cot_twofold {
    double high, low;
} cot_twofold;

static inline cot_twofold cot_twofold_of(double x)
{
    return (cot_twofold){x, 0};
}

/* a + b, exactly, |a| >= |b| */
static inline cot_twofold cot_twofold_quick(double a, double b)
{
    double sum = a + b;
    return (cot_twofold){sum, b - (sum - a)};
}

static inline cot_twofold cot_twofold_sum(double a, double b)
{
    double sum = a + b, part = sum - a;
    return (cot_twofold){sum, (a - (sum - part)) + (b - part)};
}

/* a * b, exactly (short of underflow) */
static inline cot_twofold cot_twofold_product(double a, double b)
{
    const double split = 134217729; // 2^27 + 1
    double x = split * a, y = split * b, ah = x - (x - a), bh = y - (y - b), al = a - ah, bl = b - bh,
           p = a * b;
    return (cot_twofold){p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
}

static inline cot_twofold cot_twofold_add(cot_twofold a, cot_twofold b)
{
    cot_twofold s = cot_twofold_sum(a.high, b.high), t = cot_twofold_sum(a.low, b.low);
    s = cot_twofold_quick(s.high, s.low + t.high);
    return cot_twofold_quick(s.high, s.low + t.low);
}

static inline cot_twofold cot_twofold_negative(cot_twofold a)
{
    return (cot_twofold){-a.high, -a.low};
}
static inline cot_twofold cot_twofold_subtract(cot_twofold a, cot_twofold b)
{
    return cot_twofold_add(a, cot_twofold_negative(b));
}

/* a times a whole number below 2^53 */
static inline cot_twofold cot_twofold_times(cot_twofold a, double n)
{
    return cot_twofold_add(cot_twofold_product(a.high, n), cot_twofold_product(a.low, n));
}

static inline bool cot_twofold_less(cot_twofold a, cot_twofold b)
{
    return a.high < b.high || (a.high == b.high && a.low < b.low);
}

#endif
