/* What a benchmark of MoE operators holds: the layer, the group of ranks, the case in hand. */
#ifndef COT_ENGINE_BENCH_BENCH_H
#define COT_ENGINE_BENCH_BENCH_H
#include "coterie/bench_moe.h"
#include "coterie/trace.h"
#include "fabric/threads/threads.h"
#include "moe/moe.h"

#include <pthread.h>
#include <stdatomic.h>

typedef enum cot_bench_command {
    COT_BENCH_DRAW, // weights into the slots
    COT_BENCH_OPEN, // the operators for one number of tokens
    COT_BENCH_RUN,
    COT_BENCH_STOP
} cot_bench_command;

struct cot_bench_moe;

/* One rank. */
typedef struct cot_bench_member {
    struct cot_bench_moe *bench;
    cot_fabric *fabric;
    pthread_t thread;
    cot_sym slots;
    cot_moe **moe; // [n_tokens][ops], NULL until opened
    cot_status status;
    cot_error error;
    int64_t begin_ns, end_ns; // of the last run
} cot_bench_member;

struct cot_bench_moe {
    cot_bench_moe_options options; // tokens is a copy
    cot_moe_options moe;           // of every operator, all but the fabric and the tokens
    const cot_moe_operator *op[COT_BENCH_MOST_OPS];
    cot_moe_combine combine[COT_BENCH_MOST_OPS];
    int ops;
    int32_t *expert_rank, *expert_slot; // [E]
    cot_gate gate;
    float *gate_weight;
    cot_moe_timeline timeline;
    cot_fabric_group *fabric;
    cot_pool *pool;
    cot_bench_member *members; // [P]

    // The ranks wait for a command; the caller waits until all have done it.
    pthread_mutex_t mutex;
    pthread_cond_t commanded, done;
    cot_bench_command command;
    uint64_t commands; // given so far
    int started, pending;
    _Atomic uint64_t lined_up; // ranks, over all runs

    // The case in hand. Rank r has tokens cot_share_begin(tokens, r, P) to the next rank's.
    size_t set; // which of options.tokens
    int op_now;
    int64_t tokens;
    uint16_t *drawn, *experts; // [T][K] wanted, as the operator reports
    float *weights;            // [T][K]
    float *x, *y, *y_first;    // [T][H]; y_first: the first operator's answer

    uint8_t *flush; // more than the last-level cache
    size_t flush_bytes;
};

cot_ffn_shape cot_bench_ffn_of(const cot_bench_shape *shape, cot_dtype type, bool quantised);

/* Random weights of expert `e` into its slot, a function of (seed, e). Errors: OUT_OF_MEMORY. */
cot_status cot_bench_draw_expert(uint8_t *slot, const cot_ffn_shape *shape, uint64_t seed, int64_t e,
                                 cot_error *error);

/* Writes to experts [T][K], ascending within a token, what a routing chooses for tokens that P ranks share;
 * a function of the seed. `trace` is read for COT_BENCH_TRACE alone, which nothing else needs. Errors: those
 * of cot_bench_moe_run that concern the trace. */
cot_status cot_bench_draw_routing(uint16_t *experts, const cot_bench_shape *shape, int64_t tokens, int ranks,
                                  cot_bench_routing routing, const char *trace, uint64_t seed,
                                  cot_error *error);
/* x [T][H] whose gate chooses `experts`: 5 to 6 in the columns of the chosen ones, -1 to 1 elsewhere. */
void cot_bench_draw_hidden(float *x, const uint16_t *experts, const cot_bench_shape *shape, int64_t tokens,
                           uint64_t seed);
/* Fills in rows, touched, padding and capacity. row_bytes is what one row takes on the wire there and back.
 * Errors: OUT_OF_MEMORY. */
cot_status cot_bench_count(cot_bench_load *load, const uint16_t *experts, const cot_bench_shape *shape,
                           int64_t tokens, int ranks, const int32_t *expert_rank, size_t row_bytes,
                           cot_error *error);

/* What all ranks together have done so far. */
typedef struct cot_bench_tally {
    cot_moe_times times;
    uint64_t waits;
    int64_t waited_ns, queued_ns, workers_ns;
    uint64_t egress[COT_MAX_RANKS]; // bytes
} cot_bench_tally;
void cot_bench_take_tally(cot_bench_tally *tally, const struct cot_bench_moe *bench);
/* Adds to a result's means and idle_share what one of n runs did, which took wall_ns, and all ranks' threads
 * together ranks_ns. */
void cot_bench_add_run(cot_bench_result *result, const cot_bench_tally *before, const cot_bench_tally *after,
                       int threads, int64_t wall_ns, int64_t ranks_ns, int n);
/* The time between the first rank's end of what comes before combining and the last rank's, in the run on the
 * timeline. */
int64_t cot_bench_straggling_ns(const cot_moe_timeline *timeline, int ranks);

/* Has every rank do it, and waits. Errors: the rank's that failed first of all. */
cot_status cot_bench_command_ranks(struct cot_bench_moe *bench, cot_bench_command command, cot_error *error);
/* Starts rank threads; on failure those that run stay, and a STOP ends them. */
cot_status cot_bench_start_ranks(struct cot_bench_moe *bench, cot_error *error);
void cot_bench_stop_ranks(struct cot_bench_moe *bench);

#endif
