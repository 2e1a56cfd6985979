/* Causal attention of a step's tokens over the KV pages of their sequences. */
#ifndef COT_MODEL_ATTEND_H
#define COT_MODEL_ATTEND_H
#include "kernels/matmul.h"
#include "model/kv.h"
#include "model/weights.h"

/* Consecutive tokens of one sequence among this rank's rows. */
typedef struct cot_run {
    int64_t sequence, position; // of the first token
    int64_t row, tokens;        // rows [row, row + tokens)
} cot_run;

typedef struct cot_attend cot_attend; // scratch

/* Sizes: at most `rows` rows a call, contexts of at most `context` tokens, `helpers` threads at once. May
 * measure. */
cot_attend *cot_attend_place(cot_arena *arena, const cot_kv *kv, int64_t heads, int64_t rows, int64_t context,
                             int helpers);

typedef struct cot_attend_args {
    const cot_kernels *kernels;
    cot_pool *pool;
    const cot_kv *kv;
    const cot_attention_weights *weights; // head ranges and sinks
    int64_t group;                        // query heads a KV head, of the whole model
    int64_t layer, window;                // window 0: all keys
    float scale;
    const cot_run *runs;
    int64_t run_count;
    const void *q; // kv->type, [rows][heads][key_width]
    void *out;     // kv->type, [rows][heads][value_width]
} cot_attend_args;

/* out[row][head] = softmax(scale q . keys) values over the keys that the row may see, its own included
 * (already stored). One arithmetic for prefill and decode: a row's result depends on the row and its keys
 * alone. Never allocates. */
void cot_attend_run(cot_attend *attend, const cot_attend_args *args);

#endif
