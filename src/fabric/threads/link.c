#include "fabric/threads/link.h"

#include <math.h>

int64_t cot_link_send(const cot_link *link, int64_t *free_ns, int64_t now_ns, size_t bytes)
{
    if (*free_ns < now_ns) *free_ns = now_ns;
    if (link->bytes_per_s > 0) *free_ns += (int64_t)ceil((double)bytes * 1e9 / link->bytes_per_s);
    return *free_ns + link->latency_ns;
}

bool cot_flights_add(cot_flights *flights, const cot_flight *flight)
{
    const uint64_t sent = atomic_load_explicit(&flights->sent, memory_order_relaxed);
    if (sent - atomic_load_explicit(&flights->raised, memory_order_acquire) == COT_FLIGHTS) return false;
    flights->flight[sent % COT_FLIGHTS] = *flight;
    atomic_store_explicit(&flights->sent, sent + 1, memory_order_release);
    return true;
}

void cot_flights_raise(cot_flights *flights, int64_t now_ns)
{
    if (atomic_flag_test_and_set_explicit(&flights->raising, memory_order_acquire)) return;
    const uint64_t sent = atomic_load_explicit(&flights->sent, memory_order_acquire);
    uint64_t raised = atomic_load_explicit(&flights->raised, memory_order_relaxed);
    for (; raised < sent && flights->flight[raised % COT_FLIGHTS].arrival_ns <= now_ns; raised++) {
        const cot_flight *flight = &flights->flight[raised % COT_FLIGHTS];
        atomic_store_explicit(flight->word, flight->value, memory_order_release);
    }
    atomic_store_explicit(&flights->raised, raised, memory_order_release);
    atomic_flag_clear_explicit(&flights->raising, memory_order_release);
}
