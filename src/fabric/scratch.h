/* What the collectives keep: scratch in symmetric memory, signals, counters.
 *
 * Why two halves of each scratch suffice. Let "call j" be the j-th call that uses a given scratch (and its
 * signals), and let it write to other ranks' halves j mod 2 alone. Each call of collectives.h ends on a rank
 * only when every rank has entered it. So when a rank writes in call j + 2, it has ended call j + 1, thus
 * every rank has entered call j + 1, thus has ended call j and reads what it left in half j mod 2 no more. No
 * rank runs further ahead than that. Calls that use other scratch in between change nothing of this, and the
 * result of an alltoallv stays until the next one.
 *
 * Why a call ends only when all have entered. Ring: P - 1 times over, a rank takes a message from its left
 * neighbour that this one sends only after it took the one before (parts of no bytes too are sent); so the
 * last message of a call stands at the end of a chain through all other ranks. Exchange: a signal comes from
 * every rank directly. Barrier: after round k a rank depends on the 2^(k+1) - 1 ranks before it.
 *
 * An exchange's signals are double-buffered too: a word that rides with one would else be gone where its rank has entered
 * the next exchange before it was read.
 *
 * A link's messages are counted at both ends (every rank makes the same calls, so both know which message is
 * the k-th), and the signal's value is the count: it only grows and has one source. */
#ifndef COT_FABRIC_SCRATCH_H
#define COT_FABRIC_SCRATCH_H
#include "fabric/collectives.h"

enum { COT_RING_PIECE_ELEMENTS_BF16 = COT_RING_PIECE_BYTES / 2 };

struct cot_collectives {
    cot_fabric *fabric;
    cot_collectives_options limit;
    cot_sym ring_signal;         // raised by the left neighbour
    cot_sym exchange_signals[2]; // [P] lines each, raised by each rank: exchange << 8 | its word
    cot_sym barrier_signals;     // [rounds] lines, raised by the rank 2^round to the left
    cot_sym reduce[2], gather[2], exchange[2];
    uint64_t ring_sent, ring_received, reduces, gathers, exchanges, barriers;
    uint16_t rounded[COT_RING_PIECE_ELEMENTS_BF16]; // a piece on its way out
};

#endif
