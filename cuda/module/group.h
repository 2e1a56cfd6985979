/* What the ranks of a group share: device memory, and the call in hand. Ranks are threads of one process; the one that arrives
 * last does what is to be done for all. */
#ifndef COT_CUDA_MODULE_GROUP_H
#define COT_CUDA_MODULE_GROUP_H
#include "cuda/module/device.h"

/* A rank's part of a call. Rows and routing are in host memory, pinned if they should be copied while others work, or all four in the
 * device's: there, where there are tokens, routing is aligned to its numbers, y to 4 bytes, and x to 16 where 4 divides H, else to 4. */
struct cot_cuda_arrival {
    const cot_moe_layer *layer;
    float *y;          // [T][H]
    uint16_t *experts; // [T][K]
    float *weights;    // [T][K]
    const float *x;    // [T][H]
    int64_t tokens;    // T
    bool on_device;
};

/* Host memory that a layer names, and its copy. */
struct cot_cuda_kept {
    const void *host; // where slots are kept: NULL
    cot_sym slots;
    int rank;
    uint64_t at;
    size_t bytes; // 0: an empty place of the table
};

struct cot_cuda_range {
    uint64_t at;
    size_t bytes;
};

/* Where what a pass is told lies behind its first part, [P] ranks: their tokens [P][2]; replicas' ranks, slots and begins. */
struct cot_cuda_told {
    size_t tokens, placement[3], bytes;
};

/* Which tiles a call has: by its tokens, or for a self-test the ones or the others. */
enum class cot_cuda_form { by_tokens, few, many };

struct cot_cuda_group {
    const cot_cuda_device *device;
    cot_cuda_kind kind;
    cot_moe_options options;
    int ranks, blocks;
    int many_blocks; // of a launch in tiles of 128 rows, that fit on the device at once; 0: it has no such tiles
    const int32_t *many_first_block;      // device: [P + 1] likewise
    cot_cuda_form form;                   // by_tokens
    size_t shared_bytes[COT_CUDA_PHASES]; // dynamic, of a block of each phase; of fused the first
    int64_t home_tokens; // most tokens of a rank in a call; a pass takes call.layout.tokens of them
    cot_cuda_fused call;
    cot::fused_rank rank[COT_MAX_RANKS];
    cot_cuda_told told;
    uint64_t told_at;      // device: what a pass is told
    unsigned char *pinned; // pages of the host's: the same on its way, and states and counters on theirs
    size_t pinned_bytes;
    unsigned char *left;   // of these the states
    cot::traffic *traffic; // [phases][P][P]
    uint64_t x[COT_MAX_RANKS], y[COT_MAX_RANKS], experts[COT_MAX_RANKS], weights[COT_MAX_RANKS];
    uint64_t states; // device: each rank's fused_state, in lines of its own, and behind them fabric.failure
    uint64_t epoch;  // launches since all was made ready, which is each rank's epoch
    bool spoilt;     // a launch did not end well: all is made ready anew before the next
    cot_cuda_range zeros[3 * COT_MAX_RANKS]; // what is zero before the first launch
    int zero_count;
    uint64_t *taken; // all device memory but what is kept
    size_t taken_count, taken_room;
    cot_cuda_kept *kept; // a hash table [kept_room], at most half of it taken
    size_t kept_count, kept_room;

    /* The call in hand. */
    cot_cuda_arrival arrived[COT_MAX_RANKS];
    int64_t passes, launches;
    cot_status status;
    cot_error error;
};

/* Bytes of device memory that a group takes besides weights, and of pinned host memory. many_blocks: as a group has them. Pure. */
size_t cot_cuda_group_bytes(cot_cuda_kind kind, const cot_moe_options *options, int ranks, int blocks,
                            int many_blocks);
size_t cot_cuda_group_pinned_bytes(const cot_moe_options *options, int ranks);

/* For settled options and so many ranks, on the device. Errors: INVALID_ARGUMENT (more ranks than blocks; too many experts for a
 * block's shared memory), OUT_OF_MEMORY (with both sizes), IO. */
cot_status cot_cuda_group_open(cot_cuda_group **group, const cot_cuda_device *device, cot_cuda_kind kind,
                               const cot_moe_options *options, int ranks, cot_error *error);
void cot_cuda_group_close(cot_cuda_group *group); // NULL is fine

/* Takes a rank's slots of a layer, `slots` at `local`, to the device, and of rank 0 what all share; again what was there before, in
 * other memory where it has another size by now.
 * One thread at a time. Errors: OUT_OF_MEMORY (with both sizes), IO. */
cot_status cot_cuda_group_keep(cot_cuda_group *group, const cot_moe_layer *layer, int64_t slot, int rank,
                               const void *local, cot_error *error);

/* Runs the call that all have arrived for: its passes one after the other, each one launch, or COT_CUDA_PHASES of bulk. Tiles have 128
 * rows, where the group has such tiles, of a call in which an expert has 64 rows or more on the average. Sets
 * status, error, traffic. The host waits once for a pass, and once more for rows where a call that cannot be routed must leave them
 * as they were.
 * Errors: INVALID_ARGUMENT (as the seam has it; rows in the device's memory that are not aligned), TIMED_OUT (blocks of a rank are
 * silent: who, whom for, in what phase and call), IO (the driver fails; the device has not run what was launched). After the last
 * two the next call begins with the device's memory made ready anew. */
void cot_cuda_group_run(cot_cuda_group *group);

/* After a call that went well: its last pass `count` times more, one behind the other without the host, and the device's time for
 * all of them. The i-th has the (i mod tables)-th of tables of replicas' slots, [replicas] each in device memory at `slots`.
 * Errors: IO; and as cot_cuda_group_run has them. */
cot_status cot_cuda_group_replay(cot_cuda_group *group, int count, uint64_t slots, int tables, double *ns,
                                 cot_error *error);

/* Of bulk: its last pass once more, with that table, and the device's time from the begin of each phase to that of the next. */
cot_status cot_cuda_group_replay_phases(cot_cuda_group *group, uint64_t slots, double ns[COT_CUDA_PHASES],
                                        cot_error *error);

#endif
