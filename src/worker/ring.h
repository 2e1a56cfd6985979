/* Messages from one thread to another, in order: memory that is taken once, no lock, and nobody waits. Who finds no room
 * is told so. */
#ifndef COT_WORKER_RING_H
#define COT_WORKER_RING_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cot_ring {
    uint8_t *bytes;      // [room]
    size_t room;         // a power of two
    atomic_size_t put;   // bytes so far, by the one who puts
    char apart[64];      // neither thread's number is in the cache line of the other's
    atomic_size_t taken; // by the one who takes
} cot_ring;

/* Room for at least so many bytes of messages, each of which takes 4 more and is rounded up to 4. False when out of memory. */
bool cot_ring_open(cot_ring *ring, size_t bytes);
void cot_ring_close(cot_ring *ring);

/* A part of a message. */
typedef struct cot_ring_part {
    const void *data;
    size_t bytes;
} cot_ring_part;
/* One thread: puts a message of some parts, 1 byte at least in all, where `spare` bytes stay free behind it; else false, and
 * nothing has changed. */
bool cot_ring_put(cot_ring *ring, const cot_ring_part *parts, size_t count, size_t spare);
/* The same thread: whether all was taken. */
bool cot_ring_is_empty(const cot_ring *ring);
/* Another thread: copies the next message, of at most `room` bytes, which every message must fit. Returns its bytes, 0 where
 * there is none. */
size_t cot_ring_take(cot_ring *ring, void *message, size_t room);

#endif
