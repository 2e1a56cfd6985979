/* What a benchmark of MoE operators holds: the layer, one rank's end of the group, rank 0's case in hand. */
#ifndef COT_ENGINE_BENCH_BENCH_H
#define COT_ENGINE_BENCH_BENCH_H
#include "coterie/bench_moe.h"
#include "coterie/trace.h"
#include "fabric/launch.h"
#include "fabric/reports.h"
#include "model/weights.h"
#include "moe/moe.h"

/* What every rank is given when it begins; never written after that. */
typedef struct cot_bench_setup {
    cot_bench_moe_options options; // its array `tokens` is a copy
    const cot_fabric_backend *fabric;
    cot_moe_options moe; // asked of every operator; fabric, pool, timeline, tokens are set where it is opened
    const cot_moe_operator *op[COT_BENCH_MOST_OPS];
    cot_moe_options settled[COT_BENCH_MOST_OPS]; // what each operator does of that
    int ops;
    int64_t most_tokens;      // the greatest of options.tokens
    cot_expert_layout layout; // of the one layer that is measured
    /* What operators keep alike they share. */
    const cot_moe_weights *weights[COT_BENCH_MOST_OPS];
    int kinds, kind[COT_BENCH_MOST_OPS]; // how many ways there are; that of each operator
    cot_gate gate[COT_BENCH_MOST_OPS];   // of each kind
    float *gate_weight[COT_BENCH_MOST_OPS];
} cot_bench_setup;

typedef enum cot_bench_verb {
    COT_BENCH_DRAW, // weights into the slots
    COT_BENCH_OPEN, // the operators for one number of tokens
    COT_BENCH_RUN,
    COT_BENCH_STOP
} cot_bench_verb;

/* What rank 0 has every rank do. */
typedef struct cot_bench_command {
    cot_bench_verb verb;
    int op;
    size_t set;     // an index into options.tokens
    int64_t tokens; // rank r has tokens cot_share_begin(tokens, r, P) to the next rank's, in its x
    cot_link link;
    bool tells_answer, tells_events; // whether a rank puts its answer, and its events, to rank 0
} cot_bench_command;

/* What a rank has done: in one run, or so far. */
typedef struct cot_bench_tally {
    cot_moe_times times;
    uint64_t waits, egress_bytes;
    int64_t waited_ns, queued_ns, workers_ns;
} cot_bench_tally;

/* What a rank tells of one run. */
typedef struct cot_bench_told {
    int64_t begin_ns, end_ns;
    int64_t worked_ns; // when what comes before combining ended
    int64_t events;    // how many events it put to rank 0
    cot_bench_tally tally;
} cot_bench_told;

/* One rank's end. Offsets are of symmetric memory; what is [P] or of all tokens is read on rank 0. */
typedef struct cot_bench_end {
    const cot_bench_setup *setup;
    const cot_rank *rank;
    cot_reports reports;
    cot_sym command_at, command_signal; // room for two commands, which are used by turns
    cot_sym arrived_signals, go_signal; // [P] lines
    cot_sym slots[COT_BENCH_MOST_OPS];  // of each kind of weights
    cot_sym x, y, experts, weights;     // of the own tokens: [H], [H], [K], [K], side by side
    const cot_moe_memory *pinned;       // of what kind they are: NULL or what some operator names
    cot_sym all_y, all_experts;         // [T][H], [T][K]: the operator's answer
    cot_sym told, events;               // [P], [P][cot_bench_events]
    cot_moe **moe;                      // [n_tokens][ops], NULL until opened
    cot_moe_timeline timeline;          // of this rank's tasks
    uint64_t commands, runs;
} cot_bench_end;

struct cot_bench_moe {
    cot_bench_setup setup;
    cot_launch *launch;
    cot_bench_end root;
    cot_bench_command now; // the case in hand and what is done with it
    uint16_t *drawn;       // [T][K] the routing that the gate shall choose
    float *x, *y_first;    // [T][H]; y_first: the first operator's answer
    uint8_t *flush;        // more bytes than the last-level cache holds, read between runs
    size_t flush_bytes;
};

cot_ffn_shape cot_bench_ffn_of(const cot_bench_shape *shape, const cot_precision *precision);

/* Random weights of expert `e` into its slot, a function of (seed, e). Errors: OUT_OF_MEMORY. */
cot_status cot_bench_draw_expert(uint8_t *slot, const cot_moe_weights *weights, const cot_ffn_shape *shape,
                                 uint64_t seed, int64_t e, cot_error *error);

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

cot_bench_tally cot_bench_take_tally(const cot_bench_end *end, const cot_bench_command *command);
/* What was done between two tallies. */
cot_bench_tally cot_bench_tally_since(const cot_bench_tally *before, const cot_bench_tally *after);
/* Adds to a result's means and idle_share one of n runs, which took wall_ns, and other threads workers_ns. */
void cot_bench_add_run(cot_bench_result *result, const cot_bench_told *told, int ranks, int threads,
                       int64_t workers_ns, int64_t wall_ns, int n);
/* When this rank's work before combining ended; `begin_ns` where it had none. */
int64_t cot_bench_worked_ns(const cot_moe_timeline *timeline, int64_t begin_ns);

/* Most events of one rank's run that are kept. */
int64_t cot_bench_events(int ranks);
/* Bytes of a rank's heap; SIZE_MAX where they cannot be had. */
size_t cot_bench_heap_bytes(const cot_bench_setup *setup);
/* A rank's end: allocates, opens nothing yet. Errors: OUT_OF_MEMORY. */
cot_status cot_bench_open_end(cot_bench_end *end, const cot_rank *rank, cot_error *error);
void cot_bench_close_end(cot_bench_end *end);
/* What ranks other than 0 do: commands, until STOP. */
void cot_bench_serve(const cot_rank *rank);
/* On rank 0: has every rank do bench->now as `verb`, and waits. Errors: the rank's that failed first of all. */
cot_status cot_bench_command_ranks(struct cot_bench_moe *bench, cot_bench_verb verb, cot_error *error);

#endif
