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
    double
        token_limit; // most load of a rank's tokens, whole: what the balance asks, or, where that is less than
                     // the heaviest token or than greedy packing can do, that
    double
        expert_limit; // most load of a rank's experts: what is asked, or the smallest peak found; infinity: none
    double token_asked, expert_asked; // what the options ask, over the mean
    int32_t *packed;                  // [E] groups that meet expert_limit; NULL: no limit
    float *
        token_weight; // [N] loads that prices are put on, each off by a little, so that ties break one by one
    int32_t *heavy_first; // [N] tokens by falling load
    const cot_cocluster_method *method;
    void *state; // the method's
    bool done;   // the method has nothing left to try
    /* The best so far. */
    int32_t *expert_rank, *token_rank;
    cot_grouping best; // its pointers are the two above
    double offered;    // local + bonus of the latest offer
    /* What an offer is completed in. */
    float *gain;    // [D][N]
    void *scratch;  // [N * 8 bytes]
    double *worth;  // [E][D]
    double *price;  // [D]
    int32_t *trial; // [E], then [N]
};

/* Compiled for wide vectors as well, chosen when the program is loaded: too early for the thread sanitizer. */
#if defined __x86_64__ && defined __ELF__ && !defined __SANITIZE_THREAD__ && !defined __clang__
#define COT_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define COT_VECTORS
#endif

/* The gain matrix of tokens for given groups of experts: gain[d][i] = activations of token i on rank d, plus bonus.
 * `gain` [D][N]. */
void cot_cocluster_gains(float *gain, const cot_cocluster *problem, const int32_t *expert_rank);

/* Tokens to ranks so that the sum of gains is as large as it gets with every rank's load within token_limit: prices
 * on load [D] (Lagrangian, kept in `price` from call to call: a warm start; zeros at first), then repair. Returns the
 * gain; `*bound`, unless NULL, is what no assignment exceeds. Deterministic. Never allocates: `scratch` [N * 8 bytes].
 */
double cot_cocluster_token_step(int32_t *token_rank, double *price, double *bound,
                                const cot_cocluster *problem, const float *gain, void *scratch);
/* The same without repair: token_rank may break the balance, and what it gains less the prices, which is returned, is
 * not less than what any assignment gains. Ends early when that falls below `least`. */
double cot_cocluster_token_prices(int32_t *token_rank, double *price, double least,
                                  const cot_cocluster *problem, const float *gain);
/* Every token to its best rank at these prices; returns the same. */
double cot_cocluster_token_choose(int32_t *token_rank, const double *price, const cot_cocluster *problem,
                                  const float *gain);
/* Moves tokens until every rank's load is within token_limit, those first that lose least. Returns the gain. */
double cot_cocluster_token_repair(int32_t *token_rank, const cot_cocluster *problem, const float *gain,
                                  void *scratch);

/* What each expert is worth on each rank for given tokens: worth[e][d] = activations of e by the tokens of d. */
void cot_cocluster_worth(double *worth, const cot_cocluster *problem, const int32_t *token_rank);
/* Experts to ranks, sizes obeyed, so that the sum of worth[e][d] is largest: a transportation problem. Ignores
 * expert_limit. Errors: OUT_OF_MEMORY. */
cot_status cot_cocluster_assign(int32_t *expert_rank, const cot_cocluster *problem, const double *worth,
                                cot_error *error);
/* The same for given tokens. */
cot_status cot_cocluster_expert_step(int32_t *expert_rank, const cot_cocluster *problem,
                                     const int32_t *token_rank, cot_error *error);

/* Offers groups of experts whose sizes are right; `token_rank` NULL: the token step finds it, else it is repaired
 * where it breaks the balance. What breaks the expert limit is first mended by swaps as far as they go, then replaced
 * by `packed`. Keeps the result when it breaks what is asked by less than the best, or by the same and has more
 * local + bonus; `offered` tells what it had. Errors: none
 * so far. */
cot_status cot_cocluster_offer(cot_cocluster *problem, const int32_t *expert_rank, const int32_t *token_rank,
                               cot_error *error);

/* Makes the sizes right by moving the experts that lose least, `affinity_of` [E][D] being what each is worth on each
 * rank. */
void cot_cocluster_repair_sizes(int32_t *expert_rank, const cot_cocluster *problem,
                                const double *affinity_of);

/* Expert load. Whether ranks' loads are all within expert_limit. */
bool cot_cocluster_is_within(const cot_cocluster *problem, const int32_t *expert_rank);
/* Swaps experts, those first that lose least `worth` [E][D] for the excess they mend, until expert_limit holds. */
void cot_cocluster_mend(int32_t *expert_rank, const cot_cocluster *problem, const double *worth);
/* Groups with a peak of expert load as small as could be found; returns the peak. */
double cot_cocluster_pack(int32_t *expert_rank, const cot_cocluster *problem);
/* No groups have a smaller peak. */
double cot_cocluster_peak_bound(const cot_cocluster *problem);

/* What no groups exceed in local + bonus. */
double cot_cocluster_bound(const cot_cocluster *problem);
/* Tells of a bound that a method found. */
void cot_cocluster_bound_is(cot_cocluster *problem, double bound);

/* The problem that a grouper solves, for what builds on its steps. */
cot_cocluster *cot_grouper_problem(cot_grouper *grouper);

extern const cot_cocluster_method cot_cocluster_own;      // coterie
extern const cot_cocluster_method cot_cocluster_ce_joint; // cross-entropy, token and expert labels sampled
extern const cot_cocluster_method cot_cocluster_ce; // cross-entropy, expert labels sampled, tokens solved
extern const cot_cocluster_method cot_cocluster_metis;
extern const cot_cocluster_method cot_cocluster_kmeans;
extern const cot_cocluster_method cot_cocluster_spectral;

#endif
