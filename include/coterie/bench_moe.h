/* Measures the MoE operators side by side: one layer with random weights on a group of ranks that are threads,
 * every operator open in the same group over the same weights, runs interleaved.
 *
 * A group is opened for one shape and one number of ranks; each case is a number of tokens and a routing. The
 * gate does its full work and yet chooses the experts that were drawn: the logits wanted are the first E
 * columns of a token's hidden row, and the gate's weight is the identity there. Before each run the last-level
 * cache is filled with something else, as the layers between would.
 *
 * A cot_bench_moe belongs to one thread at a time. */
#ifndef COTERIE_BENCH_MOE_H
#define COTERIE_BENCH_MOE_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COT_BENCH_MOST_OPS = 8, COT_BENCH_LEAST_REPEATS = 5, COT_BENCH_MOST_REPEATS = 1000 };

typedef enum cot_bench_expert {
    COT_BENCH_SWIGLU,         /* W2 (silu(W1 x) * W3 x) */
    COT_BENCH_SWIGLU_CLAMPED, /* gpt-oss's: clamped, with biases */
    COT_BENCH_TWO_MATRIX,     /* W2 gelu(W1 x + b1) + b2 */
} cot_bench_expert;

/* One MoE layer's experts. */
typedef struct cot_bench_shape {
    const char *name;
    int64_t hidden, intermediate, experts, top_k; /* H, I, E, K */
    cot_bench_expert expert;
} cot_bench_shape;
/* The shapes that have a name; ends with a NULL name. */
extern const cot_bench_shape cot_bench_shapes[];

typedef enum cot_bench_routing {
    COT_BENCH_UNIFORM,  /* K different experts, all alike */
    COT_BENCH_ZIPF,     /* p(e) ~ 1 / (e + 1), K drawn without repetition */
    COT_BENCH_HOT,      /* expert 0 for every token, the others uniform */
    COT_BENCH_BALANCED, /* every K-th token of a rank goes on where the one before left off */
    COT_BENCH_TRACE,    /* a trace's tokens in order, at its middle layer, from the start again at its end */
} cot_bench_routing;

typedef struct cot_bench_moe cot_bench_moe;

typedef struct cot_bench_moe_options {
    size_t size;           /* sizeof this structure */
    cot_bench_shape shape; /* H >= E; the name is not read */
    int ranks;             /* 1 to 64 */
    int threads;           /* in all, 1 to 256; beyond `ranks` they help, below they limit how many compute */
    const char *precision; /* "fp32" or "bf16" */
    const char *isa;       /* caps the instruction set, see cot_isa_names; NULL: the best */
    const char *const *ops; /* 1 to COT_BENCH_MOST_OPS names, see cot_engine_operators; NULL at the end */
    const int64_t *tokens;  /* [n_tokens] how many tokens cases will have, over all ranks, each 1 or more */
    size_t n_tokens;
    uint64_t seed; /* of weights and routings */
} cot_bench_moe_options;

/* Starts the ranks and draws the weights. Errors: INVALID_ARGUMENT (names what is wrong), UNSUPPORTED (`isa`),
 * OUT_OF_MEMORY, with the bytes needed, before anything is drawn. On failure `*bench` is NULL. */
cot_status cot_bench_moe_open(cot_bench_moe **bench, const cot_bench_moe_options *options, cot_error *error);
void cot_bench_moe_close(cot_bench_moe *bench); /* NULL is fine */

typedef struct cot_bench_case {
    size_t size;    /* sizeof this structure */
    int64_t tokens; /* over all ranks, one of the options' */
    cot_bench_routing routing;
    const char *trace; /* file of COT_BENCH_TRACE: kind tokens, E and K those of the shape */
    int repeats;       /* runs of each operator, COT_BENCH_LEAST_REPEATS to COT_BENCH_MOST_REPEATS */
    int64_t budget_ns; /* fewer runs where all would take longer, but COT_BENCH_LEAST_REPEATS; 0: no limit */
    void (*progress)(void *context, int done, int total); /* after each run; NULL */
    void *context;
} cot_bench_case;

/* What the drawn routing asks of any operator, and what an operator that pads would make of it. A block is
 * what one rank sends to one expert. */
typedef struct cot_bench_load {
    int64_t rows;                                  /* T K */
    int64_t touched;                               /* experts with rows */
    uint64_t weight_bytes;                         /* of the touched experts */
    double flops;                                  /* of the experts' products */
    double roof_flops, roof_read_bytes_per_second; /* measured at most 20 s before */
    double floor_ns;        /* the time that the slower of both roofs asks for at least */
    bool reads_bound;       /* that is the reading of the touched experts */
    uint64_t padding_bytes; /* what both rounds would move more if every block were as long as the longest */
    int64_t capacity; /* rows of a block at capacity factor 1: T_r K / E, rounded up, at the largest T_r */
    uint64_t capacity_padding_bytes; /* what both rounds would move more with every block that long */
    int64_t capacity_dropped;        /* rows beyond it, which would be dropped */
} cot_bench_load;

/* What one operator made of it. Times are of runs from the first rank's start to the last one's end. */
typedef struct cot_bench_result {
    double median_ns, p95_ns;
    uint64_t bytes; /* the busiest rank's egress in one run */
} cot_bench_result;

/* Draws the case's routing and runs every operator on it, in turn, each once before it counts. results [ops],
 * in the order of the options. `*repeats` is how many runs counted. Errors: INVALID_ARGUMENT (a case that the
 * options do not cover, a trace of other E or K), what opening the trace gives, MALFORMED (its tokens' experts
 * repeat), TIMED_OUT and PEER_FAILED, and what an operator gives; after an operator's error the bench is of no
 * more use. */
cot_status cot_bench_moe_run(cot_bench_moe *bench, cot_bench_load *load, cot_bench_result *results,
                             int *repeats, const cot_bench_case *what, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
