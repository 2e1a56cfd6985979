/* What a rank of a device can do to the others: put, put and signal, wait. The ranks are virtual: groups of blocks of one
 * launch, each with a symmetric region of its own. A rank writes to another's region with these words alone, and reads
 * only its own. Where a region lies is told by a table, so that it may be another device's memory: then S is scope::sys,
 * and scope::gpu where all ranks are on one device.
 *
 * Every function is called by all lanes of a warp. Signals are words of 64 bits whose values only grow. Who sees a
 * signal sees what its rank put before it, by the same warp or by others that it had waited for. */
#ifndef COT_CUDA_FABRIC_H
#define COT_CUDA_FABRIC_H
#include "cuda/call.h"
#include "cuda/ptx.h"

namespace cot {

/* Who waited for whom, in what phase and epoch, as one word that is not 0. */
COT_DEVICE uint64_t failure_of(int rank, int peer, int phase, uint64_t epoch)
{
    return uint64_t{1} << 63 | static_cast<uint64_t>(rank) << 56 | static_cast<uint64_t>(peer) << 48 |
           static_cast<uint64_t>(phase) << 40 | (epoch & 0xffffffffffu);
}

/* Whether more than `ns` have gone by since the timer said `began`. It ticks as coarsely as a device likes, and may say less than it
 * did before. */
COT_DEVICE bool has_passed(uint64_t began, uint64_t ns)
{
    const uint64_t now = global_timer();
    return now > began && now - began > ns;
}

COT_DEVICE int lane_of_warp()
{
    return thread_number() % 32;
}

/* By one lane alone: so many messages to a rank, of so many bytes together. */
COT_DEVICE void count_messages(const fabric &f, int to, size_t bytes, uint64_t messages, int phase)
{
    if (to == f.rank) return;
    traffic *t = &f.counters[(static_cast<size_t>(phase) * static_cast<size_t>(f.ranks) +
                              static_cast<size_t>(f.rank)) *
                                 static_cast<size_t>(f.ranks) +
                             static_cast<size_t>(to)];
    add_relaxed<scope::gpu>(&t->bytes, static_cast<uint64_t>(bytes));
    if (messages) add_relaxed<scope::gpu>(&t->messages, messages);
}

COT_DEVICE void count_traffic(const fabric &f, int to, size_t bytes, int phase)
{
    if (lane_of_warp() == 0) count_messages(f, to, bytes, 1, phase);
}

/* A multiple of 4 bytes; 16 at a time where the size and both places allow it. */
COT_DEVICE void copy_words(unsigned char *to, const unsigned char *from, size_t bytes)
{
    const size_t lane = static_cast<size_t>(lane_of_warp());
    if (((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) & 15) == 0)
        for (size_t i = lane; i < bytes / 16; i += 32)
            reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
    else
        for (size_t i = lane; i < bytes / 4; i += 32)
            reinterpret_cast<uint32_t *>(to)[i] = reinterpret_cast<const uint32_t *>(from)[i];
}

/* Copies `bytes`, a multiple of 4, to `offset` of rank `to`'s region. There for `to` once it has seen a later signal. */
COT_DEVICE void put(const fabric &f, int to, size_t offset, const void *from, size_t bytes, int phase)
{
    copy_words(f.regions[to] + offset, static_cast<const unsigned char *>(from), bytes);
    count_traffic(f, to, bytes, phase);
}

/* A message that several warps write in parts: where it goes, and, by one lane when all parts are written and a barrier has
 * brought them together, the word that tells of it. It is counted by count_messages. */
COT_DEVICE unsigned char *place_at(const fabric &f, int to, size_t offset)
{
    return f.regions[to] + offset;
}
template <scope S> COT_DEVICE void raise(const fabric &f, int to, size_t signal, uint64_t value)
{
    uint64_t *const word = reinterpret_cast<uint64_t *>(f.regions[to] + signal);
    COT_EITHER(fabric_raise, store_release<S>(word, value), store_relaxed<S>(word, value));
}

/* put, of 0 bytes too, then raises the word at `signal` of rank `to`'s region to `value`. */
template <scope S>
COT_DEVICE void put_signal(const fabric &f, int to, size_t offset, const void *from, size_t bytes,
                           size_t signal, uint64_t value, int phase)
{
    put(f, to, offset, from, bytes, phase);
    COT_UNLESS(fabric_lanes_before_signal) __syncwarp();
    uint64_t *const word = reinterpret_cast<uint64_t *>(f.regions[to] + signal);
    if (lane_of_warp() == 0)
        COT_EITHER(fabric_release, store_release<S>(word, value), store_relaxed<S>(word, value));
}

/* Waits until the own word at `signal` is `value` or more. False where that takes longer than the time-out, which makes
 * this wait the group's failure, or where another rank's has failed. */
template <scope S>
COT_DEVICE bool wait(const fabric &f, size_t signal, uint64_t value, int peer, int phase, uint64_t epoch)
{
    const uint64_t *const word = reinterpret_cast<const uint64_t *>(f.regions[f.rank] + signal);
    bool there = true;
    if (lane_of_warp() == 0) {
        const uint64_t began = global_timer();
        while (COT_EITHER(fabric_acquire, load_acquire<S>(word), load_relaxed<S>(word)) < value) {
            if (COT_EITHER(fabric_watch, load_relaxed<S>(f.failure), uint64_t{0})) {
                there = false;
                break;
            }
            if (COT_EITHER(fabric_timeout, has_passed(began, f.timeout_ns), false)) {
                compare_exchange_relaxed<S>(f.failure, 0, failure_of(f.rank, peer, phase, epoch));
                there = false;
                break;
            }
            back_off();
        }
    }
    COT_UNLESS(fabric_lanes_after_wait) __syncwarp();
    return __shfl_sync(ALL_LANES, static_cast<int>(there), 0) != 0;
}

} // namespace cot

#endif
