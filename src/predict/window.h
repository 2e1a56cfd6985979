/* The chosen tokens of a trace, in order, and what a prediction at one layer may read of them. */
#ifndef COT_PREDICT_WINDOW_H
#define COT_PREDICT_WINDOW_H
#include "base/arena.h"
#include "coterie/predict.h"

/* All chosen tokens. Read-only once made. */
typedef struct cot_window {
    const cot_trace *trace;
    const cot_predictor *predictor;
    cot_predictor_info info;
    int64_t n_tokens;  // T
    int64_t *position; // [T] in the trace
    int64_t *sequence; // [T] 0, 1, ... among the chosen
    int64_t *begin;    // [T] the first of the T tokens that is of the same sequence
    int64_t n_sequences;
    int32_t *row; // [T] of the token tables, -1 unknown
} cot_window;

/* `chosen` [S] or NULL. Errors: OUT_OF_MEMORY. Close it either way. */
cot_status cot_window_open(cot_window *window, const cot_predictor *predictor, const cot_trace *trace,
                           const uint8_t *chosen, cot_error *error);
void cot_window_close(cot_window *window);

/* Tokens [first, first + n) at one layer. */
typedef struct cot_window_batch {
    cot_predict_batch batch; // its arrays are those below
    uint16_t *experts;       // [n][K] that the tokens call
    uint16_t *own_before, *earlier;
    int16_t *ranks_before;
    int32_t *row_before;
    int64_t most;
} cot_window_batch;

/* Room for `most` tokens. */
void cot_window_batch_lay_out(cot_window_batch *batch, cot_arena *arena, const cot_window *window,
                              int64_t most);
/* Fills in tokens [first, first + n) at layer `l`. */
void cot_window_batch_fill(cot_window_batch *batch, const cot_window *window, int32_t l, int64_t first,
                           int64_t n);

/* Rows of the token tables for tokens of `trace`, whose ids [n] may stand for strings: such ids mean nothing beyond their
 * trace, so that the strings are looked up. Errors: OUT_OF_MEMORY. */
cot_status cot_rows_of_tokens(int32_t *row, const cot_predictor *predictor, const cot_trace *trace,
                              const int32_t *ids, int64_t n, cot_error *error);

#endif
