/* Which of many targets a request goes to. A target is a worker, or a home rank in it, by its number. Pure: times and what
 * became of requests are handed in. */
#ifndef COTERIE_ROUTE_H
#define COTERIE_ROUTE_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COT_ROUTE_MOST_TARGETS = 65535 };

/* ---- which blocks which target holds ---- */

/* A block's key: its sequence hash (coterie/request.h) and the name of the LoRA that computed it; NULL or "": none. */
uint64_t cot_route_key(uint64_t sequence_hash, const char *lora);

/* Blocks of texts by their keys, each with the targets that hold it. One thread may change an index (store, remove, clear) while
 * another looks up; neither waits for the other. */
typedef struct cot_route_index cot_route_index;

typedef struct cot_route_index_figures {
    uint64_t blocks,
        pairs;      /* distinct blocks; (block, target) pairs, each a block held or one before a block held */
    uint64_t bytes; /* of memory */
} cot_route_index_figures;

/* What became of blocks that were to be stored. */
typedef struct cot_route_stored {
    size_t stored; /* not held before, held now */
    size_t again;  /* held before: nothing changes */
    /* Refused, and all blocks behind them: the target does not hold the block before the first, or one stands behind another
     * block than it did (two texts of one key). */
    size_t unknown_parent, collided;
} cot_route_stored;

/* Targets 1 to COT_ROUTE_MOST_TARGETS. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. */
cot_status cot_route_index_open(cot_route_index **index, size_t targets, cot_error *error);
void cot_route_index_close(cot_route_index *index); /* NULL is fine */

/* The target holds blocks [count] from now on, each behind the one before, the first behind block *parent (NULL: it begins a
 * text). Adds to *stored. OUT_OF_MEMORY: it holds the first few of them alone, and *stored says how many. */
cot_status cot_route_index_store(cot_route_index *index, size_t target, const uint64_t *parent,
                                 const uint64_t *keys, size_t count, cot_route_stored *stored);
/* The target holds these no longer; what it holds behind them counts only when they are stored again. Returns how many it held. */
size_t cot_route_index_remove(cot_route_index *index, size_t target, const uint64_t *keys, size_t count);
void cot_route_index_clear(cot_route_index *index, size_t target); /* the target holds nothing */
/* Whether the target holds the block, whatever it holds of those before. The changing thread's. */
bool cot_route_index_holds(const cot_route_index *index, size_t target, uint64_t key);

/* Blocks that each target can reuse of a text of `count` blocks: depth [targets] is how many it holds from the first on without
 * a gap. Beside a thread that changes the index each number was true at one moment of the call or, where blocks came in the
 * meantime, may be the smaller one from before. */
void cot_route_index_match(cot_route_index *index, uint32_t *depth, const uint64_t *keys, size_t count);
/* The changing thread's. */
void cot_route_index_measure(const cot_route_index *index, cot_route_index_figures *figures);

#ifdef __cplusplus
}
#endif
#endif
