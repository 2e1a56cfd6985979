#include "harness/draw.h"

#include "harness/poisoned.h"

#include "base/rng.h"

int64_t draw_below(struct draw *draw, int64_t n)
{
    return (int64_t)(cot_random_bits(draw->seed, draw->stream, draw->position++) % (uint64_t)n);
}

float draw_float(struct draw *draw, double scale, cot_dtype type)
{
    double uniform = cot_random_uniform(draw->seed, draw->stream, draw->position++);
    float value = (float)((2 * uniform - 1) * scale);
    return type == COT_BF16 ? cot_bf16_to_f32(cot_f32_to_bf16(value)) : value;
}

float *draw_typed(struct draw *draw, int64_t n, double scale, cot_dtype type)
{
    float *values = poisoned((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = draw_float(draw, scale, type);
    return values;
}

float *draw_floats(struct draw *draw, int64_t n, double scale)
{
    return draw_typed(draw, n, scale, COT_F32);
}
