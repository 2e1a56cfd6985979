/* What tests of experts that move while requests run share. */
#ifndef COT_TESTS_HARNESS_ENGINE_MOVING_H
#define COT_TESTS_HARNESS_ENGINE_MOVING_H
#include "harness/engine/settings.h"

#include "fabric/fabric.h"

/* A golden model whose ranks have so many slots more than its experts need. */
struct setting moving_setting(const char *name, char path[1024], int ranks, int32_t spare);
/* The same of one of its files. */
struct setting moving_file(const char *name, const char *file, char path[1024], int ranks, int32_t spare);

/* Formats, operators, kinds of attention and of ranks among which texts must stay the same, with two spare slots a rank. */
enum { MOVING_WAYS = 5 };
struct setting moving_way(size_t way, char path[1024], int ranks);
/* In place of a spare slot in each layer one place that layers have together. */
struct setting in_a_pool(struct setting s);

/* As a rank of oshrun's: opens an engine with spare slots, on rank 0 has `live` move its experts, and closes it. The exit
 * status. */
int moving_rank(int ranks, bool movable, void (*live)(cot_engine *engine));

/* Puts of a rank of which each turns a bit over. */
struct turned_puts {
    cot_fabric_ops ops;
    const cot_fabric_ops *own; // which the caller gives back to the fabric
};
void turn_puts(struct turned_puts *puts, cot_fabric *fabric);

#endif
