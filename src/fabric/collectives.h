/* Collectives over puts and signals: rings and an all-to-all. Every rank of the group makes the same calls in
 * the same order; scratch memory is double-buffered by call, and a call ends only when every rank has entered
 * it, so that no rank is ever more than one call ahead and nothing needs a barrier.
 *
 * Bytes moved, all ranks together, n elements of w bytes: reduce_scatter (P-1) n w, allgather (P-1) n w,
 * allreduce 2 (P-1) n w, alltoallv what is sent to other ranks, allgather_direct (P-1) times all blocks.
 */
#ifndef COT_FABRIC_COLLECTIVES_H
#define COT_FABRIC_COLLECTIVES_H
#include "base/dtype.h"
#include "fabric/fabric.h"

typedef struct cot_collectives cot_collectives;

typedef struct cot_collectives_options {
    size_t reduce_elements; // most elements of one allreduce or reduce_scatter
    size_t gather_bytes;    // most bytes of one allgather (all ranks' parts)
    size_t exchange_bytes;  // most bytes one rank may receive in one exchange, alltoallv or allgather_direct
} cot_collectives_options;

/* What goes to one rank, at which byte of its receive buffer that arrives, and a word that rides with the signal of it: the
 * word is there, and costs nothing, where there are no bytes. */
typedef struct cot_message {
    const void *data;
    size_t bytes, place;
    uint8_t word;
} cot_message;

/* Allocates the scratch in symmetric memory: a collective allocation. Errors: OUT_OF_MEMORY. */
cot_status cot_collectives_open(cot_collectives **collectives, cot_fabric *fabric,
                                const cot_collectives_options *options, cot_error *error);
void cot_collectives_close(cot_collectives *collectives); // NULL is fine
/* Bytes of heap that open takes at most for these options and P ranks; SIZE_MAX for sizes that no machine
 * has. */
size_t cot_collectives_heap_bytes(const cot_collectives_options *options, int ranks);

/* On the ring a rank's part, or segment, of more bytes than this travels in pieces of as many, each one
 * message. */
enum { COT_RING_PIECE_BYTES = 32768 };

/* All: errors TIMED_OUT, PEER_FAILED, after which no more calls may be made; sizes beyond the options are
 * bugs (assert). */

/* x [n] becomes, on every rank, the same sum over ranks. Partial sums travel as `type` (F32 or BF16, rounded
 * to nearest even at each hop, added in fp32); with P > 1 every element of the result is a value of `type`. P
 * = 1 changes nothing. */
cot_status cot_allreduce(cot_collectives *c, float *x, int64_t n, cot_dtype type, cot_phase phase,
                         cot_error *error);
/* Afterwards elements [begin[r], begin[r+1]) of x are the sum on rank r (unrounded); the rest is unspecified. begin [P + 1]
 * from 0 to n, the same on every rank. */
cot_status cot_reduce_scatter(cot_collectives *c, float *x, const size_t *begin, cot_dtype type,
                              cot_phase phase, cot_error *error);
/* Rank r's part is bytes [begin[r], begin[r+1]) of `all`; on entry the own part is there, on return all parts
 * are. begin [P + 1], the same on every rank. */
cot_status cot_allgather(cot_collectives *c, void *all, const size_t *begin, cot_phase phase,
                         cot_error *error);
/* The same where parts do not lie close together: rank r's part is bytes [begin[r], end[r]). */
cot_status cot_allgather_parts(cot_collectives *c, void *all, const size_t *begin, const size_t *end,
                               cot_phase phase, cot_error *error);
/* Sends block[d] to rank d, to the own one too: one message each, empty or not. Returns once one has come from every rank.
 * `*received` is the receive buffer, valid until the next exchange, alltoallv or allgather_direct. words [P], where not
 * NULL, gets what came with each. */
cot_status cot_exchange(cot_collectives *c, const void **received, uint8_t *words, const cot_message *block,
                        cot_phase phase, cot_error *error);
/* The same for bytes [send_begin[d], send_begin[d+1]) of `send`, which arrive at byte place[d] of rank d's receive buffer. */
cot_status cot_alltoallv(cot_collectives *c, const void **received, const void *send,
                         const size_t *send_begin, const size_t *place, cot_phase phase, cot_error *error);
/* Sends the `bytes` of `block` to every rank, the own one too, where they arrive at byte `place` of its receive buffer: one
 * hop, where allgather's ring takes P - 1. All else is as with alltoallv, whose receive buffer it shares. */
cot_status cot_allgather_direct(cot_collectives *c, const void **received, const void *block, size_t bytes,
                                size_t place, cot_phase phase, cot_error *error);
/* Returns once every rank has entered. Counted as messages of no bytes. */
cot_status cot_barrier(cot_collectives *c, cot_phase phase, cot_error *error);

#endif
