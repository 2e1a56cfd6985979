/* Costs as whole multiples of one unit, a power of two, in 128 bits. Sums of them are exact, so a search for shortest paths
 * meets no negative arc and ends. A unit is the last bit that any product of the data has, so that nothing is rounded,
 * unless the range of the data leaves less than 118 bits for that: then costs are rounded down to multiples of it. */
#ifndef COT_PLACEMENT_UNITS_H
#define COT_PLACEMENT_UNITS_H
#include "placement/double_double.h"
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

__extension__ typedef __int128 cot_units;
__extension__ typedef unsigned __int128 cot_units_magnitude;

/* A finite double of 0 or more, mantissa * 2^exponent. */
typedef struct cot_units_factor {
    uint64_t mantissa; // below 2^53
    int32_t exponent;
} cot_units_factor;

static inline cot_units_factor cot_units_split(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint64_t normal = (bits >> 52 & 2047) != 0, mantissa = bits & (((uint64_t)1 << 52) - 1);
    return (cot_units_factor){mantissa | normal << 52, (int32_t)(bits >> 52 & 2047) + !normal - 1075};
}

/* The exponent of the last bit that x or another number has, whose own is `other`; INT32_MAX stands for no number but 0. */
static inline int32_t cot_units_last_bit(double x, int32_t other)
{
    const cot_units_factor f = cot_units_split(x);
    if (!f.mantissa) return other;
    const int32_t last = f.exponent + __builtin_ctzll(f.mantissa);
    return last < other ? last : other;
}

/* What sums of products have to stay below: their proof is added up in doubles. */
#define COT_UNITS_MOST 1e290

/* The exponent of the unit for sums up to `bound` of products of numbers with these last bits: sums stay below 2^118. No
 * unit is below the least double, so that prices are doubles. */
static inline int32_t cot_units_choose(double bound, int32_t last, int32_t other)
{
    const int64_t exact = last == INT32_MAX || other == INT32_MAX ? -1074 : (int64_t)last + other;
    int exponent;
    frexp(bound, &exponent);
    int64_t unit = exponent - 118;
    if (unit < exact) unit = exact;
    return unit < -1074 ? -1074 : (int32_t)unit;
}

/* a * mantissa * 2^shift, rounded down; below 2^127. */
static inline cot_units cot_units_times(cot_units_magnitude a, uint64_t mantissa, int32_t shift)
{
    const cot_units_magnitude low = (uint64_t)a * (cot_units_magnitude)mantissa,
                              high = (a >> 64) * mantissa + (low >> 64);
    if (shift >= 0) return low || high ? (cot_units)((high << 64 | (uint64_t)low) << shift) : 0;
    if (shift > -64) return (cot_units)(high << (64 + shift) | (uint64_t)low >> -shift);
    return shift > -192 ? (cot_units)(high >> (-shift - 64)) : 0;
}

/* x * 2^unit, to 106 bits. */
static inline cot_double_double cot_units_value(cot_units x, int32_t unit)
{
    const double high = (double)x, low = (double)(x - (cot_units)high);
    return cot_double_double_quick(ldexp(high, unit), ldexp(low, unit));
}

#endif
