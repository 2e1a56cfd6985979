/* Where experts live: topology-aware placement of a Mixture-of-Experts model's experts on the ranks of a cluster.
 *
 * A load and a topology make a problem; a method makes a map of it; the verifier says what the map is worth:
 *
 *     cot_costs_open      what it costs that a rank serves an expert: distances seen from the attention's ranks
 *     cot_place           a map, by one of cot_place_methods, and its proof
 *     cot_place_value_of  the objective and the loads, computed anew from the map; cot_place_prove: the lower bound
 *     cot_place_verify    every constraint, checked again
 *     cot_place_measure   all that is said of a map on a load or a trace: costs of tokens, LAR, balance, loads of links
 *
 * All of it is pure: no clock, no files, no global state, the same result for the same input. */
#ifndef COTERIE_PLACE_H
#define COTERIE_PLACE_H

#include "coterie/load.h"
#include "coterie/placement.h"
#include "coterie/status.h"
#include "coterie/topology.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where a layer's tokens come from and go to. */
typedef enum cot_attention_kind {
    /* All from one rank, all to one: the set-up inferred from the paper's tables. The l-th layer with load is sent by the
     * first rank of server l (modulo servers) and collected by the rank that sends the next layer. */
    COT_ATTENTION_PAPER,
    COT_ATTENTION_DP,     // every rank sends in every layer, and gets its own back: data-parallel attention
    COT_ATTENTION_WEIGHTS // rank r sends dispatch[l][r] and gets collect[l][r] of every activation
} cot_attention_kind;

/* How an expert's load splits over its replicas. */
typedef enum cot_dispatch {
    COT_DISPATCH_UNIFORM, // evenly
    /* To the replica that is cheapest for the rank that sends (data-parallel attention) or for the layer; equally cheap
     * ones share. */
    COT_DISPATCH_NEAREST
} cot_dispatch;

/* Costs of a load's layers with load: the objective is
 *
 *     sum_le load(l,e) cost(l,s)       cost(l,s) = sum_r dispatch(l,r) d(r,s) + collect(l,r) d(s,r)
 *     sum_le pair(l,e,s)               pair(l,e,s) = sum_r n(l,r,e) (d(r,s) + d(s,r)), where sources are known
 *
 * Arrays belong to it; all zero is empty. */
typedef struct cot_costs {
    int32_t n_layers;  // L: layers with load alone
    int32_t n_experts; // E
    int32_t n_ranks;   // S
    int32_t *row;      // [L] the load's row of each
    int32_t *layers;   // [L] the model's number of each
    int32_t *home; // [L] the rank round which round robin fills ranks: of the paper's attention, the sender
    double *load;  // [L][E] summed over sources
    double *cost;  // [L][S] of one activation; NULL when pair is given
    double *pair;  // [L][E][S] of all of an expert's activations, or NULL
    double *round_trip;  // [S][S] d(r,s) + d(s,r), of data-parallel attention, where asked for; or NULL
    double *sent;        // [L][S][E] by source rank, beside round_trip where sources are known; or NULL
    bool indifferent;    // every rank costs the same in every layer: all placements tie
    uint64_t model_hash; // the load's, which placements made for it carry
} cot_costs;

typedef struct cot_costs_options {
    size_t size; // sizeof(cot_costs_options)
    cot_attention_kind attention;
    cot_metric metric;
    cot_dispatch dispatch;                            // nearest: keep what it needs
    const double *dispatch_weights, *collect_weights; // [layers of the load][S], >= 0: COT_ATTENTION_WEIGHTS'
    const double *cost; // [layers of the load][S], >= 0: replaces topology and attention; or NULL
    int32_t n_ranks; // S where there is no topology: with neither that nor `cost`, all ranks are equally near
} cot_costs_options;

/* Computes the costs of `load` on `topology` (may be NULL, see options). Errors: INVALID_ARGUMENT, MALFORMED (a
 * topology in pieces, sources that are not its ranks, numbers too large to add up), OUT_OF_MEMORY. The caller frees. */
cot_status cot_costs_open(cot_costs *costs, const cot_load_counts *load, const cot_topology *topology,
                          const cot_costs_options *options, cot_error *error);
void cot_costs_free(cot_costs *costs); // empty ones are fine

/* A way to make a placement. */
typedef struct cot_place_method {
    const char *name;
    const char *text; // what it does, one line
    bool replicas;    // it fills all slots, with replicas where they are more than experts
    bool limits;      // it obeys a load limit ...
    bool soft;        // ... where it can: another layer gets the least peak found
} cot_place_method;
/* All of them; ends with a NULL name. */
extern const cot_place_method cot_place_methods[];

