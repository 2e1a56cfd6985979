/* Events of KV caches as engines publish them, in one form. Read are batches of vLLM (from 0.24 on, where events are
 * maps; before, events were arrays), of SGLang (arrays; maps in 0.5.23) and Coterie (maps); a batch is an array or a map; fields are
 * told by name in maps, by place in arrays, and later fields may be absent. Block hashes are integers, with or without sign, or
 * bytes. Pure: bytes in, events out. */
#ifndef COT_ROUTE_EVENTS_H
#define COT_ROUTE_EVENTS_H
#include "coterie/status.h"

#include <msgpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COT_ROUTE_MOST_BATCH_BYTES = 16 << 20,
    COT_ROUTE_MOST_SNAPSHOT_BYTES = 256 << 20, // of all blocks: an engine may have a million
    COT_ROUTE_MOST_BLOCK_TOKENS = 65536,
    COT_ROUTE_MOST_GROUPS = 16
};

/* What a group of layers keeps of a text: all of it, the last tokens, or what stands for it up to a block's end. */
typedef enum cot_route_layers { COT_ROUTE_FULL, COT_ROUTE_WINDOW, COT_ROUTE_STATE } cot_route_layers;

typedef struct cot_route_event {
    enum { COT_ROUTE_STORED, COT_ROUTE_REMOVED, COT_ROUTE_CLEARED } kind;
    const uint64_t *hashes; // [count] the engine's names of blocks; of bytes a hash
    size_t count;
    uint64_t group; // of layers, below COT_ROUTE_MOST_GROUPS
    /* Stored ones. */
    cot_route_layers layers;
    uint64_t window; // tokens that a token attends to, itself among them, of COT_ROUTE_WINDOW
    /* Stored ones of COT_ROUTE_FULL: each behind the one before, the first behind `parent`. */
    bool has_parent;
    uint64_t parent;
    const int32_t *
        ids; // [count * block_tokens]; NULL: of a group that is not the first, or keeps not all, told otherwise than they should be
    size_t block_tokens; // of others, too
    const char *lora;    // NULL: none
    const char *salt;    // of a text's first block
    size_t salt_bytes;
    size_t
        told; // of the blocks, so many depend on nothing else; images and the like have hashes that ids do not give
} cot_route_event;

typedef struct cot_route_batch {
    double seconds; // when it was published
    /* Without those that tell of nothing here: of another memory than the one that is computed from, or of groups of layers beyond
     * COT_ROUTE_MOST_GROUPS; and of several clears in turn one alone. */
    cot_route_event *events;
    size_t count;
    size_t unknown;          // events of kinds that are not known, passed over
    msgpack_unpacked memory; // what events point to
} cot_route_batch;

/* There is nothing to free on failure. Errors: MALFORMED (no batch, one that contradicts itself, or more than `most` bytes),
 * OUT_OF_MEMORY. */
cot_status cot_route_batch_read(cot_route_batch *batch, const void *bytes, size_t count, size_t most,
                                cot_error *error);
void cot_route_batch_free(cot_route_batch *batch);

/* Whether the bytes are one object of msgpack whose lists and maps have all that they say, not too deep: a few bytes may ask a
 * reader for gigabytes. */
bool cot_route_is_whole(const void *object, size_t bytes);

#endif
