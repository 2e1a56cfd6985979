/* How much of a text each target holds. The set of whole targets shrinks along a text; by its mark only
 * the depths are sought at which it changes, by probes that are evenly spread over the intervals whose ends differ, many on
 * their way from memory at a time. */
#include "coterie/route.h"
#include "route/index.h"

#include <string.h>

enum { PROBES = 24, INTERVALS = 16, TRIES = 64 };

typedef struct probe {
    uint32_t at, mark, node;
} probe;

typedef struct interval {
    probe low, high;
} interval;

static probe read_probe(const cot_route_slots *s, const uint64_t *keys, size_t at)
{
    probe p = {.at = (uint32_t)at};
    p.mark = cot_route_table_read(s, cot_route_table_key(keys[at]), &p.node);
    return p;
}

static void fetch(const cot_route_slots *s, const uint64_t *keys, size_t at)
{
    __builtin_prefetch(cot_route_table_first(s, cot_route_table_key(keys[at])));
}

/* Copies the list of a node if it still stands for `key`. How many pairs. */
static uint32_t read_list(cot_route_index *x, uint32_t node, uint64_t key)
{
    const cot_route_node *n = cot_route_node_at(x, node);
    for (int tries = 0; tries < TRIES; tries++) {
        const uint64_t head = atomic_load_explicit(&n->head, memory_order_acquire);
        const cot_route_list list = cot_route_list_of(head);
        if (list.count > x->targets) continue;
        if (list.count == 1) {
            x->seen[0] = list.at;
        } else if (list.count) {
            const _Atomic uint32_t *from = cot_route_words_at(x, list.at);
            for (uint32_t i = 0; i < list.count; i++)
                x->seen[i] = atomic_load_explicit(from + i, memory_order_acquire);
        }
        // A list that is no longer the node's may have been written over.
        if (atomic_load_explicit(&n->key, memory_order_acquire) != key) return 0;
        if (atomic_load_explicit(&n->head, memory_order_acquire) == head) return list.count;
    }
    return 0;
}

/* Targets that hold block p.at whole hold p.at + 1 blocks. */
static void tell(cot_route_index *x, uint32_t *depth, const uint64_t *keys, probe p)
{
    const uint32_t count = read_list(x, p.node, cot_route_table_key(keys[p.at])), length = p.at + 1;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t target = cot_route_pair_target(x->seen[i]);
        if (x->seen[i] & COT_ROUTE_WHOLE && depth[target] < length) depth[target] = length;
    }
}

typedef struct search {
    cot_route_index *index;
    const cot_route_slots *slots;
    const uint64_t *keys;
    uint32_t *depth;
    interval open[INTERVALS];
    int count;
} search;

/* Two neighbouring probes: nothing changes, or it does between them. Where there is no room to remember an interval it is
 * searched at once. */
static void narrow(search *s, probe low, probe high);

static void look_into(search *s, const interval *list, int count)
{
    size_t places[PROBES];
    int each[INTERVALS], n = 0;
    const int share = PROBES / count;
    for (int i = 0; i < count; i++) {
        const size_t inside = list[i].high.at - list[i].low.at - 1;
        each[i] = inside < (size_t)share ? (int)inside : share;
        for (int p = 1; p <= each[i]; p++) {
            places[n] = list[i].low.at + (inside + 1) * (size_t)p / (size_t)(each[i] + 1);
            fetch(s->slots, s->keys, places[n++]);
        }
    }
    n = 0;
    for (int i = 0; i < count; i++) {
        probe low = list[i].low;
        for (int p = 0; p < each[i]; p++) {
            const probe next = read_probe(s->slots, s->keys, places[n++]);
            narrow(s, low, next);
            low = next;
        }
        narrow(s, low, list[i].high);
    }
}

static void narrow(search *s, probe low, probe high)
{
    if (low.mark == high.mark) return;
    const interval found = {low, high};
    if (high.at - low.at == 1)
        tell(s->index, s->depth, s->keys, low);
    else if (s->count < INTERVALS)
        s->open[s->count++] = found;
    else
        look_into(s, &found, 1);
}

void cot_route_index_match(cot_route_index *x, uint32_t *depth, const uint64_t *keys, size_t count)
{
    memset(depth, 0, x->targets * sizeof *depth);
    if (!count) return;
    search s = {.index = x, .slots = cot_route_table_enter(&x->table), .keys = keys, .depth = depth};
    fetch(s.slots, keys, count - 1);
    const probe first = read_probe(s.slots, keys, 0), last = read_probe(s.slots, keys, count - 1);
    if (last.mark) tell(x, depth, keys, last);
    narrow(&s, first, last);
    while (s.count) {
        interval list[INTERVALS];
        const int n = s.count;
        memcpy(list, s.open, (size_t)n * sizeof *list);
        s.count = 0;
        look_into(&s, list, n);
    }
    cot_route_table_leave(&x->table);
}