typedef struct cot_place_options {
    size_t size;            // sizeof(cot_place_options)
    const char *method;     // one of cot_place_methods; NULL: "replicate" where slots > E, else "ilpload"
    const int32_t *c_layer; // [S] experts of a layer that a rank holds; NULL: ceil(E / S), or slots / S
    const int32_t *c_exp;   // [S] experts in all; NULL: ceil(L E / S), or L slots / S
    int32_t
        slots; // of a layer on all ranks, all of them filled: E or more, a multiple of S; 0: open, "balance" then
               // fills ceil(E / S) on each
    double max_load;       // limit of a rank's load in a layer over the mean rank's, above 0; 0: none
    int32_t groups, nodes; // of EPLB: expert groups and nodes; 0 is 1
    cot_dispatch dispatch;
} cot_place_options;

/* What a placement is worth. */
typedef struct cot_place_value {
    double objective;     // sum over activations of what they cost
    double activations;   // how many there are
    double dual;          // the best lower bound of the objective that was proven; 0 when none was
    double own_objective; // of a method that minimises something else: what it got of that ...
    double own_dual;      // ... and its bound; 0 when there is none
    double *peak_load;    // [L] the most loaded rank of a layer over the mean
    double *peak_bound;   // [L] no placement of so many slots is below
    double *rank_load;    // [L][S]
    int32_t n_layers, n_ranks;
} cot_place_value;
void cot_place_value_free(cot_place_value *value); // an empty one is fine

/* What shows that no placement is better, until it is checked; private. It reads the costs that it was made with. */
typedef struct cot_place_proof cot_place_proof;
void cot_place_proof_free(cot_place_proof *proof); // NULL is fine

/* Places. `*map` has a row for each layer of `costs`; `*proof` is what the method knows of its optimum (`proof` may be
 * NULL). The caller frees both. Errors: INVALID_ARGUMENT (options; capacities or a load limit that cannot be met, with
 * what is missing), OUT_OF_MEMORY. */
cot_status cot_place(cot_expert_map *map, cot_place_proof **proof, const cot_costs *costs,
                     const cot_place_options *options, cot_error *error);

/* Computes objective and loads of any map anew; layers that it lacks are an error, more than those of `costs` are fine.
 * The bounds are 0. Errors: MALFORMED (layers, experts or ranks that disagree), OUT_OF_MEMORY. The caller frees. */
cot_status cot_place_value_of(cot_place_value *value, const cot_expert_map *map, const cot_costs *costs,
                              cot_dispatch dispatch, cot_error *error);
/* Checks a proof and fills in the bounds of `value`. Errors: INVALID_ARGUMENT (it proves nothing), OUT_OF_MEMORY. */
cot_status cot_place_prove(cot_place_value *value, const cot_place_proof *proof, cot_error *error);

/* Checks a map against every constraint of `options` (capacities, slots filled, the load limit unless the method has it
 * as a soft one), from nothing but the map.
 * Errors: INVALID_ARGUMENT, naming the first that is broken; as cot_place_value_of. */
cot_status cot_place_verify(const cot_expert_map *map, const cot_costs *costs,
                            const cot_place_options *options, cot_error *error);

/* How evenly ranks are loaded, as engines define it. */
typedef struct cot_balancedness {
    double sglang;       // mean over layers of (mean + 1e-5) / (max + 1e-5) over ranks
    double vllm;         // (sum over ranks of the mean over layers) / (sum over ranks of the max over layers)
    double vllm_layers;  // vLLM's first releases: (sum over layers of the mean) / (sum of the max over ranks)
    double tensorrt_llm; // imbalance ratio: mean over layers of max / mean - 1 over ranks
} cot_balancedness;
void cot_place_balancedness(cot_balancedness *balancedness, const cot_place_value *value);

/* What one activation of each expert costs where the map has it: `unit` [L][E], layers of `costs`. Errors: as
 * cot_place_value_of. */
cot_status cot_place_unit_costs(double *unit, const cot_expert_map *map, const cot_costs *costs,
                                cot_dispatch dispatch, cot_error *error);
/* Activations that go from rank to rank, there and back, summed over layers: `traffic` [S][S], row = from. `load` and
 * `options` are those that `costs` were made of. Errors: as above; INVALID_ARGUMENT (options with a matrix of costs,
 * which does not say who sends). */
cot_status cot_place_traffic(double *traffic, const cot_expert_map *map, const cot_load_counts *load,
                             const cot_costs *costs, const cot_costs_options *options, cot_error *error);

/* Of that, what goes from a node to another, there and back. */
double cot_place_between_nodes(const double *traffic, const cot_topology *topology);

/* What engines run without a map, to compare with: slot i holds expert i modulo E where `slots` are more than experts,
 * else consecutive experts as cot_expert_layout_of_ranks has them; a row for each layer of `costs`. Errors:
 * INVALID_ARGUMENT (slots that cannot hold the experts), OUT_OF_MEMORY. The caller frees the map. */
cot_status cot_place_contiguous(cot_expert_map *map, const cot_costs *costs, int32_t slots, cot_error *error);

