/* Little kernels that are right, and each of them weakened in one place, where the emulator must find what is wrong. */
#include "expect.h"

#include "cuda/ptx.h"

extern "C" {
#include "harness/seed.h"
}

#include <cstring>

using cot::scope;
using emulate::Fault;

static float *shared()
{
    return static_cast<float *>(cot::shared_memory());
}

/* Lanes of a warp hand a value on through shared memory. */
static void lanes(float *out)
{
    const unsigned t = threadIdx.x;
    shared()[t] = static_cast<float>(t);
    COT_UNLESS(lanes_sync) __syncwarp();
    out[t] = shared()[t ^ 1];
}

/* A shuffle brings the lanes together and orders nothing. */
static void lanes_by_shuffle(float *out)
{
    const unsigned t = threadIdx.x;
    shared()[t] = static_cast<float>(t);
    __shfl_xor_sync(cot::ALL_LANES, t, 1);
    COT_UNLESS(lanes_sync) __syncwarp();
    out[t] = shared()[t ^ 1];
}

static void warps(float *out)
{
    const unsigned t = threadIdx.x;
    shared()[t] = static_cast<float>(t);
    COT_UNLESS(first_barrier) __syncthreads();
    const float v = shared()[t ^ 32];
    COT_UNLESS(second_barrier) __syncthreads(); // write after read
    shared()[t] = v;
    out[t] = shared()[t];
}

/* Barrier 1 of two warps of four; the other two arrive at barrier 2, for which the first wait. */
static void named(float *out)
{
    const unsigned t = threadIdx.x;
    if (t < 64) {
        shared()[t] = 1;
        cot::barrier_sync(COT_EITHER(named_number, 1, 3 + static_cast<int>(t) / 32),
                          COT_EITHER(named_number, 64, 32));
        shared()[64 + t] = shared()[t ^ 32];
        COT_UNLESS(named_wait) cot::barrier_sync(2, 128);
        out[t] = shared()[128 + t];
    } else {
        shared()[64 + t] = 2;
        cot::barrier_arrive(2, 128);
    }
}

/* Blocks hand a value on by a flag. */
static void flag(float *data, uint32_t *word)
{
    if (blockIdx.x == 0) {
        data[threadIdx.x] = 3;
        __syncthreads();
        if (threadIdx.x == 0)
            COT_EITHER(flag_release, cot::store_release<scope::gpu>(word, 1u),
                       cot::store_relaxed<scope::gpu>(word, 1u));
    } else {
        if (threadIdx.x == 0)
            while (!COT_EITHER(flag_acquire, cot::load_acquire<scope::gpu>(word),
                               cot::load_relaxed<scope::gpu>(word))) {}
        COT_UNLESS(flag_barrier) __syncthreads();
        data[64 + threadIdx.x] = data[threadIdx.x];
    }
}

/* The same by fences and relaxed accesses; what the block wrote goes with thread 0's fence. */
static void fences(float *data, uint32_t *word)
{
    if (blockIdx.x == 0) {
        data[threadIdx.x] = 3;
        COT_UNLESS(fences_barrier) __syncthreads();
        if (threadIdx.x == 0) {
            COT_UNLESS(fences_release) cot::fence<scope::gpu>();
            cot::store_relaxed<scope::gpu>(word, 1u);
        }
    } else {
        if (threadIdx.x == 0) {
            while (!cot::load_relaxed<scope::gpu>(word)) {}
            COT_UNLESS(fences_acquire) cot::fence<scope::gpu>();
        }
        __syncthreads();
        data[64 + threadIdx.x] = data[threadIdx.x];
    }
}

/* The last block to count itself reads what all wrote: a release sequence of updates. */
static void counted(float *data, uint32_t *count)
{
    if (threadIdx.x == 0) {
        data[blockIdx.x] = 1;
        const uint32_t before = COT_EITHER(counted_order, cot::add_acq_rel<scope::gpu>(count, 1u),
                                           cot::add_relaxed<scope::gpu>(count, 1u));
        if (before == gridDim.x - 1) {
            float sum = 0;
            for (unsigned b = 0; b < gridDim.x; b++) sum += data[b];
            data[gridDim.x] = sum;
        }
    }
}

/* A count is set before others know that they may count: later it would undo what they did. */
static void count_down(uint32_t *words)
{
    if (threadIdx.x) return;
    if (blockIdx.x) {
        while (!cot::load_acquire<scope::gpu>(&words[1])) {}
        cot::add_relaxed<scope::gpu>(&words[0], ~0u);
        return;
    }
    const bool late = COT_EITHER(count_down_set, false, true);
    if (!late) cot::store_relaxed<scope::gpu>(&words[0], 2u);
    cot::store_release<scope::gpu>(&words[1], 1u);
    if (late) cot::store_relaxed<scope::gpu>(&words[0], 2u);
}

