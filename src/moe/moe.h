/* The MoE operator: gate, dispatch, expert FFNs, combine, over a group of ranks. Several, one interface. */
#ifndef COT_MOE_MOE_H
#define COT_MOE_MOE_H
#include "coterie/layout.h"
#include "fabric/fabric.h"
#include "moe/ffn.h"
#include "moe/gate.h"
#include "moe/timeline.h"
#include "moe/weights.h"

typedef struct cot_moe_layer {
    const cot_gate *gate; // NULL: the routing is given
    /* With a gate: it computes, and then these take the place of what it chose, [T][K] of the call's tokens, experts
     * ascending. NULL: its own choice stands. */
    const uint16_t *replayed_experts;
    const float *replayed_weights;
    cot_expert_replicas placement; // the same on all ranks
    cot_sym slots;                 // this layer's, of no other, on every rank
    size_t
        slot_bytes; // from one to the next: as the operator's weights have it for the widest of its experts
    const int32_t
        *place; // [slots] of this rank: so many slots behind `slots`, or before, each lies; NULL: in turn
    const uint8_t *shared;    // shared expert's weights, whole on every rank, or NULL
    const float *shared_gate; // [H]: the shared expert's output times sigmoid(x . shared_gate); NULL: times 1
    /* A token whose gate is not finite is no error: its row of y is NaN, all others are as they would be. */
    bool unsound_pass;
} cot_moe_layer;

/* A slot's weights, where `slots` is what the layer calls so. */
static inline const uint8_t *cot_moe_slot(const cot_moe_layer *layer, const uint8_t *slots, int64_t slot)
{
    return slots + (layer->place ? layer->place[slot] : slot) * (ptrdiff_t)layer->slot_bytes;
}

/* How the rows of a token's experts become one. X(NAME, "as --combine spells it") */
#define COT_COMBINE_LIST(X)                                                                                  \
    X(EXACT, "exact")     /* each expert's row travels; added at home: the same bits for every placement */  \
    X(REDUCED, "reduced") /* each rank adds up its experts' rows in fp32, and one row travels */

typedef enum cot_moe_combine {
#define COT_COMBINE_ENUM(name, text) COT_COMBINE_##name,
    COT_COMBINE_LIST(COT_COMBINE_ENUM)
#undef COT_COMBINE_ENUM
} cot_moe_combine;

/* How the rows of all pairs of ranks travel there. X(NAME, "as --a2a spells it") */
#define COT_A2A_LIST(X)                                                                                      \
    X(PADDED, "padded")       /* every block of rows is as long as the longest of any expert on any rank */  \
    X(TWO_PHASE, "two-phase") /* first how many rows come, then the rows */                                  \
    X(ONE_SHOT, "one-shot")   /* rows, and behind them all there is to know of them */

typedef enum cot_moe_a2a {
    COT_A2A_AUTO, // as the operator does it where nobody asks
#define COT_A2A_ENUM(name, text) COT_A2A_##name,
    COT_A2A_LIST(COT_A2A_ENUM)
#undef COT_A2A_ENUM
} cot_moe_a2a;

/* Whether a token goes once to a rank that has several of its experts, or once for each of them. */
typedef enum cot_moe_dedup { COT_DEDUP_AUTO, COT_DEDUP_OFF, COT_DEDUP_ON } cot_moe_dedup;

/* Sizes that one operator serves; the same on every rank. */
typedef struct cot_moe_options {
    cot_fabric *fabric;
    const cot_kernels *kernels;
    cot_pool *pool;             // may be NULL
    int threads;                // that may work for this rank at once, itself included; >= 1
    cot_moe_timeline *timeline; // where work is recorded; NULL: nowhere
    cot_moe_combine combine;
    cot_moe_a2a a2a;
    cot_moe_dedup dedup;
    cot_dtype combine_type;       // F32 or BF16: what travels back; what travels there is expert.type
    cot_ffn_shape expert, shared; // shared.intermediate 0: no layer has a shared expert
    int64_t experts, top_k;       // E, K
    int64_t slots;                // experts that one rank holds at most; 0: E
    int64_t tokens;               // most tokens of one call over all ranks together
    int64_t home_tokens;          // most tokens of one call on one rank; 0: as many
    int sms_reserve;              // multiprocessors of a device that the operator leaves to others
} cot_moe_options;

/* What this rank's part took, summed over calls. bulk: the rank's own time, where dispatch and combine include
 * waiting. fused: time of all threads in the tasks of this rank; waiting is in the fabric's waited_ns. */
