/* Filling packed memory from a checkpoint: a list of pieces to read or pack, gathered first and then run in
 * parallel. */
#ifndef COT_MODEL_LOADER_H
#define COT_MODEL_LOADER_H
#include "base/arena.h"
#include "base/pool.h"
#include "fabric/fabric.h"
#include "checkpoint/checkpoint.h"
#include "moe/weights.h"

#include <stdatomic.h>

/* Progress of everything that loads in this process, in bytes of the packed form. `report` is called now and
 * then, by one thread at a time. */
typedef struct cot_loader_progress {
    _Atomic size_t done_bytes;
    size_t total_bytes;
    void (*report)(void *context, size_t done_bytes, size_t total_bytes); // may be NULL
    void *context;
    atomic_flag reporting;
} cot_loader_progress;

typedef struct cot_loader cot_loader; // the list

cot_status cot_loader_open(cot_loader **load, const cot_checkpoint *checkpoint, cot_error *error);
void cot_loader_close(cot_loader *load); // NULL is fine

/* Pieces recorded between one cot_loader_chain and the next run in order on one thread (they may share panels).
 * Recording with `to` NULL (an arena that measures) does nothing. Out of memory is reported by run. */
void cot_loader_chain(cot_loader *load);
void cot_loader_read(cot_loader *load, cot_weight_piece piece, float *to); // fp32 [rows][columns]
void cot_loader_pack(cot_loader *load, cot_weight_piece piece, void *to, cot_format format, int64_t n,
                     int64_t n0); // packed [columns][n]
void cot_loader_pack_transposed(cot_loader *load, cot_weight_piece piece, void *to,
                                cot_format format); // packed [rows][columns]

/* Hands the piece, from its first row to its last, to the operator whose weights these are. */
void cot_loader_store_expert(cot_loader *load, cot_weight_piece piece, const cot_moe_weights *weights,
                             uint8_t *slot, const cot_ffn_shape *shape, cot_ffn_part part);
void cot_loader_store_gate(cot_loader *load, cot_weight_piece piece, const cot_moe_weights *weights,
                           float *gate);

/* Reads the piece for its errors alone: what stays in the file must be finite too. */
void cot_loader_check(cot_loader *load, cot_weight_piece piece);

/* Does all that was recorded, the pool helping (NULL: alone), and empties the list. The first error wins; that a rank of
 * `fabric` (NULL: there is none yet) has failed is one. */
cot_status cot_loader_run(cot_loader *load, cot_pool *pool, cot_loader_progress *progress, cot_fabric *fabric,
                          cot_error *error);

#endif
