/* Where lanes of a warp meet: __syncwarp, shuffles, votes, mma and ldmatrix. Of these __syncwarp alone orders memory.
 *
 * A meeting is open from the first lane that comes to the last; then what each lane takes away is computed, and all go on.
 * Fragments lie as the PTX manual's "Matrix Fragments for mma.m16n8k16" and "ldmatrix" say. */
#include "machine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace emulate {

static const char *const EXITED = "a lane that the mask names has ended";

/* Brings the lane's `in` to the others. True for the last to come, which fills everyone's `out` and calls leave. */
static bool meet(Thread *me, const char *word, uint32_t mask, const void *site, bool aligned)
{
    Warp *warp = me->warp;
    if (!(mask >> me->lane & 1))
        fail(Fault::MASK, "%s calls %s with mask 0x%x, in which it is not (%s)", name_of(me).c_str(), word,
             mask, name_of_site(site).c_str());
    if (aligned && mask != 0xffffffffu)
        fail(Fault::MASK, "%s takes the whole warp (%s)", word, name_of_site(site).c_str());
    pause(me);
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && warp->lanes[lane]->state == State::DONE)
            fail(Fault::MASK, "%s at %s (%s): %s: lane %d", name_of(me).c_str(), word,
                 name_of_site(site).c_str(), EXITED, lane);
    for (Meeting &m : warp->meetings) {
        if (!(m.mask >> me->lane & 1)) continue;
        if (m.mask != mask || strcmp(m.word, word))
            fail(Fault::MASK,
                 "%s calls %s with mask 0x%x (%s), while lanes of its warp wait for it at %s with mask 0x%x "
                 "(%s)",
                 name_of(me).c_str(), word, mask, name_of_site(site).c_str(), m.word, m.mask,
                 name_of_site(m.site).c_str());
        if (aligned && m.site != site)
            fail(Fault::MASK, "%s of one warp is called in two places (%s, %s)", word,
                 name_of_site(m.site).c_str(), name_of_site(site).c_str());
        m.arrived |= 1u << me->lane;
        if (m.arrived == mask) return true;
        wait(me, word, -1, site);
        return false;
    }
    warp->meetings.push_back({word, mask, 1u << me->lane, site});
    if (mask == 1u << me->lane) return true;
    wait(me, word, -1, site);
    return false;
}

static void leave(Thread *me, uint32_t mask)
{
    Warp *warp = me->warp;
    if (mask == 0xffffffffu) close_uses(warp);
    for (size_t i = 0; i < warp->meetings.size(); i++)
        if (warp->meetings[i].mask >> me->lane & 1) {
            warp->meetings.erase(warp->meetings.begin() + static_cast<std::ptrdiff_t>(i));
            break;
        }
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && lane != me->lane) wake(warp->lanes[lane]);
}

void end_thread_warp(Thread *me)
{
    for (const Meeting &m : me->warp->meetings)
        if (m.mask >> me->lane & 1)
            fail(Fault::MASK, "%s ends while lanes of its warp wait for it at %s (%s)", name_of(me).c_str(),
                 m.word, name_of_site(m.site).c_str());
}

void sync_warp(uint32_t mask)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    if (!meet(me, "__syncwarp", mask, site, false)) return;
    Clocks known;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) tell(known, me->warp->lanes[lane]);
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) {
            Thread *t = me->warp->lanes[lane];
            t->known = known;
            release(t);
        }
    machine->result.counters.warp_barriers++;
    leave(me, mask);
}

uint64_t shuffle(uint32_t mask, uint64_t value, int lane, int width, Lane how)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    if (width < 1 || width > 32 || width & (width - 1))
        fail(Fault::MISUSE, "a shuffle of width %d (%s)", width, name_of_site(site).c_str());
    me->in[0] = value;
    const int segment = me->lane & -width;
    int from = me->lane;
    if (how == Lane::INDEX) from = segment | (lane & (width - 1));
    if (how == Lane::UP && me->lane - lane >= segment) from = me->lane - lane;
    if (how == Lane::DOWN && me->lane + lane < segment + width) from = me->lane + lane;
    /* A lane of an earlier segment may be read, of a later one not (PTX: shfl.bfly, c = 0x1f). */
    if (how == Lane::XOR && (me->lane ^ lane) < segment + width) from = me->lane ^ lane;
    me->in[1] = static_cast<uint64_t>(from);
    if (meet(me, "a shuffle", mask, site, false)) {
        for (int l = 0; l < 32; l++) {
            if (!(mask >> l & 1)) continue;
            Thread *t = me->warp->lanes[l];
            if (!(mask >> t->in[1] & 1))
                fail(Fault::MASK, "%s shuffles from lane %d, which mask 0x%x leaves out (%s)",
                     name_of(t).c_str(), static_cast<int>(t->in[1]), mask, name_of_site(site).c_str());
            t->out[0] = me->warp->lanes[t->in[1]]->in[0];
        }
        machine->result.counters.shuffles++;
        leave(me, mask);
    }
    return me->out[0];
}

