/* One layer's co-clustering as all methods see it. A method proposes groups of experts, with or without tokens' ranks;
 * the solver completes them (token step), checks the limits and keeps the best. */
#ifndef COT_PLACEMENT_COCLUSTER_SOLVER_H
#define COT_PLACEMENT_COCLUSTER_SOLVER_H
#include "coterie/group.h"

typedef struct cot_cocluster cot_cocluster;

/* A method: plain functions over a state of its own. */
typedef struct cot_cocluster_method {
    cot_group_method name;
    /* Allocates the state; NULL: there is none. */
    cot_status (*begin)(cot_cocluster *problem, cot_error *error);
    /* One iteration, numbered from 0: proposes at least one grouping. Draws from (seed, iteration) alone. */
    cot_status (*iterate)(cot_cocluster *problem, int64_t iteration, cot_error *error);
    void (*end)(cot_cocluster *problem); // frees the state; NULL: nothing to free
} cot_cocluster_method;

struct cot_cocluster {
    cot_affinity affinity;
    cot_group_options options; // bonus as given, start copied
    int32_t D, E;
    int64_t N;
    int32_t *size;         // [D] experts of each rank: E / D, the first E % D one more
    uint64_t *token_load;  // [N] sums of rows
    uint64_t *expert_load; // [E] sums of columns
    uint64_t total;        // of all
    double token_limit;    // most load of a rank's tokens: max((1 + f) total / D, the heaviest token's)
    double expert_limit;   // most load of a rank's experts; infinity: no limit
    const cot_cocluster_method *method;
    void *state; // the method's
    bool done;   // the method has nothing left to try
    /* The best so far. */
    int32_t *expert_rank, *token_rank;
    cot_grouping best; // its pointers are the two above
};

/* The gain matrix of tokens for given groups of experts: gain[i][d] = activations of token i on rank d, plus bonus.
 * `gain` [N][D]. */
void cot_cocluster_gains(float *gain, const cot_cocluster *problem, const int32_t *expert_rank);

/* Tokens to ranks so that the sum of gains is as large as it gets with every rank's load within token_limit: prices
 * on load [D] (Lagrangian, kept in `price` from call to call: a warm start; zeros at first), then repair. Returns the
 * gain; `*bound`, unless NULL, is what no assignment exceeds. Deterministic. Never allocates: `scratch` [N * 8 bytes].
 */
double cot_cocluster_token_step(int32_t *token_rank, double *price, double *bound,
                                const cot_cocluster *problem, const float *gain, void *scratch);

/* Experts to ranks, sizes obeyed, for given tokens: the transportation problem of activations[e][d]. Ignores
 * expert_limit. Errors: OUT_OF_MEMORY. */
cot_status cot_cocluster_expert_step(int32_t *expert_rank, const cot_cocluster *problem,
                                     const int32_t *token_rank, cot_error *error);

/* Offers groups of experts whose sizes are right; `token_rank` NULL: the token step finds it, else it is repaired
 * where it breaks the balance. What breaks the expert limit is first mended by swaps as far as they go. Keeps the
 * result when it is better than the best: fewer broken limits first, then smaller peaks, then more local + bonus.
 * Errors: OUT_OF_MEMORY. */
cot_status cot_cocluster_offer(cot_cocluster *problem, const int32_t *expert_rank, const int32_t *token_rank,
                               cot_error *error);

/* Makes the sizes right by moving the experts that lose least, `affinity_of` [E][D] being what each is worth on each
 * rank. */
void cot_cocluster_repair_sizes(int32_t *expert_rank, const cot_cocluster *problem,
                                const double *affinity_of);

extern const cot_cocluster_method cot_cocluster_own;      // coterie
extern const cot_cocluster_method cot_cocluster_ce_joint; // cross-entropy, token and expert labels sampled
extern const cot_cocluster_method cot_cocluster_ce; // cross-entropy, expert labels sampled, tokens solved
extern const cot_cocluster_method cot_cocluster_metis;
extern const cot_cocluster_method cot_cocluster_kmeans;
extern const cot_cocluster_method cot_cocluster_spectral;

#endif
