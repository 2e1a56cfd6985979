/* A block of memory that is mapped once and handed out from the front: addresses in huge pages, zero until written,
 * touched only where used. An arena that is all zero measures: it hands out nothing and adds up in `used` what was asked
 * for, so that the same code first finds the size and then fills the memory. */
#ifndef COT_BASE_ARENA_H
#define COT_BASE_ARENA_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cot_arena {
    uint8_t *memory; // NULL while measuring
    size_t bytes, used;
} cot_arena;

/* Bytes that this process may map yet (ulimit -v); UINT64_MAX: as many as it likes. */
uint64_t cot_arena_mappable_bytes(void);

/* Maps `bytes` (0 is fine). Errors: OUT_OF_MEMORY, with that limit where there is one. */
cot_status cot_arena_open(cot_arena *arena, size_t bytes, cot_error *error);
void cot_arena_close(cot_arena *arena);
static inline bool cot_arena_measures(const cot_arena *arena)
{
    return !arena->memory;
}

/* The next `count` elements of `size` bytes, 64-aligned and zero; NULL from an arena that measures. An arena that is
 * mapped must be large enough (assert). A product that overflows makes the measure more than
 * any memory has. */
void *cot_arena_take(cot_arena *arena, size_t count, size_t size);

#endif
