#include "route/table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LEAST_SLOTS = 1024, HUGE_PAGE = 2 << 20 };

static void free_slots(cot_route_slots *s)
{
    if (s) free(s->slot);
    free(s);
}

static size_t bytes_of(size_t count)
{
    return count * sizeof(cot_route_slot);
}

/* Probes go all over a table: on huge pages they seldom miss the cache of addresses. */
static cot_route_slots *new_slots(size_t count)
{
    const size_t bytes = bytes_of(count);
    cot_route_slots *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->slot = aligned_alloc(bytes < HUGE_PAGE ? 64 : HUGE_PAGE, bytes);
    if (!s->slot) {
        free(s);
        return NULL;
    }
    if (bytes >= HUGE_PAGE) madvise(s->slot, bytes, MADV_HUGEPAGE);
    memset(s->slot, 0, bytes);
    s->mask = count - 1;
    s->shift = 64;
    for (size_t n = count; n > 1; n /= 2) s->shift--;
    return s;
}

/* Gives back older slots when the reader is at none of them. */
static void reclaim(cot_route_table *table, cot_route_slots *now)
{
    if (!now->retired) return;
    const cot_route_slots *reading = atomic_load(&table->reading);
    for (cot_route_slots **at = &now->retired; *at;) {
        cot_route_slots *old = *at;
        if (old == reading) {
            at = &old->retired;
        } else {
            *at = old->retired;
            free_slots(old);
        }
    }
}

bool cot_route_table_open(cot_route_table *table)
{
    cot_route_slots *s = new_slots(LEAST_SLOTS);
    atomic_init(&table->slots, s);
    atomic_init(&table->reading, NULL);
    table->live = table->used = 0;
    return s;
}

void cot_route_table_close(cot_route_table *table)
{
    for (cot_route_slots *s = atomic_load(&table->slots), *older; s; s = older) {
        older = s->retired;
        free_slots(s);
    }
    atomic_store(&table->slots, NULL);
}

size_t cot_route_table_bytes(const cot_route_table *table)
{
    size_t bytes = 0;
    for (const cot_route_slots *s = atomic_load(&table->slots); s; s = s->retired)
        bytes += sizeof *s + bytes_of(s->mask + 1);
    return bytes;
}

static cot_route_slots *slots_of(const cot_route_table *table)
{
    return atomic_load_explicit(&table->slots, memory_order_relaxed);
}

static uint64_t key_at(const cot_route_slot *slot)
{
    return atomic_load_explicit(&slot->key, memory_order_relaxed);
}

cot_route_slot *cot_route_table_find(const cot_route_table *table, uint64_t key)
{
    const cot_route_slots *s = slots_of(table);
    cot_route_slot *slot = cot_route_table_first(s, key);
    while (key_at(slot) != key) {
        if (key_at(slot) == COT_ROUTE_EMPTY) return NULL;
        slot = cot_route_table_after(s, slot);
    }
    return slot;
}

static void fill(cot_route_slot *slot, uint64_t key, uint32_t node, uint32_t mark)
{
    atomic_store_explicit(&slot->node, node, memory_order_release);
    atomic_store_explicit(&slot->mark, mark, memory_order_release);
    atomic_store_explicit(&slot->key, key, memory_order_release);
}

bool cot_route_table_reserve(cot_route_table *table, void *context,
                             void (*moved)(void *context, uint32_t node, uint32_t place))
{
    cot_route_slots *s = slots_of(table);
    reclaim(table, s);
    if (table->used + 1 <= (s->mask + 1) / 4 * 3) return true;
    size_t count = LEAST_SLOTS;
    while (count < 2 * (table->live + 1)) count *= 2;
    cot_route_slots *to = count <= UINT32_MAX ? new_slots(count) : NULL;
    if (!to) return false;
    for (size_t i = 0; i <= s->mask; i++) {
        const uint64_t key = key_at(&s->slot[i]);
        if (key <= COT_ROUTE_GONE) continue;
        cot_route_slot *slot = cot_route_table_first(to, key);
        while (key_at(slot) != COT_ROUTE_EMPTY) slot = cot_route_table_after(to, slot);
        const uint32_t node = atomic_load_explicit(&s->slot[i].node, memory_order_relaxed);
        fill(slot, key, node, atomic_load_explicit(&s->slot[i].mark, memory_order_relaxed));
        moved(context, node, (uint32_t)(slot - to->slot));
    }
    to->retired = s;
    table->used = table->live;
    atomic_store(&table->slots, to);
    reclaim(table, to);
    return true;
}

uint32_t cot_route_table_insert(cot_route_table *table, uint64_t key, uint32_t node)
{
    const cot_route_slots *s = slots_of(table);
    cot_route_slot *slot = cot_route_table_first(s, key);
    while (key_at(slot) > COT_ROUTE_GONE) slot = cot_route_table_after(s, slot);
    table->used += key_at(slot) == COT_ROUTE_EMPTY;
    table->live++;
    fill(slot, key, node, 0);
    return (uint32_t)(slot - s->slot);
}

/* What went is passed over by probes, unless they would end behind it. */
void cot_route_table_remove(cot_route_table *table, uint32_t place)
{
    const cot_route_slots *s = slots_of(table);
    cot_route_slot *slot = &s->slot[place];
    atomic_store_explicit(&slot->key, COT_ROUTE_GONE, memory_order_release);
    table->live--;
    if (key_at(cot_route_table_after(s, slot)) != COT_ROUTE_EMPTY) return;
    for (; key_at(slot) == COT_ROUTE_GONE; slot = &s->slot[(size_t)(slot - s->slot - 1) & s->mask]) {
        atomic_store_explicit(&slot->key, COT_ROUTE_EMPTY, memory_order_release);
        table->used--;
    }
}

const cot_route_slots *cot_route_table_enter(cot_route_table *table)
{
    cot_route_slots *s;
    do {
        s = atomic_load(&table->slots);
        atomic_store(&table->reading, s);
    } while (s != atomic_load(&table->slots));
    return s;
}

void cot_route_table_leave(cot_route_table *table)
{
    atomic_store_explicit(&table->reading, NULL, memory_order_release);
}
