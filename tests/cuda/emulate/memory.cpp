/* Device memory and its shadow: for each word of four bytes, who wrote it last and who read it since.
 *
 * An access is in order when its thread knows (by its vector clock) the last write and, if it writes, every read since.
 * Words that are accessed in parts split into four bytes; words that several threads read without order among them
 * have a list of readers. A shared word that a cp.async is on its way to belongs to nobody. */
#include "machine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

extern "C" char __executable_start, end; // of the program, as the linker has it

namespace emulate {

static constexpr size_t ARENA_BYTES = 512u << 20, APART = 256, SHARED_ALIGN = 1024;

enum : uint32_t {
    ALLOCATED = 1,
    WRITTEN = 2,
    ATOMIC = 4,  // atomics.cpp knows more of it
    SPLIT = 8,   // the index is that of four cells, a byte each
    MANY = 16,   // the index is that of a list of readers
    FLYING = 32, // a copy
    FLAGS = 63
};
static constexpr int INDEX_AT = 6;

struct Cell {
    Clock write_clock, read_clock;
    uint16_t writer, reader;
    uint32_t state;
};
struct Bytes {
    Cell cell[4];
};
struct Reader {
    uint32_t thread;
    Clock clock;
};
/* Who reads, and when last: a list of a few, or, where there are more, a clock for each thread, 0 where it does not. */
struct Readers {
    static constexpr size_t FEW = 16;
    std::vector<Reader> list;
    std::vector<Clock> of_thread;
};

/* Numbered things that come and go. */
template <typename T> class Numbered {
    std::deque<T> things;
    std::vector<uint32_t> unused;

  public:
    uint32_t take()
    {
        if (unused.empty()) {
            things.emplace_back();
            return static_cast<uint32_t>(things.size() - 1);
        }
        const uint32_t i = unused.back();
        unused.pop_back();
        things[i] = T();
        return i;
    }
    void give(uint32_t i) { unused.push_back(i); }
    T &operator[](uint32_t i) { return things[i]; }
    void clear() { things.clear(), unused.clear(); }
};

struct Region {
    uintptr_t begin, end;
    std::string name;
};

static char *arena;
static Cell *cells;
static size_t top, launch_top;
static size_t regions_before;
static Clock last_clock = 1;
static std::vector<Region> regions;
static Numbered<Bytes> splits;
static Numbered<Readers> many;

static void *reserve(size_t bytes)
{
    void *p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) perror("emulate: no memory"), exit(1);
    return p;
}

static size_t place(const void *p)
{
    return static_cast<size_t>(static_cast<const char *>(p) - arena);
}

static char *take_region(size_t bytes, std::string name, size_t align = APART)
{
    const size_t begin = (top + APART + align - 1) / align * align;
    if (bytes > ARENA_BYTES - begin - 2 * APART) {
        fprintf(stderr, "emulate: more than %zu MiB of device memory\n", ARENA_BYTES >> 20);
        exit(1);
    }
    top = (begin + bytes + APART - 1) / APART * APART;
    memset(arena + begin, 0xff, bytes);
    for (size_t w = begin / 4; w < (begin + bytes) / 4; w++) cells[w] = {0, 0, 0, 0, ALLOCATED};
    if (bytes % 4) { // the rest of the last word is out of bounds
        const uint32_t i = splits.take();
        for (size_t b = 0; b < bytes % 4; b++) splits[i].cell[b].state = ALLOCATED;
        cells[(begin + bytes) / 4] = {0, 0, 0, 0, SPLIT | i << INDEX_AT};
    }
    const uintptr_t at = reinterpret_cast<uintptr_t>(arena + begin);
    regions.push_back({at, at + bytes, std::move(name)});
    return arena + begin;
}

Session::Session()
{
    if (!arena) {
        arena = static_cast<char *>(reserve(ARENA_BYTES));
        cells = static_cast<Cell *>(reserve(ARENA_BYTES / 4 * sizeof(Cell)));
    }
}

Session::~Session()
{
    madvise(arena, top, MADV_DONTNEED);
    madvise(cells, top / 4 * sizeof(Cell), MADV_DONTNEED);
    regions.clear();
    splits.clear();
    many.clear();
    top = 0;
    last_clock = 1;
}

