/* Blocks of texts whose keys and values are in the KV cache, for requests that begin alike.
 *
 *   root (home, salt) <- node (block 0's ids, page) <- node (block 1's ids, page) <- ...
 *
 * A node is a block of `block` tokens after those of its parent, and names the page that holds its keys and values
 * together with all that stand before it in that page. Nodes are looked up by their home and the public hash of the text
 * up to them (coterie/request.h); found is one whose parent, home, salt and ids are equal themselves, so that two texts of one hash
 * are two texts. A node has a reference to its page.
 *
 * A sequence that runs holds the node of its last whole block, and so all before it. Who lets go of them lets go of the
 * last first; nodes that nobody holds stand in a list in that order, so that a node's children stand before it: the
 * oldest has none, and is evicted first. Nothing allocates but the opening and what makes a salt. */
#ifndef COT_SCHEDULE_PREFIX_H
#define COT_SCHEDULE_PREFIX_H
#include "coterie/request.h"
#include "schedule/pages.h"
#include <stddef.h>

/* Only texts of equal salts meet. Shared by requests and nodes; freed with the last. */
typedef struct cot_prefix_salt {
    int64_t references;
    size_t bytes;
    uint8_t data[];
} cot_prefix_salt;
/* A new salt, which the caller holds. NULL for no bytes; NULL and *failed where memory runs out. */
cot_prefix_salt *cot_prefix_salt_new(const void *data, size_t bytes, bool *failed);
void cot_prefix_salt_release(cot_prefix_salt *salt); // NULL is fine

typedef struct cot_prefix_node {
    int32_t parent, page;
    int32_t holders;
    int32_t older,
        newer;    // neighbours in the list of nodes that nobody holds; `older` links the free ones, too
    int32_t next; // the next node of its bucket
    int32_t home;
    int32_t snapshot; // of the states behind it; -1: there is none
    uint64_t hash;
    cot_prefix_salt *salt;
} cot_prefix_node;

/* A place for the states that all layers have behind a text, where layers have some (model/state.h). */
typedef struct cot_prefix_snapshot {
    int32_t node;         // that it is kept for; -1: none, it is free or will be written
    int32_t holders;      // that will read it
    int32_t older, newer; // neighbours in its list, by use; `older` links the free ones, too
    int8_t texts;         // that went on from it, and its own where it lies in the midst of one; 2: or more
    bool is_protected;    // which of the lists it is in
} cot_prefix_snapshot;

typedef struct cot_prefix_snapshot_list {
    int32_t oldest, newest;
} cot_prefix_snapshot_list;

/* Which snapshots stay is a segmented LRU: all that are on probation go before any that is protected. Ends of texts are protected from
 * the beginning, and so is where a text leaves one that began alike; marks on the way of a prompt when a text goes on from them. When a text that went on from a snapshot has an end of its
 * own, that snapshot and those before it are of an older turn, and on probation, but for those that two texts or more pass: a
 * beginning that conversations share. So one long prompt, or many turns, take one or two protected places. */
typedef struct cot_prefix_snapshots {
    int64_t count, kept;     // count 0: layers have no states, and blocks are enough to go on from
    cot_prefix_snapshot *of; // [count]
    int32_t free;
    cot_prefix_snapshot_list probation, protected;
    uint64_t evicted;
} cot_prefix_snapshots;

typedef enum cot_prefix_snapshot_kind {
    COT_SNAPSHOT_MARK, /* on the way of a text */
    COT_SNAPSHOT_FORK, /* on the way of a text, where blocks of another that began alike end */
    COT_SNAPSHOT_END,  /* of a prompt, or of what was generated so far */
} cot_prefix_snapshot_kind;

/* The sequence hash of a block behind the one of hash *parent; NULL: behind none. */
typedef uint64_t cot_prefix_hash(const uint64_t *parent, const int32_t *ids, size_t tokens);

typedef struct cot_prefix_cache {
    cot_page_pool *pool;
    int64_t block;         // tokens of a block, which divides a page; 0: nothing is kept
    cot_prefix_hash *hash; // the public one; a test has another
    cot_prefix_node *node; // [pages * blocks of a page]
    int32_t *ids;          // [nodes][block]
    int32_t *bucket;       // [bucket_mask + 1] the first node of each
    uint64_t bucket_mask;
    uint8_t *mark; // [pages] scratch, zero between calls
    int32_t free, oldest, newest;
    int64_t nodes; // how many there are now
    uint64_t evicted;
    cot_prefix_snapshots snapshots;
    cot_cache_events watch; // told of nodes and snapshots that come and go; all zero: nobody is
} cot_prefix_cache;

