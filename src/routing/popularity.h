/* How much each expert of each layer is called, lately: counts that halve as others come. Three levels ask for it: a request
 * (signature.h), a home rank, and all. A count of a token is worth 1 when it comes and half as much a half-life later.
 *
 * Nothing is scaled when a token comes: its cells grow by what a token is worth at that time, which rises, and reading divides by
 * what one is worth now. So a token costs O(L K), whatever E is.
 *
 * Beside the counts stand some whole tokens, a reservoir, for who must know which experts are called together: one that is full
 * takes a token with the chance that has its members, too, halve as the counts do.
 *
 * Who acts on counts now and then, and not on what nobody calls any more, marks each time: what came since can be held against what was
 * before, and that left out. Pure: times are handed in, draws are those of a seed. One thread at a time. */
#ifndef COT_ROUTING_POPULARITY_H
#define COT_ROUTING_POPULARITY_H
#include "coterie/status.h"
#include <stdint.h>

enum { COT_POPULARITY_ALL = -1 }; // in place of a home

typedef struct cot_popularity_options {
    int32_t n_layers, n_experts, top_k; // L, E, K
    int32_t n_homes;                    // ranks that tokens are at home on
    double half_life_tokens;            // of all homes together, above 0; 0: seconds count
    double half_life_seconds;           // in place of tokens, above 0
    int64_t reservoir;                  // tokens that are kept whole; 0: none
    uint64_t seed;                      // of which they are
} cot_popularity_options;

/* What had come at some time. */
typedef struct cot_popularity_point {
    double *count; // [L][E] of all homes, in what a token was worth when it came
    double tokens; // alike
    int64_t seen;
} cot_popularity_point;

typedef struct cot_popularity {
    cot_popularity_options options;
    double *count;                     // [homes][L][E], in what a token was worth when it came
    double *tokens;                    // [homes] the same of tokens
    double all_tokens;                 // over homes
    double worth, growth;              // of a token now; of that from one token to the next
    int64_t seen, held;                // tokens that came; that the reservoir holds
    uint16_t *held_experts;            // [reservoir][L][K]
    int16_t *held_home;                // [reservoir]
    int64_t *held_position;            // [reservoir] tokens that came before
    cot_popularity_point marked, left; // the mark; until when what came is left out
} cot_popularity;

/* Errors: INVALID_ARGUMENT (sizes; no half-life, or one of 0), OUT_OF_MEMORY. Close either way. */
cot_status cot_popularity_open(cot_popularity *popularity, const cot_popularity_options *options,
                               cot_error *error);
void cot_popularity_close(cot_popularity *popularity);

/* A token at home on `home` called, in the l-th layer, experts[l * layer_stride] and the K - 1 behind it. */
void cot_popularity_add(cot_popularity *popularity, int32_t home, const uint16_t *experts,
                        int64_t layer_stride);
/* So many seconds went by, 0 or more; without half_life_seconds nothing comes of it. */
void cot_popularity_elapse(cot_popularity *popularity, double seconds);

/* What counts are worth now: `counts` [L][E], of a home or of all. */
void cot_popularity_counts(double *counts, const cot_popularity *popularity, int32_t home);
/* The same of tokens: each call of the K in a layer is one of them. */
double cot_popularity_tokens(const cot_popularity *popularity, int32_t home);

/* What comes from here on is since the mark, at first all. */
void cot_popularity_mark(cot_popularity *popularity);
double cot_popularity_since(
    const cot_popularity *popularity); // the mark: tokens of all homes, by what they are worth now
/* Which part of the calls went to other experts since the mark than between what is left out and the mark, in the mean of layers: in (0, 1]; 0
 * also where nothing came on one side. `*chance`: what so many calls would be apart in the mean if each were drawn from the same, at most. */
double cot_popularity_change(double *chance, const cot_popularity *popularity);
/* What came before the mark is left out of what is called lately, and out of the reservoir. */
void cot_popularity_leave(cot_popularity *popularity);
/* What is called lately, of all homes: `counts` [L][E]; returns tokens. */
double cot_popularity_lately(double *counts, const cot_popularity *popularity);

#endif