typedef struct cot_moe_times {
    int64_t gate_ns, dispatch_ns, expert_ns, shared_ns, combine_ns;
    uint64_t passes;      // a call is one, or several where it has more tokens than fit
    uint64_t launches;    // loops over threads begun, each with its wait for the last thread
    uint64_t tile_passes; // times that an expert's weights were read
    uint64_t padded_rows; // of padded blocks: their rows from one rank to all, itself included, over calls
    /* What all ranks' tokens gave this rank's experts to do, passes of a call apart: experts that some called, (token, expert)s, rows
     * that came from other ranks. A device does not count them. */
    uint64_t served_experts, served_rows, received_rows;
} cot_moe_times;

/* A kind of host memory: what becomes of pages that a process has. */
typedef struct cot_moe_memory {
    /* All pages of [at, at + bytes) are of the kind from now on; none is yet. Nothing else that an operator reads or writes lies in
     * part in them: a device's driver refuses to copy that. Thread-safe. Errors: OUT_OF_MEMORY (with the size), IO. */
    cot_status (*pin)(void *at, size_t bytes, cot_error *error);
    void (*unpin)(void *at, size_t bytes); // the same, before they are freed
} cot_moe_memory;

/* An open operator; each keeps a structure of its own that begins with this. */
typedef struct cot_moe_operator cot_moe_operator;
typedef struct cot_moe {
    const cot_moe_operator *op;
} cot_moe;

enum { COT_MOE_ALL_SLOTS = -1 };
struct cot_moe_operator {
    const char *name;               // as --op spells it
    bool on_device;                 // it runs on a GPU, and reads sms_reserve; others do not
    const cot_moe_weights *weights; // how they lie in slots, shared experts and gates
    /* Of which the rows and routings of a call should be, replayed ones too; pages are pinned once an operator is open. Elsewhere
     * they are right, and slower. NULL: any. */
    const cot_moe_memory *memory;
    /* Puts the operator's own in place of AUTO in a2a and dedup. Pure. Errors: UNSUPPORTED, by name, for what it does not
     * do of a2a, dedup and combine; open says the same. */
    cot_status (*settle)(cot_moe_options *options, cot_error *error);
    /* Bytes of symmetric heap that open takes for these options with P = ranks. */
    size_t (*heap_bytes)(const cot_moe_options *options, int ranks);
    /* Bytes of all memory of one rank, symmetric and private, that calls come to touch at the worst routing, where
     * no rank has more than `home` of a call's tokens. Less than is taken, of which much stays address space. */
    size_t (*touched_bytes)(const cot_moe_options *options, int ranks, int64_t home);
    /* Collective. `*options` is copied, what it points to must live on. Errors: INVALID_ARGUMENT (E, K as
     * cot_gate_check has them, T K beyond int32, sizes or types that no network has), OUT_OF_MEMORY. */
    cot_status (*open)(cot_moe **moe, const cot_moe_options *options, cot_error *error);
    /* Every rank: all weights that the layer names are stored, or stored anew; or, once they were, a slot of this rank is. What
     * forward is given has been given here since. NULL: the operator reads them where they are. Errors: OUT_OF_MEMORY, IO. */
    cot_status (*keep)(cot_moe *moe, const cot_moe_layer *layer, int64_t slot, cot_error *error);
    /* Collective: every rank calls with its own tokens; some may have none. x [T][H] is fp32. experts, weights
     * [T][K]: the routing as cot_gate_route gives it; with layer->gate NULL they are given, ascending within a
     * token. y [T][H] = sum of the weighted rows of a token's experts, each rounded to combine_type (also when
     * it never left its rank), in ascending order, in fp32 from 0; with `reduced` rows of experts on one rank
     * are added in fp32 first, the sum is rounded, and the ranks' sums are added in ascending order. Then plus
     * the shared expert's row. Errors: INVALID_ARGUMENT (gate not finite, routing out of range, no token on any
     * rank), on all ranks, with y, experts and weights as they were and the group as good as before; TIMED_OUT,
     * PEER_FAILED, IO (of a device), after which the group is of no more use and has been told so; but where blocks of a
     * device were silent, and not a rank, all ranks say TIMED_OUT, and the next call is as good as any. Never
     * allocates. */
    cot_status (*forward)(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                          float *weights, const float *x, int64_t tokens, cot_error *error);
    void (*close)(cot_moe *moe); // NULL is fine
    const cot_moe_times *(*times)(const cot_moe *moe);
};

/* As --a2a spells it; NULL for AUTO. */
const char *cot_moe_a2a_name(cot_moe_a2a a2a);

/* An operator of a module joins the others, for good. One thread at a time, while no name is looked up; its name is new. */
void cot_moe_operator_add(const cot_moe_operator *op);
/* The operator of that name, or NULL. Names: NULL-terminated, the default first. */
const cot_moe_operator *cot_moe_operator_find(const char *name);
const char *const *cot_moe_operator_names(void);

#endif
