/* cp.async: a copy lands at a moment drawn between its issue and the wait for it, and until then its bytes are in flight. */
#include "machine.h"

#include <cstring>

namespace emulate {

static constexpr uintptr_t SECTOR_BYTES = 32;

static void land(Copy &copy)
{
    if (copy.landed) return;
    copy.landed = true;
    memcpy(copy.to, copy.from, copy.live);
    memset(copy.to + copy.live, 0, copy.bytes - copy.live);
}

void land_copies(Thread *thread)
{
    for (Copy &c : thread->issued)
        if (c.lands <= machine->steps) land(c);
    for (std::vector<Copy> &group : thread->groups)
        for (Copy &c : group)
            if (c.lands <= machine->steps) land(c);
}

void copy_async(void *to, const void *from, uint32_t bytes, uint32_t live)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    const uintptr_t at = reinterpret_cast<uintptr_t>(to),
                    shared = reinterpret_cast<uintptr_t>(me->block->shared);
    if ((bytes != 4 && bytes != 8 && bytes != 16) || live > bytes)
        fail(Fault::COPY, "cp.async of %u of %u bytes (%s)", live, bytes, name_of_site(site).c_str());
    if (at < shared || at + bytes > shared + machine->shape.shared_bytes)
        fail(Fault::BOUNDS, "%s lets cp.async write outside its shared memory: %s (%s)", name_of(me).c_str(),
             name_of_address(at).c_str(), name_of_site(site).c_str());
    if ((reinterpret_cast<uintptr_t>(from) | at) & (bytes - 1))
        fail(Fault::ALIGNMENT, "cp.async of %u bytes, not aligned (%s)", bytes, name_of_site(site).c_str());
    Copy copy = {static_cast<char *>(to),
                 static_cast<const char *>(from),
                 bytes,
                 live,
                 machine->steps + draw(200),
                 false,
                 {}};
    if (live && !machine->prefetched.empty())
        machine->prefetched.erase(reinterpret_cast<uintptr_t>(from) / SECTOR_BYTES);
    begin_copy(me, copy, site);
    note_use(me, at, bytes, site, true);
    me->issued.push_back(std::move(copy));
    machine->result.counters.copies++;
    machine->result.counters.copied_bytes += live;
}

void prefetch(const void *p)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    check_prefetch(thread.get(), reinterpret_cast<uintptr_t>(p), site);
    machine->prefetched.insert(reinterpret_cast<uintptr_t>(p) / SECTOR_BYTES);
    machine->result.counters.prefetched_bytes += SECTOR_BYTES;
}

void commit_copies()
{
    Inside thread;
    thread->groups.push_back(std::move(thread->issued));
    thread->issued.clear();
}

void wait_copies(int groups_left)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    pause(me);
    while (me->groups.size() > static_cast<size_t>(groups_left)) {
        for (Copy &c : me->groups.front()) {
            land(c);
            end_copy(me, c, site);
        }
        me->groups.pop_front();
    }
}

void end_thread_copies(Thread *thread)
{
    size_t left = thread->issued.size();
    for (const std::vector<Copy> &group : thread->groups) left += group.size();
    if (left)
        fail(Fault::COPY, "%s ends while %zu of its cp.async are on their way", name_of(thread).c_str(),
             left);
}

} // namespace emulate
