#include "route/index.h"

#include "base/error.h"
#include "base/integers.h"
#include "coterie/route.h"

#include <assert.h>
#include <stdlib.h>

enum { NODES = 1 << COT_ROUTE_NODE_BITS, WORDS = 1 << COT_ROUTE_WORD_BITS, AHEAD = 8 };

cot_status cot_route_index_open(cot_route_index **index, size_t targets, cot_error *error)
{
    *index = NULL;
    if (!targets || targets > COT_ROUTE_MOST_TARGETS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "an index of %zu targets: 1 to %d are possible", targets,
                        COT_ROUTE_MOST_TARGETS);
    cot_route_index *x = calloc(1, sizeof *x);
    if (x) {
        x->targets = targets;
        x->node_end = 1; // 0 is the root
        x->set_words = (uint32_t)cot_divide_up((int64_t)targets, 32);
        x->seen = calloc(targets, sizeof *x->seen);
        x->placed = calloc(x->set_words, sizeof *x->placed);
        atomic_init(&x->nodes[0], calloc(NODES, sizeof(cot_route_node)));
        if (cot_route_table_open(&x->table) && cot_route_table_open(&x->crowds) && x->seen && x->placed &&
            atomic_load(&x->nodes[0])) {
            *index = x;
            return COT_OK;
        }
    }
    cot_route_index_close(x);
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an index of %zu targets", targets);
}

void cot_route_index_close(cot_route_index *x)
{
    if (!x) return;
    for (size_t s = 0; s < COT_ROUTE_SEGMENTS; s++) {
        free(atomic_load(&x->nodes[s]));
        free((void *)atomic_load(&x->words[s]));
    }
    cot_route_table_close(&x->table);
    cot_route_table_close(&x->crowds);
    free(x->seen);
    free(x->placed);
    free(x);
}

void cot_route_index_measure(const cot_route_index *x, cot_route_index_figures *figures)
{
    uint64_t bytes = sizeof *x + (x->targets + x->set_words) * sizeof *x->seen +
                     cot_route_table_bytes(&x->table) + cot_route_table_bytes(&x->crowds);
    for (size_t s = 0; s < COT_ROUTE_SEGMENTS; s++) {
        if (atomic_load(&x->nodes[s])) bytes += NODES * sizeof(cot_route_node);
        if (atomic_load(&x->words[s])) bytes += WORDS * sizeof(uint32_t);
    }
    *figures = (cot_route_index_figures){x->blocks, x->pairs, bytes};
}

/* ---- words ---- */

