/* How much of a text each target holds. The set of whole targets shrinks along a text; by its mark only
 * the depths are sought at which it changes, by probes that are evenly spread over the intervals whose ends differ, many on
 * their way from memory at a time. */
#include "coterie/route.h"
#include "route/index.h"

#include <string.h>

enum { PROBES = 4, INTERVALS = 32, ENDS = 32, TRIES = 64 };

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

/* Copies the list of a node if it still stands for `key`, of a wide one its set. How many pairs the list has. */
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
            const uint32_t words = cot_route_is_wide(x, list.count) ? x->set_words : list.count;
            for (uint32_t i = 0; i < words; i++)
                x->seen[i] = atomic_load_explicit(from + i, memory_order_acquire);
        }
        // A list that is no longer the node's may have been written over.
        if (atomic_load_explicit(&n->key, memory_order_acquire) != key) return 0;
        if (atomic_load_explicit(&n->head, memory_order_acquire) == head) return list.count;
    }
    return 0;
}

typedef struct search {
    cot_route_index *index;
    const cot_route_slots *slots;
    const uint64_t *keys;
    uint32_t *depth;
    interval open[INTERVALS];
    int count;
    probe end
        [ENDS]; // places behind which the set is another, the last first, their nodes on the way from memory
    int ends;
} search;

static void fetch_list(const cot_route_index *x, uint32_t node)
{
    const cot_route_list list =
        cot_route_list_of(atomic_load_explicit(&cot_route_node_at(x, node)->head, memory_order_relaxed));
    if (list.count > 1) __builtin_prefetch((const void *)cot_route_words_at(x, list.at));
}

/* The targets that are whole at a place hold all blocks up to it, unless they were placed behind it. */
static void place_targets(search *s, probe p)
{
    cot_route_index *x = s->index;
    const uint32_t count = read_list(x, p.node, cot_route_table_key(s->keys[p.at])), length = p.at + 1;
    if (cot_route_is_wide(x, count)) {
        for (uint32_t w = 0; w < x->set_words; w++) {
            uint32_t fresh = x->seen[w] & ~x->placed[w];
            x->placed[w] |= fresh;
            for (; fresh; fresh &= fresh - 1) {
                uint32_t *depth = &s->depth[32 * w + (uint32_t)__builtin_ctz(fresh)];
                if (*depth < length) *depth = length;
            }
        }
        return;
    }
    for (uint32_t k = 0; k < count; k++) {
        const uint32_t target = cot_route_pair_target(x->seen[k]);
        if (!(x->seen[k] & COT_ROUTE_WHOLE)) continue;
        x->placed[target / 32] |= 1u << target % 32;
        if (s->depth[target] < length) s->depth[target] = length;
    }
}

/* From the last place to the first: most targets are in many of the sets, and placed once. */
static void tell(search *s)
{
    cot_route_index *x = s->index;
    for (int i = 0; i < s->ends; i++) fetch_list(x, s->end[i].node);
    memset(x->placed, 0, x->set_words * sizeof *x->placed);
    for (int i = 0; i < s->ends; i++) place_targets(s, s->end[i]);
    s->ends = 0;
}

static void add_end(search *s, probe p)
{
    if (!p.mark) return;
    if (s->ends == ENDS) tell(s);
    __builtin_prefetch(cot_route_node_at(s->index, p.node));
    int i = s->ends++;
    for (; i && s->end[i - 1].at < p.at; i--) s->end[i] = s->end[i - 1];
    s->end[i] = p;
}

/* Two neighbouring probes: nothing changes, or it does between them. Where there is no room to remember an interval it is
 * searched at once. */
static void narrow(search *s, probe low, probe high);

static void look_into(search *s, const interval *list, int count)
{
    size_t places[PROBES + INTERVALS];
    int each[INTERVALS], n = 0;
    const int share = count < PROBES ? PROBES / count : 1;
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
        add_end(s, low);
    else if (s->count < INTERVALS)
        s->open[s->count++] = found;
    else
        look_into(s, &found, 1);
}

/* Probes from the first block to the last. */
static void look_over(search *s, size_t count)
{
    const size_t n = count < PROBES ? count : PROBES, steps = n > 1 ? n - 1 : 1;
    for (size_t p = 0; p < n; p++) fetch(s->slots, s->keys, (count - 1) * p / steps);
    probe low = read_probe(s->slots, s->keys, 0);
    for (size_t p = 1; p < n && low.mark; p++) {
        const probe next = read_probe(s->slots, s->keys, (count - 1) * p / steps);
        narrow(s, low, next);
        low = next;
    }
    add_end(s, low);
}

void cot_route_index_match(cot_route_index *x, uint32_t *depth, const uint64_t *keys, size_t count)
{
    memset(depth, 0, x->targets * sizeof *depth);
    if (!count) return;
    search s = {.index = x, .slots = cot_route_table_enter(&x->table), .keys = keys, .depth = depth};
    look_over(&s, count);
    while (s.count) {
        interval list[INTERVALS];
        const int n = s.count;
        memcpy(list, s.open, (size_t)n * sizeof *list);
        s.count = 0;
        look_into(&s, list, n);
    }
    tell(&s);
    cot_route_table_leave(&x->table);
}