/* Three blocks, a chain: the third knows what the first did through the second. */
static void chain(float *data, uint32_t *words)
{
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        data[0] = 1;
        cot::store_release<scope::gpu>(&words[0], 1u);
    } else if (blockIdx.x == 1) {
        while (!COT_EITHER(chain_acquire, cot::load_acquire<scope::gpu>(&words[0]),
                           cot::load_relaxed<scope::gpu>(&words[0]))) {}
        cot::store_release<scope::gpu>(&words[1], 1u);
    } else {
        while (!cot::load_acquire<scope::gpu>(&words[1])) {}
        data[1] = data[0];
    }
}

/* Two devices: only a scope that reaches the other will do. */
static void across(float *data, uint32_t *word)
{
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        data[0] = 1;
        COT_EITHER(across_store, cot::store_release<scope::sys>(word, 1u),
                   cot::store_release<scope::gpu>(word, 1u));
    } else {
        while (!COT_EITHER(across_load, cot::load_acquire<scope::sys>(word),
                           cot::load_acquire<scope::gpu>(word))) {}
        data[1] = data[0];
    }
}

/* A volatile word does not race, and orders nothing. */
static void by_volatile(float *data, volatile uint32_t *word)
{
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        data[0] = 1;
        COT_UNLESS(volatile_fence) cot::fence<scope::gpu>();
        *word = 1;
    } else {
        while (!*word) {}
        COT_UNLESS(volatile_acquire) cot::fence<scope::gpu>();
        data[1] = data[0];
    }
}

/* A plain access to a word that others update atomically. */
static void mixed(uint32_t *word)
{
    cot::add_relaxed<scope::cta>(word, 1u);
    COT_UNLESS(mixed_barrier) __syncthreads();
    if (threadIdx.x == 0) *word = *word + 1;
}

/* Neighbours write halves of a word, and one reads it whole. */
static void halves(uint16_t *data, uint32_t *out)
{
    data[threadIdx.x] = static_cast<uint16_t>(threadIdx.x);
    COT_UNLESS(halves_sync) __syncwarp();
    if (threadIdx.x < 16) out[threadIdx.x] = reinterpret_cast<uint32_t *>(data)[threadIdx.x];
}

/* Words that several read whole, then in halves, and that one then writes: each half has readers of its own. */
static void halves_read(uint32_t *data, uint32_t *out)
{
    const unsigned t = threadIdx.x;
    const uint16_t *const parts = reinterpret_cast<const uint16_t *>(data);
    uint32_t sum = 0;
    for (unsigned i = 0; i < 8; i++) sum += data[i];
    sum += parts[t % 16];
    COT_UNLESS(halves_read_sync) __syncwarp();
    if (t < 16) const_cast<uint16_t *>(parts)[t] = static_cast<uint16_t>(t);
    for (unsigned i = 8; i < 16; i++) sum += data[i];
    __syncwarp();
    if (t < 8) data[t + 8] = data[t];
    out[t] = sum;
}

/* cp.async of one group ahead: thread t copies what thread t ^ 1 reads. */
static void copies(float *out, const float *in)
{
    char *const to = static_cast<char *>(cot::shared_memory());
    const unsigned t = threadIdx.x, threads = blockDim.x;
    cot::copy_async_16(cot::place_of(to + 16 * t), in + 4 * t, 16);
    cot::copy_async_commit();
    cot::copy_async_16(cot::place_of(to + 16 * (threads + t)), in + 4 * (threads + t), 8);
    cot::copy_async_commit();
    COT_EITHER(copies_wait, cot::copy_async_wait<1>(), cot::copy_async_wait<2>());
    COT_UNLESS(copies_barrier) __syncthreads();
    out[t] = shared()[4 * (t ^ 1)];
    COT_UNLESS(copies_last_wait) cot::copy_async_wait<0>();
    out[threads + t] = shared()[4 * (threads + t) + 1] + shared()[4 * (threads + t) + 3];
}

/* The source changes while it is copied. */
static void copied_source(float *out, float *in)
{
    const unsigned t = threadIdx.x;
    cot::copy_async_16(cot::place_of(&shared()[4 * t]), in + 4 * t, 16);
    cot::copy_async_commit();
    COT_UNLESS(source_wait) cot::copy_async_wait<0>();
    in[4 * t] = 0;
    cot::copy_async_wait<0>();
    out[t] = shared()[4 * t];
}

