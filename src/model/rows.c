/* The arithmetic that a runner's steps are made of: loops over rows, products, norms. */
#include "model/runner_state.h"

#include <math.h>

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
    cot_gemm gemm = cot_packed_gemm(b, r->o.precision.type, rows, 0, b->n);
    gemm.a = a;
    gemm.a_stride = b->k;
    gemm.c = c;
    gemm.c_stride = b->n;
    cot_matmul(r->o.kernels, r->o.pool, &gemm, 1);
}

struct norm {
    const float *weight, *x;
};

static void norm_row(cot_runner *r, int64_t row, const void *context)
{
    const struct norm *norm = context;
    int64_t h = r->c->hidden;
    const float *x = norm->x + row * h;
    float *out = r->s.normed + row * h;
    float mean = r->o.kernels->sum_squares(x, h) / (float)h;
    r->o.kernels->scale_by(out, x, 1.0f / sqrtf(mean + r->c->norm_eps), norm->weight, h);
    r->o.kernels->scale(cot_runner_row(r, r->s.typed, row, h), r->o.precision.type, out, 1.0f, h);
}

void cot_runner_norm(cot_runner *r, const float *weight, const float *x, int64_t rows)
{
    struct norm norm = {weight, x};
    cot_runner_rows(r, rows, norm_row, &norm);
}
