/* One rank's share of a model: its weights, its KV pages and the forward pass over a step. */
#ifndef COT_MODEL_RUNNER_H
#define COT_MODEL_RUNNER_H
#include "coterie/trace.h"
#include "fabric/collectives.h"
#include "model/chunk.h"
#include "model/pipeline.h"
#include "model/replay.h"
#include "schedule/step.h"
#include "model/weights.h"
#include "model/attend.h"
#include "moe/moe.h"

typedef struct cot_runner_options {
    const cot_checkpoint *checkpoint;
    const cot_whole_weights *whole;
    cot_attend_scratch *attention_scratch; // the process's, as cot_runner_lay_out_attention makes it
    cot_precision precision;
    const cot_networks *networks; // what its networks are in it
    bool data_parallel;           // attention on the sequences' home ranks, else heads split
    cot_pipeline pipeline;        // where heads are split
    const cot_kernels *kernels;
    cot_pool *pool;                  // may be NULL
    int threads;                     // that may work for this rank at once, itself included
    const cot_expert_layout *layout; // of the model's MoE layers over the group's ranks, at first
    bool
        gives_back; // what slots took goes back to the system when experts leave them; so does what closed pages did
    int32_t spare; // slots of a layer, the last of its own, that are empty at first; where it gives back
    bool movable;  // the last slots of layers that share a pool have one place together
    /* Of a random model: so many MoE layers have experts of their own, and later ones use these again, slot for slot, in turn.
     * 0: all have. */
    int64_t expert_layers;
    const cot_moe_operator *op;
    cot_moe_combine combine;
    cot_moe_a2a a2a;
    cot_moe_dedup dedup;
    int sms_reserve;          // that an operator on a device leaves to others
    cot_dtype payload;        // F32 or BF16: what expert rows travel back as
    int64_t context_tokens;   // most tokens of a sequence
    int64_t step_tokens;      // most tokens of a step
    int64_t step_logits;      // most rows of logits of a step
    int64_t step_maps;        // most page maps of a step
    int64_t step_states;      // most copies of states of a step
    int64_t snapshots;        // of states, that are kept beside those of sequences
    int64_t sequences, pages; // rows of the page table; KV pages
    bool capture;             // routing of every step goes to rank 0
    bool routed;              // experts of some tokens do, where a step says so (cot_step.routed_every)
    bool count_exchanges;     // what is sent in each exchange is counted apart
    const cot_replay *replay; // what takes the place of gates' choices; NULL: nothing
} cot_runner_options;

/* When ranks send to one another in a step, one after the other: in each layer these, and results at its end. */
enum {
    COT_EXCHANGE_REDUCE,   // allreduce, or reduce-scatter
    COT_EXCHANGE_SPREAD,   // an allreduce's other half, where it is direct
    COT_EXCHANGE_DISPATCH, // and metadata
    COT_EXCHANGE_COMBINE,
    COT_EXCHANGE_GATHER,
    COT_EXCHANGES
};
static inline size_t cot_runner_exchanges(int64_t layers)
{
    return (size_t)layers * COT_EXCHANGES + 1;
}

/* What a rank counted since it was opened. */
typedef struct cot_rank_stats {
    cot_locality locality; // of the rows at home here, over MoE layers
    uint64_t distinct;     // experts that they call, each once a layer and step
    int64_t attention_ns, reduce_ns, gather_ns, dense_ns,
        logits_ns; // reduce, gather: allreduce, allgather with waiting
    cot_moe_times moe;
    cot_traffic traffic[COT_MAX_RANKS][COT_PHASES];
    uint64_t rounds[COT_PHASES];
} cot_rank_stats;

/* How many MoE layers have experts of their own. */
int64_t cot_runner_expert_layers(const cot_runner_options *options);
/* Places of a rank: layers whose slots have the same size share a pool, in which each has as many of its own as it has slots; where experts
 * are movable its last slot has none, and one place more is for all layers of the pool. */
typedef struct cot_runner_pool {
    size_t at;     // bytes of the pools before
    int32_t first; // of the layer's own places; `own` of them follow one another
    int32_t own, places;
} cot_runner_pool;
cot_runner_pool cot_runner_pool_of(const cot_runner_options *options, int32_t layer);
size_t cot_runner_pools_bytes(const cot_runner_options *options);
/* Places of a rank that no layer has for its own: one a pool where experts are movable. */
int32_t cot_runner_transit_places(const cot_runner_options *options);
/* The place that a slot of a MoE layer has at first in its pool, alike on all ranks; -1: none. */
int32_t cot_runner_first_place(const cot_runner_options *options, int32_t layer, int32_t slot);

