/* How long a step takes, learnt from those that were run. It takes about the sum of
 *
 *     a                    reading what every step reads, and waiting
 *     b distinct experts   of the busiest rank: reading them
 *     c rows               of the busiest rank, a (token, expert) each: their arithmetic
 *     d sends              to the busiest rank, a (token, rank) each, and back
 *     e tokens             what is computed of each wherever its experts are
 *     f positions          reading keys and values
 *     g pairs              of a token and a position that it sees: attention's arithmetic
 *
 * with a to g >= 0; b to d are means over layers, in each of which all wait for the rank that has most to do. Where more ranks than
 * can compute at once share cores it is the larger of that and of what all have to do, over how many do at once. They are those of least squares of the relative error over steps gone by, older ones counting less,
 * drawn towards a prior: costs that are known beforehand but for a common factor, which is learnt too. So what has not
 * been varied yet (only prompts were fed, say, or texts of one length) keeps the prior's proportions.
 *
 * What n tokens give the busiest rank to do is learnt from what was routed, under the layout in force: distinct experts at powers of
 * two, rows and sends for each token; where rank 0 sees a part of the tokens alone that tells how these grow with them, and by
 * what ranks say that they had to do how much it is. With another layout both begin anew, and what these cost stays. Pure numbers:
 * times, routing and layouts are handed in. */
#ifndef COT_SCHEDULE_COST_H
#define COT_SCHEDULE_COST_H
#include "coterie/layout.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    COT_COST_FIXED,
    COT_COST_EXPERTS,
    COT_COST_ROWS,
    COT_COST_SENDS,
    COT_COST_TOKENS,
    COT_COST_POSITIONS,
    COT_COST_PAIRS,
    COT_COST_TERMS
};
enum { COT_COST_DOUBLINGS = 17 }; // 1 to 65536 tokens

/* What a step holds. */
typedef struct cot_cost_step {
    int64_t tokens;
    int64_t positions; // whose keys and values are read: each sequence's up to its last token
    int64_t pairs;     // tokens and the positions that each sees
} cot_cost_step;

/* What the busiest rank has to do in a step, means over layers. */
typedef struct cot_cost_load {
    double experts, rows, sends;
} cot_cost_load;

typedef struct cot_cost {
    double experts, chosen;                        // E, K
    double at_once;                                // ranks that compute at once, where there are more
    double most;                                   // experts that the busiest rank may have to read
    double prior[COT_COST_TERMS];                  // up to a common factor
    double square[COT_COST_TERMS][COT_COST_TERMS]; // sums of products of terms, each over the step's time
    double sum[COT_COST_TERMS];                    // sums of terms over the step's time
    double weight[COT_COST_TERMS];                 // a to g, ns
    double distinct[COT_COST_DOUBLINGS];           // experts of the busiest rank that 2^i tokens touch
    int64_t routed[COT_COST_DOUBLINGS];            // how often that was seen
    double rows, sends;                            // of the busiest rank, for a token
    cot_cost_load
        told; // what ranks said that they had to do, over what was to be expected by routing; 1 at first
    int64_t tellings;
    int64_t steps;
    double predicted_ns, observed_ns; // of the last step
    double error;                     // mean of |predicted - observed| / observed, of some hundred steps
} cot_cost;

/* experts E >= 1, chosen K of them by each token; 0 in a model without. All are on one rank, until a layout says otherwise; of more
 * ranks so many compute at once, 1 or more. */
void cot_cost_init(cot_cost *cost, const double prior[COT_COST_TERMS], int64_t experts, int64_t chosen,
                   int64_t at_once);
/* Experts are where this layout has them from now on: what the busiest rank has to do is learnt anew. */
void cot_cost_place(cot_cost *cost, const cot_expert_layout *layout);
/* A span of so many tokens from `position` on is added to a step. */
void cot_cost_add_span(cot_cost_step *step, int64_t position, int64_t tokens);
/* 0 until some steps were seen. Rises with all. */
double cot_cost_predict(const cot_cost *cost, const cot_cost_step *step);
/* Experts of the busiest rank that so many tokens are expected to touch, the mean over layers. Rises. */
double cot_cost_distinct(const cot_cost *cost, int64_t tokens);
/* How many of the n experts `chosen` were not touched before; they are from now on. touched [E]. */
static inline int64_t cot_cost_touch(bool *touched, const uint16_t *chosen, int64_t n)
{
    int64_t distinct = 0;
    for (int64_t i = 0; i < n; i++) {
        distinct += !touched[chosen[i]];
        touched[chosen[i]] = true;
    }
    return distinct;
}
/* A step's tokens, or some of them, were routed so: experts [layers][stride][K], `tokens` of each layer, which are at home on all ranks
 * in turn; scratch [E]. The layout is that of the last cot_cost_place, NULL where there was none. Returns what they give the
 * busiest rank to do. */
cot_cost_load cot_cost_learn_routing(cot_cost *cost, const uint16_t *experts, int64_t layers, int64_t stride,
                                     int64_t tokens, const cot_expert_layout *layout, uint64_t *scratch);
/* In a step each of `ranks` ranks had so much to do, summed over `layers`: what rank 0 does not see of others' tokens. Returns what the
 * busiest of them had, the mean over layers; how much that is of what was to be expected by routing is learnt. */
cot_cost_load cot_cost_learn_served(cot_cost *cost, const cot_cost_step *step, const cot_cost_load *served,
                                    int ranks, int64_t layers);
/* Such a step begins. */
void cot_cost_expect(cot_cost *cost, const cot_cost_step *step);
/* The step that began took so long, more than 0, with this load; NULL: with the one that was to be expected. */
void cot_cost_learn(cot_cost *cost, const cot_cost_step *step, const cot_cost_load *load, double ns);

#endif
