/* Expert networks, all their tiles: the time against the least that the roofs allow, whichever of reading every weight
 * once and of multiplying takes longer. */
#include "bench.h"

#include "base/rng.h"
#include "kernels/pack.h"
#include "moe/ffn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Weights as they are packed: whole numbers and halves; of int8 every scale is one. */
static uint8_t *network(const cot_ffn_shape *shape, const cot_ffn_layout *at)
{
    if (!shape->quantised)
        return bench_values(shape->type, (int64_t)(at->bytes / cot_dtype_bytes(shape->type)));
    uint8_t *weights = bench_allocate(at->bytes);
    for (size_t i = 0; i < at->bytes; i++) weights[i] = (uint8_t)cot_mix64(i);
    const size_t parts[] = {at->gate, at->up, at->down, at->gate_bias};
    for (int p = 0; p < 3; p++) {
        const int64_t stride = cot_panel_stride(COT_I8, p < 2 ? shape->hidden : shape->intermediate);
        for (size_t panel = parts[p]; panel < parts[p + 1]; panel += (size_t)stride)
            for (int i = 0; i < COT_PANEL; i++) ((float *)(void *)(weights + panel))[i] = 1;
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
    double flop_roof = shape->quantised         ? bench->roof.int8_ops
                       : shape->type == COT_F32 ? bench->roof.f32_flops
                                                : bench->roof.bf16_flops;
    double floor_read = read / bench->roof.read_bytes_per_second, floor_multiply = flops / flop_roof;
    double floor = floor_read > floor_multiply ? floor_read : floor_multiply;
    printf("expert %-9s %-5s rows %4lld %9.2f GFLOP/s %7.2f GB/s  %5.1f %% of the %s roof (%.1f to %.1f)\n",
           name, cot_dtype_name(cot_ffn_weight_type(shape)), (long long)rows, flops / median * 1e-9,
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
    } shapes[] = {{"olmoe", COT_FFN_SWIGLU, 2048, 1024}, {"flashmoe", COT_FFN_GELU, 2048, 2048}};
    static const cot_dtype types[] = {COT_BF16, COT_F32, COT_I8};
    static const int64_t counts[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (size_t r = 0; r < sizeof counts / sizeof *counts; r++) {
                const cot_ffn_shape network = {.type = types[t] == COT_I8 ? COT_BF16 : types[t],
                                               .quantised = types[t] == COT_I8,
                                               .activation = shapes[s].activation,
                                               .hidden = shapes[s].hidden,
                                               .intermediate = shapes[s].intermediate};
                if (shape && strcmp(shape, shapes[s].name) != 0) continue;
                if (type && strcmp(type, cot_dtype_name(types[t])) != 0) continue;
                if (!rows || rows == counts[r]) measure(bench, shapes[s].name, &network, counts[r]);
            }
}
