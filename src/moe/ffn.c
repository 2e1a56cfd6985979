#include "moe/ffn.h"

#include "kernels/pack.h"

static size_t round_up_64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

cot_ffn_layout cot_ffn_layout_of(const cot_ffn_shape *shape)
{
    cot_ffn_layout layout = {0};
    layout.down = (size_t)cot_packed_bytes(shape->type, shape->hidden, 2 * shape->intermediate);
    layout.gate_up_bias =
        layout.down + (size_t)cot_packed_bytes(shape->type, shape->intermediate, shape->hidden);
    layout.down_bias = layout.gate_up_bias;
    if (shape->biased) layout.down_bias += round_up_64((size_t)(2 * shape->intermediate) * sizeof(float));
    layout.bytes = layout.down_bias;
    if (shape->biased) layout.bytes += round_up_64((size_t)shape->hidden * sizeof(float));
    return layout;
}

static size_t gate_up_bytes(const cot_ffn_shape *shape, int64_t rows)
{
    return round_up_64((size_t)(rows * 2 * shape->intermediate) * sizeof(float));
}

size_t cot_ffn_scratch_bytes(const cot_ffn_shape *shape, int64_t rows)
{
    return gate_up_bytes(shape, rows) +
           round_up_64((size_t)(rows * shape->intermediate) * cot_dtype_bytes(shape->type));
}

struct run {
    const cot_kernels *kernels;
    const cot_ffn_shape *shape;
    cot_ffn_layout layout;
    const cot_ffn_job *jobs;
    const cot_gemm *gemms; // the products in hand; their C follow one another in the order of the jobs
    int64_t count;
    float *gate_up;      // [rows][2I]
    uint8_t *activation; // [rows][I]
};

/* The job whose rows of gate_up hold this address: the last that begins at or before it. */
static int64_t job_at(const struct run *run, const float *row)
{
    int64_t low = 0, high = run->count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (run->gemms[middle].c <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void activate(void *context, int64_t i)
{
    const struct run *run = context;
    const cot_ffn_shape *shape = run->shape;
    int64_t width = shape->intermediate;
    float *gate = run->gate_up + i * 2 * width;
    void *out = run->activation + (size_t)(i * width) * cot_dtype_bytes(shape->type);
    if (shape->biased) {
        const uint8_t *weights = run->jobs[job_at(run, gate)].weights;
        run->kernels->add(gate, weights + run->layout.gate_up_bias, COT_F32, 2 * width);
    }
    if (shape->limit > 0)
        run->kernels->swiglu_clamped(out, shape->type, gate, gate + width, width, shape->limit, shape->alpha);
    else
        run->kernels->swiglu(out, shape->type, gate, gate + width, width);
}

static void add_down_bias(void *context, int64_t i)
{
    const struct run *run = context;
    const cot_ffn_job *job = &run->jobs[i];
    for (int64_t row = 0; row < job->count; row++)
        run->kernels->add(job->y + row * run->shape->hidden, job->weights + run->layout.down_bias, COT_F32,
                          run->shape->hidden);
}

void cot_ffn_run(const cot_kernels *kernels, cot_pool *pool, const cot_ffn_shape *shape,
                 const cot_ffn_job *jobs, int64_t count, void *scratch, cot_gemm *gemms)
{
    int64_t hidden = shape->hidden, width = shape->intermediate, rows = 0;
    for (int64_t j = 0; j < count; j++) rows += jobs[j].count;
    if (!rows) return;
    struct run run = {.kernels = kernels,
                      .shape = shape,
                      .layout = cot_ffn_layout_of(shape),
                      .jobs = jobs,
                      .gemms = gemms,
                      .count = count,
                      .gate_up = scratch,
                      .activation = (uint8_t *)scratch + gate_up_bytes(shape, rows)};
    float *gate_up = run.gate_up;
    for (int64_t j = 0; j < count; j++) {
        gemms[j] = (cot_gemm){.type = shape->type,
                              .m = jobs[j].count,
                              .n = 2 * width,
                              .k = hidden,
                              .a = jobs[j].x,
                              .a_stride = hidden,
                              .a_rows = jobs[j].rows,
                              .b = jobs[j].weights + run.layout.gate_up,
                              .b_panel_stride = cot_panel_elements(hidden),
                              .c = gate_up,
                              .c_stride = 2 * width};
        gate_up += jobs[j].count * 2 * width;
    }
    cot_matmul(kernels, pool, gemms, count);
    cot_pool_run(pool, rows, activate, &run);

    const uint8_t *activation = run.activation;
    for (int64_t j = 0; j < count; j++) {
        gemms[j] = (cot_gemm){.type = shape->type,
                              .m = jobs[j].count,
                              .n = hidden,
                              .k = width,
                              .a = activation,
                              .a_stride = width,
                              .b = jobs[j].weights + run.layout.down,
                              .b_panel_stride = cot_panel_elements(width),
                              .c = jobs[j].y,
                              .c_stride = hidden};
        activation += (size_t)(jobs[j].count * width) * cot_dtype_bytes(shape->type);
    }
    cot_matmul(kernels, pool, gemms, count);
    if (shape->biased) cot_pool_run(pool, count, add_down_bias, &run);
}
