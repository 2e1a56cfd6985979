/* Running kernels on the emulator: memory, launches and what was found. For tests; device code sees cuda.h alone.
 *
 *     emulate::Session session;                                   // fresh memory
 *     float *x = session.copy(host_x, n, "x");
 *     float *y = session.allocate<float>(n, "y");                 // poisoned: reading it before a write is a fault
 *     emulate::Result r = emulate::launch({blocks, threads, shared_bytes}, {.seed = 7}, kernel, x, y, n);
 *     if (r.fault != emulate::Fault::NONE) ... r.message says who did what where
 *
 * The same seed gives the same schedule, the same landings and the same stale loads. */
#ifndef COT_TESTS_CUDA_EMULATE_LAUNCH_H
#define COT_TESTS_CUDA_EMULATE_LAUNCH_H
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace emulate {

enum class Fault {
    NONE,
    RACE,      // two accesses that nothing orders
    BOUNDS,    // memory that is not the device's, or of another thread
    ALIGNMENT, // an access not aligned to its size
    UNWRITTEN, // a read of what was never written
    BARRIER,   // threads that disagree about a barrier, or leave others at it
    MASK,      // lanes that disagree about a warp's word, or are missing
    COPY,      // cp.async, copies of tiles, their words, or wgmma used otherwise than the manual has it
    DEADLOCK,  // all threads wait, or poll without end
    MISUSE     // what the emulator does not model
};
const char *name_of(Fault fault);

/* The sum inside one mma is unspecified: a run has one of these. */
enum class Rounding {
    EXACT,     // all products in full, rounded once
    IN_ORDER,  // one fused multiply-add after the other
    TRUNCATED, // by eights, aligned to the largest exponent and cut off
    SM_90, // as an H200 was found to add: all sixteen and the sum so far aligned to the largest exponent, cut off, and the result, too
    COUNT
};

struct Shape {
    unsigned blocks, threads; // threads: a multiple of 32
    size_t shared_bytes;
};

struct Options {
    uint64_t seed = 1;
    std::vector<int> devices; // of each block; empty: all on one
    Rounding rounding = Rounding::EXACT;
    const char *mutant =
        nullptr; // weakenings of device code that are on (COT_UNLESS, COT_EITHER), with a blank between
    std::vector<std::array<int, 3>> *tiles = nullptr; // gets what copies of tiles name, in turn: k, row, slot
    uint64_t most_steps = 1 << 28; // of the scheduler, after which a launch is given up as endless
};

struct Counters {
    uint64_t switches, barriers, warp_barriers, shuffles, fences;
    uint64_t atomic_loads, atomic_stores, atomic_updates;
    uint64_t mma, ldmatrix, ldmatrix_conflicts; // conflicts: passes over the banks beyond the first
    uint64_t copies, copied_bytes, copy_conflicts;
    uint64_t tiles, tile_bytes, group_mma;         // copies of tiles, what they read; wgmma
    uint64_t prefetched_bytes, prefetched_in_vain; // in vain: not copied by a cp.async after that
    uint64_t shared_accesses, shared_conflicts;    // plain ones to shared memory, by warps
    uint64_t accesses;                             // plain ones that were checked
    uint64_t mutant_reached;
    uint32_t
        chain; // the most releases behind each other that other blocks acquired: hand-overs that take their time in turn
};

struct Result {
    Fault fault = Fault::NONE;
    std::string message;
    Counters counters = {};
};

/* Writes the map that a driver would make of rows of bf16, [slots][rows][k], slots so many bytes apart, of which tiles have so many rows, as
 * cuda/tile_map.h has it. */
void make_tile_map(void *map, const void *values, int64_t k, int64_t rows, int64_t slots, int64_t slot_bytes,
                   int64_t tile_rows);

/* Device memory, empty at first; one at a time. */
class Session {
    void *take(size_t bytes, const char *name);

  public:
    Session();
    ~Session();
    Session(const Session &) = delete;
    /* Global memory, poisoned and unwritten; lives as long as the session. `name` must, too. */
    template <typename T> T *allocate(size_t n, const char *name)
    {
        return static_cast<T *>(take(n * sizeof(T), name));
    }
    template <typename T> T *copy(const T *from, size_t n, const char *name)
    {
        T *to = allocate<T>(n, name);
        write(to, from, n * sizeof(T));
        return to;
    }
    /* What the host writes between launches. */
    void write(void *to, const void *from, size_t bytes);
    void fill(void *to, int byte, size_t bytes);
    /* How many of these bytes no one ever wrote. */
    size_t unwritten(const void *p, size_t bytes) const;
};

Result launch_erased(const Shape &shape, const Options &options, void (*run)(void *), void *parameters,
                     size_t parameter_bytes);

template <typename... P, typename... A>
Result launch(const Shape &shape, const Options &options, void (*kernel)(P...), A... arguments)
{
    struct Call {
        void (*kernel)(P...);
        std::tuple<P...> parameters;
    } call = {kernel, std::tuple<P...>(arguments...)};
    return launch_erased(
        shape, options,
        [](void *p) {
            Call *c = static_cast<Call *>(p);
            std::apply(c->kernel, c->parameters);
        },
        &call, sizeof call);
}

} // namespace emulate

#endif
