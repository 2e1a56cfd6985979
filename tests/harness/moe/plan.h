/* Who has which tokens and experts of a world, and how it is run. */
#ifndef COT_TESTS_HARNESS_MOE_PLAN_H
#define COT_TESTS_HARNESS_MOE_PLAN_H
#include "harness/moe/world.h"

#include "fabric/fabric.h"

#include <stdbool.h>
#include <stdint.h>

/* Which rank has which experts (in which slot) and which tokens: token t is home on the rank whose
 * begin[r] <= t < begin[r + 1]. */
struct plan {
    int ranks, running;
    bool forked;
    cot_pool *pool;
    int passes;
    int64_t timeout_ns;                 // 0: a minute
    bool (*begins)(cot_fabric *fabric); // called before the first pass: whether the rank takes part; or NULL
    int64_t (*count_allocations)(void); // that the calling thread made so far; or NULL
    bool given;                         // the routing is an input: what the oracle routes
    bool warmed; // one more pass before, with all tokens on experts 0 to K - 1, which nothing counts
    int32_t rank[2 * WORLD_EXPERTS], slot[2 * WORLD_EXPERTS]; // [replicas]
    int32_t replica_begin[WORLD_EXPERTS + 1];
    int32_t slots; // a rank
    int64_t begin[COT_MAX_RANKS + 1];
    int64_t order[WORLD_TOKENS]; // the run's token i is the world's token order[i]
};

/* Tokens and experts split by the rule of equal shares, experts in slots 0, 1, ... */
struct plan plan_even(const struct world *w, int ranks);

/* Each expert on one or more ranks, tokens split evenly. */
struct plan plan_replicated(const struct world *w, int ranks, struct draw *draw);

/* Experts anywhere, in any slots; tokens split anyhow and in any order, some ranks without. */
struct plan plan_drawn(const struct world *w, int ranks, struct draw *draw);

#endif
