/* A sequence of a trace that is replayed, and what is expected of its next token: of its tokens so far and of the experts that
 * they called, and of nothing that comes later. */
#ifndef COT_ENGINE_BENCH_BATCHING_H
#define COT_ENGINE_BENCH_BATCHING_H
#include "coterie/predict.h"
#include "coterie/trace.h"

#include <stdbool.h>

typedef struct cot_bench_generation {
    int64_t first, at, end; // tokens of the trace: its first, the next, behind its last
    int64_t learnt;         // tokens that `history` is of
    float *history;         // [L][E] how often its tokens called each expert, later ones counting more
    uint8_t *share;         // [L][E] what is expected of the next token, see schedule/overlap.h
} cot_bench_generation;

/* What all of them are foretold by. */
typedef struct cot_bench_foresight {
    const cot_trace *trace;
    cot_predictor *tables;
    float *mean, *token; // [L][E] probabilities of any token; [E] scratch
    float slowest;       // what a new token counts of the history, however long that is
} cot_bench_foresight;

/* Tables of the chosen sequences [S]. Errors: those of cot_predictor_train. Close either way. */
cot_status cot_bench_foresight_open(cot_bench_foresight *foresight, const cot_trace *trace,
                                    const uint8_t *chosen, cot_error *error);
void cot_bench_foresight_close(cot_bench_foresight *foresight);

/* The generation begins anew as sequence `sequence`, with its token number `start` as the next. */
void cot_bench_generation_begin(cot_bench_generation *g, const cot_bench_foresight *foresight,
                                int64_t sequence, int64_t start);
/* The next token has been computed; false: it was the last. */
bool cot_bench_generation_go_on(cot_bench_generation *g, const cot_bench_foresight *foresight);
/* Fills in `share`: by its history and its next token's row of the tables; `likely` false: by its history alone. */
void cot_bench_generation_expect(cot_bench_generation *g, const cot_bench_foresight *foresight, bool likely);
/* The same, knowing the experts. */
void cot_bench_generation_know(cot_bench_generation *g, const cot_bench_foresight *foresight);

#endif
