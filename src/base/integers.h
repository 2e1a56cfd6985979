/* Small arithmetic on 64-bit whole numbers that every room needs. */
#ifndef COT_BASE_INTEGERS_H
#define COT_BASE_INTEGERS_H
#include <stdint.h>

static inline int64_t cot_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t cot_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* a / b rounded up; a >= 0, b > 0, a + b within 63 bits. */
static inline int64_t cot_divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The least n with 2^n >= a; a <= 2^62. */
static inline int cot_log2_up(int64_t a)
{
    int n = 0;
    while ((int64_t)1 << n < a) n++;
    return n;
}

#endif
