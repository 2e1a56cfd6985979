#include "worker/ring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 4 };

static size_t round_up(size_t bytes)
{
    return (bytes + WORD - 1) / WORD * WORD;
}

bool cot_ring_open(cot_ring *ring, size_t bytes)
{
    *ring = (cot_ring){.room = 64};
    while (ring->room < bytes) ring->room *= 2;
    ring->bytes = malloc(ring->room);
    return ring->bytes;
}

void cot_ring_close(cot_ring *ring)
{
    free(ring->bytes);
    ring->bytes = NULL;
}

static void copy_in(cot_ring *ring, size_t at, const void *data, size_t bytes)
{
    const size_t begin = at & (ring->room - 1);
    const size_t first = bytes < ring->room - begin ? bytes : ring->room - begin;
    if (first) memcpy(ring->bytes + begin, data, first);
    if (bytes > first) memcpy(ring->bytes, (const uint8_t *)data + first, bytes - first);
}

static void copy_out(const cot_ring *ring, size_t at, void *data, size_t bytes)
{
    const size_t begin = at & (ring->room - 1);
    const size_t first = bytes < ring->room - begin ? bytes : ring->room - begin;
    memcpy(data, ring->bytes + begin, first);
    memcpy((uint8_t *)data + first, ring->bytes, bytes - first);
}

bool cot_ring_put(cot_ring *ring, const cot_ring_part *parts, size_t count, size_t spare)
{
    const size_t put = atomic_load_explicit(&ring->put, memory_order_relaxed),
                 used = put - atomic_load_explicit(&ring->taken, memory_order_acquire);
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += parts[i].bytes;
    if (WORD + round_up(bytes) + spare > ring->room - used) return false;
    const uint32_t length = (uint32_t)bytes;
    copy_in(ring, put, &length, WORD);
    size_t at = put + WORD;
    for (size_t i = 0; i < count; at += parts[i++].bytes) copy_in(ring, at, parts[i].data, parts[i].bytes);
    atomic_store_explicit(&ring->put, put + WORD + round_up(bytes), memory_order_release);
    return true;
}

bool cot_ring_is_empty(const cot_ring *ring)
{
    return atomic_load_explicit(&ring->put, memory_order_relaxed) ==
           atomic_load_explicit(&ring->taken, memory_order_acquire);
}

size_t cot_ring_take(cot_ring *ring, void *message, size_t room)
{
    const size_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    if (taken == atomic_load_explicit(&ring->put, memory_order_acquire)) return 0;
    uint32_t bytes;
    copy_out(ring, taken, &bytes, WORD);
    assert(bytes <= room);
    (void)room;
    copy_out(ring, taken + WORD, message, bytes);
    atomic_store_explicit(&ring->taken, taken + WORD + round_up(bytes), memory_order_release);
    return bytes;
}
