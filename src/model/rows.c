/* The arithmetic that a runner's steps are made of: loops over rows, products, norms. */
#include "model/runner_state.h"

#include <math.h>

void cot_runner_lay_out_rows(cot_runner *r, cot_arena *arena)
{
    cot_runner_step_rows *s = &r->rows;
    const size_t n = (size_t)r->o.step_tokens, h = (size_t)r->c->hidden;
    s->x = cot_arena_take(arena, n * h, sizeof *s->x);
    s->typed = cot_arena_take(arena, n * h, cot_dtype_bytes(r->o.precision.type));
    s->payload = cot_arena_take(arena, 1, cot_runner_gathered_bytes(&r->o, r->c->hidden, r->fabric->ranks));
    s->position = cot_arena_take(arena, n, sizeof *s->position);
    s->sequence = cot_arena_take(arena, n, sizeof *s->sequence);
    if (r->o.replay) s->recorded = cot_arena_take(arena, n, sizeof *s->recorded);
}

enum { ROWS_A_TASK = 8 };

struct row_loop {
    cot_runner *r;
    int64_t rows;
    void (*body)(cot_runner *, int64_t, const void *);
    const void *context;
};

static void run_rows(void *context, int64_t task)
{
    const struct row_loop *loop = context;
    int64_t end = (task + 1) * ROWS_A_TASK < loop->rows ? (task + 1) * ROWS_A_TASK : loop->rows;
    for (int64_t row = task * ROWS_A_TASK; row < end; row++) loop->body(loop->r, row, loop->context);
}

void cot_runner_rows(cot_runner *r, int64_t rows, void (*body)(cot_runner *, int64_t, const void *),
                     const void *context)
{
    struct row_loop loop = {r, rows, body, context};
    cot_pool_run(r->o.pool, (rows + ROWS_A_TASK - 1) / ROWS_A_TASK, run_rows, &loop);
}

void cot_runner_product(cot_runner *r, const void *a, int64_t rows, const cot_packed *b, float *c)
{
    cot_runner_products(r, a, rows, &(cot_packed_parts){.part = {*b}, .parts = 1, .n = b->n}, c);
}

void cot_runner_products(cot_runner *r, const void *a, int64_t rows, const cot_packed_parts *b, float *c)
{
    cot_gemm gemms[sizeof b->part / sizeof *b->part];
    for (int i = 0; i < b->parts; c += b->part[i++].n) {
        gemms[i] = cot_packed_gemm(&b->part[i], r->o.precision.type, rows, 0, b->part[i].n);
        gemms[i].a = a;
        gemms[i].a_stride = b->part[i].k;
        gemms[i].c = c;
        gemms[i].c_stride = b->n;
    }
    cot_matmul(r->o.kernels, r->o.pool, gemms, b->parts);
}

/* out [H] = the norm of x, which may be `out`. */
static void norm_into(const cot_runner *r, float *out, const float *x, const cot_norm *norm)
{
    const cot_kernels *kernels = r->o.kernels;
    const int64_t h = r->c->hidden;
    if (!norm->weight) {
        kernels->scale(out, COT_F32, x, 1.0f, h);
        return;
    }
    if (norm->bias) {
        double sum = 0;
        for (int64_t i = 0; i < h; i++) sum += (double)x[i];
        const float mean = (float)(sum / (double)h);
        for (int64_t i = 0; i < h; i++) out[i] = x[i] - mean;
        x = out;
    }
    const float square = kernels->sum_squares(x, h) / (float)h;
    kernels->scale_by(out, x, 1.0f / sqrtf(square + r->c->norm_eps), norm->weight, h);
    if (norm->bias) kernels->add(out, norm->bias, COT_F32, h);
}

struct norm {
    const cot_norm *norm;
    const float *x;
};

static void norm_row(cot_runner *r, int64_t row, const void *context)
{
    const struct norm *norm = context;
    const int64_t h = r->c->hidden;
    float *out = r->rows.normed + row * h;
    norm_into(r, out, norm->x + row * h, norm->norm);
    r->o.kernels->scale(cot_runner_row(r, r->rows.typed, row, h), r->o.precision.type, out, 1.0f, h);
}

void cot_runner_norm(cot_runner *r, const cot_norm *norm, const float *x, int64_t rows)
{
    const struct norm context = {norm, x};
    cot_runner_rows(r, rows, norm_row, &context);
}

void cot_runner_finish_branch(const cot_runner *r, float *branch, const float *bias, const cot_norm *after)
{
    const int64_t h = r->c->hidden;
    if (bias) r->o.kernels->add(branch, bias, COT_F32, h);
    if (after->weight) norm_into(r, branch, branch, after);
    if (r->c->branch_scale != 1) r->o.kernels->scale(branch, COT_F32, branch, r->c->branch_scale, h);
}
