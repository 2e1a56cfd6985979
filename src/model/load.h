/* Filling packed memory from a checkpoint: a list of pieces to read or pack, gathered first and then run in
 * parallel. */
#ifndef COT_MODEL_LOAD_H
#define COT_MODEL_LOAD_H
#include "base/arena.h"
#include "base/pool.h"
#include "model/checkpoint.h"

#include <stdatomic.h>

/* Progress of everything that loads in this process, in bytes of the packed form. `report` is called now and
 * then, by one thread at a time. */
typedef struct cot_load_progress {
    _Atomic size_t done_bytes;
    size_t total_bytes;
    void (*report)(void *context, size_t done_bytes, size_t total_bytes); // may be NULL
    void *context;
    atomic_flag reporting;
} cot_load_progress;

typedef struct cot_load cot_load; // the list

cot_status cot_load_open(cot_load **load, const cot_checkpoint *checkpoint, cot_error *error);
void cot_load_close(cot_load *load); // NULL is fine

/* A piece of a weight: rows [row0, row0 + rows) by columns [column0, column0 + columns). */
typedef struct cot_piece {
    cot_weight weight;
    int64_t layer, expert, row0, rows, column0, columns;
} cot_piece;

/* Pieces recorded between one cot_load_group and the next run in order on one thread (they may share panels).
 * Recording with `to` NULL (an arena that measures) does nothing. Out of memory is reported by run. */
void cot_load_group(cot_load *load);
void cot_load_read(cot_load *load, cot_piece piece, float *to); // fp32 [rows][columns]
void cot_load_pack(cot_load *load, cot_piece piece, void *to, cot_dtype type, int64_t n,
                   int64_t n0); // packed [columns][n]
void cot_load_pack_transposed(cot_load *load, cot_piece piece, void *to,
                              cot_dtype type); // packed [rows][columns]

/* Reads the piece for its errors alone: what stays in the file must be finite too. */
void cot_load_check(cot_load *load, cot_piece piece);

/* Does all that was recorded, the pool helping (NULL: alone), and empties the list. The first error wins. */
cot_status cot_load_run(cot_load *load, cot_pool *pool, cot_load_progress *progress, cot_error *error);

#endif