/* What a step's report takes from a rank, counted since it was opened. */
typedef struct cot_step_counts {
    cot_locality locality;      // of the rows at home here, over MoE layers
    uint64_t distinct;          // experts that they call, each once a layer and step
    uint64_t bytes[COT_PHASES]; // sent to other ranks
} cot_step_counts;

/* What a rank's experts had to do in a step, summed over layers: (token, expert)s of all ranks, experts that these called, rows that
 * came from other ranks. All 0 where the operator does not count that. */
typedef struct cot_runner_served {
    uint64_t rows;
    uint32_t experts, received;
} cot_runner_served;

typedef struct cot_runner cot_runner;

/* Bytes of memory that one rank takes, its experts aside. */
typedef struct cot_runner_sizes {
    size_t weights; // that this rank alone holds
    size_t cache;   // KV pages
    size_t states;  // of sequences in layers without keys, and snapshots
    size_t scratch; // private memory of a step
    size_t buffers; // of operator, collectives and results: what steps touch of them at the worst routing
} cot_runner_sizes;
cot_status cot_runner_measure(cot_runner_sizes *sizes, const cot_runner_options *options, int rank, int ranks,
                              cot_error *error);
/* Bytes of a rank's symmetric heap; address space, much of it never touched. */
size_t cot_runner_heap_bytes(const cot_runner_options *options, int ranks);
/* What the options' attention_scratch points to. May measure (NULL). */
cot_attend_scratch *cot_runner_lay_out_attention(cot_arena *arena, const cot_runner_options *options);

/* Collective: allocates, loads this rank's weights. Errors: those of loading, OUT_OF_MEMORY. */
cot_status cot_runner_open(cot_runner **runner, const cot_runner_options *options, cot_fabric *fabric,
                           cot_loader_progress *progress, cot_error *error);
void cot_runner_close(cot_runner *runner); // NULL is fine

/* Collective: one forward pass. On rank 0 logits is [step->logits][V] in the order of the spans, and with
 * `capture` experts and weights are [MoE layers][step_tokens][K] (rows beyond step->tokens unused), valid
 * until the next step; NULL on the other ranks. So is unsound [step->spans], not 0 where a token of that span has come
 * to values that are not finite: what is told of the span, and the keys and values that it left, may be no numbers; those
 * of others are what they would be without it. Errors: IO (the embedding's file was cut off), TIMED_OUT, PEER_FAILED. Never
 * allocates. */
typedef struct cot_step_result {
    const float *logits;
    const uint16_t *experts;
    const float *weights;
    const uint8_t *unsound;
    const uint16_t
        *routed; // [MoE layers][step_tokens][K] of the step's tokens whose experts it wants; NULL: of none
    const uint16_t *
        own_experts; // [MoE layers][step_tokens][K] as rank 0 has routed own_rows of the step's tokens, perhaps others in each layer
    int64_t own_rows;
    const cot_step_counts *counts;   // [P] where the step reports
    const cot_runner_served *served; // [P]
} cot_step_result;
cot_status cot_runner_step(cot_runner *runner, const cot_step *step, cot_step_result *result,
                           cot_error *error);
/* Steps from now on find experts where the epoch that follows has them: the one in force with these changes
 * (placement/epoch.h), which were checked. Every rank, between two steps. Never allocates. */
void cot_runner_place(cot_runner *runner, const int32_t *words, int64_t count);
/* Collective: chunks of slots go from rank to rank, no two of one rank, each with a checksum that the rank to which it goes
 * compares. No step reads the slots that are written. Where the own chunk is the last of its slot the operator has the slot, too,
 * if it came as it was sent. *verdict is that of the chunk that came to this rank. Errors: TIMED_OUT, PEER_FAILED; others are the
 * operator's, with FAILED. */
cot_status cot_runner_copy(cot_runner *runner, const cot_runner_chunk *chunk, int64_t count,
                           cot_runner_verdict *verdict, cot_error *error);
/* Between two steps: pages as cot_kv_resize has it. Every rank. */
void cot_runner_resize(cot_runner *runner, const int32_t *moved, int64_t moves, int64_t open);
/* Between two steps, while no chunks are on their way: what places took that no slot of the epoch in force has goes back to the system. */
void cot_runner_empty_places(cot_runner *runner);
/* Collective: rank 0 gets every rank's numbers [P]; the others pass NULL. */
cot_status cot_runner_stats(cot_runner *runner, cot_rank_stats *stats, cot_error *error);
/* On rank 0, as of the last cot_runner_stats: adds to calls [MoE layers][E] how many tokens have called each expert, over all
 * ranks since they were opened. */
void cot_runner_add_calls(const cot_runner *runner, uint64_t *calls);
/* The same: bytes that ranks sent in the last step, [cot_runner_exchanges][source][destination]; with count_exchanges alone. */
void cot_runner_get_exchanged(const cot_runner *runner, uint64_t *bytes);

#endif