void *Session::take(size_t bytes, const char *name)
{
    return take_region(bytes, name);
}

/* Cells of these bytes, one by one where words are split. */
template <typename F> static void each_cell(size_t begin, size_t bytes, F f)
{
    for (size_t at = begin; at < begin + bytes;) {
        Cell &word = cells[at / 4];
        if (at % 4 == 0 && begin + bytes - at >= 4 && !(word.state & SPLIT)) {
            f(word, size_t{4});
            at += 4;
            continue;
        }
        if (!(word.state & SPLIT)) {
            const uint32_t i = splits.take();
            for (Cell &cell : splits[i].cell) {
                cell = word;
                if (&cell == splits[i].cell || !(word.state & MANY)) continue;
                const uint32_t own = many.take(); // each byte has a list of its own
                many[own] = many[word.state >> INDEX_AT];
                cell.state = (word.state & FLAGS) | own << INDEX_AT;
            }
            word = {0, 0, 0, 0, SPLIT | i << INDEX_AT};
        }
        f(splits[word.state >> INDEX_AT].cell[at % 4], size_t{1});
        at++;
    }
}

void Session::write(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    each_cell(place(to), bytes, [](Cell &cell, size_t) { cell = {0, 0, 0, 0, ALLOCATED | WRITTEN}; });
}

void Session::fill(void *to, int byte, size_t bytes)
{
    memset(to, byte, bytes);
    each_cell(place(to), bytes, [](Cell &cell, size_t) { cell = {0, 0, 0, 0, ALLOCATED | WRITTEN}; });
}

size_t Session::unwritten(const void *p, size_t bytes) const
{
    size_t count = 0;
    each_cell(place(p), bytes, [&](Cell &cell, size_t n) { count += cell.state & WRITTEN ? 0 : n; });
    return count;
}

void begin_launch_memory()
{
    launch_top = top;
    regions_before = regions.size();
}

char *take_shared(size_t bytes)
{
    return take_region(bytes, "shared memory of block " + std::to_string(regions.size() - regions_before),
                       SHARED_ALIGN);
}

void end_launch_memory()
{
    memset(cells + launch_top / 4, 0, (top - launch_top) / 4 * sizeof(Cell));
    regions.resize(regions_before);
    top = launch_top;
    drop_atomic(0);
}

Clock first_clock()
{
    return last_clock;
}
void keep_clock(Clock last)
{
    last_clock = last;
}

std::string name_of_address(uintptr_t address)
{
    for (const Region &r : regions)
        if (address >= r.begin && address < r.end)
            return "'" + r.name + "' + " + std::to_string(address - r.begin);
    for (const Region &r : regions)
        if (address >= r.end && address < r.end + APART)
            return std::to_string(address - r.end) + " bytes behind the end of '" + r.name + "'";
    for (const Region &r : regions)
        if (address < r.begin && address >= r.begin - APART)
            return std::to_string(r.begin - address) + " bytes before '" + r.name + "'";
    return "memory that is not the device's";
}

struct Access {
    Thread *thread;
    uintptr_t address;
    size_t bytes;
    const void *site;
    const char *verb;
};

[[noreturn]] static void wrong(Fault fault, const Access &a, const std::string &why)
{
    fail(fault, "%s %s %zu bytes at %s (%s)%s", name_of(a.thread).c_str(), a.verb, a.bytes,
         name_of_address(a.address).c_str(), name_of_site(a.site).c_str(), why.c_str());
}

[[noreturn]] static void race(const Access &a, const char *what, uint32_t other)
{
    wrong(Fault::RACE, a,
          std::string(", and nothing orders ") + what + " of " + name_of_clock(other) + " before it");
}

static void check_mine(const Cell &cell, const Access &a)
{
    if (cell.state & FLYING) wrong(Fault::RACE, a, ", which a copy is on its way to");
    if (!(cell.state & ALLOCATED)) wrong(Fault::BOUNDS, a, ", out of bounds");
}

static void check_write(const Cell &cell, const Access &a)
{
    if (!knows(a.thread, cell.writer, cell.write_clock)) race(a, "the write", cell.writer);
}