uint32_t ballot(uint32_t mask, bool vote)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    me->in[0] = vote;
    if (meet(me, "a vote", mask, site, false)) {
        uint64_t votes = 0;
        for (int l = 0; l < 32; l++)
            if (mask >> l & 1) votes |= me->warp->lanes[l]->in[0] << l;
        for (int l = 0; l < 32; l++)
            if (mask >> l & 1) me->warp->lanes[l]->out[0] = votes;
        machine->result.counters.shuffles++;
        leave(me, mask);
    }
    return static_cast<uint32_t>(me->out[0]);
}

float bf16_to_float(uint32_t bits)
{
    const uint32_t wide = bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Sum of eight products and c, each cut off at the 24th bit below the largest exponent among them. */
static float add_truncated(float c, const float *a, const float *b)
{
    double terms[9] = {static_cast<double>(c)};
    int largest = -1000;
    for (int i = 0; i < 8; i++) terms[i + 1] = static_cast<double>(a[i]) * static_cast<double>(b[i]);
    for (double term : terms) {
        if (!std::isfinite(term))
            return static_cast<float>(terms[0] + terms[1] + terms[2] + terms[3] + terms[4] + terms[5] +
                                      terms[6] + terms[7] + terms[8]);
        if (term != 0) largest = std::max(largest, std::ilogb(term));
    }
    double sum = 0;
    if (largest > -1000)
        for (double term : terms) sum += std::ldexp(std::trunc(std::ldexp(term, 24 - largest)), largest - 24);
    return static_cast<float>(sum);
}

/* As an H200 was found to add: products and sum aligned to the largest exponent, cut toward zero at 25 bits behind the point, added, and cut
 * toward zero. */
static float add_as_sm_90(float c, const float *a, const float *b)
{
    double terms[17] = {static_cast<double>(c)}, whole = terms[0];
    int largest = -1000;
    for (int i = 0; i < 16; i++) {
        terms[i + 1] = static_cast<double>(a[i]) * static_cast<double>(b[i]);
        whole += terms[i + 1];
    }
    for (double term : terms) {
        if (!std::isfinite(term)) return static_cast<float>(whole);
        if (term != 0) largest = std::max(largest, std::ilogb(term));
    }
    if (largest == -1000) return 0;
    double sum = 0; // of whole numbers below 2^31
    for (double term : terms) sum += std::trunc(std::ldexp(term, 25 - largest));
    sum = std::ldexp(sum, largest - 25);
    const float nearest = static_cast<float>(sum);
    return std::fabs(static_cast<double>(nearest)) > std::fabs(sum) ? std::nextafter(nearest, 0.0f) : nearest;
}

static float dot(float c, const float a[16], const float b[16], Rounding rounding)
{
    if (rounding == Rounding::SM_90) return add_as_sm_90(c, a, b);
    if (rounding == Rounding::TRUNCATED) return add_truncated(add_truncated(c, a, b), a + 8, b + 8);
    if (rounding == Rounding::IN_ORDER) {
        for (int k = 0; k < 16; k++) c = std::fmaf(a[k], b[k], c);
        return c;
    }
    long double sum = c;
    for (int k = 0; k < 16; k++) sum += static_cast<long double>(a[k]) * static_cast<long double>(b[k]);
    return static_cast<float>(sum);
}

float add_products(float sum, const float *a, const float *b)
{
    return dot(sum, a, b, machine->options.rounding);
}

void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    for (int i = 0; i < 4; i++) me->in[i] = a[i];
    for (int i = 0; i < 2; i++) me->in[4 + i] = b[i];
    memcpy(&me->in[6], c, 16);
    if (meet(me, "mma.sync", 0xffffffffu, site, true)) {
        float whole_a[16][16], whole_b[8][16]; // rows of A, columns of B
        for (int lane = 0; lane < 32; lane++) {
            const Thread *t = me->warp->lanes[lane];
            const int group = lane >> 2, in_group = lane & 3;
            for (int i = 0; i < 8; i++) {
                const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
                const int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
                whole_a[row][column] =
                    bf16_to_float(static_cast<uint32_t>(t->in[i / 2]) >> 16 * (i & 1) & 0xffff);
            }
            for (int i = 0; i < 4; i++) {
                const int row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
                whole_b[group][row] =
                    bf16_to_float(static_cast<uint32_t>(t->in[4 + i / 2]) >> 16 * (i & 1) & 0xffff);
            }
        }
        bool zeros[16], finite[8]; // rows that are, whose products with columns that are change no sum
        for (int row = 0; row < 16; row++)
            zeros[row] = std::all_of(whole_a[row], whole_a[row] + 16, [](float v) { return v == 0; });
        for (int column = 0; column < 8; column++)
            finite[column] =
                std::all_of(whole_b[column], whole_b[column] + 16, [](float v) { return std::isfinite(v); });
        for (int lane = 0; lane < 32; lane++) {
            Thread *t = me->warp->lanes[lane];
            float sums[4];
            memcpy(sums, &t->in[6], 16);
            for (int i = 0; i < 4; i++) {
                const int row = (lane >> 2) + (i < 2 ? 0 : 8), column = (lane & 3) * 2 + (i & 1);
                if (!zeros[row] || !finite[column])
                    sums[i] = dot(sums[i], whole_a[row], whole_b[column], machine->options.rounding);
            }
            memcpy(&t->out[0], sums, 16);
        }
        machine->result.counters.mma++;
        leave(me, 0xffffffffu);
    }
    memcpy(d, &me->out[0], 16);
}

