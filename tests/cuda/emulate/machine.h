/* What the parts of the emulator share: threads, warps, blocks, and what they wait for. Device code sees cuda.h, tests see
 * launch.h; this header is the emulator's own.
 *
 * Every CUDA thread is a fiber on one host thread, so that the emulator's own data need no locks. A fiber runs until it
 * calls one of CUDA's words that another thread could notice; there the scheduler may draw another one. Plain loads and
 * stores come in through sanitizer.cpp and are judged by vector clocks, whatever order the fibers ran in. */
#ifndef COT_TESTS_CUDA_EMULATE_MACHINE_H
#define COT_TESTS_CUDA_EMULATE_MACHINE_H
#include "clocks.h"
#include "cuda.h"
#include "launch.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

namespace emulate {

using Frozen = std::shared_ptr<const Clocks>;

struct Thread;
struct Block;
struct Warp;

/* What a release handed over: everything that its thread knew. */
struct Head {
    Frozen known;
    uint32_t writer;
    Scope scope;
};

/* A relaxed load saw what a release published; an acquire fence may still make that count. */
struct Seen {
    Head head;
    Scope scope; // of the load
};

/* One cp.async on its way. */
struct Copy {
    char *to;
    const char *from;
    uint32_t bytes, live; // the last bytes - live are zeros
    uint64_t lands;       // at this step of the scheduler
    bool landed;
    std::vector<uint64_t> source; // who wrote each word of the source, when it was issued
};

/* A copy of a tile on its way: pieces of rows, each of one line of shared memory. */
struct TileCopy {
    char *to;
    uintptr_t word;
    size_t bytes;   // of shared memory
    uint64_t lands; // at this step of the scheduler
    bool landed;
    Clock clock; // of the block's copies
    struct Piece {
        const char *from;
        size_t at, bytes; // in the tile as it were without a swizzle
    };
    std::vector<Piece> pieces;
    std::vector<uint64_t> source;
    Thread *by;
    const void *site;
};

/* A word that threads and copies arrive at (mbarrier). */
struct Word {
    uint32_t arrivals, left; // of a phase, and how many of them are to come
    int64_t phase;           // that goes on
    uint64_t expected, issued, landed;
    Clocks known, before; // of who has arrived in this phase, and in the one before
    std::vector<Thread *> waiting;
};

/* One wgmma of four warps, and the sums of a thread that it adds to. */
struct Product {
    uintptr_t a, b;
    int columns;
    uint64_t reads; // at this step of the scheduler
    bool done;
    Warp *first;                     // of the four
    std::vector<uintptr_t> operands; // 16 bytes each
    std::vector<uint64_t> source;
    std::array<struct Sums *, 128> sums;
    std::array<Clock, 4> read; // 0, or when a warp had waited for it
    const void *site;
};
struct Sums {
    float *at;
    std::vector<float> values;
    size_t products; // that are not waited for
};

struct Poll {
    uintptr_t address;
    uint64_t version;
    const void *site;
};

enum class State { READY, PARKED, WAITING, DONE };

struct Thread {
    void *stack_pointer;
    char *stack, *stack_end;
    uint32_t number; // in the launch
    int device, lane;
    Block *block;
    Warp *warp;
    State state;
    Clock now;             // its own clock, which moves at each release
    Clocks known;          // of all others
    const char *waits_for; // at what word,
    int waits_number;      // of which number, or -1,
    const void *waits_at;  // and where
    std::vector<Poll> polls;
    bool reads_clock;
    Head fence; // the last release fence; known is null before the first
    std::vector<Seen> unacquired;
    std::vector<Copy> issued;             // cp.async of the group that is open
    std::deque<std::vector<Copy>> groups; // committed, the oldest first
    std::vector<Clock> async_fences;      // when it let products read what it had written
    std::map<uintptr_t, int64_t> waited;  // for a word: the last phase
    std::set<uintptr_t> maps;             // of tiles, that it has acquired
    bool sums_fenced;
    int registers;                                  // 0: as the launch gave it
    std::vector<std::shared_ptr<Sums>> sums;        // that products add to
    std::vector<std::shared_ptr<Product>> products; // of the group that is open
    std::deque<std::vector<std::shared_ptr<Product>>> product_groups;
    uint64_t in[8], out[8]; // what it brings to a meeting of its warp, and takes from it
};

/* Lanes that meet at one word. */
struct Meeting {
    const char *word;
    uint32_t mask, arrived;
    const void *site;
};

/* An access to shared memory in one place of the code, since the lanes last met: where each lane's n-th went. */
struct Use {
    const void *site;
    size_t bytes;
    bool copy; // a cp.async
    std::array<size_t, 32> times;
    std::vector<std::array<uint32_t, 32>> at;
};

struct Warp {
    Block *block;
    int number; // in its block
    Thread *lanes[32];
    std::vector<Meeting> meetings;
    std::vector<Use> uses;
    /* Of the first of four: who has come to a wgmma, where, and with which sums; and those that are on their way. */
    std::vector<Thread *> multiplying;
    const void *multiplies_at;
    std::deque<std::shared_ptr<Product>> products;
    Clock products_read; // of this warp
};

struct Barrier {
    int expected;
    std::vector<Thread *> arrived, waiting;
    std::vector<const void *> sites; // beside `arrived`
    Clocks known;
};

struct Block {
    int number, device;
    char *shared;
    std::vector<Thread *> threads;
    Barrier barriers[16];
    std::map<uintptr_t, Word> words;
    std::vector<TileCopy> tiles; // on their way, or not counted yet
    Clock tiles_issued;
    int spare_registers;           // that threads gave, and none took yet
    std::vector<Thread *> wanting; // registers
    uint32_t ended;                // threads
};

struct Machine {
    Shape shape;
    Options options;
    uint32_t threads, clocks; // and a clock for each block's copies, each warp's products
    std::vector<Thread> all;
    std::vector<Warp> warps;
    std::vector<Block> blocks;
    std::vector<Thread *> ready, parked;
    std::unordered_set<uintptr_t> prefetched; // by 32 bytes, and not copied since
    void *host_stack;
    void (*run)(void *);
    void *parameters;
    size_t parameter_bytes;
    uint64_t random, steps, now, quiet_rounds;
    uint64_t tick; // of %globaltimer, ns; what is read may be one behind what was read before
    int done;
    unsigned switch_one_in;
    Result result;
};

extern Machine *machine; // the launch that runs, or NULL
extern Thread *current;  // the fiber that runs; NULL while the emulator itself does

/* Around the emulator's own work on behalf of a fiber: what it reads and writes is no device's. */
class Inside {
    Thread *thread;

