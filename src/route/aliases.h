/* An engine's own names of the blocks that a target holds, where those are not the blocks' public hashes. */
#ifndef COT_ROUTE_ALIASES_H
#define COT_ROUTE_ALIASES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cot_route_alias {
    uint64_t name;
    uint64_t sequence, key; // the sequence hash, and the key in the index
} cot_route_alias;

/* All zero is empty. */
typedef struct cot_route_aliases {
    cot_route_alias *slot; // [room]
    bool *taken;           // [room]
    size_t count, room;    // room: a power of two, or 0
} cot_route_aliases;

/* NULL: no such name. Until the next change. */
const cot_route_alias *cot_route_aliases_find(const cot_route_aliases *aliases, uint64_t name);
/* A name that is not there. False: out of memory. */
bool cot_route_aliases_add(cot_route_aliases *aliases, cot_route_alias alias);
void cot_route_aliases_remove(cot_route_aliases *aliases, uint64_t name); // one that is there
void cot_route_aliases_free(cot_route_aliases *aliases);                  // and is empty again

#endif
