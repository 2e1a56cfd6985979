/* A shaped link: when what a rank sends reaches another, were each rank's way out a serial line of so many
 * bytes a second, and so many nanoseconds long. The bytes are copied at once; what the model holds back is the
 * signal, and whoever has not seen the signal does not look at the bytes.
 *
 *     put 1 |#####|            the line is taken for bytes / rate, one message after the other, to whichever
 *     put 2       |##|         rank; a message arrives `latency` after its last byte has left
 *     put 3 + signal |###|------latency------> raised here
 */
#ifndef COT_FABRIC_THREADS_LINK_H
#define COT_FABRIC_THREADS_LINK_H
#include "fabric/fabric.h"
#include <stdalign.h>
#include <stdatomic.h>

typedef struct cot_link {
    double bytes_per_s; // 0: bytes take no time
    int64_t latency_ns;
} cot_link;

static inline bool cot_link_shapes(const cot_link *link)
{
    return link->bytes_per_s > 0 || link->latency_ns > 0;
}

/* A message of so many bytes is sent at now_ns over the line that is free from *free_ns on: moves that on and
 * returns when the message arrives. */
int64_t cot_link_send(const cot_link *link, int64_t *free_ns, int64_t now_ns, size_t bytes);

typedef struct cot_flight {
    int64_t arrival_ns;
    uint64_t value;
    _Atomic uint64_t *word;
} cot_flight;

/* Signals under way from one rank to one other, in the order in which they were sent, which is the order in
 * which they arrive. The source adds them; the target raises those that have arrived whenever it looks at a
 * signal. All zero is empty. It is plain memory, so that it works between processes. */
enum { COT_FLIGHTS = 1024 };
typedef struct cot_flights {
    alignas(64) _Atomic uint64_t sent;   // so far, by the source
    alignas(64) _Atomic uint64_t raised; // so far, by whoever holds `raising`
    atomic_flag raising;
    cot_flight flight[COT_FLIGHTS];
} cot_flights;

/* False when there is no room. */
bool cot_flights_add(cot_flights *flights, const cot_flight *flight);
static inline bool cot_flights_empty(const cot_flights *flights)
{
    return atomic_load_explicit(&flights->sent, memory_order_acquire) ==
           atomic_load_explicit(&flights->raised, memory_order_relaxed);
}
/* Raises the words of all that have arrived by now_ns. Any thread may call it: while one is at it, it does
 * nothing for others. */
void cot_flights_raise(cot_flights *flights, int64_t now_ns);

#endif
