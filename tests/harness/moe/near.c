#include "harness/moe/near.h"

#include "harness/cmocka.h"

#include <math.h>

void near_at(double found, double expected, double tolerance, const char *file, int line)
{
    if (fabs(found - expected) <= tolerance) return;
    print_error("%.9g found, %.9g expected within %g\n", found, expected, tolerance);
    _fail(file, line);
}

double rounded(double value, cot_dtype type)
{
    return type == COT_BF16 ? (double)cot_bf16_to_f32(cot_f32_to_bf16((float)value)) : value;
}
