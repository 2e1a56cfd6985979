#include "route/assumed.h"

#include <stdlib.h>

enum { LEAST_ROOM = 256, MOST_ROOM = 1 << 30 };

static cot_route_slot *find(const cot_route_assumed *a, uint64_t key)
{
    return a->room ? cot_route_table_find(&a->latest, cot_route_table_key(key)) : NULL;
}

bool cot_route_assumed_has(const cot_route_assumed *a, uint64_t key)
{
    return find(a, key);
}

static cot_route_assumption *entry_of(const cot_route_assumed *a, uint32_t number)
{
    return &a->entry[number & (a->room - 1)];
}

static bool make_room(cot_route_assumed *a)
{
    if (a->room && a->end - a->first < a->room) return true;
    if (a->room == MOST_ROOM || (!a->room && !cot_route_table_open(&a->latest))) return false;
    const size_t room = a->room ? 2 * a->room : LEAST_ROOM;
    cot_route_assumption *entry = malloc(room * sizeof *entry);
    if (!entry) {
        if (!a->room) cot_route_table_close(&a->latest);
        return false;
    }
    for (uint32_t n = a->first; n != a->end; n++) entry[n & (room - 1)] = *entry_of(a, n);
    free(a->entry);
    a->entry = entry;
    a->room = room;
    return true;
}

static void moved(void *context, uint32_t node, uint32_t place)
{
    (void)context, (void)node, (void)place; // entries know no places
}

bool cot_route_assumed_add(cot_route_assumed *a, uint64_t key, int64_t now_ns)
{
    if (!make_room(a)) return false;
    cot_route_slot *slot = find(a, key);
    if (slot) {
        atomic_store_explicit(&slot->node, a->end, memory_order_relaxed);
    } else {
        if (!cot_route_table_reserve(&a->latest, NULL, moved)) return false;
        cot_route_table_insert(&a->latest, cot_route_table_key(key), a->end);
    }
    *entry_of(a, a->end++) = (cot_route_assumption){key, now_ns};
    return true;
}

static void remove_slot(cot_route_assumed *a, const cot_route_slot *slot)
{
    const cot_route_slots *slots = atomic_load_explicit(&a->latest.slots, memory_order_relaxed);
    cot_route_table_remove(&a->latest, (uint32_t)(slot - slots->slot));
}

void cot_route_assumed_drop(cot_route_assumed *a, uint64_t key)
{
    const cot_route_slot *slot = find(a, key);
    if (slot) remove_slot(a, slot);
}

bool cot_route_assumed_expire(cot_route_assumed *a, int64_t before_ns, uint64_t *key)
{
    while (a->first != a->end && entry_of(a, a->first)->since_ns <= before_ns) {
        const uint32_t number = a->first++;
        *key = entry_of(a, number)->key;
        const cot_route_slot *slot = find(a, *key);
        // Another number: it was routed there again since.
        if (!slot || atomic_load_explicit(&slot->node, memory_order_relaxed) != number) continue;
        remove_slot(a, slot);
        return true;
    }
    return false;
}

void cot_route_assumed_free(cot_route_assumed *a)
{
    if (a->room) cot_route_table_close(&a->latest);
    free(a->entry);
    *a = (cot_route_assumed){0};
}