/* Of what a thread wrote itself, too: plainly, or atomically. */
static void copied_own(float *out, float *in)
{
    const unsigned t = threadIdx.x;
    in[4 * t] = 1;
    cot::copy_async_16(cot::place_of(&shared()[4 * t]), in + 4 * t, 16);
    cot::copy_async_commit();
    COT_UNLESS(own_source_wait) cot::copy_async_wait<0>();
    in[4 * t] = 2;
    cot::copy_async_wait<0>();
    cot::copy_async_16(cot::place_of(&shared()[4 * t]), in + 4 * t, 16);
    cot::copy_async_commit();
    COT_UNLESS(own_source_last_wait) cot::copy_async_wait<0>();
    cot::store_relaxed<scope::gpu>(reinterpret_cast<unsigned *>(in + 4 * t), 3u);
    cot::copy_async_wait<0>();
    out[t] = shared()[4 * t];
}

/* A buffer is filled again while others still read it. */
static void refilled(float *out, const float *in)
{
    const unsigned t = threadIdx.x;
    float sum = 0;
    for (int round = 0; round < 2; round++) {
        cot::copy_async_16(cot::place_of(&shared()[4 * t]), in + 4 * t, 16);
        cot::copy_async_commit();
        cot::copy_async_wait<0>();
        __syncthreads();
        sum += shared()[4 * (t ^ 32)];
        COT_UNLESS(refilled_barrier) __syncthreads();
    }
    out[t] = sum;
}

/* A word that more threads read, again and again, than a list has room for, and one writes. */
static void readers(float *in, float *out)
{
    const unsigned t = threadIdx.x;
    float v = 0;
    for (int i = 0; i < 3; i++) {
        v += in[0];
        __syncwarp();
    }
    COT_UNLESS(readers_barrier) __syncthreads();
    if (t == 77 % blockDim.x) in[0] = v;
    out[t] = v;
}

namespace {
struct Memory {
    emulate::Session session;
    float *data = session.allocate<float>(1024, "data");
    float *in = session.allocate<float>(1024, "in");
    uint32_t *words = session.allocate<uint32_t>(16, "words");
    Memory()
    {
        float values[1024];
        for (int i = 0; i < 1024; i++) values[i] = static_cast<float>(i);
        session.write(in, values, sizeof values);
        session.fill(words, 0, 64);
    }
};
using Run = emulate::Result (*)(Memory &, const emulate::Options &);
struct Case {
    const char *mutant;
    Run run;
    bool devices;
};
} // namespace

static const Run run_lanes = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 32, 4096}, o, lanes, m.data);
};
static const Run run_shuffled = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 32, 4096}, o, lanes_by_shuffle, m.data);
};
static const Run run_warps = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 64, 4096}, o, warps, m.data);
};
static const Run run_named = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 128, 4096}, o, named, m.data);
};
static const Run run_flag = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({2, 64, 0}, o, flag, m.data, m.words);
};
static const Run run_fences = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({2, 64, 0}, o, fences, m.data, m.words);
};
static const Run run_counted = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({8, 32, 0}, o, counted, m.data, m.words);
};
static const Run run_count_down = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({3, 32, 0}, o, count_down, m.words);
};
static const Run run_chain = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({3, 32, 0}, o, chain, m.data, m.words);
};
static const Run run_across = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({2, 32, 0}, o, across, m.data, m.words);
};
static const Run run_volatile = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({2, 32, 0}, o, by_volatile, m.data, m.words);
};
static const Run run_mixed = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 64, 0}, o, mixed, m.words);
};
static const Run run_halves = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 32, 0}, o, halves, reinterpret_cast<uint16_t *>(m.data), m.words);
};
static const Run run_halves_read = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 32, 0}, o, halves_read, m.words, reinterpret_cast<uint32_t *>(m.data));
};
static const Run run_copies = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 64, 4096}, o, copies, m.data, m.in);
};
static const Run run_source = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 64, 4096}, o, copied_source, m.data, m.in);
};
static const Run run_own = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 64, 4096}, o, copied_own, m.data, m.in);
};
static const Run run_refilled = [](Memory &m, const emulate::Options &o) {
    return emulate::launch({1, 64, 4096}, o, refilled, m.data, m.in);
};

static const Run run_readers = [](Memory &m, const emulate::Options &o) {
    const emulate::Result r = emulate::launch({1, 160, 0}, o, readers, m.in, m.data);
    return r.fault == Fault::NONE ? emulate::launch({1, 32, 0}, o, readers, m.in, m.data) : r;
};

