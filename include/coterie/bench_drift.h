/* Judges what it is worth to move experts when what is asked changes: recorded routing whose domain changes half-way, through the engine's loop,
 * under several ways to place experts, each step judged by a model of what ranks take.
 *
 * The loop composes steps as it does for a group of ranks: a token of each sequence a step, another sequence from the list when one is
 * over, all of them other ones at the change. Who is asked for which experts is then the same whatever the placement, so that every row
 * sees the same steps. No rank computes: a step takes, summed over layers,
 *
 *     layer_ns + max over ranks of (expert_ns experts called + row_ns calls) + send_ns (token, rank) sends / ranks
 *
 * and a copy of an expert adds copy_ns, one after the other. Everything follows from the options. */
#ifndef COTERIE_BENCH_DRIFT_H
#define COTERIE_BENCH_DRIFT_H
#include "coterie/status.h"
#include "coterie/trace.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ways to place experts. All have the same slots; rows of whole placements and of the bound know what is to come. */
typedef enum cot_bench_drift_kind {
    COT_BENCH_DRIFT_BLOCKS, /* consecutive experts, spare slots empty: where all rows but the next two begin */
    COT_BENCH_DRIFT_FIRST,  /* the best placement found for the first half */
    COT_BENCH_DRIFT_SECOND, /* for the second */
    COT_BENCH_DRIFT_EPLB,   /* EPLB every interval, each layer's ranks renamed so that it moves least */
    COT_BENCH_DRIFT_TOP, /* blocks, and every interval the most called experts of a layer in the spare slots */
    COT_BENCH_DRIFT_LOAD,  /* rebalancing by load */
    COT_BENCH_DRIFT_JOINT, /* and by sends */
    COT_BENCH_DRIFT_ROWS
} cot_bench_drift_kind;
extern const char *const cot_bench_drift_names[COT_BENCH_DRIFT_ROWS];

typedef struct cot_bench_drift_costs {
    double layer_ns, expert_ns, row_ns, send_ns, copy_ns;
} cot_bench_drift_costs;

/* Sequences of a trace of kind tokens, in any order. */
typedef struct cot_bench_drift_half {
    const cot_trace *trace;
    const int32_t *sequence; /* [sequences] of the trace, each of a token or more */
    int32_t sequences;
    int32_t width; /* sequences that run at a time */
} cot_bench_drift_half;

typedef struct cot_bench_drift_options {
    size_t size; /* sizeof this structure */
    cot_bench_drift_half half[2];
    int32_t ranks, spare; /* spare slots a layer, a multiple of ranks */
    int64_t steps;        /* of each half, a multiple of the interval */
    int64_t interval;     /* steps; also the half-life of what is counted */
    int32_t cool_down;    /* intervals */
    int64_t moves_a_cycle;
    cot_bench_drift_costs costs;
    uint64_t seed; /* of the order in which sequences come */
    void *context;
    void (*progress)(void *context, int done, int total); /* after each row; NULL */
} cot_bench_drift_options;

typedef struct cot_bench_drift_interval {
    double ns, gap_ns; /* steps', and copies' */
    double peak;       /* calls of the busiest rank over the mean rank's, the mean of steps and layers */
    int64_t tokens, sends, copies;
} cot_bench_drift_interval;

/* Layers that a rebalancing row left as they were or not, over all cycles, by why. */
typedef struct cot_bench_drift_reason {
    const char *text; /* constant; NULL ends */
    int64_t layers;
} cot_bench_drift_reason;
enum { COT_BENCH_DRIFT_REASONS = 8 };

typedef struct cot_bench_drift_row {
    cot_bench_drift_interval *interval; /* [intervals] */
    cot_bench_drift_reason reason[COT_BENCH_DRIFT_REASONS];
} cot_bench_drift_row;

/* Placing anew for each step what that step calls, on the first step of each interval. */
typedef struct cot_bench_drift_anew {
    int64_t steps;
    double ns, load_ns; /* a step; the same steps where row LOAD has experts */
    double copies;      /* that it takes to get there from the step before that was looked at */
    double rows;        /* calls of a layer in a step */
    double
        break_even_rows; /* at which what is saved of load_ns, if it grew with calls, would be what copies take; 0: nothing is saved */
} cot_bench_drift_anew;

typedef struct cot_bench_drift {
    int64_t intervals, change; /* the first interval after the change */
    cot_bench_drift_row row[COT_BENCH_DRIFT_ROWS];
    const char *found_by[2]; /* what made the best placement of each half; constant */
    cot_bench_drift_anew anew;
} cot_bench_drift;

/* Errors: INVALID_ARGUMENT (names what is wrong), OUT_OF_MEMORY. Free either way. */
cot_status cot_bench_drift_run(cot_bench_drift *drift, const cot_bench_drift_options *options,
                               cot_error *error);
void cot_bench_drift_free(cot_bench_drift *drift);

#ifdef __cplusplus
}
#endif
#endif
