/* What a KV cache of another size would save: pure. It is told what texts are looked up, and what sequences run and wait; it says what
 * steps would take more or less with any number of pages up to the most that there can be.
 *
 * Blocks are kept in the order of their last use, those too that the cache has evicted: hashes alone. A block that is looked up, and
 * before which n others were used since, is found by any cache of more than n. What it saves is added to the bin of that depth. So it is with
 * sequences: the i-th that runs, or would if it had pages, shares a step with those before it where there are pages for all i.
 *
 * As many blocks are kept as the most pages hold, and no more: one that lies deeper is found by no cache that there can be, so it saves
 * nothing. Their times are twice as many, so that times are dealt out anew only once in as many uses. */
#ifndef COT_SCHEDULE_PAGE_WORTH_H
#define COT_SCHEDULE_PAGE_WORTH_H
#include "coterie/status.h"
#include <stddef.h>
#include <stdint.h>

enum { COT_PAGE_WORTH_BINS = 32 }; // of depth, all alike

typedef struct cot_page_worth {
    int64_t pages, blocks, block_tokens; // most pages; blocks of them; 0: nothing is kept in them
    double token_ns;                     // what it takes to compute a token of a prompt
    double block_pages;                  // what a block takes of pages, with all that it shares them with
    double saved_ns[COT_PAGE_WORTH_BINS];
    double steps; // in which that was, older ones counting less, as of what was saved
    /* The order of use. */
    uint64_t *hash; // [2 * blocks] by time; times are dealt out anew when all are used up
    int32_t *sum;   // [2 * blocks + 1] how many times of those up to it have a block, in Fenwick's tree
    uint8_t *has;   // [2 * blocks]
    int32_t *table; // [mask + 1] 1 + a time, by hash; 0: none
    uint64_t mask;
    uint64_t *line;             // [blocks] those of a text, for look_up
    int64_t next, first, count; // times: the next, one before which there is no block; how many have one
} cot_page_worth;

/* Errors: OUT_OF_MEMORY. Close either way. */
cot_status cot_page_worth_open(cot_page_worth *worth, int64_t pages, int64_t block_tokens, cot_error *error);
void cot_page_worth_close(cot_page_worth *worth);
size_t cot_page_worth_bytes(int64_t pages, int64_t block_tokens); // of its tables

/* A text of the first `count` blocks of `line` is looked up: those that would be found save their tokens. Then all are used. */
void cot_page_worth_look_up(cot_page_worth *worth, int64_t count);
/* A block is used. Of a text's the last is used first, and so on to its first, so that no block outlives what stands before it. */
void cot_page_worth_use(cot_page_worth *worth, uint64_t hash);
/* So much is saved where there are more than `pages` pages. */
void cot_page_worth_add(cot_page_worth *worth, double pages, double ns);
/* What so many steps told counts half as much when as many more have been told. */
void cot_page_worth_elapse(cot_page_worth *worth, double steps, double half_life_steps);
/* What `bins` bins of the most pages save, of a step: ns [COT_PAGE_WORTH_BINS + 1], rising. */
void cot_page_worth_of(const cot_page_worth *worth, double *ns);

#endif