static void check_reads(const Cell &cell, const Access &a)
{
    if (cell.state & MANY) {
        const Readers &readers = many[cell.state >> INDEX_AT];
        for (const Reader &r : readers.list)
            if (!knows(a.thread, r.thread, r.clock)) race(a, "the read", r.thread);
        for (uint32_t t = 0; t < readers.of_thread.size(); t++)
            if (readers.of_thread[t] && !knows(a.thread, t, readers.of_thread[t])) race(a, "the read", t);
    } else if (!knows(a.thread, cell.reader, cell.read_clock)) {
        race(a, "the read", cell.reader);
    }
}

static void forget_reads(Cell &cell)
{
    if (cell.state & MANY) {
        many.give(cell.state >> INDEX_AT);
        cell.state &= FLAGS & ~MANY;
    }
    cell.reader = 0;
    cell.read_clock = 0;
}

/* `thread` reads, or what has a clock of its own does for it. */
static void note_read_of(Cell &cell, Thread *thread, uint32_t me, Clock now)
{
    if (!(cell.state & MANY)) {
        if (knows(thread, cell.reader, cell.read_clock)) {
            cell.reader = static_cast<uint16_t>(me);
            cell.read_clock = now;
            return;
        }
        const uint32_t i = many.take();
        many[i].list = {{cell.reader, cell.read_clock}, {me, now}};
        cell.state |= MANY | i << INDEX_AT;
        return;
    }
    Readers &readers = many[cell.state >> INDEX_AT];
    if (!readers.of_thread.empty()) {
        if (me >= readers.of_thread.size()) readers.of_thread.resize(machine->clocks); // of an earlier launch
        readers.of_thread[me] = now;
        return;
    }
    for (Reader &r : readers.list)
        if (r.thread == me) {
            r.clock = now;
            return;
        }
    if (readers.list.size() == Readers::FEW) {
        readers.list.erase(std::remove_if(readers.list.begin(), readers.list.end(),
                                          [&](const Reader &r) { return knows(thread, r.thread, r.clock); }),
                           readers.list.end());
        if (readers.list.size() == Readers::FEW) {
            readers.of_thread.assign(machine->clocks, 0);
            for (const Reader &r : readers.list) readers.of_thread[r.thread] = r.clock;
            readers.of_thread[me] = now;
            readers.list.clear();
            return;
        }
    }
    readers.list.push_back({me, now});
}

static void note_read(Cell &cell, Thread *thread)
{
    note_read_of(cell, thread, thread->number, thread->now);
}

static void read_cell(Cell &cell, const Access &a)
{
    check_mine(cell, a);
    if (!(cell.state & WRITTEN)) wrong(Fault::UNWRITTEN, a, ", never written");
    check_write(cell, a);
    if (cell.state & ATOMIC) access_plain_at_atomic(a.thread, a.address & ~uintptr_t{3}, Kind::READ, a.site);
    note_read(cell, a.thread);
}

static void write_cell(Cell &cell, const Access &a)
{
    check_mine(cell, a);
    check_write(cell, a);
    check_reads(cell, a);
    if (cell.state & ATOMIC) {
        access_plain_at_atomic(a.thread, a.address & ~uintptr_t{3}, Kind::WRITE, a.site);
        drop_atomic(a.address & ~uintptr_t{3});
    }
    forget_reads(cell);
    cell.writer = static_cast<uint16_t>(a.thread->number);
    cell.write_clock = a.thread->now;
    cell.state = ALLOCATED | WRITTEN;
}

/* A word whose bytes were all written at once is one again. */
static void join_bytes(size_t at, size_t bytes)
{
    for (size_t w = (at + 3) / 4; w < (at + bytes) / 4; w++) {
        if (!(cells[w].state & SPLIT)) continue;
        const uint32_t i = cells[w].state >> INDEX_AT;
        cells[w] = splits[i].cell[0];
        splits.give(i);
    }
}