void load_matrix(uint32_t *registers, const void *row_of_lane, int matrices, bool transposed)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    const uintptr_t address = reinterpret_cast<uintptr_t>(row_of_lane);
    me->in[0] = address;
    me->in[1] = static_cast<uint64_t>(matrices) * 2 + transposed;
    const uintptr_t shared = reinterpret_cast<uintptr_t>(me->block->shared);
    if (me->lane < 8 * matrices) { // others' rows are not read
        if (address < shared || address >= shared + machine->shape.shared_bytes)
            fail(Fault::BOUNDS, "%s gives ldmatrix a row outside its shared memory: %s (%s)",
                 name_of(me).c_str(), name_of_address(address).c_str(), name_of_site(site).c_str());
        access(me, address, 16, Kind::READ, site);
    }
    if (meet(me, "ldmatrix", 0xffffffffu, site, true)) {
        for (int m = 0; m < matrices; m++) {
            unsigned words_of_bank[32] = {0}, passes = 1;
            uint16_t elements[8][8];
            for (int r = 0; r < 8; r++) {
                const uintptr_t from = me->warp->lanes[8 * m + r]->in[0];
                bool again = false; // the same row twice is one read
                for (int before = 0; before < r; before++)
                    again |= me->warp->lanes[8 * m + before]->in[0] == from;
                memcpy(elements[r], reinterpret_cast<const void *>(from), 16);
                for (unsigned w = 0; w < 4 && !again; w++)
                    passes = std::max(passes, ++words_of_bank[(from / 4 + w) % 32]);
            }
            machine->result.counters.ldmatrix_conflicts += passes - 1;
            for (int lane = 0; lane < 32; lane++) {
                Thread *t = me->warp->lanes[lane];
                const int i = lane >> 2, j = (lane & 3) * 2;
                const uint32_t low = transposed ? elements[j][i] : elements[i][j];
                const uint32_t high = transposed ? elements[j + 1][i] : elements[i][j + 1];
                if (t->in[1] != me->in[1])
                    fail(Fault::MASK, "lanes disagree about ldmatrix (%s)", name_of_site(site).c_str());
                t->out[m] = low | high << 16;
                /* What a lane receives it has read, whoever named the row. */
                const uintptr_t row = me->warp->lanes[8 * m + (transposed ? j : i)]->in[0];
                if (!transposed) {
                    access(t, row + 2 * static_cast<unsigned>(j), 4, Kind::READ, site);
                    continue;
                }
                access(t, row + 2 * static_cast<unsigned>(i), 2, Kind::READ, site);
                access(t, me->warp->lanes[8 * m + j + 1]->in[0] + 2 * static_cast<unsigned>(i), 2, Kind::READ,
                       site);
            }
        }
        machine->result.counters.ldmatrix++;
        leave(me, 0xffffffffu);
    }
    for (int m = 0; m < matrices; m++) registers[m] = static_cast<uint32_t>(me->out[m]);
}

} // namespace emulate
