/* A block of memory mapped once and handed out from the front: addresses in huge pages, zero until written,
 * touched only where used. An arena opened with measure adds up what would be taken, so that the same code
 * sizes and fills. */
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

/* Maps `bytes` (0 is fine). Errors: OUT_OF_MEMORY. */
cot_status cot_arena_open(cot_arena *arena, size_t bytes, cot_error *error);
void cot_arena_close(cot_arena *arena);
static inline bool cot_arena_measures(const cot_arena *arena)
{
    return !arena->memory;
}

/* The next `count` elements of `size` bytes, 64-aligned and zero; NULL from an arena that measures (memory
 * NULL, bytes 0). An arena that is mapped must be large enough (assert): measure first. A product that
 * overflows saturates the measure. */
void *cot_arena_take(cot_arena *arena, size_t count, size_t size);

#endif
