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

/* Room for the tiles that `threads` threads are at. All ranks of a process may share it: a tile takes a part of it for
 * as long as it computes. May measure (NULL). */
typedef struct cot_attend_scratch cot_attend_scratch;
cot_attend_scratch *cot_attend_scratch_lay_out(cot_arena *arena, cot_dtype type, int64_t value_width,
                                               int threads);

/* One rank's list of work, of at most `rows` rows a call under so many local heads. May measure (NULL). */
typedef struct cot_attend cot_attend;
cot_attend *cot_attend_lay_out(cot_arena *arena, cot_attend_scratch *scratch, int64_t kv_heads, int64_t heads,
                               int64_t rows);

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
