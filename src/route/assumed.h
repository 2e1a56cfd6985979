/* Blocks that a target is taken to hold because requests with them were routed there, though it has not told of them: since when,
 * the one routed longest ago first. */
#ifndef COT_ROUTE_ASSUMED_H
#define COT_ROUTE_ASSUMED_H
#include "route/table.h"

typedef struct cot_route_assumption {
    uint64_t key;
    int64_t since_ns;
} cot_route_assumption;

/* All zero is empty. */
typedef struct cot_route_assumed {
    cot_route_table latest;      // from a block's key to the number of its latest entry
    cot_route_assumption *entry; // [room] number n stands at n % room
    size_t room;                 // a power of two, or 0
    uint32_t first, end;         // numbers; they begin anew behind the largest
} cot_route_assumed;

bool cot_route_assumed_has(const cot_route_assumed *assumed, uint64_t key);
/* From now on, also where it is assumed already. False: out of memory. */
bool cot_route_assumed_add(cot_route_assumed *assumed, uint64_t key, int64_t now_ns);
void cot_route_assumed_drop(cot_route_assumed *assumed, uint64_t key); // whether it is there or not
/* Takes a block out that was last routed there at `before_ns` or earlier. False: there is none. */
bool cot_route_assumed_expire(cot_route_assumed *assumed, int64_t before_ns, uint64_t *key);
void cot_route_assumed_free(cot_route_assumed *assumed); // and is empty again

#endif
