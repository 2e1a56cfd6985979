/* What a rank sends in each exchange of a step: the fabric's counters, looked at when one is over. */
#ifndef COT_MODEL_EXCHANGES_H
#define COT_MODEL_EXCHANGES_H
#include "model/runner.h"

typedef struct cot_runner_sent {
    cot_sym at; // [P][exchanges][P] uint64: bytes of the last step, a rank counts in its own part
    uint64_t seen[COT_MAX_RANKS][COT_PHASES]; // bytes of the exchanges that are behind
} cot_runner_sent;

/* A step begins: no exchange has been; and one of a layer, of these phases (bits), is over. */
void cot_runner_begin_exchanges(cot_runner *r);
void cot_runner_exchanged(cot_runner *r, int64_t layer, int exchange, unsigned phases);
enum { COT_ROWS_HOME = 1u << COT_PHASE_ATTENTION | 1u << COT_PHASE_METADATA };

#endif
