/* What the baselines share: how alike the experts of a layer are, [E][E], and balanced k-means over that. */
#ifndef COT_COCLUSTER_GRAM_H
#define COT_COCLUSTER_GRAM_H
#include "cocluster/solver.h"

enum { COT_GRAM_MAX_EXPERTS = 4096 }; // [E][E] doubles are 128 MiB

/* Errors: UNSUPPORTED (too many experts for a matrix of all pairs). */
cot_status cot_gram_check(const cot_cocluster *problem, cot_error *error);

/* gram[e][f] = sum over tokens i of count(i,e) count(i,f) load(i)^power. With power 0 these are products of counts; with
 * -1 a token weighs as much as its load; with -2 counts are shares of the token's load, so that all tokens weigh alike.
 */
void cot_gram_of_tokens(double *gram, const cot_cocluster *problem, int power);

/* Scales the points that `gram` holds the products of to length 1; an expert that nobody calls stays at 0. */
void cot_gram_normalise(double *gram, size_t E);

/* Lloyd's iteration from k-means++ centres (drawn from (seed, stream)) on points whose inner products are `gram`,
 * every centre getting as many points as its rank has experts: each step assigns optimally, so that the squared
 * distances never rise. Errors: OUT_OF_MEMORY. */
cot_status cot_gram_kmeans(int32_t *expert_rank, const cot_cocluster *problem, const double *gram,
                           uint64_t seed, uint64_t stream, cot_error *error);

#endif
