/* Barriers of a block: __syncthreads is barrier 0 of all its threads. Who arrives tells what it knows, who waits learns
 * what all that arrived knew. */
#include "machine.h"

#include <algorithm>

namespace emulate {

Index thread_index()
{
    return {static_cast<unsigned>(current->number % machine->shape.threads), 0, 0};
}
Index block_index()
{
    return {static_cast<unsigned>(current->block->number), 0, 0};
}
Index block_size()
{
    return {machine->shape.threads, 1, 1};
}
Index grid_size()
{
    return {machine->shape.blocks, 1, 1};
}
void *shared_memory()
{
    return current->block->shared;
}

static void arrive(Thread *me, int number, int threads, bool waits, const void *site)
{
    Block *block = me->block;
    if (number < 0 || number > 15 || threads < 32 || threads % 32 ||
        threads > static_cast<int>(machine->shape.threads))
        fail(Fault::BARRIER, "barrier %d of %d threads (%s)", number, threads, name_of_site(site).c_str());
    pause(me);
    Barrier &b = block->barriers[number];
    if (b.arrived.empty()) b.expected = threads;
    if (b.expected != threads)
        fail(Fault::BARRIER, "%s comes to barrier %d as one of %d threads (%s), others as of %d (%s)",
             name_of(me).c_str(), number, threads, name_of_site(site).c_str(), b.expected,
             name_of_site(b.sites[0]).c_str());
    for (size_t i = 0; i < b.arrived.size(); i++) {
        if (b.arrived[i] == me)
            fail(Fault::BARRIER, "%s comes to barrier %d twice before others have come (%s)",
                 name_of(me).c_str(), number, name_of_site(site).c_str());
        if (b.arrived[i]->warp == me->warp && b.sites[i] != site)
            fail(Fault::BARRIER, "lanes of block %d warp %d come to barrier %d in two places (%s, %s)",
                 block->number, me->warp->number, number, name_of_site(b.sites[i]).c_str(),
                 name_of_site(site).c_str());
    }
    progress(me);
    b.arrived.push_back(me);
    b.sites.push_back(site);
    tell(b.known, me);
    if (waits) b.waiting.push_back(me);
    release(me);
    if (static_cast<int>(b.arrived.size()) < b.expected) {
        if (waits) wait(me, "barrier", number, site);
        return;
    }
    machine->result.counters.barriers++;
    for (const Thread *t : b.arrived)
        if (t->lane == 0) close_uses(t->warp);
    std::vector<Thread *> waiting;
    waiting.swap(b.waiting);
    for (Thread *t : waiting) learn(t, b.known);
    b.arrived.clear();
    b.sites.clear();
    b.known = {};
    for (Thread *t : waiting)
        if (t != me) wake(t);
}

void barrier_sync(int number, int threads)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    arrive(thread.get(), number, threads, true, site);
}

void barrier_arrive(int number, int threads)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    arrive(thread.get(), number, threads, false, site);
}

void sync_threads()
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    arrive(thread.get(), 0, static_cast<int>(machine->shape.threads), true, site);
}

void end_thread_barriers(Thread *me)
{
    for (int number = 0; number < 16; number++) {
        const Barrier &b = me->block->barriers[number];
        if (b.waiting.empty() || b.expected != static_cast<int>(machine->shape.threads)) continue;
        if (std::find(b.arrived.begin(), b.arrived.end(), me) != b.arrived.end()) continue;
        fail(Fault::BARRIER, "%s ends while %s waits at barrier %d of the whole block (%s)",
             name_of(me).c_str(), name_of(b.waiting[0]).c_str(), number, name_of_site(b.sites[0]).c_str());
    }
}

} // namespace emulate
