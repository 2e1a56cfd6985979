/* Atomic words, what their loads may return, and what acquire, release and fences order.
 *
 * A word has its last stores, the newest last. A load may return any of them that is not older than one that its thread
 * knows of: by having stored or loaded it or a newer one, or by what it learnt from others. An update reads the newest.
 * Two atomic accesses that nothing orders are a race where the scope of one leaves the other's thread out, and so are a store and an
 * update, of which the store would undo the update were it later: an update is ordered behind a store that it acquires. */
#include "machine.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace emulate {

static constexpr size_t STORES_KEPT = 6, HEADS_KEPT = 8;

struct Store {
    uint64_t value;
    uint32_t writer;
    Clock clock;
    std::vector<Head> heads; // releases that an acquire of this store meets
};

enum class Made { NOTHING, STORE, UPDATE };

/* The accesses of one thread that saw or made one version. */
struct Touch {
    uint32_t thread;
    Clock first, last;
    uint64_t version;
    Scope scope;
    Made made;
    bool writes() const { return made != Made::NOTHING; }
};

struct Location {
    uintptr_t address;
    size_t bytes;
    uint64_t oldest; // version of stores[0]
    std::deque<Store> stores;
    std::vector<Touch> touches;
    bool stale; // written otherwise: the newest value is in memory
    uint64_t newest() const { return oldest + stores.size() - 1; }
};

static std::unordered_map<uintptr_t, std::shared_ptr<Location>> locations; // by word

static uint64_t load_bytes(uintptr_t address, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, reinterpret_cast<const void *>(address), bytes);
    return value;
}

void drop_atomic(uintptr_t address)
{
    if (!address) return locations.clear();
    const auto found = locations.find(address);
    if (found == locations.end()) return;
    const std::shared_ptr<Location> l = found->second;
    for (uintptr_t word = l->address; word < l->address + l->bytes; word += 4) locations.erase(word);
}

static Location *location_of(uintptr_t address, size_t bytes, const void *site)
{
    std::shared_ptr<Location> &l = locations[address];
    if (!l) {
        l = std::make_shared<Location>();
        l->address = address;
        l->bytes = bytes;
        l->stores.push_back({load_bytes(address, bytes), 0, 0, {}});
        std::shared_ptr<Location> same = l; // the other word's entry may move this one
        if (bytes == 8) locations[address + 4] = same;
        return same.get();
    }
    if (l->address != address || l->bytes != bytes)
        fail(Fault::MISUSE, "atomic accesses of different sizes at %s (%s)", name_of_address(address).c_str(),
             name_of_site(site).c_str());
    return l.get();
}

static void check_touches(Location *l, Thread *thread, bool writes, bool atomic, Scope scope,
                          const void *site)
{
    for (const Touch &t : l->touches) {
        if (!(writes || t.writes()) || knows(thread, t.thread, t.last)) continue;
        const Thread *other = &machine->all[t.thread];
        if (atomic && within(scope, thread, other) && within(t.scope, other, thread)) continue;
        fail(Fault::RACE, "%s %s %s (%s), and nothing orders the atomic %s of %s before it%s",
             name_of(thread).c_str(), writes ? "writes" : "reads", name_of_address(l->address).c_str(),
             name_of_site(site).c_str(), t.writes() ? "write" : "read", name_of(other).c_str(),
             atomic ? ", which its scope does not reach" : "");
    }
}

void access_plain_at_atomic(Thread *thread, uintptr_t address, Kind kind, const void *site)
{
    const auto found = locations.find(address);
    if (found == locations.end()) return; // of an earlier launch
    check_touches(found->second.get(), thread, kind == Kind::WRITE, false, Scope::CTA, site);
}

/* A store and an update of one word are one behind the other. */
static void check_order(const Location *l, const Thread *thread, Made other, const void *site)
{
    for (const Touch &t : l->touches)
        if (t.made == other && !knows(thread, t.thread, t.first))
            fail(Fault::RACE, "%s %s %s (%s), and nothing orders the %s of %s before it",
                 name_of(thread).c_str(), other == Made::UPDATE ? "stores" : "updates",
                 name_of_address(l->address).c_str(), name_of_site(site).c_str(),
                 other == Made::UPDATE ? "update" : "store", name_of(&machine->all[t.thread]).c_str());
}

static void touch(Location *l, Thread *thread, uint64_t version, Made made, Scope scope)
{
    const Clock now = thread->now;
    for (Touch &t : l->touches)
        if (t.thread == thread->number && t.version == version && t.scope == scope) {
            t.last = now;
            return;
        }
    /* A write stands for all that its thread knows of; reads go on to say what is too old to be seen. */
    l->touches.erase(std::remove_if(l->touches.begin(), l->touches.end(),
                                    [&](const Touch &t) {
                                        return knows(thread, t.thread, t.last) &&
                                               (t.version < l->oldest ||
                                                (t.writes() && made != Made::NOTHING));
                                    }),
                     l->touches.end());
    l->touches.push_back({thread->number, now, now, version, scope, made});
}

