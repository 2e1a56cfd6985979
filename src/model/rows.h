/* The rows of a step that one rank works on, and the arithmetic over them: loops, products, norms. */
#ifndef COT_MODEL_ROWS_H
#define COT_MODEL_ROWS_H
#include "model/runner.h"

/* N = step_tokens; "typed" is the runner's arithmetic type. */
typedef struct cot_runner_step_rows {
    float *x;                     // [N][H] residual stream
    void *typed;                  // [N][H]
    float *normed;                // [N][H]
    float *branch;                // [N][H] what a branch adds to the residual stream
    void *payload;                // [N][H] typed, and bytes that ride with rows: what is sent
    int32_t *position, *sequence; // [N]
    int32_t *recorded;            // [N] the trace's sequence that each row is of, where routing is replayed
    int64_t count;
    int64_t home0, home1; // those at home here, where homes go by index
} cot_runner_step_rows;

/* All but normed and branch, which are the operator's too (network.h). */
void cot_runner_lay_out_rows(cot_runner *r, cot_arena *arena);
/* body(r, row) for each row, the pool helping. */
void cot_runner_rows(cot_runner *r, int64_t rows,
                     void (*body)(cot_runner *r, int64_t row, const void *context), const void *context);
/* C [rows][n] = A B for typed A [rows][k]. */
void cot_runner_product(cot_runner *r, const void *a, int64_t rows, const cot_packed *b, float *c);
/* The same of matrices side by side. */
void cot_runner_products(cot_runner *r, const void *a, int64_t rows, const cot_packed_parts *b, float *c);
/* rows.normed[i] = the norm of x[i], rows.typed the same typed, for rows of x [rows][H]. */
void cot_runner_norm(cot_runner *r, const cot_norm *norm, const float *x, int64_t rows);
/* One row of what a branch gives becomes what is added to the residual stream: with the bias (or NULL), normed, multiplied. */
void cot_runner_finish_branch(const cot_runner *r, float *branch, const float *bias, const cot_norm *after);

#endif
