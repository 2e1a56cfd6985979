/* Which sequences call the same experts. A decode step reads the distinct experts that its tokens call (one step's union), so a
 * sequence is judged by what it adds to the others: the experts that none of them is expected to call.
 *
 * A prediction is a share of 255 for each cell, an (MoE layer, expert): how likely the sequence's next token calls it.
 * `missing` [cells] is how likely none of those that were taken calls it, 1 at first. Pure functions. */
#ifndef COT_SCHEDULE_OVERLAP_H
#define COT_SCHEDULE_OVERLAP_H
#include <stdbool.h>
#include <stdint.h>

enum {
    COT_OVERLAP_WINDOW = 16,    // of the waiting requests so many, the oldest, may be admitted next
    COT_OVERLAP_OVERTAKEN = 16, // so many may overtake a waiting request
    COT_OVERLAP_LOOKED_AT = 8,  // sequences of which a step takes the next, at least
    COT_OVERLAP_WORK = 1 << 20  // cells that choosing a step's sequences looks at, unless that is more
};

void cot_overlap_clear(float *missing, int64_t cells);
/* How many distinct experts a sequence is expected to add, summed over layers. */
double cot_overlap_added(const float *missing, const uint8_t *share, int64_t cells);
/* The sequence is taken. */
void cot_overlap_take(float *missing, const uint8_t *share, int64_t cells);

/* A layer's shares [experts] of a token's next call, K = `chosen` of them: what its sequence called lately (`history`), corrected
 * by how much more than usual (`mean`) its token does (`token`): odds multiply, as if both spoke independently. All of them are
 * probabilities. */
void cot_overlap_expect(uint8_t *share, const float *history, const float *token, const float *mean,
                        int64_t experts, int64_t chosen);

/* A sequence that a step may take. */
typedef struct cot_overlap_sequence {
    const uint8_t *share; // [cells]; NULL: nothing is known of it
    int64_t waited;       // steps that it has sat out
} cot_overlap_sequence;

/* Fills in order [count] with the numbers of sequences, who waited longest first, equal ones by their numbers. */
void cot_overlap_order(int32_t *order, const cot_overlap_sequence *sequences, int64_t count);
/* Takes `batch` of the sequences that `order` [count], as above, names, and moves them to its beginning, in the order in which they are
 * taken: first those that waited `max_wait` steps or more, the longest first, at any rate the one that waited longest; then one
 * after the other the one that adds least, those that waited longer first among equals. Of what is left those are looked at that
 * waited longest, COT_OVERLAP_LOOKED_AT or as many more as COT_OVERLAP_WORK allows, up to one of which nothing is known: nobody
 * passes that; and none where nearly all experts are called by those that were taken. What a sequence costs besides, its own keys and values above all, is the same in whichever step, and chooses nobody.
 * Nobody waits longer than
 *
 *     max_wait + ceil(count / batch) - 1 steps:
 *
 * one that has waited max_wait steps has at most count - 1 before it, of which every step takes `batch`, and those that were
 * taken begin anew behind it, as does who comes. `missing` [cells] is scratch. */
void cot_overlap_choose(int32_t *order, const cot_overlap_sequence *sequences, int64_t count, int64_t batch,
                        int64_t max_wait, float *missing, int64_t cells);

/* A request that waits. */
typedef struct cot_overlap_waiting {
    const uint8_t *share; // [cells]; NULL: nothing is known of it
    int64_t overtaken;    // by how many
    bool first;           // nobody may overtake it
} cot_overlap_waiting;

/* Which of `count` >= 1 waiting requests, the oldest first, is admitted next beside those that `missing` is of: of the first
 * COT_OVERLAP_WINDOW the one that adds least. The oldest, where it is `first`, was overtaken COT_OVERLAP_OVERTAKEN times, or is
 * not foretold; nobody passes such a one further back either, nor is one chosen that is not foretold.
 *
 * So each is admitted after those that came before it and COT_OVERLAP_OVERTAKEN others at most: who overtakes it overtakes all
 * between them, so that those before it have been overtaken at least as often, and go first. */
int64_t cot_overlap_admit(const cot_overlap_waiting *waiting, int64_t count, const float *missing,
                          int64_t cells);

#endif
