/* Measures the MoE operators side by side: one layer with random weights on a group of ranks, every operator
 * open in the same group over the same weights, runs interleaved.
 *
 * A group is opened for one shape and one number of ranks; each case is a number of tokens and a routing. The
 * gate does its full work and yet chooses the experts that were drawn: the logits wanted are the first E
 * columns of a token's hidden row, and the gate's weight is the identity there. Before each run the last-level
 * cache is filled with something else, as the layers between would.
 *
 * A cot_bench_moe belongs to one thread at a time. */
#ifndef COTERIE_BENCH_MOE_H
#define COTERIE_BENCH_MOE_H
#include "coterie/roof.h"
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
    const char *precision; /* "fp32", "bf16" or "int8" (experts; rows are bf16) */
    /* What weights are kept as: a format of docs/FORMATS.md; NULL or "as-stored": as the precision has it. */
    const char *weights;
    const char *combine; /* "exact" or "reduced"; an operator that cannot reduce is exact */
    /* As cot_engine_options has them, of the operators that do so; the others send as they always do. NULL: so do all. */
    const char *a2a, *dedup;
    int sms_reserve; /* multiprocessors that operators on a GPU leave to others, 0 to 4096; one of the operators is such */
    const char *fabric;     /* what ranks are, see cot_engine_fabrics; NULL: the first */
    int64_t timeout_ns;     /* how long a rank waits for another, 1e8 to 1e15; 0: 300 s */
    const char *isa;        /* caps the instruction set, see cot_isa_names; NULL: the best */
    const char *const *ops; /* 1 to COT_BENCH_MOST_OPS names, see cot_engine_operators; NULL at the end */
    const int64_t *tokens;  /* [n_tokens] how many tokens cases will have, over all ranks, each 1 or more */
    size_t n_tokens;
    uint64_t seed; /* of weights and routings */
} cot_bench_moe_options;

/* Starts the ranks and draws the weights. Errors: INVALID_ARGUMENT (names what is wrong), UNSUPPORTED (`isa`),
 * OUT_OF_MEMORY, with the bytes needed, before anything is drawn; SERVED as cot_engine_open has it. On failure `*bench` is NULL. */
cot_status cot_bench_moe_open(cot_bench_moe **bench, const cot_bench_moe_options *options, cot_error *error);
void cot_bench_moe_close(cot_bench_moe *bench); /* NULL is fine */

/* Whether all ranks live, for who works long between two runs. Does not wait; any thread may call it. Errors: PEER_FAILED,
 * TIMED_OUT, as runs have them. */
cot_status cot_bench_moe_check(cot_bench_moe *bench, cot_error *error);

/* What one thread did in one run. */
typedef struct cot_bench_event {
    int64_t begin_ns, end_ns; /* from the run's start */
    int thread, rank;
    const char *work; /* "gate", "dispatch", ...; constant */
    int slot, rows;   /* of an expert's tile; -1 and 0 otherwise */
} cot_bench_event;

typedef struct cot_bench_case {
    size_t size;    /* sizeof this structure */
    int64_t tokens; /* over all ranks, one of the options' */
    cot_bench_routing routing;
    const char *trace; /* file of COT_BENCH_TRACE: kind tokens, E and K those of the shape */
    int repeats;       /* runs of each operator, COT_BENCH_LEAST_REPEATS to COT_BENCH_MOST_REPEATS */
    int64_t budget_ns; /* fewer runs where all would take longer, but COT_BENCH_LEAST_REPEATS; 0: no limit */
    cot_roof roof;     /* of all threads; what the result is held against */
    /* Each run is repeated over links that let so many bytes a second leave a rank, and as many come in (0: any number), and
     * deliver them so much later; with link_groups of 2 or more, at most as many as ranks, what goes from one of so many
     * groups of consecutive ranks to another takes the uplinks of both as well, which all ranks of a group share. All 0: there
     * are no such runs. */
    double link_bytes_per_s;
    int64_t link_latency_ns;
    int link_groups;
    double uplink_bytes_per_s;
    int64_t uplink_latency_ns;
    void *context;                                        /* passed to both */
    void (*progress)(void *context, int done, int total); /* after each run; NULL */
    /* What was done in the last run of each operator, without and with the link; NULL */
    void (*on_event)(void *context, size_t op, bool linked, const cot_bench_event *event);
} cot_bench_case;

/* What the drawn routing asks of any operator, and what one that pads would make of it. A block is what one
 * rank sends to one expert; bytes are of dispatch and combine together, over all ranks, exact combine. */
typedef struct cot_bench_load {
    int64_t rows;           /* T K */
    int64_t touched;        /* experts with rows */
    uint64_t weight_bytes;  /* of the touched experts */
    double flops;           /* of the experts' products */
    double roof_flops;      /* the roof of the precision, of whole numbers for int8 */
    double floor_ns;        /* the least time that the roofs allow */
    bool reads_bound;       /* because of the reading of weights, not of the multiplying */
    uint64_t padding_bytes; /* what would move more if every block were as long as the longest */
    int64_t capacity; /* rows of a block at capacity factor 1: T_r K / E, rounded up, at the largest T_r */
    uint64_t capacity_bytes;  /* what would move more if every shorter block were that long */
    int64_t capacity_dropped; /* rows beyond it, which would be dropped */
} cot_bench_load;

/* What one operator made of it. Times are of runs from the first rank's start to the last one's end. */
typedef struct cot_bench_result {
    const char *combine, *a2a, *dedup;      /* what it used; constant */
    double median_ns, p95_ns;               /* without a link */
    double linked_median_ns, linked_p95_ns; /* with it; 0 without such runs */
    uint64_t bytes;                         /* the busiest rank's egress in one run */
    double idle_share;                      /* of the threads' time, not spent on anything */
    /* From the first rank's ending its experts' work to the last one's. */
    double straggler_median_ns, straggler_p95_ns;
    /* Of one run in the mean, over all ranks, without a link: */
    double waits, launches, tile_passes;
    double gate_ns, dispatch_ns, expert_ns, combine_ns;
    double waited_ns, queued_ns; /* for others, and for a turn where ranks are more than threads */
} cot_bench_result;

/* Draws the case's routing and runs every operator on it, in turn, each once before it counts. results [ops],
 * in the order of the options. `*repeats` is how many runs counted. Errors: INVALID_ARGUMENT (a case that the
 * options do not cover, a trace of other E or K), what opening the trace gives, MALFORMED (its tokens' experts
 * repeat; an operator that routes otherwise than drawn, or whose answer differs from the first one's by more
 * than rounding), TIMED_OUT, PEER_FAILED, and what an operator gives; after an operator's error the bench is
 * of no more use. */
cot_status cot_bench_moe_run(cot_bench_moe *bench, cot_bench_load *load, cot_bench_result *results,
                             int *repeats, const cot_bench_case *what, cot_error *error);

/* Whether that many tokens of that shape can be drawn: what opening and running would say of the shape, the
 * tokens and the trace (NULL but for COT_BENCH_TRACE), at no cost. */
cot_status cot_bench_check(const cot_bench_shape *shape, int64_t tokens, cot_bench_routing routing,
                           const char *trace, cot_error *error);
/* How many tokens, dealt out evenly (COT_BENCH_BALANCED), fill every block to capacity factor 1: what an
 * operator that pads and drops computes and moves for `tokens`, whatever their routing. */
int64_t cot_bench_capacity_tokens(const cot_bench_shape *shape, int64_t tokens, int ranks);

#ifdef __cplusplus
}
#endif
#endif