/* Local memory, the parameters, constants of the program: or nothing that a kernel may touch. */
static void access_outside(const Access &a, Kind kind)
{
    const Thread *t = a.thread;
    const uintptr_t at = a.address, parameters = reinterpret_cast<uintptr_t>(machine->parameters);
    if (at >= reinterpret_cast<uintptr_t>(t->stack) && at < reinterpret_cast<uintptr_t>(t->stack_end)) return;
    if (kind == Kind::READ) {
        if (at - parameters < machine->parameter_bytes) return;
        if (at >= reinterpret_cast<uintptr_t>(&__executable_start) && at < reinterpret_cast<uintptr_t>(&end))
            return;
    }
    wrong(Fault::BOUNDS, a, ", out of bounds");
}

/* What a thread writes twice in one moment of its clock leaves no mark that the end of a copy would find. */
static void check_own_copies(const Access &a)
{
    const auto check = [&a](const std::vector<Copy> &copies) {
        for (const Copy &c : copies) {
            const uintptr_t from = reinterpret_cast<uintptr_t>(c.from);
            if (a.address < from + c.live && from < a.address + a.bytes)
                wrong(Fault::RACE, a, ", which a cp.async of its own is still to read");
        }
    };
    check(a.thread->issued);
    for (const std::vector<Copy> &group : a.thread->groups) check(group);
}

void access(Thread *thread, uintptr_t address, size_t bytes, Kind kind, const void *site)
{
    const Access a = {thread, address, bytes, site, kind == Kind::READ ? "reads" : "writes"};
    const size_t at = address - reinterpret_cast<uintptr_t>(arena);
    if (at >= ARENA_BYTES || bytes > ARENA_BYTES - at) return access_outside(a, kind);
    if ((bytes & (bytes - 1)) == 0 && address & (bytes - 1)) wrong(Fault::ALIGNMENT, a, ", not aligned");
    machine->result.counters.accesses++;
    if (kind == Kind::WRITE) progress(thread), check_own_copies(a);
    const uintptr_t base = reinterpret_cast<uintptr_t>(arena);
    size_t done = 0;
    each_cell(at, bytes, [&](Cell &cell, size_t n) {
        const Access part = {thread, base + at + done, bytes, site, a.verb};
        if (kind == Kind::READ)
            read_cell(cell, part);
        else
            write_cell(cell, part);
        done += n;
    });
    if (kind == Kind::WRITE) join_bytes(at, bytes);
}

void access_atomic(Thread *thread, uintptr_t address, size_t bytes, Kind kind, const void *site)
{
    const Access a = {thread, address, bytes, site,
                      kind == Kind::READ ? "atomically reads" : "atomically writes"};
    const size_t at = address - reinterpret_cast<uintptr_t>(arena);
    if (at >= ARENA_BYTES || bytes > ARENA_BYTES - at) wrong(Fault::BOUNDS, a, ", out of bounds");
    if (address & (bytes - 1)) wrong(Fault::ALIGNMENT, a, ", not aligned");
    if (kind == Kind::WRITE) check_own_copies(a);
    bool split = false;
    each_cell(at, bytes, [&](Cell &cell, size_t n) {
        check_mine(cell, a);
        if (kind == Kind::READ && !(cell.state & WRITTEN)) wrong(Fault::UNWRITTEN, a, ", never written");
        check_write(cell, a);
        if (kind == Kind::WRITE) check_reads(cell, a), forget_reads(cell);
        cell.state |= ATOMIC | (kind == Kind::WRITE ? WRITTEN : 0u);
        split |= n == 1;
    });
    if (split && kind == Kind::WRITE) join_bytes(at, bytes);
}

void check_prefetch(Thread *thread, uintptr_t address, const void *site)
{
    const Access a = {thread, address, 1, site, "prefetches"};
    const size_t at = address - reinterpret_cast<uintptr_t>(arena);
    if (at >= launch_top) wrong(Fault::BOUNDS, a, ", which is no global memory");
    each_cell(at & ~size_t{3}, 4, [&](Cell &cell, size_t) {
        if (!(cell.state & ALLOCATED)) wrong(Fault::BOUNDS, a, ", out of bounds");
    });
}