static const Case cases[] = {
    {"lanes_sync", run_lanes, false},          {"lanes_sync", run_shuffled, false},
    {"first_barrier", run_warps, false},       {"second_barrier", run_warps, false},
    {"named_number", run_named, false},        {"named_wait", run_named, false},
    {"flag_release", run_flag, false},         {"flag_acquire", run_flag, false},
    {"flag_barrier", run_flag, false},         {"fences_barrier", run_fences, false},
    {"fences_release", run_fences, false},     {"fences_acquire", run_fences, false},
    {"counted_order", run_counted, false},     {"count_down_set", run_count_down, false},
    {"chain_acquire", run_chain, false},       {"across_store", run_across, true},
    {"across_load", run_across, true},         {"volatile_fence", run_volatile, false},
    {"volatile_acquire", run_volatile, false}, {"mixed_barrier", run_mixed, false},
    {"halves_sync", run_halves, false},        {"halves_read_sync", run_halves_read, false},
    {"copies_wait", run_copies, false},        {"copies_barrier", run_copies, false},
    {"copies_last_wait", run_copies, false},   {"source_wait", run_source, false},
    {"own_source_wait", run_own, false},       {"own_source_last_wait", run_own, false},
    {"refilled_barrier", run_refilled, false}, {"readers_barrier", run_readers, false},
};

static emulate::Options options_of(const Case &c, uint64_t seed)
{
    emulate::Options options;
    options.seed = seed;
    if (c.devices) options.devices = {0, 1};
    return options;
}

static void right_kernels_are_clean(void **)
{
    for (const Case &c : cases)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            Memory m;
            const emulate::Result result = c.run(m, options_of(c, seed));
            if (result.fault != Fault::NONE)
                fail_msg("%s is not on, seed %d: %s", c.mutant, static_cast<int>(seed),
                         result.message.c_str());
        }
}

/* Whatever the schedule: clocks know what could have been. */
static void each_weakening_is_found(void **)
{
    for (const Case &c : cases)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            Memory m;
            emulate::Options options = options_of(c, seed);
            options.mutant = c.mutant;
            const emulate::Result result = c.run(m, options);
            assert_true(result.counters.mutant_reached > 0);
            if (result.fault != Fault::RACE &&
                result.fault != Fault::UNWRITTEN) // read before or after the write
                fail_msg("%s, seed %d: found %s", c.mutant, static_cast<int>(seed),
                         result.fault == Fault::NONE ? "nothing" : result.message.c_str());
        }
}

static void within_one_device_the_narrow_scope_reaches(void **)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        Memory m;
        emulate::Options options;
        options.seed = seed;
        options.mutant = "across_store";
        expect_none(run_across(m, options));
    }
}

static void values_are_those_of_the_device(void **)
{
    Memory m;
    expect_none(run_copies(m, {}));
    for (unsigned t = 0; t < 64; t++) {
        assert_true(m.data[t] == m.in[4 * (t ^ 1)]);
        assert_true(m.data[64 + t] == m.in[4 * (64 + t) + 1]); // the last 8 bytes are zeros
    }
    Memory n;
    expect_none(run_counted(n, {}));
    assert_true(n.data[8] == 8);
}

static void a_message_says_who_what_and_where(void **)
{
    Memory m;
    emulate::Options options;
    options.mutant = "second_barrier";
    const emulate::Result result = run_warps(m, options);
    for (const char *part :
         {"block ", " warp ", " lane ", "'shared memory of block ", "test_races.cpp:", "nothing orders the "})
        if (!strstr(result.message.c_str(), part)) fail_msg("'%s' lacks '%s'", result.message.c_str(), part);
}

/* Message passing without order: a relaxed load may see what was there before, and both outcomes come up. */
static void store_twice(uint32_t *words, uint32_t *seen)
{
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        cot::store_relaxed<scope::gpu>(&words[0], 1u);
        cot::store_relaxed<scope::gpu>(&words[1], 1u);
    } else {
        const uint32_t second = cot::load_relaxed<scope::gpu>(&words[1]);
        const uint32_t first = cot::load_relaxed<scope::gpu>(&words[0]);
        seen[0] = second && !first;
    }
}

/* One word alone is coherent: its values come in the order in which they were stored. */
static void count_up(uint32_t *words, uint32_t *backwards)
{
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        for (uint32_t i = 1; i <= 8; i++) cot::store_relaxed<scope::gpu>(&words[0], i);
        return;
    }
    uint32_t last = 0;
    backwards[blockIdx.x] = 0;
    for (int i = 0; i < 8; i++) {
        const uint32_t now = cot::load_relaxed<scope::gpu>(&words[0]);
        if (now < last) backwards[blockIdx.x] = 1;
        last = now;
    }
}

