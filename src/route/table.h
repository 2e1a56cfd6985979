/* A hash table from a block's key to its node and to a mark of the set of targets that hold the block whole, 16 bytes an entry, so
 * that a look-up of both costs one cache line. One thread changes it, one looks up; neither waits. */
#ifndef COT_ROUTE_TABLE_H
#define COT_ROUTE_TABLE_H
#include "base/rng.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cot_route_slot {
    _Atomic uint64_t key;        // COT_ROUTE_EMPTY, COT_ROUTE_GONE, or a block's
    _Atomic uint32_t node, mark; // mark: 0 of no targets
} cot_route_slot;
enum { COT_ROUTE_EMPTY, COT_ROUTE_GONE };

typedef struct cot_route_slots {
    struct cot_route_slots *retired; // older ones that a reader may still look at
    cot_route_slot *slot;            // [mask + 1]
    size_t mask;
    int shift;
} cot_route_slots;

typedef struct cot_route_table {
    _Atomic(cot_route_slots *) slots;
    _Atomic(cot_route_slots *) reading; // what the reader looks at; NULL: nothing
    size_t live, used;                  // entries; and with them slots of entries that went
} cot_route_table;

bool cot_route_table_open(cot_route_table *table);
void cot_route_table_close(cot_route_table *table);
size_t cot_route_table_bytes(const cot_route_table *table);

/* No key is COT_ROUTE_EMPTY or COT_ROUTE_GONE. */
static inline uint64_t cot_route_table_key(uint64_t key)
{
    return key > COT_ROUTE_GONE ? key : cot_mix64(key);
}

static inline cot_route_slot *cot_route_table_first(const cot_route_slots *s, uint64_t key)
{
    return &s->slot[key * 0x9e3779b97f4a7c15u >> s->shift];
}

static inline cot_route_slot *cot_route_table_after(const cot_route_slots *s, const cot_route_slot *slot)
{
    return &s->slot[(size_t)(slot + 1 - s->slot) & s->mask];
}

/* For whoever changes the table. NULL: no such key. */
cot_route_slot *cot_route_table_find(const cot_route_table *table, uint64_t key);
/* Makes sure of room for one more entry; `moved` is told the new place of each entry when all move. False: out of memory. */
bool cot_route_table_reserve(cot_route_table *table, void *context,
                             void (*moved)(void *context, uint32_t node, uint32_t place));
/* A key that is not there, after a reserve. Returns its place. */
uint32_t cot_route_table_insert(cot_route_table *table, uint64_t key, uint32_t node);
void cot_route_table_remove(cot_route_table *table, uint32_t place);

/* For the reader: what it looks at stays until it has left. */
const cot_route_slots *cot_route_table_enter(cot_route_table *table);
void cot_route_table_leave(cot_route_table *table);
/* The mark of the block, and its node; 0: no target holds it whole. */
static inline uint32_t cot_route_table_read(const cot_route_slots *s, uint64_t key, uint32_t *node)
{
    const cot_route_slot *slot = cot_route_table_first(s, key);
    for (;;) {
        const uint64_t here = atomic_load_explicit(&slot->key, memory_order_acquire);
        if (here == COT_ROUTE_EMPTY) return 0;
        if (here == key) {
            *node = atomic_load_explicit(&slot->node, memory_order_acquire);
            const uint32_t mark = atomic_load_explicit(&slot->mark, memory_order_acquire);
            // Were they another entry's, the key is another's by now.
            if (atomic_load_explicit(&slot->key, memory_order_acquire) == key) return mark;
        }
        slot = cot_route_table_after(s, slot);
    }
}

#endif