void begin_copy(Thread *thread, Copy &copy, const void *site)
{
    const uintptr_t from = reinterpret_cast<uintptr_t>(copy.from);
    if (copy.live) access(thread, from, copy.live, Kind::READ, site);
    each_cell(place(copy.from), copy.live, [&](Cell &cell, size_t) {
        copy.source.push_back(static_cast<uint64_t>(cell.writer) << 32 | cell.write_clock);
    });
    access(thread, reinterpret_cast<uintptr_t>(copy.to), copy.bytes, Kind::WRITE, site);
    each_cell(place(copy.to), copy.bytes, [](Cell &cell, size_t) { cell.state |= FLYING; });
    memset(copy.to, 0xff, copy.bytes);
}

void end_copy(Thread *thread, Copy &copy, const void *site)
{
    each_cell(place(copy.to), copy.bytes, [&](Cell &cell, size_t) {
        cell.state &= ~FLYING;
        cell.writer = static_cast<uint16_t>(thread->number);
        cell.write_clock = thread->now;
    });
    size_t i = 0;
    const Access a = {thread, reinterpret_cast<uintptr_t>(copy.from), copy.live, site, "copies"};
    each_cell(place(copy.from), copy.live, [&](Cell &cell, size_t) {
        if (i >= copy.source.size() ||
            copy.source[i++] != (static_cast<uint64_t>(cell.writer) << 32 | cell.write_clock))
            wrong(Fault::RACE, a, ", which was written before the copy was waited for");
    });
    if (copy.live) access(thread, reinterpret_cast<uintptr_t>(copy.from), copy.live, Kind::READ, site);
}

std::string name_of_clock(uint32_t number)
{
    const uint32_t threads = machine->threads, blocks = static_cast<uint32_t>(machine->blocks.size());
    if (number < threads) return name_of(&machine->all[number]);
    if (number < threads + blocks) return "a copy of a tile in block " + std::to_string(number - threads);
    const Warp &warp = machine->warps[number - threads - blocks];
    return "a wgmma of block " + std::to_string(warp.block->number) + " warp " + std::to_string(warp.number);
}

static uint64_t version_of(const Cell &cell)
{
    return static_cast<uint64_t>(cell.writer) << 32 | cell.write_clock;
}

/* Whether what a thread of this launch wrote then is fenced for those who read beside threads, and `reader` has acquired that. */
static bool is_fenced_for(const Thread *reader, uint32_t writer, Clock clock)
{
    if (writer >= machine->threads || clock <= first_clock()) return true;
    const std::vector<Clock> &fences = machine->all[writer].async_fences;
    const auto fence = std::lower_bound(fences.begin(), fences.end(), clock);
    return fence != fences.end() && knows(reader, writer, *fence);
}

static void access_by_16(Thread *thread, uintptr_t address, size_t bytes, Kind kind, const void *site)
{
    for (size_t at = 0; at < bytes; at += 16) access(thread, address + at, 16, kind, site);
}

void begin_tile(TileCopy &copy)
{
    Thread *const by = copy.by;
    for (const TileCopy::Piece &piece : copy.pieces) {
        const uintptr_t from = reinterpret_cast<uintptr_t>(piece.from);
        access_by_16(by, from, piece.bytes, Kind::READ, copy.site);
        each_cell(place(piece.from), piece.bytes, [&](Cell &cell, size_t) {
            if (!is_fenced_for(by, cell.writer, cell.write_clock))
                wrong(Fault::RACE, {by, from, piece.bytes, copy.site, "copies"},
                      ", which was written in this launch");
            copy.source.push_back(version_of(cell));
        });
    }
    const uintptr_t to = reinterpret_cast<uintptr_t>(copy.to);
    each_cell(place(copy.to), copy.bytes, [&](Cell &cell, size_t) {
        if (!is_fenced_for(by, cell.writer, cell.write_clock))
            wrong(Fault::RACE, {by, to, copy.bytes, copy.site, "copies a tile to"},
                  ", which a thread wrote without a fence");
    });
    access_by_16(by, to, copy.bytes, Kind::WRITE, copy.site);
    each_cell(place(copy.to), copy.bytes, [](Cell &cell, size_t) { cell.state |= FLYING; });
    memset(copy.to, 0xff, copy.bytes);
}