/* The oldest version that this thread may still see. */
static uint64_t floor_of(const Location *l, const Thread *thread)
{
    uint64_t floor = l->oldest;
    for (uint64_t v = l->newest(); v > floor; v--) {
        const Store &s = l->stores[v - l->oldest];
        if (knows(thread, s.writer, s.clock)) floor = v;
    }
    for (const Touch &t : l->touches)
        if (t.version > floor && knows(thread, t.thread, t.first)) floor = t.version;
    return floor;
}

static bool reaches(const Head &head, Scope scope, const Thread *thread)
{
    const Thread *writer = &machine->all[head.writer];
    return within(head.scope, writer, thread) && within(scope, thread, writer);
}

static void see(Thread *thread, const Store &store, Order order, Scope scope)
{
    for (const Head &head : store.heads) {
        if (order == Order::ACQUIRE || order == Order::ACQ_REL) {
            if (reaches(head, scope, thread)) acquire(thread, head);
            continue;
        }
        bool noted = false;
        for (Seen &s : thread->unacquired) noted |= s.head.known == head.known && s.scope == scope;
        if (!noted) thread->unacquired.push_back({head, scope});
    }
}

static std::vector<Head> heads_of(Thread *thread, Order order, Scope scope, uint32_t chain)
{
    if (order == Order::RELEASE || order == Order::ACQ_REL)
        return {{freeze(thread, chain), thread->number, scope}};
    if (thread->fence.known)
        return {{thread->fence.known, thread->number, std::min(scope, thread->fence.scope)}};
    return {};
}

/* An update goes on with the releases of what it replaces; many of them that reach as far are one. */
static void continue_heads(std::vector<Head> &heads, const std::vector<Head> &before)
{
    heads.insert(heads.end(), before.begin(), before.end());
    while (heads.size() > HEADS_KEPT) {
        bool joined = false;
        for (size_t i = 0; i < heads.size() && !joined; i++)
            for (size_t j = i + 1; j < heads.size() && !joined; j++) {
                const Thread *a = &machine->all[heads[i].writer], *b = &machine->all[heads[j].writer];
                if (heads[i].scope != heads[j].scope || !within(heads[i].scope, a, b) || a->block != b->block)
                    continue;
                Clocks both = *heads[i].known;
                both.join(*heads[j].known);
                heads[i].known = std::make_shared<const Clocks>(std::move(both));
                heads.erase(heads.begin() + static_cast<std::ptrdiff_t>(j));
                joined = true;
            }
        if (!joined) return;
    }
}

static void push(Location *l, Thread *thread, uint64_t value, std::vector<Head> heads, Order order,
                 Scope scope, Made made)
{
    l->stores.push_back({value, thread->number, thread->now, std::move(heads)});
    if (l->stores.size() > STORES_KEPT) {
        l->stores.pop_front();
        l->oldest++;
    }
    touch(l, thread, l->newest(), made, scope);
    memcpy(reinterpret_cast<void *>(l->address), &value, l->bytes);
    if (order == Order::RELEASE || order == Order::ACQ_REL) release(thread);
    wake_pollers(l->address);
}

static void refresh(Location *l)
{
    if (!l->stale) return;
    l->stale = false;
    l->stores.back().value = load_bytes(l->address, l->bytes);
}

/* Where a loop has seen nothing new at any word that it looks at, it waits for one of them to change. A word that is looked at from
 * another place of the code has been found new there. */
static void note_poll(Thread *thread, const Location *l, const void *site)
{
    const uint64_t version = l->newest();
    bool same = false;
    for (Poll &p : thread->polls) {
        const auto at = locations.find(p.address);
        if (at == locations.end() || at->second->newest() != p.version) {
            thread->polls = {{l->address, version, site}};
            return;
        }
        same |= p.address == l->address && p.site == site;
    }
    if (same) return park(thread);
    thread->polls.push_back({l->address, version, site});
}

uint64_t atomic_load(const void *p, size_t bytes, Order order, Scope scope)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    const uintptr_t address = reinterpret_cast<uintptr_t>(p);
    pause(me);
    for (;;) {
        access_atomic(me, address, bytes, Kind::READ, site);
        Location *l = location_of(address, bytes, site);
        const size_t polls = me->polls.size();
        note_poll(me, l, site); // may let others run first, and the word change
        if (polls && me->polls.empty()) continue;
        refresh(l);
        check_touches(l, me, false, true, scope, site);
        const uint64_t newest = l->newest(), floor = floor_of(l, me);
        const uint64_t version = floor < newest && draw(4) == 0 ? floor + draw(newest - floor + 1) : newest;
        if (version != newest) me->polls.clear();
        touch(l, me, version, Made::NOTHING, scope);
        const Store store = l->stores[version - l->oldest];
        see(me, store, order, scope);
        machine->result.counters.atomic_loads++;
        return store.value;
    }
}

