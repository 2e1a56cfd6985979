#include "route/signatures.h"

#include "route/calls.h"
#include "route/table.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TEXTS = 64 }; // that a mean is of: older ones count less
static const float ALL_KEPT = 1 - 1.0f / 1024;

/* A block; all stand in a ring, the one used longest ago behind `ends`. */
typedef struct block {
    uint64_t key;
    uint32_t older, newer; // of the ring
    uint32_t texts;        // that the mean is of, MOST_TEXTS at most
    cot_route_calls mean;
} block;

struct cot_route_signatures {
    cot_route_table table; // from a block's key to its number
    block *block;          // [most + 1]; 0 is the ring's end
    size_t count, most, cells;
    float *usual, weight; // sums over texts, and of what each counts
    float *share;         // [cells] usual / weight
};

cot_route_signatures *cot_route_signatures_open(size_t most, size_t cells)
{
    cot_route_signatures *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->most = most;
    s->cells = cells;
    s->usual = calloc(cells, sizeof *s->usual);
    s->share = calloc(cells, sizeof *s->share);
    s->block = calloc(most + 1, sizeof *s->block);
    if (s->usual && s->share && s->block && cot_route_table_open(&s->table)) return s;
    free(s->block);
    free(s->usual);
    free(s->share);
    free(s);
    return NULL;
}

void cot_route_signatures_close(cot_route_signatures *s)
{
    if (!s) return;
    cot_route_table_close(&s->table);
    free(s->block);
    free(s->usual);
    free(s->share);
    free(s);
}

static void count_usual(cot_route_signatures *s, const cot_route_calls *calls)
{
    s->weight = ALL_KEPT * s->weight + 1;
    for (size_t c = 0; c < s->cells; c++) s->usual[c] *= ALL_KEPT;
    for (uint32_t i = 0; i < calls->count; i++) s->usual[calls->cell[i]] += calls->share[i];
    for (size_t c = 0; c < s->cells; c++) s->share[c] = s->usual[c] / s->weight;
}

/* ---- blocks ---- */

static void leave_ring(cot_route_signatures *s, uint32_t number)
{
    const block *b = &s->block[number];
    s->block[b->older].newer = b->newer;
    s->block[b->newer].older = b->older;
}

/* It is the one used last. */
static void enter_ring(cot_route_signatures *s, uint32_t number)
{
    block *b = &s->block[number];
    b->newer = 0;
    b->older = s->block[0].older;
    s->block[b->older].newer = number;
    s->block[0].older = number;
}

static void stay(void *context, uint32_t node, uint32_t place)
{
    (void)context, (void)node, (void)place; // blocks know no places
}

/* The number of a block; 0: it is not known. */
static uint32_t find(const cot_route_signatures *s, uint64_t key)
{
    const cot_route_slot *slot = cot_route_table_find(&s->table, cot_route_table_key(key));
    return slot ? atomic_load_explicit(&slot->node, memory_order_relaxed) : 0;
}

static void forget(cot_route_signatures *s, uint32_t number)
{
    const cot_route_slot *slot = cot_route_table_find(&s->table, s->block[number].key);
    const cot_route_slots *slots = atomic_load_explicit(&s->table.slots, memory_order_relaxed);
    cot_route_table_remove(&s->table, (uint32_t)(slot - slots->slot));
    leave_ring(s, number);
}

/* A number for a new block, in place of the one used longest ago where there are `most`. 0: out of memory. */
static uint32_t take_number(cot_route_signatures *s)
{
    if (!cot_route_table_reserve(&s->table, NULL, stay)) return 0;
    if (s->count == s->most) {
        const uint32_t oldest = s->block[0].newer;
        forget(s, oldest);
        return oldest;
    }
    return (uint32_t)++s->count;
}

void cot_route_signatures_put(cot_route_signatures *s, const uint64_t *keys, size_t count,
                              const cot_route_calls *calls)
{
    if (!calls->count) return;
    count_usual(s, calls);
    for (size_t i = 0; i < count; i++) {
        uint32_t number = find(s, keys[i]);
        if (number) {
            block *b = &s->block[number];
            cot_route_calls_join(&b->mean, b->texts, calls);
            b->texts += b->texts < MOST_TEXTS;
            leave_ring(s, number);
        } else if ((number = take_number(s))) {
            block *b = &s->block[number];
            b->key = cot_route_table_key(keys[i]);
            b->texts = 1;
            b->mean = *calls;
            cot_route_table_insert(&s->table, b->key, number);
        }
        if (number) enter_ring(s, number);
    }
}

const cot_route_calls *cot_route_signatures_find(cot_route_signatures *s, const uint64_t *keys, size_t count)
{
    while (count) {
        const uint32_t number = find(s, keys[--count]);
        if (!number) continue;
        leave_ring(s, number);
        enter_ring(s, number);
        return &s->block[number].mean;
    }
    return NULL;
}

const float *cot_route_signatures_usual(const cot_route_signatures *s)
{
    return s->share;
}

size_t cot_route_signatures_count(const cot_route_signatures *s)
{
    return s->count;
}
