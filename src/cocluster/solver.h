/* One layer's co-clustering as all methods see it. A method proposes groups of experts, with or without tokens' ranks;
 * the solver completes them (token step), checks the limits and keeps the best. */
#ifndef COT_COCLUSTER_SOLVER_H
#define COT_COCLUSTER_SOLVER_H
#include "coterie/group.h"

#include <signal.h>

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
    /* Most load of a rank's tokens, a whole number: what the balance asks, but not less than the heaviest token and than
     * greedy packing comes to. */
    double token_limit;
    /* Most load of a rank's experts: what the option asks, or, where that cannot be met, the smallest peak that was found;
     * infinity: there is no limit. */
    double expert_limit;
    double token_asked, expert_asked; // what the options ask, over the mean
    int32_t *packed;                  // [E] groups that meet expert_limit; NULL: no limit
    /* [N] the loads that prices are put on: token_load, each off by a little, so that ties break one by one. */
    float *token_weight;
    int32_t *heavy_first; // [N] tokens by falling load
    const cot_cocluster_method *method;
    void *state; // the method's
    bool done;   // the method has nothing left to try
    /* The best so far. */
    int32_t *expert_rank, *token_rank;
    cot_grouping best; // its pointers are the two above
    /* Room in which offers are completed. */
    float *gain;   // [D][N]
    void *scratch; // [N * 8 bytes]
    /* Tokens that are a good part of what a rank takes come first of heavy_first; the loads, and room for the gains, in that
     * order. */
    int64_t n_heavy;
    float *sorted_gain, *sorted_weight; // [D][N], [N]
    uint64_t *sorted_load;              // [N]
    int32_t *settled;                   // [N] a try's
    double *worth;                      // [E][D]
    double *price;                      // [D]
    int32_t *trial;                     // [E], then [N]
};

/* The gain matrix of tokens for given groups of experts: gain[d][i] = activations of token i on rank d, plus bonus.
 * `gain` [D][N]. */
void cot_cocluster_gains(float *gain, const cot_cocluster *problem, const int32_t *expert_rank);

/* Tokens to ranks so that the sum of gains is as large as it gets with every rank's load within token_limit: prices
 * on load [D] (Lagrangian, kept in `price` from call to call: a warm start; zeros at first), then settled. Returns the
 * gain. Deterministic, as are the steps below, none of which allocates; all but the bound use the problem's room. */
double cot_cocluster_token_step(int32_t *token_rank, double *price, const cot_cocluster *problem,
                                const float *gain);
/* Prices, and every token on its best rank at these, so that token_rank may break the balance. Returns what it gains less
 * the prices: an upper bound of what any assignment within the balance gains, but for what token_weight is off (2^-9).
 * Ends early when that falls below `least`; what it would have ended with is below then, too. */
double cot_cocluster_token_prices(int32_t *token_rank, double *price, double least,
                                  const cot_cocluster *problem, const float *gain);
/* The least such bound, closer: what no assignment exceeds. Prices begin at `price`, which stays; the search ends once the
 * bound is not above `enough`. */
double cot_cocluster_token_bound(const double *price, double enough, const cot_cocluster *problem,
                                 const float *gain);
/* Sends every token to its best rank at these prices; returns the same bound. */
double cot_cocluster_token_choose(int32_t *token_rank, const double *price, const cot_cocluster *problem,
                                  const float *gain);
/* Tokens within the balance, from good prices: repaired, and, where single tokens are a good part of a rank's load, `tries`
 * times with these placed first; the best counts. The first try is plain, the others draw from the problem's seed and
 * `stream`, `stream` + 1, ... Returns the gain. */
double cot_cocluster_token_settle(int32_t *token_rank, const double *price, int tries, uint64_t stream,
                                  const cot_cocluster *problem, const float *gain);
