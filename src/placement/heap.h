/* A heap of vertices by rising distance, for searches of shortest paths. A vertex may be in it several times. */
#ifndef COT_PLACEMENT_HEAP_H
#define COT_PLACEMENT_HEAP_H
#include "placement/units.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct cot_heap_entry {
    cot_units distance;
    int32_t vertex;
} cot_heap_entry;

typedef struct cot_heap {
    cot_heap_entry *entry;
    int64_t n, room; // n 0: empty; may be set
} cot_heap;

/* False when out of memory; what is in the heap stays. All zero is an empty heap. */
static inline bool cot_heap_push(cot_heap *h, cot_units distance, int32_t vertex)
{
    if (h->n == h->room) {
        const int64_t room = h->room ? 2 * h->room : 1024;
        void *entry = realloc(h->entry, (size_t)room * sizeof *h->entry);
        if (!entry) return false;
        h->entry = entry;
        h->room = room;
    }
    int64_t i = h->n++;
    for (; i && distance < h->entry[(i - 1) / 2].distance; i = (i - 1) / 2)
        h->entry[i] = h->entry[(i - 1) / 2];
    h->entry[i] = (cot_heap_entry){distance, vertex};
    return true;
}

/* The nearest, of a heap that is not empty. */
static inline cot_heap_entry cot_heap_pop(cot_heap *h)
{
    const cot_heap_entry top = h->entry[0], last = h->entry[--h->n];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->entry[child + 1].distance < h->entry[child].distance) child++;
        if (h->entry[child].distance >= last.distance) break;
        h->entry[i] = h->entry[child];
    }
    h->entry[i] = last;
    return top;
}

#endif
