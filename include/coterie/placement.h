/* Placements: which expert sits in which slot of which rank, layer by layer, and the formats that engines read. */
#ifndef COTERIE_PLACEMENT_H
#define COTERIE_PLACEMENT_H

#include "coterie/status.h"
#include "coterie/trace.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COT_MAP_MAX_RANKS = 65536, COT_MAP_MAX_SLOTS = 65536 };

/* Slot i of rank s in the l-th layer is expert[(l * n_ranks + s) * slots_per_rank + i]. The arrays belong to the
 * map; any number of threads may read one. All zero is an empty map. */
typedef struct cot_expert_map {
    int32_t n_layers;       // L, 1 .. COT_TRACE_MAX_LAYERS
    int32_t n_experts;      // E, 1 .. COT_TRACE_MAX_EXPERTS
    int32_t n_ranks;        // S, 1 .. COT_MAP_MAX_RANKS
    int32_t slots_per_rank; // 1 .. COT_MAP_MAX_SLOTS: the most that any rank uses in any layer
    int32_t *layers;        // [L] the model's layer numbers, ascending
    int32_t *expert;        // [L][S][slots_per_rank] logical expert, -1: an empty slot
    uint8_t *dense;         // [L] 1: a layer without experts, of which recorders keep a row all the same
    uint64_t
        model_hash; // of the model's gates (see cot_engine_info), which format "coterie" keeps; 0: not known
} cot_expert_map;

/* A format that maps are read from and written in. */
typedef struct cot_expert_map_format {
    const char *name;
    const char *text; // what it is, one line
    bool empty_slots; // it says maps whose ranks hold unequal numbers of experts; else writing refuses those
} cot_expert_map_format;
/* All of them, "coterie" first; ends with a NULL name. */
extern const cot_expert_map_format cot_expert_map_formats[];

/* What the files of engines do not say, or want said. */
typedef struct cot_expert_map_options {
    size_t size;        // sizeof(cot_expert_map_options)
    const char *format; // one of cot_expert_map_formats; NULL: found from the content, written as "coterie"
    int32_t ranks;      // read: S where the format does not say it (0: 1 rank)
    /* The model's first MoE layer. Reading a format that counts MoE layers from 0: the number of its row 0; writing a
     * format that has a row for every layer: the layers before it are dense. */
    int32_t first_layer;
    /* The model's layers. Writing a format that has a row for each: how many; 0: up to the last one placed. Reading a format that
     * counts MoE layers: one with fewer rows is refused where first_layer is 0; 0: not known. */
    int32_t n_layers;
    /* Reading for a model: the numbers of its MoE layers, ascending, below n_layers. The i-th row of a format that counts
     * MoE layers is then the i-th of them, whatever first_layer is; a format that has a row for every layer gets the
     * others' marked as dense, whatever they hold; either is refused with another number of rows. */
    const int32_t *moe_layer; // [moe_layers]
    int32_t moe_layers;       // 0: no model is known
    cot_trace_say *say;       // told what was assumed, a line each; NULL: nobody
    void *context;            // passed to say
} cot_expert_map_options;

/* Makes a map of empty slots, layers numbered 0, 1, ..., none dense. Errors: INVALID_ARGUMENT (a size out of range),
 * OUT_OF_MEMORY. The caller frees it. */
cot_status cot_expert_map_new(cot_expert_map *map, int32_t layers, int32_t experts, int32_t ranks,
                              int32_t slots_per_rank, cot_error *error);
/* Frees the arrays and empties `*map`. An empty map is fine. */
void cot_expert_map_free(cot_expert_map *map);

/* Checks that layers ascend from 0 or more, slots hold -1 or an expert below E, and every expert has a slot in
 * every layer; `subject` names the map in messages. Errors: MALFORMED, OUT_OF_MEMORY. */
cot_status cot_expert_map_check(const cot_expert_map *map, const char *subject, cot_error *error);

/* Where the experts of a trace's layers sit: `expert_rank` [L][E], the trace's. Of replicas in a layer the first slot
 * counts, rank after rank; `*replicas`, unless NULL, is how many experts, over all layers, have more than one slot.
 * `subject` names the map in messages. Errors: MALFORMED (other experts than the trace's, a layer that the map lacks
 * or has as a dense one, an expert without a slot), OUT_OF_MEMORY. */
cot_status cot_expert_map_ranks(int32_t *expert_rank, int64_t *replicas, const cot_expert_map *map,
                                const cot_trace *trace, const char *subject, cot_error *error);

/* Reads the map at `path` and checks it. `options` may be NULL. On success the caller frees `*map`; on failure it
 * is empty. Errors: INVALID_ARGUMENT (options, a file of another number of layers than the model's), NOT_FOUND, IO,
 * MALFORMED, UNSUPPORTED (not recognised), OUT_OF_MEMORY. */
cot_status cot_expert_map_read(cot_expert_map *map, const char *path, const cot_expert_map_options *options,
                               cot_error *error);

/* Checks the map and writes it; the file appears whole or not at all. `options` may be NULL. Errors:
 * INVALID_ARGUMENT (options), MALFORMED, UNSUPPORTED (the format cannot say this map; the message names the layer
 * and the rank), IO, OUT_OF_MEMORY. */
cot_status cot_expert_map_write(const cot_expert_map *map, const char *path,
                                const cot_expert_map_options *options, cot_error *error);

/* Says with which options an engine loads the map that was written to `path` in `format` (NULL: "coterie"): `*text`, one line, which the
 * caller frees. NULL where there is nothing to say: of formats that no engine has such options for, and of maps of one rank, where nobody
 * may have said how many there are, or of fewer slots than experts. Errors: INVALID_ARGUMENT (an unknown format), OUT_OF_MEMORY. */
cot_status cot_expert_map_launch(char **text, const cot_expert_map *map, const char *path, const char *format,
                                 cot_error *error);

/* What EPLB balances over what. */
typedef struct cot_eplb_sizes {
    int64_t layers, experts, slots, groups, nodes, gpus; /* L, E, ... */
    int64_t max_replicas; /* of an expert; slots - experts + 1 always suffices */
} cot_eplb_sizes;

/* EPLB (DeepSeek's expert-parallel load balancer), as its public reference: hierarchical where `nodes` divides
 * `groups`, else global. `weight` [L][E] is narrowed to float32, in which the reference computes; equal loads go by
 * index, which the reference leaves open. Out: `physical_to_logical` [L][slots] the expert of each slot;
 * `logical_to_physical` [L][E][max_replicas] the slots of each expert in the order its replicas were made, -1 where
 * there are no more, or NULL; `replicas` [L][E] how many each has. Slots of rank g are [g * slots / gpus,
 * (g + 1) * slots / gpus). Thread-safe. Errors: INVALID_ARGUMENT (sizes that do not divide, slots < experts, negative or NaN weights,
 * max_replicas too small), OUT_OF_MEMORY. */
cot_status cot_eplb_rebalance(int64_t *physical_to_logical, int64_t *logical_to_physical, int64_t *replicas,
                              const double *weight, const cot_eplb_sizes *sizes, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
