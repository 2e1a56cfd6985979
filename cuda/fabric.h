/* What a rank of a device can do to the others. The ranks are virtual: groups of blocks of one launch, each with a symmetric region of
 * its own. A rank writes to another's region with these words alone, and reads only its own. Where a region lies is told by a
 * table, so that it may be another device's memory: then S is scope::sys, and scope::gpu where all ranks are on one device.
 *
 *   to put      place_at, and stores there by as many warps as share the work (copy_words, or sums as they come); count_messages
 *   to signal   raise, by one thread, behind the barrier at which it met those warps
 *   to wait     look_at until a word is new, then acquire it; between looks has_failed, and is_too_late, which bounds the wait
 *
 * Signals are words of 64 bits whose values only grow. Who acquires one sees what its rank put before it, by the warps that had
 * met or by others that they had waited for. */
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

/* By all lanes of a warp; four words of each are on their way before the first is stored. */
template <typename Word> COT_DEVICE void copy_each(Word *to, const Word *from, size_t count)
{
    constexpr size_t AHEAD = 4;
    size_t i = static_cast<size_t>(lane_of_warp());
    COT_ONE_BY_ONE
    for (; i + (AHEAD - 1) * 32 < count; i += AHEAD * 32) {
        Word words[AHEAD];
        COT_EACH (j, static_cast<int>(AHEAD)) words[j] = from[i + static_cast<size_t>(j) * 32];
        COT_EACH (j, static_cast<int>(AHEAD)) to[i + static_cast<size_t>(j) * 32] = words[j];
    }
    COT_ONE_BY_ONE
    for (; i < count; i += 32) to[i] = from[i];
}

/* A multiple of 4 bytes; 16 at a time where the size and both places allow it. */
COT_DEVICE void copy_words(unsigned char *to, const unsigned char *from, size_t bytes)
{
    if (((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) & 15) == 0)
        copy_each(reinterpret_cast<uint4 *>(to), reinterpret_cast<const uint4 *>(from), bytes / 16);
    else
        copy_each(reinterpret_cast<uint32_t *>(to), reinterpret_cast<const uint32_t *>(from), bytes / 4);
}

COT_DEVICE unsigned char *place_at(const fabric &f, int to, size_t offset)
{
    return f.regions[to] + offset;
}

/* Raises the word at `signal` of rank `to`'s region to `value`. */
template <scope S> COT_DEVICE void raise(const fabric &f, int to, size_t signal, uint64_t value)
{
    uint64_t *const word = reinterpret_cast<uint64_t *>(f.regions[to] + signal);
    COT_EITHER(fabric_raise, store_release<S>(word, value), store_relaxed<S>(word, value));
}

/* The own word at `signal`. A look orders nothing, and leaves a multiprocessor's cache as it is; acquire reads the same or something
 * newer, and what was put before it is there. */
template <scope S> COT_DEVICE uint64_t look_at(const fabric &f, size_t signal)
{
    return load_relaxed<S>(reinterpret_cast<const uint64_t *>(f.regions[f.rank] + signal));
}
template <scope S> COT_DEVICE uint64_t acquire(const fabric &f, size_t signal)
{
    return load_acquire<S>(reinterpret_cast<const uint64_t *>(f.regions[f.rank] + signal));
}

/* Whether a wait of some rank has failed, so that all others are to end. */
template <scope S> COT_DEVICE bool has_failed(const fabric &f)
{
    return load_relaxed<S>(f.failure) != 0;
}

/* Whether a wait for `peer` that began then takes longer than the time-out; that makes it the group's failure, if none was before. */
template <scope S>
COT_DEVICE bool is_too_late(const fabric &f, uint64_t began, int peer, int phase, uint64_t epoch)
{
    if (!COT_EITHER(fabric_timeout, has_passed(began, f.timeout_ns), false)) return false;
    /* Compared with what was there, not with a zero in the code: tools/check_sass says how such a one was compiled. */
    const uint64_t before = load_relaxed<S>(f.failure);
    compare_exchange_relaxed<S>(f.failure, before, before ? before : failure_of(f.rank, peer, phase, epoch));
    return true;
}

} // namespace cot

#endif