/* Bits 4 to 6 of a place in shared memory are exchanged with 7 to 9 added to them without a carry (PTX, tensor copies, swizzle of 128 bytes). */
static uintptr_t swizzled(uintptr_t place)
{
    return place ^ (place >> 3 & 0x70);
}

void land_tile(TileCopy &copy)
{
    size_t i = 0;
    memset(copy.to, 0, copy.bytes);
    for (const TileCopy::Piece &piece : copy.pieces) {
        each_cell(place(piece.from), piece.bytes, [&](Cell &cell, size_t) {
            if (i >= copy.source.size() || copy.source[i++] != version_of(cell))
                wrong(Fault::RACE,
                      {copy.by, reinterpret_cast<uintptr_t>(piece.from), piece.bytes, copy.site, "copies"},
                      ", which was written before the copy had come");
        });
        for (size_t byte = 0; byte < piece.bytes; byte++)
            *reinterpret_cast<char *>(swizzled(reinterpret_cast<uintptr_t>(copy.to) + piece.at + byte)) =
                piece.from[byte];
    }
}

void end_tile(const TileCopy &copy)
{
    each_cell(place(copy.to), copy.bytes, [&](Cell &cell, size_t) {
        cell.state &= ~FLYING;
        cell.writer = static_cast<uint16_t>(copies_clock(copy.by->block));
        cell.write_clock = copy.clock;
    });
}

/* 16 values of k of so many rows, from the address on that a matrix descriptor would have: eights of rows are 1024 bytes apart, the rows of
 * one 128, and the swizzle is that of the whole address (PTX, wgmma, matrices in shared memory). */
static void find_operands(std::vector<uintptr_t> &all, uintptr_t at, int rows)
{
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++)
            all.push_back(swizzled(at + static_cast<uintptr_t>(row / 8 * 1024 + row % 8 * 128 + half * 16)));
}

void begin_operands(Product &product)
{
    struct Write {
        uint32_t writer;
        Clock clock;
        uintptr_t at;
    };
    std::vector<Write> writes; // each once
    find_operands(product.operands, product.a, 64);
    find_operands(product.operands, product.b, product.columns);
    Thread *const first = product.first->lanes[0];
    const uintptr_t shared = reinterpret_cast<uintptr_t>(first->block->shared);
    for (const uintptr_t at : product.operands) {
        const Access a = {first, at, 16, product.site, "multiplies"};
        if (at < shared || at + 16 > shared + machine->shape.shared_bytes)
            wrong(Fault::BOUNDS, a, ", out of bounds");
        each_cell(at - reinterpret_cast<uintptr_t>(arena), 16, [&](Cell &cell, size_t) {
            check_mine(cell, a);
            if (!(cell.state & WRITTEN)) wrong(Fault::UNWRITTEN, a, ", never written");
            product.source.push_back(version_of(cell));
            for (const Write &w : writes)
                if (w.writer == cell.writer && w.clock == cell.write_clock) return;
            writes.push_back({cell.writer, cell.write_clock, at});
        });
    }
    for (int i = 0; i < 128; i++) {
        Thread *const reader = product.first[i / 32].lanes[i % 32];
        for (const Write &w : writes) {
            const Access a = {reader, w.at, 16, product.site, "multiplies"};
            if (!knows(reader, w.writer, w.clock)) race(a, "the write", w.writer);
            if (!is_fenced_for(reader, w.writer, w.clock))
                wrong(Fault::RACE, a,
                      ", which " + name_of_clock(w.writer) + " wrote without a fence_async behind it");
        }
    }
}

void end_operands(const Product &product, Warp *warp)
{
    size_t i = 0;
    for (const uintptr_t at : product.operands)
        each_cell(at - reinterpret_cast<uintptr_t>(arena), 16, [&](Cell &cell, size_t) {
            if (i >= product.source.size() || product.source[i++] != version_of(cell))
                wrong(Fault::RACE, {warp->lanes[0], at, 16, product.site, "multiplies"},
                      ", which was written before the wgmma was waited for");
            note_read_of(cell, warp->lanes[0], products_clock(warp),
                         product.read[static_cast<size_t>(warp - product.first)]);
        });
}

} // namespace emulate
