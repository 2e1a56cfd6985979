/* The tree of blocks behind cot_route_index: a node a block, under the block before it, with a list of the targets that have to
 * do with it. Node 0 is the root, before all texts.
 *
 * A target has a pair in a node while it holds the block, or any block below. It is whole where it holds all blocks before, too:
 * along a text each set of whole targets is part of the one before. A set's mark is a sum of random numbers of its targets: two
 * places with equal marks have equal sets (but for one pair in 2^32), whatever changed while one was read after the other.
 *
 * The reader meets nodes and lists by number: their memory is reused but never given back, and each change of a list's members
 * makes a new list, or changes in place pairs that the reader does not read, and publishes it by one store. */
#ifndef COT_ROUTE_INDEX_H
#define COT_ROUTE_INDEX_H
#include "coterie/route.h"
#include "route/table.h"

enum {
    COT_ROUTE_NODE_BITS = 14,
    COT_ROUTE_WORD_BITS = 17, // no list is longer
    COT_ROUTE_SEGMENTS = 1 << 14,
    COT_ROUTE_LIST_CLASSES = 18 // lists have room for 2^class pairs
};

/* A pair: the target, whether it holds the block, whether it holds all before too, how many nodes below have a pair of it. */
#define COT_ROUTE_HELD 0x8000u
#define COT_ROUTE_WHOLE 0x4000u
#define COT_ROUTE_CHILDREN 0x3fffu // so many, or more: then index->crowds counts those beyond
static inline uint32_t cot_route_pair_target(uint32_t pair)
{
    return pair >> 16;
}

/* A list of pairs by rising target: where it is (a single pair stands there itself), how many, and a tag that each change of its
 * members raises. A list of more pairs than a set of all targets has words is wide: before its pairs stands the set of whole targets, a bit
 * each, and the reader reads no pair of it. */
typedef struct cot_route_list {
    uint32_t at, count;
} cot_route_list;
enum { COT_ROUTE_COUNT_BITS = 17 };
static inline cot_route_list cot_route_list_of(uint64_t head)
{
    return (cot_route_list){(uint32_t)(head >> 32), (uint32_t)head & ((1u << COT_ROUTE_COUNT_BITS) - 1)};
}

typedef struct cot_route_node {
    _Atomic uint64_t key, head;
    uint32_t parent, child, next, previous; // child: the first; next and previous of the same parent; 0: none
    uint32_t place;                         // in the table
    uint32_t whole, sum;                    // targets that are whole: how many, and their numbers' sum
} cot_route_node;

struct cot_route_index {
    cot_route_table table;
    cot_route_table
        crowds; // of pairs with COT_ROUTE_CHILDREN nodes below them and more: how many more, from 1 on
    size_t targets;
    _Atomic(cot_route_node *) nodes[COT_ROUTE_SEGMENTS];
    _Atomic(_Atomic uint32_t *) words[COT_ROUTE_SEGMENTS];
    uint32_t node_end, free_node; // never used from here on; the first that can be used again
    uint64_t word_end;            // likewise of words
    uint32_t free_list[COT_ROUTE_LIST_CLASSES];
    uint32_t set_words;      // of a set of targets
    uint32_t *seen, *placed; // the reader's: a copy of a list [targets]; a set of targets [set_words]
    uint64_t blocks, pairs;
};

static inline cot_route_node *cot_route_node_at(const cot_route_index *index, uint32_t node)
{
    return atomic_load_explicit(&index->nodes[node >> COT_ROUTE_NODE_BITS], memory_order_acquire) +
           (node & ((1u << COT_ROUTE_NODE_BITS) - 1));
}

static inline _Atomic uint32_t *cot_route_words_at(const cot_route_index *index, uint32_t at)
{
    return atomic_load_explicit(&index->words[at >> COT_ROUTE_WORD_BITS], memory_order_acquire) +
           (at & ((1u << COT_ROUTE_WORD_BITS) - 1));
}

static inline bool cot_route_is_wide(const cot_route_index *index, uint32_t count)
{
    return count > 1 && count > index->set_words;
}

#endif