static void relaxed_loads_are_coherent_and_no_more(void **)
{
    int reordered = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        Memory m;
        emulate::Options options;
        options.seed = seed;
        expect_none(emulate::launch({2, 32, 0}, options, store_twice, m.words, m.words + 8));
        reordered += static_cast<int>(m.words[8]);
        Memory n;
        expect_none(emulate::launch({3, 32, 0}, options, count_up, n.words, n.words + 8));
        assert_true(n.words[9] == 0 && n.words[10] == 0);
    }
    assert_true(reordered > 0 && reordered < 400);
}

static void equal_seeds_run_alike(void **)
{
    Memory m;
    emulate::Options options;
    options.seed = 99;
    const emulate::Result first = run_flag(m, options);
    const uint64_t switches = first.counters.switches;
    m.session.fill(m.words, 0, 64);
    const emulate::Result second = run_flag(m, options);
    assert_true(second.counters.switches == switches);
}

/* ---- chains of releases ---- */

/* Each block waits for the one before it, and tells the next. */
static void handed_on(uint32_t *words)
{
    const unsigned b = blockIdx.x;
    if (threadIdx.x) return;
    while (b && !cot::load_acquire<scope::gpu>(words + b - 1)) cot::back_off();
    cot::store_release<scope::gpu>(words + b, 1u);
}

/* The same by fences. */
static void handed_on_by_fences(uint32_t *words)
{
    const unsigned b = blockIdx.x;
    if (threadIdx.x) return;
    while (b && !cot::load_relaxed<scope::gpu>(words + b - 1)) cot::back_off();
    cot::fence<scope::gpu>();
    cot::store_relaxed<scope::gpu>(words + b, 1u);
}

/* Warps of one block, which has its own ways. */
static void handed_on_within(uint32_t *words)
{
    const unsigned warp = threadIdx.x / 32;
    if (threadIdx.x % 32) return;
    while (warp && !cot::load_acquire<scope::gpu>(words + warp - 1)) cot::back_off();
    cot::store_release<scope::gpu>(words + warp, 1u);
}

/* Who counts last has acquired what all others released, which is one step, however many they are; then all go on. */
static void counted(uint32_t *words)
{
    if (threadIdx.x) return;
    if (cot::add_acq_rel<scope::gpu>(words, 1u) == gridDim.x - 1)
        cot::store_release<scope::gpu>(words + 1, 1u);
    while (!cot::load_acquire<scope::gpu>(words + 1)) cot::back_off();
}

/* A barrier hands a chain on to the other warp, which tells the next block. */
static void handed_on_behind_barriers(uint32_t *words)
{
    const unsigned b = blockIdx.x, t = threadIdx.x;
    if (t == 0)
        while (b && !cot::load_acquire<scope::gpu>(words + b - 1)) cot::back_off();
    __syncthreads();
    if (t == 32) cot::store_release<scope::gpu>(words + b, 1u);
}

static void chains(void **)
{
    const struct {
        void (*kernel)(uint32_t *);
        unsigned blocks, threads;
        uint32_t chain;
    } all[] = {{handed_on, 1, 32, 0}, {handed_on, 5, 32, 4},         {handed_on_by_fences, 5, 32, 4},
               {counted, 6, 32, 2},   {handed_on_within, 1, 128, 0}, {handed_on_behind_barriers, 4, 64, 3},
               {counted, 1, 32, 0}};
    for (const auto &one : all)
        for (uint64_t seed = 0; seed < 5; seed++) {
            emulate::Session session;
            const uint32_t none[8] = {};
            uint32_t *const words = session.copy(none, 8, "words");
            const emulate::Result r =
                emulate::launch({one.blocks, one.threads, 4}, seeded(test_seed() + seed), one.kernel, words);
            expect_none(r);
            assert_int_equal(r.counters.chain, one.chain);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_kernels_are_clean),
        cmocka_unit_test(each_weakening_is_found),
        cmocka_unit_test(within_one_device_the_narrow_scope_reaches),
        cmocka_unit_test(values_are_those_of_the_device),
        cmocka_unit_test(a_message_says_who_what_and_where),
        cmocka_unit_test(relaxed_loads_are_coherent_and_no_more),
        cmocka_unit_test(equal_seeds_run_alike),
        cmocka_unit_test(chains),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