  public:
    Inside() : thread(current) { current = nullptr; }
    ~Inside() { current = thread; }
    Thread *operator->() const { return thread; }
    Thread *get() const { return thread; }
};

// schedule.cpp
[[noreturn]] void fail(Fault fault, const char *format, ...) __attribute__((format(printf, 2, 3)));
std::string name_of(const Thread *thread);
std::string name_of_site(const void *site);
uint64_t draw(uint64_t below);
void pause(Thread *thread);                                                    // another fiber may run first
void wait(Thread *thread, const char *for_what, int number, const void *site); // until wake
void park(Thread *thread); // until one of its polls changes
void wake(Thread *thread);
void progress(Thread *thread); // it did what a mere loop over words to come does not
void wake_pollers(uintptr_t address);

// memory.cpp
enum class Kind { READ, WRITE };
void access(Thread *thread, uintptr_t address, size_t bytes, Kind kind, const void *site);
std::string name_of_address(uintptr_t address);
char *take_shared(size_t bytes);
/* How the race is called that another, thread or not, ran. */
std::string name_of_clock(uint32_t number);
void begin_launch_memory();
void end_launch_memory();
Clock first_clock();
void keep_clock(Clock last);
/* cp.async: the destination is nobody's until the copy is waited for. */
void begin_copy(Thread *thread, Copy &copy, const void *site);
void end_copy(Thread *thread, Copy &copy, const void *site);
/* A tile's destination is nobody's until its word's phase is over, and then what its block's copies wrote. */
void begin_tile(TileCopy &copy);
void land_tile(TileCopy &copy);
void end_tile(const TileCopy &copy);
/* Operands of a product, that all threads of the four warps must know; each warp reads them until it has waited. */
void begin_operands(Product &product);
void end_operands(const Product &product, Warp *warp);
/* Of a prefetch: that there is global memory. */
void check_prefetch(Thread *thread, uintptr_t address, const void *site);
/* The checks of an access that is atomic at [address, address + bytes) against plain ones. */
void access_atomic(Thread *thread, uintptr_t address, size_t bytes, Kind kind, const void *site);
/* The checks of a plain access against the atomic ones at that word. */
void access_plain_at_atomic(Thread *thread, uintptr_t address, Kind kind, const void *site);

// banks.cpp
void note_use(Thread *thread, uintptr_t address, size_t bytes, const void *site, bool copy);
void close_uses(Warp *warp); // all lanes meet, or have ended

// atomics.cpp
void access_volatile(Thread *thread, uintptr_t address, size_t bytes, Kind kind, const void *site);
/* Forgets what was stored at that word, or, at 0, everywhere. */
void drop_atomic(uintptr_t address);

// copies.cpp
void land_copies(Thread *thread);
void end_thread_copies(Thread *thread);

// tiles.cpp
bool land_some_tile(); // where nothing else goes on
void land_tiles(Block *block);
void find_starved_words();
void end_thread_tiles(Thread *thread);
inline uint32_t copies_clock(const Block *block)
{
    return machine->threads + static_cast<uint32_t>(block->number);
}
inline uint32_t products_clock(const Warp *warp)
{
    return machine->threads + static_cast<uint32_t>(machine->blocks.size()) +
           static_cast<uint32_t>(warp - machine->warps.data());
}

// warp.cpp, barrier.cpp
float add_products(float sum, const float *a, const float *b); // sixteen of them, in the launch's rounding
float bf16_to_float(uint32_t bits);
void end_thread_warp(Thread *thread);
void end_thread_barriers(Thread *thread);

/* A launch knows all that came before it, by more threads than its own, too. */
inline bool knows(const Thread *thread, uint32_t other, Clock clock)
{
    return other >= machine->clocks || other == thread->number || thread->known[other] >= clock;
}
inline void release(Thread *thread)
{
    thread->now++;
}
inline void learn(Thread *thread, const Clocks &known)
{
    thread->known.join(known);
}
inline void tell(Clocks &known, const Thread *thread)
{
    known.join(thread->known);
    known.raise(thread->number, thread->now);
}
/* What a release of a thread hands over, which is behind a chain of so many. */
Frozen freeze(const Thread *thread, uint32_t chain);
inline bool within(Scope scope, const Thread *a, const Thread *b)
{
    return scope == Scope::SYS || (scope == Scope::GPU ? a->device == b->device : a->block == b->block);
}

/* A thread acquires what a release handed over. */
inline void acquire(Thread *thread, const Head &head)
{
    const bool elsewhere = machine->all[head.writer].block != thread->block;
    learn(thread, *head.known);
    thread->known.chain = std::max(thread->known.chain, head.known->chain + elsewhere);
    machine->result.counters.chain = std::max(machine->result.counters.chain, thread->known.chain);
}

} // namespace emulate

#endif
