/* Expert networks, all their tiles: the time against the least that the roofs allow, whichever of reading every weight
 * once and of multiplying takes longer. */
#include "bench.h"

#include "base/rng.h"
#include "moe/ffn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct experts {
    const struct bench *bench;
    cot_ffn_shape shape;
    cot_ffn_job *jobs;
    int64_t count;
    void *scratch;
};

static void run(void *context)
{
    const struct experts *e = context;
    cot_ffn_run(e->bench->kernels, e->bench->pool, &e->shape, e->jobs, e->count, e->scratch);
}

/* Weights as they are packed: whole numbers and halves; where they have scales every bit pattern, and scales of one. */
static uint8_t *network(const cot_ffn_shape *shape, const cot_ffn_layout *at)
{
    const cot_dtype scale_type = cot_format_scale(shape->up);
    if (scale_type == COT_DTYPE_COUNT)
        return bench_values(shape->type, (int64_t)(at->bytes / cot_dtype_bytes(shape->type)));
    uint8_t *weights = bench_allocate(at->bytes);
    for (size_t i = 0; i < at->bytes; i++) weights[i] = (uint8_t)cot_mix64(i);
    const size_t parts[] = {at->gate, at->up, at->down, at->gate_bias};
    for (int p = 0; p < 3; p++) {
        const int64_t k = p < 2 ? shape->hidden : shape->intermediate;
        const size_t scales = (size_t)cot_scales_bytes(shape->up, k);
        for (size_t panel = parts[p]; panel < parts[p + 1]; panel += (size_t)cot_panel_bytes(shape->up, k))
            for (size_t i = 0; i < scales / cot_dtype_bytes(scale_type); i++) switch (scale_type) {
                case COT_F32:
                    ((float *)(void *)(weights + panel))[i] = 1;
                    break;
                case COT_BF16:
                    ((uint16_t *)(void *)(weights + panel))[i] = cot_f32_to_bf16(1);
                    break;
                default:
                    weights[panel + i] = 127; // E8M0
                }
    }
    return weights;
}

static void measure(const struct bench *bench, const char *name, const cot_ffn_shape *shape, int64_t rows)
{
    const int64_t hidden = shape->hidden, matrices = cot_ffn_is_gated(shape) ? 3 : 2;
    const cot_ffn_layout at = cot_ffn_layout_of(shape);
    const size_t bytes = at.bytes;
    struct experts e = {bench, *shape, NULL, rows <= 64 ? bench->cold_bytes / (int64_t)bytes + 1 : 1, NULL};
    e.jobs = bench_allocate((size_t)e.count * sizeof *e.jobs);
    e.scratch = bench_allocate(cot_ffn_scratch_bytes(shape, rows * e.count, e.count));
    void *x = bench_values(shape->type, rows * hidden);
    for (int64_t i = 0; i < e.count; i++) {
        uint8_t *weights = network(shape, &at);
        float *y = bench_allocate((size_t)(rows * hidden) * sizeof *y);
        e.jobs[i] = (cot_ffn_job){.weights = weights, .count = rows, .x = x, .y = y};
    }
    double least, most, median = bench_seconds(run, &e, &least, &most);
    double read = (double)bytes * (double)e.count,
           flops = 2.0 * (double)(rows * hidden * shape->intermediate * matrices * e.count);
    double flop_roof = shape->rounded           ? bench->roof.int8_ops
                       : shape->type == COT_F32 ? bench->roof.f32_flops
                                                : bench->roof.bf16_flops;
    double floor_read = read / bench->roof.read_bytes_per_second, floor_multiply = flops / flop_roof;
    double floor = floor_read > floor_multiply ? floor_read : floor_multiply;
    const char *arithmetic = shape->rounded ? "int8" : shape->type == COT_F32 ? "fp32" : "bf16";
    printf("expert %-9s %-5s by %s rows %4lld %9.2f GFLOP/s %7.2f GB/s  %5.1f %% of the %s roof (%.1f to "
           "%.1f)\n",
           name, cot_formats[shape->up].name, arithmetic, (long long)rows, flops / median * 1e-9,
           read / median * 1e-9, 100 * floor / median, floor_read > floor_multiply ? "read" : "flop",
           100 * floor / most, 100 * floor / least);
    fflush(stdout);
    for (int64_t i = 0; i < e.count; i++) {
        free((void *)e.jobs[i].weights);
        free(e.jobs[i].y);
    }
    free(x), free(e.scratch), free(e.jobs);
}

void bench_experts(const struct bench *bench, const char *shape, const char *type, int64_t rows)
{
    static const struct {
        const char *name;
        cot_ffn_activation activation;
        int64_t hidden, intermediate;
    } shapes[] = {{"olmoe", COT_FFN_SWIGLU, 2048, 1024},
                  {"flashmoe", COT_FFN_GELU, 2048, 2048},
                  {"gpt-oss", COT_FFN_SWIGLU, 2880, 2880}};
    static const struct {
        cot_format format;
        cot_dtype type;
        bool rounded;
    } types[] = {{COT_FORMAT_BF16, COT_BF16, false}, {COT_FORMAT_FP32, COT_F32, false},
                 {COT_FORMAT_INT8, COT_BF16, true},  {COT_FORMAT_MXFP4, COT_BF16, false},
                 {COT_FORMAT_MXFP4, COT_BF16, true}, {COT_FORMAT_MXFP4, COT_F32, false},
                 {COT_FORMAT_INT4, COT_BF16, false}, {COT_FORMAT_INT4, COT_BF16, true},
                 {COT_FORMAT_INT8, COT_BF16, false}, {COT_FORMAT_FP8, COT_BF16, false}};
    static const int64_t counts[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (size_t r = 0; r < sizeof counts / sizeof *counts; r++) {
                const cot_ffn_shape network = {.type = types[t].type,
                                               .rounded = types[t].rounded,
                                               .up = types[t].format,
                                               .down = types[t].format,
                                               .activation = shapes[s].activation,
                                               .hidden = shapes[s].hidden,
                                               .intermediate = shapes[s].intermediate};
                if (shape && strcmp(shape, shapes[s].name) != 0) continue;
                if (type && strcasecmp(type, cot_formats[types[t].format].name) != 0) continue;
                if (!rows || rows == counts[r]) measure(bench, shapes[s].name, &network, counts[r]);
            }
}
