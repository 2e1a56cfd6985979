#include "route/signatures.h"

#include "route/calls.h"
#include "route/table.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_TEXTS = 64, // that a mean is of: older ones count less
    FEW_TEXTS = 32   // of fewer what was told is no better than what was foretold
};
static const float ALL_KEPT = 1 - 1.0f / 1024;

/* A block; all stand in a ring, the one used longest ago behind `ends`. */
typedef struct block {
    uint64_t key;
    uint32_t older, newer; // of the ring
    uint32_t texts;        // that the mean is of, MOST_TEXTS at most
    cot_route_calls mean;
} block;

/* A mean over texts, old ones counting less. */
typedef struct mean_calls {
    uint64_t texts;
    float *sum, weight; // [cells] of shares; of what each text counts
    float *share;       // [cells] sum / weight
} mean_calls;

struct cot_route_signatures {
    cot_route_table table; // from a block's key to its number
    block *block;          // [most + 1]; 0 is the ring's end
    size_t count, most, cells;
    mean_calls told, foretold;
};

static bool open_mean(mean_calls *mean, size_t cells)
{
    mean->sum = calloc(cells, sizeof *mean->sum);
    mean->share = calloc(cells, sizeof *mean->share);
    return mean->sum && mean->share;
}

static void free_memory(cot_route_signatures *s)
{
    free(s->block);
    free(s->told.sum);
    free(s->told.share);
    free(s->foretold.sum);
    free(s->foretold.share);
    free(s);
}

cot_route_signatures *cot_route_signatures_open(size_t most, size_t cells)
{
    cot_route_signatures *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->most = most;
    s->cells = cells;
    s->block = calloc(most + 1, sizeof *s->block);
    const bool means = open_mean(&s->told, cells) & open_mean(&s->foretold, cells);
    if (means && s->block && cot_route_table_open(&s->table)) return s;
    free_memory(s);
    return NULL;
}

void cot_route_signatures_close(cot_route_signatures *s)
{
    if (!s) return;
    cot_route_table_close(&s->table);
    free_memory(s);
}

static void count_text(mean_calls *mean, size_t cells, const cot_route_calls *calls)
{
    mean->texts++;
    mean->weight = ALL_KEPT * mean->weight + 1;
    for (size_t c = 0; c < cells; c++) mean->sum[c] *= ALL_KEPT;
    for (uint32_t i = 0; i < calls->count; i++) mean->sum[calls->cell[i]] += calls->share[i];
    for (size_t c = 0; c < cells; c++) mean->share[c] = mean->sum[c] / mean->weight;
}

void cot_route_signatures_foretell(cot_route_signatures *s, const cot_route_calls *calls)
{
    count_text(&s->foretold, s->cells, calls);
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
    count_text(&s->told, s->cells, calls);
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
    return s->told.texts < FEW_TEXTS && s->foretold.texts ? s->foretold.share : s->told.share;
}

size_t cot_route_signatures_count(const cot_route_signatures *s)
{
    return s->count;
}
