/* Expert layouts: where every expert of every MoE layer sits in a group of ranks, replicas included, as those who run
 * or measure a model read it. A placement (coterie/placement.h) says which expert each slot holds and may be of any
 * format and any cluster; a layout is the same knowledge the other way round, for one model on one group. */
#ifndef COTERIE_LAYOUT_H
#define COTERIE_LAYOUT_H

#include "coterie/placement.h"
#include "coterie/status.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The replicas of expert e in the l-th layer are those with begin[l][e] <= i < begin[l][e + 1], one at least, ascending
 * by rank, then slot: replica i is slot slot[first[l] + i] of rank rank[first[l] + i]. The arrays belong to the layout;
 * any number of threads may read one. All zero is an empty layout. */
typedef struct cot_expert_layout {
    int32_t n_layers;       /* L, MoE layers */
    int32_t n_experts;      /* E */
    int32_t n_ranks;        /* P */
    int32_t slots_per_rank; /* in every layer; a rank may leave some empty */
    int32_t *layers;        /* [L] the model's layer numbers, ascending */
    int32_t *begin;         /* [L][E + 1] */
    int64_t *first;         /* [L + 1]; first[L] is how many replicas there are in all */
    int32_t *rank, *slot;   /* [first[L]] */
} cot_expert_layout;

/* One layer of a layout. */
typedef struct cot_expert_replicas {
    const int32_t *rank, *slot; /* [replicas] */
    const int32_t *begin;       /* [E + 1] */
} cot_expert_replicas;

/* What a layout is for. */
typedef struct cot_expert_layout_shape {
    int32_t n_layers, n_experts, n_ranks;
    const int32_t *layers;  /* [n_layers] the model's layer numbers, ascending */
    int32_t slots_per_rank; /* 0: as many as the fullest rank needs */
} cot_expert_layout_shape;

/* Each expert where `expert_rank` [L][E] says, in the lowest free slots in ascending order; NULL: consecutive experts,
 * expert e on the rank r with floor(r E / P) <= e < floor((r + 1) E / P). Errors: INVALID_ARGUMENT (sizes, a rank that is
 * none of P, too few slots), OUT_OF_MEMORY. On success the caller frees the layout; on failure it is empty. */
cot_status cot_expert_layout_of_ranks(cot_expert_layout *layout, const cot_expert_layout_shape *shape,
                                      const int32_t *expert_rank, cot_error *error);
/* Every slot where the map has it; rows that it has as dense are passed over. The slots that a rank needs go up to the
 * highest used one of any layer, with the empty ones below. Errors: MALFORMED (see cot_expert_map_check),
 * INVALID_ARGUMENT (the map is of another number of experts or ranks or of other layers, or uses more slots),
 * OUT_OF_MEMORY; `subject` names the map in messages. */
cot_status cot_expert_layout_of_map(cot_expert_layout *layout, const cot_expert_layout_shape *shape,
                                    const cot_expert_map *map, const char *subject, cot_error *error);
/* Makes *copy equal to *layout, in memory of its own, which cot_expert_layout_free frees. Errors: OUT_OF_MEMORY; *copy is then empty. */
cot_status cot_expert_layout_copy(cot_expert_layout *copy, const cot_expert_layout *layout, cot_error *error);
void cot_expert_layout_free(cot_expert_layout *layout); /* an empty one is fine */

static inline cot_expert_replicas cot_expert_layout_layer(const cot_expert_layout *layout, int32_t l)
{
    cot_expert_replicas r;
    r.rank = layout->rank + layout->first[l];
    r.slot = layout->slot + layout->first[l];
    r.begin = layout->begin + (int64_t)l * (layout->n_experts + 1);
    return r;
}

/* The replica of expert e that serves token number t of rank `home`: one on that rank, else all in turn. Every rank
 * finds the same. */
static inline int64_t cot_expert_replica(const cot_expert_replicas *r, int64_t e, int home, int64_t t)
{
    const int32_t begin = r->begin[e], count = r->begin[e + 1] - begin;
    int32_t i;
    for (i = 0; i < count; i++)
        if (r->rank[begin + i] == home) return begin + i;
    return begin + (home + t) % count;
}

#ifdef __cplusplus
}
#endif
#endif
