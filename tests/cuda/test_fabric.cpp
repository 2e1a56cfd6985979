/* Virtual ranks of one launch that send each other rows in several epochs, and what happens when one is silent. */
#include "expect.h"

#include "cuda/fabric.h"

#include <cstdio>
#include <string>
#include <vector>

using cot::scope;
using emulate::Fault;

static constexpr int EPOCHS = 3, ROW = 2816; // bytes; 704 words
static constexpr size_t SIGNALS_AT = 64 * ROW, REGION = SIGNALS_AT + 64 * 8;

namespace {
struct Exchange {
    cot::fabric fabric; // rank is each block's
    uint32_t *sums;     // [P][EPOCHS] of all words that a rank has received
    uint64_t *left_at;  // [P]
    int32_t silent;     // this rank sends nothing; -1: none
    int32_t late;       // this rank begins so many ns late; its waits would last longer than others'
    int32_t late_rank, words;
};
} // namespace

/* A message by one warp, and the word that tells of it. */
template <scope S>
static void send(const cot::fabric &f, int to, size_t offset, const void *from, size_t bytes, size_t signal,
                 uint64_t value, int phase)
{
    cot::copy_words(cot::place_at(f, to, offset), static_cast<const unsigned char *>(from), bytes);
    COT_UNLESS(exchange_lanes_before_signal) __syncwarp();
    if (cot::lane_of_warp()) return;
    cot::count_messages(f, to, bytes, 1, phase);
    cot::raise<S>(f, to, signal, value);
}

/* Waits until the own word is `value` or more; false: this wait has failed, or another rank's. */
template <scope S>
static bool hear(const cot::fabric &f, size_t signal, uint64_t value, int peer, int phase, uint64_t epoch)
{
    bool there = true;
    if (cot::lane_of_warp() == 0) {
        const uint64_t began = cot::global_timer();
        while (there && cot::look_at<S>(f, signal) < value) {
            there = !COT_EITHER(exchange_watch, cot::has_failed<S>(f), false) &&
                    !cot::is_too_late<S>(f, began, peer, phase, epoch);
            cot::back_off();
        }
        COT_UNLESS(exchange_acquire) cot::acquire<S>(f, signal);
    }
    COT_UNLESS(exchange_lanes_after_wait) __syncwarp();
    return __shfl_sync(cot::ALL_LANES, static_cast<int>(there), 0) != 0;
}

/* Block r is rank r. Each epoch every rank sends a row to every rank, its own included, into that rank's row of it, then adds up
 * what it has received. Nobody overwrites a row that is still read: a receiver answers by its own signal of the epoch. */
template <scope S> static void exchange(Exchange e)
{
    cot::fabric f = e.fabric;
    f.rank = static_cast<int32_t>(blockIdx.x);
    const int lane = cot::lane_of_warp();
    uint32_t *const row = static_cast<uint32_t *>(cot::shared_memory());
    const uint64_t began = cot::global_timer();
    if (f.rank == e.late_rank)
        while (!cot::has_passed(began, static_cast<uint64_t>(e.late))) cot::back_off();
    bool going = f.rank != e.silent;
    for (uint64_t epoch = 1; going && epoch <= EPOCHS; epoch++) {
        for (int to = 0; to < f.ranks; to++) {
            for (int i = lane; i < e.words; i += 32)
                row[i] = static_cast<uint32_t>(1000 * f.rank + 10 * to + i) + static_cast<uint32_t>(epoch);
            __syncwarp();
            send<S>(f, to, static_cast<size_t>(f.rank) * ROW, row, 4 * static_cast<size_t>(e.words),
                    SIGNALS_AT + 8 * static_cast<size_t>(f.rank), 2 * epoch, 0);
            __syncwarp();
        }
        uint32_t sum = 0;
        for (int from = 0; going && from < f.ranks; from++) {
            going = hear<S>(f, SIGNALS_AT + 8 * static_cast<size_t>(from), 2 * epoch, from, 0, epoch);
            const uint32_t *const received =
                reinterpret_cast<const uint32_t *>(f.regions[f.rank] + from * ROW);
            for (int i = lane; going && i < e.words; i += 32) sum += received[i];
        }
        for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(cot::ALL_LANES, sum, by);
        if (going && lane == 0) e.sums[f.rank * EPOCHS + static_cast<int>(epoch) - 1] = sum;
        /* send waits for the lanes, which have read this epoch's rows. */
        for (int to = 0; going && to < f.ranks; to++)
            send<S>(f, to, 0, row, 0, SIGNALS_AT + 8 * static_cast<size_t>(f.ranks + f.rank), epoch, 1);
        for (int from = 0; going && from < f.ranks; from++)
            going = hear<S>(f, SIGNALS_AT + 8 * static_cast<size_t>(f.ranks + from), epoch, from, 1, epoch);
    }
    const uint64_t ended = cot::global_timer();
    if (lane == 0) e.left_at[f.rank] = ended > began ? ended - began : 0;
}

namespace {
struct Outcome {
    emulate::Result result;
    std::vector<uint32_t> sums;
    std::vector<uint64_t> left_at;
    std::vector<cot::traffic> counters;
    uint64_t failure;
};
struct Group {
    int ranks = 4, silent = -1, late_rank = -1, late = 0, words = 20;
    bool system = false, devices = false;
};
} // namespace

