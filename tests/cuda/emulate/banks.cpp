/* Banks of shared memory: what lanes of a warp ask for together, by one instruction, takes a pass over the 32 banks for each word of
 * the bank that is asked for most. Lanes are fibers, so what they do together is put together afterwards: the n-th time that each
 * comes to an access between two places where all of them meet. ldmatrix is counted where it happens (warp.cpp). */
#include "machine.h"

#include <algorithm>

namespace emulate {

static constexpr uint32_t NOWHERE = ~0u;

void note_use(Thread *thread, uintptr_t address, size_t bytes, const void *site, bool copy)
{
    const uintptr_t at = address - reinterpret_cast<uintptr_t>(thread->block->shared);
    if (at >= machine->shape.shared_bytes) return;
    std::vector<Use> &uses = thread->warp->uses;
    auto use = std::find_if(uses.begin(), uses.end(), [&](const Use &u) { return u.site == site; });
    if (use == uses.end()) use = uses.insert(use, Use{site, bytes, copy, {}, {}});
    const size_t time = use->times[thread->lane]++;
    if (time == use->at.size()) use->at.emplace_back().fill(NOWHERE);
    use->at[time][static_cast<size_t>(thread->lane)] = static_cast<uint32_t>(at);
}

/* Lanes of an access of 8 bytes go by halves of the warp, of 16 by quarters. */
static unsigned passes_of(const std::array<uint32_t, 32> &at, size_t bytes)
{
    const size_t words = std::max<size_t>(bytes / 4, 1), together = 32 / words;
    unsigned beyond = 0;
    for (size_t first = 0; first < 32; first += together) {
        std::array<std::vector<uint32_t>, 32> asked;
        unsigned most = 1;
        for (size_t lane = first; lane < first + together; lane++)
            for (uint32_t w = 0; at[lane] != NOWHERE && w < words; w++) {
                const uint32_t word = at[lane] / 4 + w;
                std::vector<uint32_t> &bank = asked[word % 32];
                if (std::find(bank.begin(), bank.end(), word) != bank.end()) continue; // one read for all
                bank.push_back(word);
                most = std::max(most, static_cast<unsigned>(bank.size()));
            }
        beyond += most - 1;
    }
    return beyond;
}

void close_uses(Warp *warp)
{
    Counters &c = machine->result.counters;
    for (const Use &use : warp->uses)
        for (const std::array<uint32_t, 32> &at : use.at) {
            const unsigned beyond = passes_of(at, use.bytes);
            (use.copy ? c.copy_conflicts : c.shared_conflicts) += beyond;
            c.shared_accesses += !use.copy;
        }
    warp->uses.clear();
}

} // namespace emulate