void atomic_store(void *p, uint64_t value, size_t bytes, Order order, Scope scope)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    pause(me);
    progress(me);
    access_atomic(me, reinterpret_cast<uintptr_t>(p), bytes, Kind::WRITE, site);
    Location *l = location_of(reinterpret_cast<uintptr_t>(p), bytes, site);
    refresh(l);
    check_touches(l, me, true, true, scope, site);
    check_order(l, me, Made::UPDATE, site);
    machine->result.counters.atomic_stores++;
    push(l, me, value, heads_of(me, order, scope, me->known.chain), order, scope, Made::STORE);
}

uint64_t atomic_update(void *p, Update update, uint64_t operand, uint64_t expected, size_t bytes, Order order,
                       Scope scope)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    pause(me);
    progress(me);
    access_atomic(me, reinterpret_cast<uintptr_t>(p), bytes, Kind::READ, site);
    access_atomic(me, reinterpret_cast<uintptr_t>(p), bytes, Kind::WRITE, site);
    Location *l = location_of(reinterpret_cast<uintptr_t>(p), bytes, site);
    refresh(l);
    check_touches(l, me, true, true, scope, site);
    const Store before = l->stores.back();
    /* Updates of one word wait for each other where the word is, not for a hand-over each: what one releases is behind as long a chain
     * as the longest before it, and who acquires it, itself included, behind one more. */
    uint32_t chain = me->known.chain;
    for (const Head &head : before.heads) chain = std::max(chain, head.known->chain);
    see(me, before, order, scope);
    const uint64_t mask = bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * bytes) - 1;
    uint64_t value = before.value;
    if (update == Update::ADD) value += operand;
    if (update == Update::MIN) value = std::min(value, operand);
    const bool fails = update == Update::COMPARE_EXCHANGE && value != expected;
    if (update == Update::COMPARE_EXCHANGE && !fails) value = operand;
    if (!fails) check_order(l, me, Made::STORE, site);
    machine->result.counters.atomic_updates++;
    std::vector<Head> heads = heads_of(me, order, scope, chain);
    continue_heads(heads, before.heads);
    push(l, me, value & mask, std::move(heads), order, scope, fails ? Made::NOTHING : Made::UPDATE);
    return before.value;
}

void access_volatile(Thread *thread, uintptr_t address, size_t bytes, Kind kind, const void *site)
{
    const uintptr_t stack = reinterpret_cast<uintptr_t>(thread->stack);
    if (address - stack < static_cast<uintptr_t>(thread->stack_end - thread->stack)) return;
    if (bytes != 4 && bytes != 8)
        fail(Fault::MISUSE, "a volatile access of %zu bytes (%s)", bytes, name_of_site(site).c_str());
    pause(thread);
    access_atomic(thread, address, bytes, kind, site);
    Location *l = location_of(address, bytes, site);
    check_touches(l, thread, kind == Kind::WRITE, true, Scope::SYS, site);
    if (kind == Kind::WRITE) {
        refresh(l);
        push(l, thread, l->stores.back().value, heads_of(thread, Order::RELAXED, Scope::SYS, 0),
             Order::RELAXED, Scope::SYS, Made::STORE);
        l->stale = true; // the value comes when this returns
    } else {
        note_poll(thread, l, site);
        touch(l, thread, l->newest(), Made::NOTHING, Scope::SYS);
        see(thread, l->stores.back(), Order::RELAXED, Scope::SYS);
    }
}

void fence(Scope scope)
{
    Inside thread;
    Thread *me = thread.get();
    for (const Seen &s : me->unacquired)
        if (reaches(s.head, std::min(scope, s.scope), me)) acquire(me, s.head);
    me->unacquired.erase(std::remove_if(me->unacquired.begin(), me->unacquired.end(),
                                        [&](const Seen &s) { return s.scope <= scope; }),
                         me->unacquired.end());
    me->fence = {freeze(me, me->known.chain), me->number, scope};
    release(me);
    machine->result.counters.fences++;
}

uint64_t globaltimer()
{
    Inside thread;
    pause(thread.get());
    thread->reads_clock = true;
    const uint64_t tick = machine->tick, now = machine->now / tick * tick;
    return draw(4) || now < tick ? now : now - tick;
}

void nanosleep()
{
    Inside thread;
    pause(thread.get());
}

bool weakened(const char *mutant)
{
    Inside thread;
    const char *on = machine->options.mutant;
    const size_t length = strlen(mutant);
    while (on && !(strncmp(on, mutant, length) == 0 && (on[length] == ' ' || !on[length])))
        if ((on = strchr(on, ' '))) on++;
    if (!on) return false;
    machine->result.counters.mutant_reached++;
    return true;
}

} // namespace emulate
