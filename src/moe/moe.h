/* The MoE operator: gate, dispatch, expert FFNs, combine, over a group of ranks. Several, one interface. */
#ifndef COT_MOE_MOE_H
#define COT_MOE_MOE_H
#include "fabric/fabric.h"
#include "moe/ffn.h"
#include "moe/gate.h"

/* Where one layer's experts live: expert e's weights are slot `slot[e]` of rank `rank[e]`, on all ranks
 * alike. */
typedef struct cot_moe_placement {
    const int32_t *rank, *slot; // [E]
} cot_moe_placement;

typedef struct cot_moe_layer {
    const cot_gate *gate;
    cot_moe_placement placement;
    cot_sym slots;            // this layer's slots on every rank, cot_ffn_layout bytes each
    const uint8_t *shared;    // shared expert's weights, whole on every rank, or NULL
    const float *shared_gate; // [H]: the shared expert's output times sigmoid(x . shared_gate); NULL: times 1
} cot_moe_layer;

/* Sizes that one operator serves; the same on every rank. */
typedef struct cot_moe_options {
    cot_fabric *fabric;
    const cot_kernels *kernels;
    cot_pool *pool;               // may be NULL
    cot_ffn_shape expert, shared; // shared.intermediate 0: no layer has a shared expert
    int64_t experts, top_k;       // E, K
    int64_t tokens;               // most tokens of one pass over all ranks together
} cot_moe_options;

/* Where the time of this rank went, summed over passes. */
typedef struct cot_moe_times {
    int64_t gate_ns, dispatch_ns, expert_ns, shared_ns, combine_ns; // dispatch and combine include waiting
} cot_moe_times;

typedef struct cot_moe cot_moe;

typedef struct cot_moe_operator {
    const char *name; // as --op spells it
    /* Bytes of symmetric heap that open takes for these options with P = ranks. */
    size_t (*heap_bytes)(const cot_moe_options *options, int ranks);
    /* Collective. `*options` is copied, what it points to must live on. Errors: INVALID_ARGUMENT (E, K as
     * cot_gate_check has them, T K beyond int32, sizes or types that no network has), OUT_OF_MEMORY. */
    cot_status (*open)(cot_moe **moe, const cot_moe_options *options, cot_error *error);
    /* Collective: every rank calls with its own tokens, none on some or all ranks included. y [T][H] = sum
     * over the chosen experts, in ascending order, of their weighted rows (each rounded to expert.type, also
     * when it never left this rank), added in fp32 to 0, plus the shared expert's row. x [T][H] is fp32.
     * experts, weights [T][K]: the routing, as cot_gate_route gives it. Errors: INVALID_ARGUMENT (gate not
     * finite), TIMED_OUT, PEER_FAILED; a rank that fails calls the fabric's fail, so that all return. Never
     * allocates. */
    cot_status (*forward)(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                          float *weights, const float *x, int64_t tokens, cot_error *error);
    void (*close)(cot_moe *moe); // NULL is fine
    const cot_moe_times *(*times)(const cot_moe *moe);
} cot_moe_operator;

/* The operator of that name, or NULL. Names: NULL-terminated, the default first. */
const cot_moe_operator *cot_moe_operator_find(const char *name);
const char *const *cot_moe_operator_names(void);

#endif
