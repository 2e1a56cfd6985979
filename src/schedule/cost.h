/* How long a step takes, learnt from those that were run. It takes about the sum of
 *
 *     a                    reading what every step reads, and waiting
 *     b distinct experts   reading them; the mean over layers
 *     c tokens             their arithmetic, and what they send
 *     d positions          reading keys and values
 *     e pairs              of a token and a position that it sees: attention's arithmetic
 *
 * with a to e >= 0. They are those of least squares of the relative error over steps gone by, older ones counting less,
 * drawn towards a prior: costs that are known beforehand but for a common factor, which is learnt too. So what has not
 * been varied yet (only prompts were fed, say, or texts of one length) keeps the prior's proportions.
 *
 * How many distinct experts n tokens touch is learnt from what was routed, at powers of two. The experts of the busiest
 * rank and the (token, rank) sends are taken to be a constant part of all, and a constant number for each token: b and c
 * have these in them. Pure numbers: times and routing are handed in. */
#ifndef COT_SCHEDULE_COST_H
#define COT_SCHEDULE_COST_H
#include <stdbool.h>
#include <stdint.h>

enum {
    COT_COST_FIXED,
    COT_COST_EXPERTS,
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

typedef struct cot_cost {
    double experts, chosen;                        // E, K
    double prior[COT_COST_TERMS];                  // up to a common factor
    double square[COT_COST_TERMS][COT_COST_TERMS]; // sums of products of terms, each over the step's time
    double sum[COT_COST_TERMS];                    // sums of terms over the step's time
    double weight[COT_COST_TERMS];                 // a to e, ns
    double distinct[COT_COST_DOUBLINGS];           // experts that 2^i tokens touch
    int64_t routed[COT_COST_DOUBLINGS];            // how often that was seen
    int64_t steps;
    double predicted_ns, observed_ns; // of the last step
    double error;                     // mean of |predicted - observed| / observed, of some hundred steps
} cot_cost;

/* experts E >= 1, chosen K of them by each token; 0 in a model without. */
void cot_cost_init(cot_cost *cost, const double prior[COT_COST_TERMS], int64_t experts, int64_t chosen);
/* A span of so many tokens from `position` on is added to a step. */
void cot_cost_add_span(cot_cost_step *step, int64_t position, int64_t tokens);
/* 0 until some steps were seen. Rises with all. */
double cot_cost_predict(const cot_cost *cost, const cot_cost_step *step);
/* Experts that so many tokens are expected to touch, the mean over layers. Rises. */
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
/* A step's tokens, or some of them, were routed so: experts [layers][stride][K], `tokens` of each layer; scratch [E]. Returns
 * how many distinct ones they touch, the mean over layers. */
double cot_cost_learn_routing(cot_cost *cost, const uint16_t *experts, int64_t layers, int64_t stride,
                              int64_t tokens, bool *scratch);
/* Such a step begins. */
void cot_cost_expect(cot_cost *cost, const cot_cost_step *step);
/* The step that began took so long, more than 0, and touched so many distinct experts; less than 0: as many as were to be expected. */
void cot_cost_learn(cot_cost *cost, const cot_cost_step *step, double distinct, double ns);

#endif
