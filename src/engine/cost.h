/* How long a step takes, learnt from those that were run. A step of n tokens that see p positions of KV takes about
 *
 *     a + b (1 - (1 - K/E)^n) + c n + d p,      a, b, c, d >= 0
 *
 * b: the time to read the experts of the busiest rank, of which n tokens that choose K of E each touch that share in the
 * mean (no rank has a greater share of its own); c: what a token sends, and its arithmetic; d: reading keys and values.
 * The constants are those of least squares of the relative error over steps gone by, older ones counting less. Pure
 * numbers: times are handed in. */
#ifndef COT_ENGINE_COST_H
#define COT_ENGINE_COST_H
#include <stdint.h>

enum { COT_COST_TERMS = 4 };

typedef struct cot_cost {
    double left_out;                               // 1 - K/E: chance that a token does not choose an expert
    double square[COT_COST_TERMS][COT_COST_TERMS]; // sums of products of terms, each over the step's time
    double sum[COT_COST_TERMS];                    // sums of terms over the step's time
    double weight[COT_COST_TERMS];                 // ns
    int64_t steps;
    double predicted_ns, observed_ns; // of the last step
    double error;                     // mean of |predicted - observed| / observed, of some hundred steps
} cot_cost;

/* experts E >= 1, chosen K of them by each token; 0 in a model without. */
void cot_cost_init(cot_cost *cost, int64_t experts, int64_t chosen);
/* 0 until some steps were seen. Rises with both. */
double cot_cost_predict(const cot_cost *cost, int64_t tokens, int64_t positions);
/* A step took so long, more than 0. */
void cot_cost_learn(cot_cost *cost, int64_t tokens, int64_t positions, double ns);

#endif