/* Errors: OUT_OF_MEMORY. Close either way, when no request holds anything. */
cot_status cot_prefix_open(cot_prefix_cache *cache, cot_page_pool *pool, int64_t block, cot_error *error);
void cot_prefix_close(cot_prefix_cache *cache);
size_t cot_prefix_bytes(int64_t pages, int64_t block); // of the tables

/* Where a text begins. */
typedef struct cot_prefix_root {
    int32_t home;
    const void *salt;
    size_t salt_bytes;
    cot_prefix_salt *
        owner; // of these bytes, to be shared by nodes that are made; may be NULL to look up, or without bytes
} cot_prefix_root;

/* The node after `parent`, -1 for none before it, with these ids; -1 if there is none. */
int32_t cot_prefix_find(const cot_prefix_cache *cache, const cot_prefix_root *root, int32_t parent,
                        const int32_t *ids);
/* The last node of the longest beginning of ids[tokens] that is there, -1 for none; *blocks are how many. */
int32_t cot_prefix_match(const cot_prefix_cache *cache, const cot_prefix_root *root, const int32_t *ids,
                         int64_t tokens, int64_t *blocks);
/* The same of what a sequence can go on from: where layers have states that is a node with a snapshot of them. */
int32_t cot_prefix_resume(const cot_prefix_cache *cache, const cot_prefix_root *root, const int32_t *ids,
                          int64_t tokens, int64_t *blocks);
/* The idle pages among those that a node and all before it name. */
int64_t cot_prefix_idle_pages(cot_prefix_cache *cache, int32_t node);
/* The node after `parent`, which the caller holds, now held as well: as it is there, or made, naming `page`. */
int32_t cot_prefix_extend(cot_prefix_cache *cache, const cot_prefix_root *root, int32_t parent,
                          const int32_t *ids, int32_t page);
/* Holds a node and all before it. */
void cot_prefix_hold(cot_prefix_cache *cache, int32_t node);
/* Lets go of a node and all before it. -1 is fine. */
void cot_prefix_let_go(cot_prefix_cache *cache, int32_t node);
/* Drops the oldest node that nobody holds. There must be one. */
void cot_prefix_evict(cot_prefix_cache *cache);

/* Snapshots, so many of them, of a cache that was opened. Errors: OUT_OF_MEMORY. The cache closes them. */
cot_status cot_prefix_open_snapshots(cot_prefix_cache *cache, int64_t count, cot_error *error);
size_t cot_prefix_snapshot_bytes(int64_t count); // of the table
/* A place that will be written: a free one, else that of the snapshot on probation that was used longest ago, else, where it may be, that
 * of such a protected one. -1: there is none, or all are held. It is kept for a node, or dropped. */
int32_t cot_prefix_take_snapshot(cot_prefix_cache *cache, bool may_be_protected);
/* What was written there is what the node's text leaves; where the node has one already, it is dropped, and the other protected for it. */
void cot_prefix_keep_snapshot(cot_prefix_cache *cache, int32_t snapshot, int32_t node,
                              cot_prefix_snapshot_kind kind);
void cot_prefix_drop_snapshot(cot_prefix_cache *cache, int32_t snapshot);
/* Those of a node and all before it, -1 for none, are of older turns: a text that went on from there has an end of its own. */
void cot_prefix_supersede_snapshots(cot_prefix_cache *cache, int32_t node);
/* That of a node that has one, for a text that goes on from it: it is not written until it is let go. */
int32_t cot_prefix_hold_snapshot(cot_prefix_cache *cache, int32_t node);
void cot_prefix_let_go_of_snapshot(cot_prefix_cache *cache, int32_t snapshot);

/* Tells on_state_stored of a node that has a snapshot. */
void cot_prefix_tell_state(const cot_prefix_cache *cache, const cot_cache_events *events, int32_t node);
/* Tells on_stored of every node, parents before their children, and on_state_stored of those that have a snapshot. Errors: OUT_OF_MEMORY,
 * before anything is told. */
cot_status cot_prefix_list(const cot_prefix_cache *cache, const cot_cache_events *events, cot_error *error);

#endif
