/* Blocks that a target holds in groups of layers beside the one that its index is of, by the engine's names: so much of a prompt can be
 * reused as all of its groups keep what they need of it. */
#ifndef COT_ROUTE_GROUPS_H
#define COT_ROUTE_GROUPS_H
#include "route/aliases.h"
#include "route/events.h"

typedef struct cot_route_group {
    bool is_told; // of, once at least
    cot_route_layers layers;
    size_t window;            // blocks before the end that are needed, of COT_ROUTE_WINDOW
    cot_route_aliases blocks; // by name; what they stand for is not looked at
} cot_route_group;

typedef struct cot_route_groups {
    size_t count;                                 // of those that were told of
    uint64_t base;                                // the group that the index is of; 0 until has_base
    bool has_base, base_is_full;                  // base_is_full: it keeps all of a text
    cot_route_group group[COT_ROUTE_MOST_GROUPS]; // by number
} cot_route_groups;

/* The index is of the first group of COT_ROUTE_FULL that is told of, or, until there is one, of the first group. True: it is of another one from now on: what it
 * holds is not of that. Before a batch is applied. */
bool cot_route_groups_choose(cot_route_groups *groups, const cot_route_batch *batch);
/* An event of another group. False: out of memory. */
bool cot_route_groups_store(cot_route_groups *groups, const cot_route_event *event);
void cot_route_groups_remove(cot_route_groups *groups, const cot_route_event *event);
void cot_route_groups_clear(cot_route_groups *groups); // they hold nothing
/* Block i's name; *assumed: all groups are taken to hold it. */
typedef uint64_t cot_route_name(const void *context, size_t i, bool *assumed);
/* Of `depth` blocks of a text that the index's group has, how many can be reused. */
uint32_t cot_route_groups_match(const cot_route_groups *groups, uint32_t depth, cot_route_name *name,
                                const void *context);

#endif