static Outcome run(const Group &g, uint64_t seed, const char *mutant = nullptr)
{
    emulate::Session session;
    const size_t p = static_cast<size_t>(g.ranks);
    std::vector<unsigned char *> regions;
    std::vector<std::string> names;
    for (int r = 0; r < g.ranks; r++) names.push_back("region of rank " + std::to_string(r));
    for (const std::string &name : names) {
        regions.push_back(session.allocate<unsigned char>(REGION, name.c_str()));
        session.fill(regions.back() + SIGNALS_AT, 0, REGION - SIGNALS_AT);
    }
    Exchange e = {};
    e.fabric.regions = session.copy(regions.data(), p, "table of regions");
    e.fabric.counters = session.allocate<cot::traffic>(2 * p * p, "counters");
    session.fill(e.fabric.counters, 0, 2 * p * p * sizeof(cot::traffic));
    e.fabric.failure = session.allocate<uint64_t>(1, "failure");
    session.fill(e.fabric.failure, 0, 8);
    e.fabric.timeout_ns = 1000000;
    e.fabric.ranks = g.ranks;
    e.sums = session.allocate<uint32_t>(p * EPOCHS, "sums");
    e.left_at = session.allocate<uint64_t>(p, "left_at");
    e.silent = g.silent, e.late_rank = g.late_rank, e.late = g.late, e.words = g.words;
    emulate::Options options;
    options.seed = seed;
    options.mutant = mutant;
    if (g.devices)
        for (int r = 0; r < g.ranks; r++) options.devices.push_back(r % 2);
    Outcome o;
    o.result = emulate::launch({static_cast<unsigned>(g.ranks), 32, ROW}, options,
                               g.system ? exchange<scope::sys> : exchange<scope::gpu>, e);
    o.failure = *e.fabric.failure;
    o.sums.assign(e.sums, e.sums + p * EPOCHS);
    o.left_at.assign(e.left_at, e.left_at + p);
    o.counters.assign(e.fabric.counters, e.fabric.counters + 2 * p * p);
    return o;
}

static void everything_arrives(const Group &g, uint64_t seed)
{
    const Outcome o = run(g, seed);
    expect_none(o.result);
    assert_int_equal(o.failure, 0);
    for (int r = 0; r < g.ranks; r++)
        for (int epoch = 1; epoch <= EPOCHS; epoch++) {
            uint32_t wanted = 0;
            for (int from = 0; from < g.ranks; from++)
                for (int i = 0; i < g.words; i++)
                    wanted += static_cast<uint32_t>(1000 * from + 10 * r + i + epoch);
            assert_int_equal(o.sums[static_cast<size_t>(r * EPOCHS + epoch - 1)], wanted);
        }
    for (int phase = 0; phase < 2; phase++)
        for (int from = 0; from < g.ranks; from++)
            for (int to = 0; to < g.ranks; to++) {
                const cot::traffic &t =
                    o.counters[static_cast<size_t>((phase * g.ranks + from) * g.ranks + to)];
                assert_int_equal(t.messages, from == to ? 0 : EPOCHS);
                assert_int_equal(t.bytes, from == to || phase ? 0 : EPOCHS * 4 * g.words);
            }
}

static void what_is_put_arrives(void **)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        Group g;
        g.ranks = 1 + static_cast<int>(seed % 8);
        static const int sizes[] = {20, 19, 700, 701}; // one word or more a lane, of 16 bytes or of 4
        g.words = sizes[seed / 8 % 4];
        everything_arrives(g, seed);
        g.system = g.devices = true;
        everything_arrives(g, seed);
    }
}

static void a_narrow_scope_does_not_reach_other_devices(void **)
{
    Group g;
    g.devices = true;
    for (uint64_t seed = 1; seed <= 10; seed++) expect(run(g, seed).result, Fault::RACE);
}

static void each_weakening_is_found(void **)
{
    for (const char *mutant :
         {"exchange_lanes_before_signal", "fabric_raise", "exchange_acquire", "exchange_lanes_after_wait"}) {
        int found = 0;
        for (uint64_t seed = 1; seed <= 10; seed++) {
            const Outcome o = run({}, seed, mutant);
            assert_true(o.result.counters.mutant_reached > 0);
            found += o.result.fault == Fault::RACE || o.result.fault == Fault::UNWRITTEN;
        }
        printf("%s: found in %d of 10 schedules\n", mutant, found);
        if (found != 10) fail_msg("%s was found in %d of 10 schedules", mutant, found);
    }
}

/* One says whom it waited for; all leave, in little more than one time-out, although one of them began to wait late. */
static void a_silent_rank_is_named(void **)
{
    Group g;
    g.silent = 2;
    g.late_rank = 3;
    g.late = 900000;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        const Outcome o = run(g, seed);
        expect_none(o.result);
        assert_true(o.failure >> 63);
        assert_int_equal(o.failure >> 48 & 0xff, 2); // the peer
        assert_int_equal(o.failure >> 40 & 0xff, 0); // the phase
        assert_int_equal(o.failure & 0xffffffffff, 1);
        assert_true((o.failure >> 56 & 0x7f) != 2);
        for (uint64_t ns : o.left_at) assert_true(ns < 1500000);
    }
    /* Without the time-out all wait for ever, without the watch the late one as long as it would have waited alone. */
    expect(run(g, 1, "fabric_timeout").result, Fault::DEADLOCK, "polling 'region of rank ");
    const Outcome blind = run(g, 1, "exchange_watch");
    expect_none(blind.result);
    assert_true(blind.left_at[3] > 1800000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_arrives),
        cmocka_unit_test(a_narrow_scope_does_not_reach_other_devices),
        cmocka_unit_test(each_weakening_is_found),
        cmocka_unit_test(a_silent_rank_is_named),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
