/* One target's blocks in an index, kept true by the numbered batches of KV events that its engine publishes, of which any may be
 * lost, come twice or late. Batches are applied in the order of their numbers. When one is missing the live ones behind it wait
 * until a replay or a snapshot is applied; where neither closes the gap in 10 s, or a batch cannot be read, what the target
 * holds is no longer known: it is forgotten, and what comes then counts. */
#ifndef COT_ROUTE_FEED_H
#define COT_ROUTE_FEED_H
#include "coterie/route.h"

#define COT_ROUTE_GAP_NS INT64_C(10000000000)
#define COT_ROUTE_ASSUMED_NS INT64_C(120000000000)    // what a target does not tell of
#define COT_ROUTE_ASSUMED_TOLD_NS INT64_C(2000000000) // what it would tell of
/* Behind a gap. */
enum { COT_ROUTE_MOST_WAITING_BYTES = 64 << 20, COT_ROUTE_MOST_WAITING = 1 << 14 };

typedef struct cot_route_feed cot_route_feed;

typedef enum cot_route_wants {
    COT_ROUTE_WANTS_NOTHING,
    COT_ROUTE_WANTS_REPLAY,   // from a number on
    COT_ROUTE_WANTS_SNAPSHOT, // of an engine that has such
} cot_route_wants;

typedef struct cot_route_feed_figures {
    uint64_t batches, passed_over; // applied; passed over since they were applied before, in a snapshot say
    uint64_t gaps, restarts;
    uint64_t forgotten;                                        // times that all was forgotten
    uint64_t unread;                                           // batches that could not be read
    uint64_t unknown_events;                                   // of kinds that are not known, passed over
    uint64_t stored, removed;                                  // blocks
    uint64_t unknown_parent, collided, wrong_size, not_hashed; // blocks refused
    uint32_t wrong_size_groups; // of layers that such blocks of wrong_size were of, a bit each
    uint64_t other_groups;      // blocks stored in groups of layers beside the index's
    uint64_t expired;           // blocks that were assumed and not told of
} cot_route_feed_figures;

/* `block_tokens` is what the index's keys are made of. Errors: OUT_OF_MEMORY. */
cot_status cot_route_feed_open(cot_route_feed **feed, cot_route_index *index, size_t target,
                               size_t block_tokens, bool has_snapshot, cot_error *error);
void cot_route_feed_close(cot_route_feed *feed); // the target's blocks stay; NULL is fine

/* A batch came, live or out of a replay. One with a lower number than one applied was applied before, unless it is younger: then
 * the engine has begun anew, and holds nothing else. Errors: MALFORMED (said once, the batch is refused and what the target
 * holds forgotten), OUT_OF_MEMORY (forgotten, too). */
cot_status cot_route_feed_live(cot_route_feed *feed, uint64_t number, const void *bytes, size_t count,
                               int64_t now_ns, cot_error *error);
cot_status cot_route_feed_replayed(cot_route_feed *feed, uint64_t number, const void *bytes, size_t count,
                                   int64_t now_ns, cot_error *error);
/* The replay that was asked for is over: what is missing still will not come. */
void cot_route_feed_replay_ended(cot_route_feed *feed);
/* All blocks that are there, as a batch, after so many batches (the last one's number + 1). Errors as of a batch; from one that is
 * MALFORMED until a restart the engine is taken for one without. */
cot_status cot_route_feed_snapshot(cot_route_feed *feed, uint64_t batches, const void *bytes, size_t count,
                                   cot_error *error);
/* The connection to the engine is new: what it holds will be told from its beginning. */
void cot_route_feed_restart(cot_route_feed *feed);
/* A request whose prompt begins with these blocks was routed to the target, which is taken to hold them until it tells of them, or
 * for COT_ROUTE_ASSUMED_TOLD_NS; where it tells of nothing, or was forgotten and has no snapshot, for COT_ROUTE_ASSUMED_NS. Of the thread
 * that changes the index. Errors: OUT_OF_MEMORY (some of the first are assumed alone). */
cot_status cot_route_feed_assume(cot_route_feed *feed, const uint64_t *keys, size_t count, int64_t now_ns);
/* Of `depth` blocks of a text that the index says the target holds, how many it can reuse: where other groups of layers than the index's keep
 * less (docs/ROUTER.md), as many as all have what they need of. Of the thread that changes the index. */
uint32_t cot_route_feed_reusable(const cot_route_feed *feed, const uint64_t *keys, uint32_t depth);
/* To be called now and then: what was assumed for long enough is forgotten. True: a gap could not be closed in time; from which batch on until which, that one not. */
bool cot_route_feed_tick(cot_route_feed *feed, int64_t now_ns, uint64_t *from, uint64_t *until);

cot_route_wants cot_route_feed_asks(const cot_route_feed *feed, uint64_t *from);
const cot_route_feed_figures *cot_route_feed_measure(const cot_route_feed *feed);

#endif