/* What a token costs over all layers, K = `top_k` experts in each; below 0 where K is not known (below 1), 0 of no
 * activations. */
double cot_place_per_token(const cot_place_value *value, int32_t top_k);

/* What the costs were made of that a placement is measured by. */
typedef struct cot_place_measure_options {
    size_t size; // sizeof(cot_place_measure_options)
    const cot_load_counts *load;
    const cot_costs_options *costs;
    const cot_topology *topology; // NULL: no loads of links
    const cot_trace *trace;       // the load's tokens one by one; NULL or kind counts: they are not known
} cot_place_measure_options;

/* All that there is to say about a map. */
typedef struct cot_place_figures {
    cot_place_value value; // its bounds are 0
    cot_balancedness balancedness;
    double peak;       // the largest of value.peak_load
    double token_mean; // what a token costs over all layers, below 0 where K is not known ...
    double token_std; // ... and its standard deviation over tokens; below 0 where single tokens are not known
    double
        lar; // local activation rate: share of activations on the rank that holds the token, a replica there having
    // its part of an expert's load, all of it where dispatch is to the nearest. Tokens of a sequence are
    // held as cot_trace_home says; without single tokens, as the sources or else the attention send
    int64_t n_links; // that count a hop, whose loads in activations these are; 0 without a topology
    double link_max, link_p99, link_mean;
} cot_place_figures;

/* Measures any map that cot_place_value_of takes on the load that `costs` were made of. Layers of a trace that `costs`
 * lack are left out. Errors: as cot_place_value_of and cot_place_traffic; INVALID_ARGUMENT (options, a trace of other
 * experts). The caller frees `*figures`; on failure it is empty. Thread-safe. */
cot_status cot_place_measure(cot_place_figures *figures, const cot_expert_map *map, const cot_costs *costs,
                             const cot_place_measure_options *options, cot_error *error);
void cot_place_figures_free(cot_place_figures *figures); // empty ones are fine

/* How a running placement changes. */
typedef struct cot_replan_options {
    size_t size; // sizeof(cot_replan_options)
    /* [L] the peak that each layer shall reach, in mean ranks' loads; NULL: as near to the mean as exchanges come. */
    const double *peak;
    int64_t max_moves; // as cot_place_moves counts them; below 0: as many as it takes
    double move_cost;  // a move must lower its layer's peak by this many mean ranks' loads; 0: by anything
    int32_t slots_per_rank; // of the new placement, all filled; 0: the running one's, empty ones stay so
    /* A plan with these peaks and as many slots, or NULL. A layer in which exchanges end above its peak is taken from the
     * plan, unless moves are limited. */
    const cot_expert_map *fresh;
} cot_replan_options;

/* Lowers the peaks of `current` under the loads of `costs` (split evenly over replicas) with few moves: a slot takes
 * over another expert, of which no last replica is lost, or two slots exchange theirs. `*map` has a row for each layer
 * of `costs`; `*moves` is what cot_place_moves counts from `current` to it. The caller frees the map. Errors:
 * INVALID_ARGUMENT (also: slots that cannot be filled with so few moves), MALFORMED (layers, experts or ranks that
 * disagree), OUT_OF_MEMORY. */
cot_status cot_place_replan(cot_expert_map *map, int64_t *moves, const cot_expert_map *current,
                            const cot_costs *costs, const cot_replan_options *options, cot_error *error);

/* A move is an expert of a layer that a rank has to fetch: it holds it in `to` and not in `from`. Copies on one rank
 * count once, since the second is a copy of the first, and what it holds already costs nothing, however many copies
 * of it are wanted. `*moves` is how many there are over the layers of `to`; those that `from` lacks count whole.
 * Errors: MALFORMED (experts or ranks that disagree), OUT_OF_MEMORY. */
cot_status cot_place_moves(int64_t *moves, const cot_expert_map *from, const cot_expert_map *to,
                           cot_error *error);
/* The same after renaming the ranks of `to` so that they are fewest, which it does to `to` (minimum-cost matching).
 * Only sensible where all ranks are alike. */
cot_status cot_place_relabel(int64_t *moves, const cot_expert_map *from, cot_expert_map *to,
                             cot_error *error);

/* A move: one expert's way from a rank that holds it to another that does not. */
typedef struct cot_transfer {
    int32_t layer, expert, from, to; // from -1: no rank holds it, it comes from storage
    int32_t round;                   // 0, 1, ...; -1 where from is -1
} cot_transfer;
/* The transfers that turn `from` into `to`, each in a round: in none does a rank take part in two, and as few rounds
 * as colouring the edges with exchanges of colours gets. `*transfers` [*n] is the caller's to free(). Errors: as
 * above. */
cot_status cot_place_transfers(cot_transfer **transfers, int64_t *n, int32_t *rounds,
                               const cot_expert_map *from, const cot_expert_map *to, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
