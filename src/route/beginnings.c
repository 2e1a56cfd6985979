#include "route/beginnings.h"

static cot_route_slot *find(const cot_route_beginnings *b, uint64_t beginning)
{
    return b->is_open ? cot_route_table_find(&b->counts, cot_route_table_key(beginning)) : NULL;
}

static void moved(void *context, uint32_t node, uint32_t place)
{
    (void)context, (void)node, (void)place; // requests know no places
}

uint64_t cot_route_beginning(uint64_t key, size_t target)
{
    const uint64_t beginning = cot_random_bits(key, 0, target);
    return beginning ? beginning : 1;
}

bool cot_route_beginnings_has(const cot_route_beginnings *b, uint64_t beginning)
{
    return find(b, beginning);
}

bool cot_route_beginnings_add(cot_route_beginnings *b, uint64_t beginning, bool *first)
{
    cot_route_slot *slot = find(b, beginning);
    *first = !slot;
    if (slot) {
        atomic_fetch_add_explicit(&slot->node, 1, memory_order_relaxed);
        return true;
    }
    if (!b->is_open && !(b->is_open = cot_route_table_open(&b->counts))) return false;
    if (!cot_route_table_reserve(&b->counts, NULL, moved)) return false;
    cot_route_table_insert(&b->counts, cot_route_table_key(beginning), 1);
    return true;
}

bool cot_route_beginnings_drop(cot_route_beginnings *b, uint64_t beginning)
{
    cot_route_slot *slot = find(b, beginning);
    if (atomic_fetch_sub_explicit(&slot->node, 1, memory_order_relaxed) > 1) return false;
    const cot_route_slots *slots = atomic_load_explicit(&b->counts.slots, memory_order_relaxed);
    cot_route_table_remove(&b->counts, (uint32_t)(slot - slots->slot));
    return true;
}

void cot_route_beginnings_free(cot_route_beginnings *b)
{
    if (b->is_open) cot_route_table_close(&b->counts);
    *b = (cot_route_beginnings){0};
}
