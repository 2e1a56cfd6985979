#include "fabric/threads/gate.h"

#include "base/clock.h"

#include <sched.h>
#include <time.h>

static const int64_t sleep_after_ns = 300000, shortest_sleep_ns = 10000, longest_sleep_ns = 1000000;

void cot_back_off(int64_t waited_ns)
{
    if (waited_ns < sleep_after_ns) {
        sched_yield();
        return;
    }
    int64_t ns = waited_ns / 40;
    ns = ns < shortest_sleep_ns ? shortest_sleep_ns : ns > longest_sleep_ns ? longest_sleep_ns : ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

void cot_gate_open(cot_gate *gate, int ranks, int permits)
{
    gate->ranks = ranks;
    atomic_store(&gate->permits, permits);
}

/* One permit, if there are more than ranks that asked earlier. */
static bool try_enter(cot_gate *gate, uint64_t ticket)
{
    int permits = atomic_load(&gate->permits);
    if (permits <= 0) return false;
    int earlier = 0;
    for (int r = 0; r < gate->ranks; r++) {
        const uint64_t other = atomic_load(&gate->waiting[r]);
        earlier += other && other < ticket;
    }
    return earlier < permits && atomic_compare_exchange_strong(&gate->permits, &permits, permits - 1);
}

bool cot_gate_enter(cot_gate *gate, int rank, int64_t deadline_ns, const atomic_int *stop)
{
    const uint64_t ticket = atomic_fetch_add(&gate->tickets, 1) + 1;
    atomic_store(&gate->waiting[rank], ticket);
    bool entered = try_enter(gate, ticket);
    if (!entered) {
        const int64_t since_ns = cot_now_ns();
        for (int64_t now_ns = since_ns; now_ns < deadline_ns && !atomic_load(stop); now_ns = cot_now_ns()) {
            if ((entered = try_enter(gate, ticket))) break;
            cot_back_off(now_ns - since_ns);
        }
    }
    atomic_store(&gate->waiting[rank], 0);
    return entered;
}

bool cot_gate_try(cot_gate *gate)
{
    return try_enter(gate, UINT64_MAX);
}

bool cot_gate_is_asked(cot_gate *gate)
{
    for (int r = 0; r < gate->ranks; r++)
        if (atomic_load(&gate->waiting[r])) return true;
    return false;
}

void cot_gate_leave(cot_gate *gate)
{
    atomic_fetch_add(&gate->permits, 1);
}