/* Moves tokens until every rank's load is within token_limit, those first that lose least. Returns the gain. */
double cot_cocluster_token_repair(int32_t *token_rank, const cot_cocluster *problem, const float *gain);
/* Fills n_heavy, sorted_weight and sorted_load, once loads and limits are known. */
void cot_cocluster_sort_loads(cot_cocluster *problem);

/* What each expert is worth on each rank for given tokens: worth[e][d] = activations of e by the tokens of d. */
void cot_cocluster_worth(double *worth, const cot_cocluster *problem, const int32_t *token_rank);
/* Experts to ranks, sizes obeyed, so that the sum of worth[e][d] is largest: a transportation problem. Ignores
 * expert_limit. Errors: OUT_OF_MEMORY. */
cot_status cot_cocluster_assign(int32_t *expert_rank, const cot_cocluster *problem, const double *worth,
                                cot_error *error);
/* The same for given tokens. */
cot_status cot_cocluster_expert_step(int32_t *expert_rank, const cot_cocluster *problem,
                                     const int32_t *token_rank, cot_error *error);

/* Offers groups of experts whose sizes are right. The token step finds the tokens' ranks where `token_rank` is NULL;
 * given ones are repaired where they break the balance. Groups that break the expert limit are mended by swaps as far as
 * those go, and replaced by `packed` where that is not enough. The result becomes the best when it breaks what is asked
 * by less than the best so far, or by as much and has more local + bonus. */
void cot_cocluster_offer(cot_cocluster *problem, const int32_t *expert_rank, const int32_t *token_rank);

/* Measures groups anew: local, bonus, total, both peaks, whether they are feasible, and, beside the bound that `groups`
 * tells, proven. */
void cot_cocluster_measure(cot_grouping *groups, const cot_cocluster *problem);

/* Makes the sizes right by moving the experts that lose least, `affinity_of` [E][D] being what each is worth on each
 * rank. */
void cot_cocluster_repair_sizes(int32_t *expert_rank, const cot_cocluster *problem,
                                const double *affinity_of);

/* Whether the loads of all ranks' experts are within expert_limit. */
bool cot_cocluster_is_within(const cot_cocluster *problem, const int32_t *expert_rank);
/* Swaps experts, those first that lose least `worth` [E][D] for the excess they mend, until expert_limit holds. */
void cot_cocluster_mend(int32_t *expert_rank, const cot_cocluster *problem, const double *worth);
/* Groups with a peak of expert load as small as could be found; returns the peak. */
double cot_cocluster_pack(int32_t *expert_rank, const cot_cocluster *problem);
/* A lower bound of the peak of expert load: no groups of these sizes have a smaller one. */
double cot_cocluster_peak_bound(const cot_cocluster *problem);

/* An upper bound of local + bonus: no groups have more. */
double cot_cocluster_bound(const cot_cocluster *problem);
/* Lowers the bound of the best to `bound`, which a method found. */
void cot_cocluster_bound_is(cot_cocluster *problem, double bound);

/* Makes SIGTERM and SIGABRT wait as far as this thread goes, where it, or one that works with it, may run METIS; `before` is
 * the mask to put back. */
void cot_cocluster_hold_signals(sigset_t *before);

/* The problem that a grouper solves, for what builds on its steps. */
cot_cocluster *cot_grouper_problem(cot_grouper *grouper);

extern const cot_cocluster_method cot_cocluster_own;      // coterie
extern const cot_cocluster_method cot_cocluster_ce_joint; // cross-entropy, token and expert labels sampled
extern const cot_cocluster_method cot_cocluster_ce; // cross-entropy, expert labels sampled, tokens solved
extern const cot_cocluster_method cot_cocluster_ce_whole; // the same, every draw valued to its end: for tests
extern const cot_cocluster_method cot_cocluster_metis;
extern const cot_cocluster_method cot_cocluster_kmeans;
extern const cot_cocluster_method cot_cocluster_spectral;
extern const cot_cocluster_method cot_cocluster_consecutive; // no groups

#endif