static uint32_t get(const _Atomic uint32_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static void set(_Atomic uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

/* Of a list of so many pairs, and its set where it is wide. */
static int class_of(const cot_route_index *x, uint32_t count)
{
    const uint32_t words = count + (cot_route_is_wide(x, count) ? x->set_words : 0);
    int class = 0;
    while (1u << class < words) class ++;
    return class;
}

static void give(cot_route_index *x, uint32_t at, int class)
{
    set(cot_route_words_at(x, at), x->free_list[class]);
    x->free_list[class] = at;
}

/* Room for one more list of a class. False: out of memory. */
static bool carve(cot_route_index *x, int class)
{
    const uint64_t size = 1u << class;
    uint64_t at = x->word_end ? x->word_end : 1; // at 0 there is no list
    if (at % WORDS + size > WORDS) at = (at / WORDS + 1) * WORDS;
    const size_t segment = (size_t)(at / WORDS);
    if (segment >= COT_ROUTE_SEGMENTS) return false;
    if (!atomic_load_explicit(&x->words[segment], memory_order_relaxed)) {
        _Atomic uint32_t *words = calloc(WORDS, sizeof *words);
        if (!words) return false;
        atomic_store_explicit(&x->words[segment], words, memory_order_release);
    }
    give(x, (uint32_t)at, class);
    x->word_end = at + size;
    return true;
}

static uint32_t after_free(const cot_route_index *x, uint32_t list)
{
    return list ? get(cot_route_words_at(x, list)) : 0;
}

/* Makes sure that a list can grow to so many pairs. One free list of each class stays behind, so that lists can shrink whatever
 * memory there is. */
static bool reserve_words(cot_route_index *x, uint32_t count)
{
    const int class = class_of(x, count);
    if (count < 2) return true;
    while (!after_free(x, x->free_list[class]))
        if (!carve(x, class)) return false;
    return true;
}

static uint32_t take_words(cot_route_index *x, uint32_t count)
{
    const int class = class_of(x, count);
    const uint32_t list = x->free_list[class];
    assert(list);
    x->free_list[class] = after_free(x, list);
    return list;
}

static void give_words(cot_route_index *x, cot_route_list list)
{
    if (list.count > 1) give(x, list.at, class_of(x, list.count));
}

/* ---- lists ---- */

static uint64_t head_of(const cot_route_node *n)
{
    return atomic_load_explicit(&n->head, memory_order_relaxed);
}

static void publish(cot_route_node *n, uint32_t at, uint32_t count)
{
    const uint64_t tag = (head_of(n) >> COT_ROUTE_COUNT_BITS) + 1;
    atomic_store_explicit(&n->head, (uint64_t)at << 32 | (uint32_t)(tag << COT_ROUTE_COUNT_BITS) | count,
                          memory_order_release);
}

/* The pairs of a list of two or more. */
static _Atomic uint32_t *pairs_of(const cot_route_index *x, cot_route_list list)
{
    return cot_route_words_at(x, list.at) + (cot_route_is_wide(x, list.count) ? x->set_words : 0);
}

static uint32_t pair_at(const cot_route_index *x, cot_route_list list, uint32_t i)
{
    return list.count == 1 ? list.at : get(pairs_of(x, list) + i);
}

/* The first place whose target is not less. */
static uint32_t place_of(const cot_route_index *x, cot_route_list list, size_t target)
{
    uint32_t low = 0, high = list.count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (cot_route_pair_target(pair_at(x, list, middle)) < target)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The target's pair in a node; 0: none (a pair has at least HELD or CHILDREN). */
static uint32_t pair_of(const cot_route_index *x, const cot_route_node *n, size_t target)
{
    const cot_route_list list = cot_route_list_of(head_of(n));
    const uint32_t i = place_of(x, list, target);
    if (i == list.count) return 0;
    const uint32_t pair = pair_at(x, list, i);
    return cot_route_pair_target(pair) == target ? pair : 0;
}

/* Writes a pair over the one of the same target. */
static void write_pair(cot_route_index *x, cot_route_node *n, uint32_t pair)
{
    const cot_route_list list = cot_route_list_of(head_of(n));
    const uint32_t target = cot_route_pair_target(pair), bit = 1u << target % 32;
    if (list.count == 1) {
        publish(n, pair, 1);
        return;
    }
    set(pairs_of(x, list) + place_of(x, list, target), pair);
    if (!cot_route_is_wide(x, list.count)) return;
    _Atomic uint32_t *word = cot_route_words_at(x, list.at) + target / 32;
    set(word, pair & COT_ROUTE_WHOLE ? get(word) | bit : get(word) & ~bit);
}

/* The set before a wide list's pairs: `from`, or of the pairs. */
static void write_set(cot_route_index *x, cot_route_list list, const _Atomic uint32_t *from)
{
    _Atomic uint32_t *to = cot_route_words_at(x, list.at), *pairs = pairs_of(x, list);
    for (uint32_t i = 0; i < x->set_words; i++) set(to + i, from ? get(from + i) : 0);
    for (uint32_t i = 0; !from && i < list.count; i++) {
        const uint32_t pair = get(pairs + i), target = cot_route_pair_target(pair);
        if (pair & COT_ROUTE_WHOLE) set(to + target / 32, get(to + target / 32) | 1u << target % 32);
    }
}

/* Whether a list changes where it is when its count does: the reader reads no pair of a wide one. */
static bool stays(const cot_route_index *x, uint32_t from, uint32_t to)
{
    return cot_route_is_wide(x, from) && cot_route_is_wide(x, to) && class_of(x, from) == class_of(x, to);
}

/* A pair of a target that has none, not whole. */
static bool insert_pair(cot_route_index *x, cot_route_node *n, uint32_t pair)
{
    const cot_route_list list = cot_route_list_of(head_of(n));
    cot_route_list more = {list.count ? list.at : pair, list.count + 1};
    const uint32_t place = place_of(x, list, cot_route_pair_target(pair));
    const bool same = stays(x, list.count, more.count);
    if (!same && !reserve_words(x, more.count)) return false;
    if (list.count) {
        if (!same) more.at = take_words(x, more.count);
        _Atomic uint32_t *to = pairs_of(x, more);
        for (uint32_t i = list.count; i > place; i--) set(to + i, pair_at(x, list, i - 1));
        set(to + place, pair);
        for (uint32_t i = 0; !same && i < place; i++) set(to + i, pair_at(x, list, i));
        if (!same && cot_route_is_wide(x, more.count))
            write_set(x, more, cot_route_is_wide(x, list.count) ? cot_route_words_at(x, list.at) : NULL);
    }
    publish(n, more.at, more.count);
    if (!same) give_words(x, list);
    x->pairs++;
    return true;
}

/* Of a target that is not whole. */
static void remove_pair(cot_route_index *x, cot_route_node *n, size_t target)
{
    const cot_route_list list = cot_route_list_of(head_of(n));
    cot_route_list left = {0, list.count - 1};
    const uint32_t place = place_of(x, list, target);
    const bool same = stays(x, list.count, left.count);
    if (left.count == 1) {
        left.at = pair_at(x, list, !place);
    } else if (left.count) {
        left.at = same ? list.at : take_words(x, left.count);
        _Atomic uint32_t *to = pairs_of(x, left);
        for (uint32_t i = 0; !same && i < place; i++) set(to + i, pair_at(x, list, i));
        for (uint32_t i = place; i < left.count; i++) set(to + i, pair_at(x, list, i + 1));
        if (!same && cot_route_is_wide(x, left.count)) write_set(x, left, cot_route_words_at(x, list.at));
    }
    publish(n, left.at, left.count);
    x->pairs--;
    if (same) return;
    const int had = class_of(x, list.count), has = class_of(x, left.count);
    if (left.count < 2 || has == had || x->free_list[has]) {
        give_words(x, list);
        return;
    }
    // In parts, so that the smaller class has a free one again.
    for (uint32_t part = 0; part < 1u << (had - has); part++) give(x, list.at + (part << has), has);
}

/* ---- nodes ---- */

static cot_route_slot *slot_of(const cot_route_index *x, const cot_route_node *n)
{
    return &atomic_load_explicit(&x->table.slots, memory_order_relaxed)->slot[n->place];
}

static void moved(void *context, uint32_t node, uint32_t place)
{
    cot_route_node_at(context, node)->place = place;
}

/* A node below `parent` with one pair. 0: out of memory. */
static uint32_t add_node(cot_route_index *x, uint64_t key, uint32_t parent, uint32_t pair)
{
    if (!cot_route_table_reserve(&x->table, x, moved)) return 0;
    uint32_t node = x->free_node;
    if (!node) {
        const size_t segment = x->node_end >> COT_ROUTE_NODE_BITS;
        if (segment >= COT_ROUTE_SEGMENTS) return 0;
        if (!atomic_load_explicit(&x->nodes[segment], memory_order_relaxed)) {
            cot_route_node *fresh = calloc(NODES, sizeof *fresh);
            if (!fresh) return 0;
            atomic_store_explicit(&x->nodes[segment], fresh, memory_order_release);
        }
        node = x->node_end++;
    }
    cot_route_node *n = cot_route_node_at(x, node), *above = cot_route_node_at(x, parent);
    if (x->free_node) x->free_node = n->next;
    n->parent = parent;
    n->child = n->previous = n->whole = n->sum = 0;
    n->next = above->child;
    if (n->next) cot_route_node_at(x, n->next)->previous = node;
    above->child = node;
    atomic_store_explicit(&n->key, key, memory_order_release);
    insert_pair(x, n, pair); // a first one needs no memory
    n->place = cot_route_table_insert(&x->table, key, node);
    x->blocks++;
    return node;
}

/* One without pairs: then there is none below it either. */
static void drop_node(cot_route_index *x, uint32_t node)
{
    cot_route_node *n = cot_route_node_at(x, node);
    assert(!n->child);
    cot_route_table_remove(&x->table, n->place);
    atomic_store_explicit(&n->key, COT_ROUTE_EMPTY, memory_order_release);
    if (n->next) cot_route_node_at(x, n->next)->previous = n->previous;
    if (n->previous)
        cot_route_node_at(x, n->previous)->next = n->next;
    else
        cot_route_node_at(x, n->parent)->child = n->next;
    n->next = x->free_node;
    x->free_node = node;
    x->blocks--;
}

/* The first of siblings from `node` on in which the target has a pair; 0: none. */
static uint32_t with_pair(const cot_route_index *x, uint32_t node, size_t target)
{
    while (node) {
        const cot_route_node *n = cot_route_node_at(x, node);
        if (pair_of(x, n, target)) break;
        node = n->next;
    }
    return node;
}

static void set_whole(cot_route_index *x, cot_route_node *n, uint32_t pair, bool whole)
{
    const uint32_t number = (uint32_t)cot_mix64(cot_route_pair_target(pair));
    write_pair(x, n, whole ? pair | COT_ROUTE_WHOLE : pair & ~COT_ROUTE_WHOLE);
    n->whole += whole ? 1 : UINT32_MAX;
    n->sum += whole ? number : -number;
    set(&slot_of(x, n)->mark, n->sum ? n->sum : n->whole);
}

/* The target's blocks below a node follow it: those held without a gap from it on become whole, or no longer are. */
static void spread(cot_route_index *x, uint32_t top, size_t target, bool whole)
{
    uint32_t node = with_pair(x, cot_route_node_at(x, top)->child, target);
    while (node && node != top) {
        cot_route_node *n = cot_route_node_at(x, node);
        const uint32_t pair = pair_of(x, n, target);
        uint32_t to = 0;
        if (pair & COT_ROUTE_HELD) {
            set_whole(x, n, pair, whole);
            if (pair & COT_ROUTE_CHILDREN) to = with_pair(x, n->child, target);
        }
        while (!to && node != top) {
            to = with_pair(x, n->next, target);
            if (to) break;
            node = n->parent;
            n = cot_route_node_at(x, node);
        }
        if (to) node = to;
    }
}

static uint64_t crowd_key(uint32_t node, size_t target)
{
    return cot_route_table_key(cot_mix64((uint64_t)node << 16 | target));
}

static void stay(void *context, uint32_t node, uint32_t place)
{
    (void)context, (void)node, (void)place; // counts know no places
}

static cot_route_slot *crowd_of(const cot_route_index *x, uint32_t node, size_t target)
{
    return cot_route_table_find(&x->crowds, crowd_key(node, target));
}

static void drop_crowd(cot_route_index *x, const cot_route_slot *slot)
{
    const cot_route_slots *slots = atomic_load_explicit(&x->crowds.slots, memory_order_relaxed);
    if (slot) cot_route_table_remove(&x->crowds, (uint32_t)(slot - slots->slot));
}

/* One node below more or less, of COT_ROUTE_CHILDREN and more. Room for one more crowd was reserved. False: there are just as many. */
static bool change_crowd(cot_route_index *x, uint32_t node, size_t target, int more)
{
    cot_route_slot *slot = crowd_of(x, node, target);
    if (!slot && more < 0) return false;
    if (!slot)
        cot_route_table_insert(&x->crowds, crowd_key(node, target), 1);
    else if (more > 0 || get(&slot->node) > 1)
        set(&slot->node, get(&slot->node) + (more > 0 ? 1 : UINT32_MAX));
    else
        drop_crowd(x, slot);
    return true;
}

/* One node below more or less has a pair of the target. */
static void count_child(cot_route_index *x, uint32_t node, size_t target, int more)
{
    if (!node) return;
    cot_route_node *n = cot_route_node_at(x, node);
    const uint32_t pair = pair_of(x, n, target);
    const bool crowded = (pair & COT_ROUTE_CHILDREN) == COT_ROUTE_CHILDREN;
    if (!crowded || !change_crowd(x, node, target, more)) write_pair(x, n, more > 0 ? pair + 1 : pair - 1);
}

/* Takes the target's pairs away that stand for nothing, from a node upwards, and nodes that are left without pairs. */
static void tidy(cot_route_index *x, uint32_t node, size_t target)
{
    while (node) {
        cot_route_node *n = cot_route_node_at(x, node);
        if (pair_of(x, n, target) & (COT_ROUTE_HELD | COT_ROUTE_CHILDREN)) return;
        const uint32_t parent = n->parent;
        remove_pair(x, n, target);
        if (!cot_route_list_of(head_of(n)).count) drop_node(x, node);
        count_child(x, parent, target, -1);
        node = parent;
    }
}

/* ---- changes ---- */

static uint32_t find(const cot_route_index *x, uint64_t key)
{
    const cot_route_slot *slot = cot_route_table_find(&x->table, cot_route_table_key(key));
    return slot ? get(&slot->node) : 0;
}

static void fetch(const cot_route_index *x, uint64_t key)
{
    __builtin_prefetch(cot_route_table_first(atomic_load_explicit(&x->table.slots, memory_order_relaxed),
                                             cot_route_table_key(key)));
}

size_t cot_route_index_path(const cot_route_index *x, uint64_t key, uint64_t *keys, size_t most)
{
    const uint32_t deepest = find(x, key);
    const size_t first = most / 2, last = most - first;
    size_t count = 0, depth = 0, at = 0;
    for (uint32_t node = deepest; node; node = cot_route_node_at(x, node)->parent) depth++;
    for (uint32_t node = deepest; node; node = cot_route_node_at(x, node)->parent, at++)
        if (at < last || at + first >= depth)
            keys[count++] = atomic_load_explicit(&cot_route_node_at(x, node)->key, memory_order_relaxed);
    return count;
}

bool cot_route_index_holds(const cot_route_index *x, size_t target, uint64_t key)
{
    const uint32_t node = find(x, key);
    return node && pair_of(x, cot_route_node_at(x, node), target) & COT_ROUTE_HELD;
}

/* Block `key` behind node `parent`, which the target holds. Its node; 0: out of memory, or *collided. */
static uint32_t store(cot_route_index *x, size_t target, uint32_t parent, uint64_t key, bool *again,
                      bool *collided)
{
    const uint32_t node = find(x, key);
    if (!cot_route_table_reserve(&x->crowds, NULL, stay)) return 0;
    const bool whole = !parent || pair_of(x, cot_route_node_at(x, parent), target) & COT_ROUTE_WHOLE;
    const uint32_t fresh = (uint32_t)target << 16 | COT_ROUTE_HELD;
    if (!node) {
        const uint32_t added = add_node(x, cot_route_table_key(key), parent, fresh);
        if (!added) return 0;
        if (whole) set_whole(x, cot_route_node_at(x, added), fresh, true);
        count_child(x, parent, target, 1);
        return added;
    }
    cot_route_node *n = cot_route_node_at(x, node);
    const uint32_t pair = pair_of(x, n, target);
    *collided = n->parent != parent;
    *again = pair & COT_ROUTE_HELD;
    if (*collided) return 0;
    if (*again) return node;
    if (pair) {
        write_pair(x, n, pair | COT_ROUTE_HELD);
    } else {
        if (!insert_pair(x, n, fresh)) return 0;
        count_child(x, parent, target, 1);
    }
    if (whole) {
        set_whole(x, n, pair | fresh, true);
        if (pair & COT_ROUTE_CHILDREN) spread(x, node, target, true);
    }
    return node;
}

cot_status cot_route_index_store(cot_route_index *x, size_t target, const uint64_t *parent,
                                 const uint64_t *keys, size_t count, cot_route_stored *stored)
{
    assert(target < x->targets);
    uint32_t behind = parent ? find(x, *parent) : 0;
    if (parent && !(behind && pair_of(x, cot_route_node_at(x, behind), target) & COT_ROUTE_HELD)) {
        stored->unknown_parent += count;
        return COT_OK;
    }
    for (size_t i = 0; i < count && i < AHEAD; i++) fetch(x, keys[i]);
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) fetch(x, keys[i + AHEAD]);
        bool again = false, collided = false;
        const uint32_t node = store(x, target, behind, keys[i], &again, &collided);
        if (collided) {
            stored->collided += count - i;
            return COT_OK;
        }
        if (!node) return COT_OUT_OF_MEMORY;
        stored->again += again;
        stored->stored += !again;
        behind = node;
    }
    return COT_OK;
}

size_t cot_route_index_remove(cot_route_index *x, size_t target, const uint64_t *keys, size_t count)
{
    assert(target < x->targets);
    size_t removed = 0;
    for (size_t i = 0; i < count && i < AHEAD; i++) fetch(x, keys[i]);
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) fetch(x, keys[i + AHEAD]);
        const uint32_t node = find(x, keys[i]);
        if (!node) continue;
        cot_route_node *n = cot_route_node_at(x, node);
        const uint32_t pair = pair_of(x, n, target);
        if (!(pair & COT_ROUTE_HELD)) continue;
        removed++;
        if (pair & COT_ROUTE_WHOLE) {
            set_whole(x, n, pair, false);
            if (pair & COT_ROUTE_CHILDREN) spread(x, node, target, false);
        }
        write_pair(x, n, pair & ~(COT_ROUTE_HELD | COT_ROUTE_WHOLE));
        tidy(x, node, target);
    }
    return removed;
}

/* From the leaves upwards, each node when nothing of the target is left below it. */
void cot_route_index_clear(cot_route_index *x, size_t target)
{
    assert(target < x->targets);
    uint32_t node = with_pair(x, cot_route_node_at(x, 0)->child, target);
    while (node) {
        cot_route_node *n = cot_route_node_at(x, node);
        for (uint32_t below; (below = with_pair(x, n->child, target)); n = cot_route_node_at(x, node))
            node = below;
        const uint32_t next = with_pair(x, n->next, target), parent = n->parent;
        const uint32_t pair = pair_of(x, n, target);
        if (pair & COT_ROUTE_WHOLE) set_whole(x, n, pair, false);
        if ((pair & COT_ROUTE_CHILDREN) == COT_ROUTE_CHILDREN) drop_crowd(x, crowd_of(x, node, target));
        // Its parent is not tidied with it: it stays until its own turn comes.
        remove_pair(x, n, target);
        if (!cot_route_list_of(head_of(n)).count) drop_node(x, node);
        node = next ? next : parent;
    }
}
