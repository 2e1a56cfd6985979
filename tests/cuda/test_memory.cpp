/* What may not be touched, and who never comes: bounds, alignment, memory never written, barriers, deadlocks, time. */
#include "expect.h"

#include "cuda/ptx.h"

#include <cstring>

using cot::scope;
using emulate::Fault;

static const float constants[4] = {1, 2, 3, 4};
float host[4]; // not the device's; not static, so that the store to it stays

static void touch(float *data, const float *fresh, int what)
{
    float *const shared = static_cast<float *>(cot::shared_memory());
    float local[8];
    for (int i = 0; i < 8; i++) local[i] = static_cast<float>(i + what);
    if (threadIdx.x) return;
    switch (what) {
    case 0:
        data[0] = constants[threadIdx.x] + local[what & 7];
        break;
    case 1:
        data[16] = 1;
        break; // one behind the end
    case 2:
        data[-1] = 1;
        break;
    case 3:
        data[0] = data[17];
        break;
    case 4:
        data[0] = fresh[3];
        break; // never written
    case 5:
        data[0] = shared[2];
        break;
    case 6:
        shared[64] = 1;
        break; // shared memory has 256 bytes
    case 7:
        host[0] = 1;
        break; // the host's
    case 8:
        *reinterpret_cast<uint64_t *>(reinterpret_cast<char *>(data) + 4) = 1;
        break;
    case 9:
        *reinterpret_cast<uint16_t *>(reinterpret_cast<char *>(data) + 1) = 1;
        break;
    case 10:
        reinterpret_cast<uint16_t *>(shared)[1] = 1, data[0] = shared[0];
        break; // half of it was
    case 11:
        cot::copy_async_16(cot::place_of(shared + 62), data, 16);
        break;
    case 12:
        cot::copy_async_16(cot::place_of(shared), data, 16), cot::copy_async_commit();
        break; // ends without waiting
    case 13:
        cot::copy_async_16(cot::place_of(shared), fresh, 16);
        break;
    case 14:
        cot::copy_async_16(cot::place_of(shared + 1), data, 16);
        break;
    case 15:
        cot::copy_async_16(cot::place_of(shared), data + 12, 16), cot::copy_async_wait<0>();
        break; // never committed
    case 16:
        cot::copy_async_16(cot::place_of(shared), data + 12, 16), shared[0] = 1;
        break;
    case 17:
        cot::copy_async_16(cot::place_of(shared), fresh, 0), cot::copy_async_commit(),
            cot::copy_async_wait<0>();
        data[0] = shared[3];
        break;
    }
}

static void what_is_no_business_of_a_kernel(void **)
{
    static const struct {
        int what;
        Fault fault;
        const char *text;
    } cases[] = {
        {0, Fault::NONE, ""},
        {1, Fault::BOUNDS, "0 bytes behind the end of 'data'"},
        {2, Fault::BOUNDS, "4 bytes before 'data'"},
        {3, Fault::BOUNDS, "4 bytes behind the end of 'data'"},
        {4, Fault::UNWRITTEN, "'fresh' + 12"},
        {5, Fault::UNWRITTEN, "'shared memory of block 0' + 8"},
        {6, Fault::BOUNDS, "behind the end of 'shared memory of block 0'"},
        {7, Fault::BOUNDS, "memory that is not the device's"},
        {8, Fault::ALIGNMENT, "8 bytes at 'data' + 4"},
        {9, Fault::ALIGNMENT, "2 bytes at 'data' + 1"},
        {10, Fault::UNWRITTEN, "shared memory"},
        {11, Fault::BOUNDS, ""},
        {12, Fault::COPY, "ends while 1 of its cp.async"},
        {13, Fault::UNWRITTEN, "'fresh'"},
        {14, Fault::ALIGNMENT, ""},
        {15, Fault::COPY, "ends while 1 of its cp.async"},
        {16, Fault::RACE, "a copy is on its way"},
        {17, Fault::NONE, ""},
    };
    for (const auto &c : cases) {
        emulate::Session session;
        const float zeros[16] = {0};
        float *data = session.copy(zeros, 16, "data");
        const float *fresh = session.allocate<float>(16, "fresh");
        const emulate::Result result = emulate::launch({1, 32, 256}, {}, touch, data, fresh, c.what);
        if (result.fault != c.fault || !strstr(result.message.c_str(), c.text))
            fail_msg("case %d: %s '%s'", c.what, emulate::name_of(result.fault), result.message.c_str());
    }
}

static void write_half(float *out)
{
    if (threadIdx.x % 2 == 0) out[threadIdx.x] = 1;
}

static void what_was_not_written_is_counted(void **)
{
    emulate::Session session;
    float *out = session.allocate<float>(32, "out");
    assert_int_equal(session.unwritten(out, 128), 128);
    expect_none(emulate::launch({1, 32, 0}, {}, write_half, out));
    assert_int_equal(session.unwritten(out, 128), 64);
}

static void another_launch(float *out)
{
    out[threadIdx.x] = out[31 - threadIdx.x] + 1;
}

static void write_all(float *out)
{
    out[threadIdx.x] = 1;
}

static void read_behind(float *out)
{
    out[threadIdx.x] = out[threadIdx.x + 96];
    out[threadIdx.x + 96] = 2;
}

static void launches_follow_each_other(void **)
{
    emulate::Session session;
    float *out = session.allocate<float>(32, "out");
    session.fill(out, 0, 128);
    expect(emulate::launch({1, 32, 0}, {}, another_launch, out), Fault::RACE);
    session.fill(out, 0, 128);
    expect_none(emulate::launch({1, 32, 0}, {}, write_half, out));
    expect_none(emulate::launch({1, 32, 0}, {}, write_half, out)); // over what the other launch wrote
    float *wide = session.allocate<float>(128, "wide");
    session.fill(wide, 0, 512);
    expect_none(emulate::launch({1, 128, 0}, {}, write_all, wide));
    expect_none(emulate::launch({1, 32, 0}, {}, read_behind, wide)); // by threads that this launch has not
}

static void meet(uint32_t *words, int what)
{
    const unsigned t = threadIdx.x;
    switch (what) {
    case 0:
        if (t < 64) __syncthreads();
        break; // two warps do not come
    case 1:
        if (t < 32) cot::barrier_sync(1, 64);
        break; // one warp of two
    case 2:
        cot::barrier_sync(1, t < 32 ? 64 : 96);
        break; // how many?
    case 3:
        if (t < 32) cot::barrier_arrive(1, 64), cot::barrier_arrive(1, 64);
        break;
    case 4:
        cot::barrier_sync(1, 48);
        break;
    case 5:
        while (!cot::load_acquire<scope::gpu>(&words[t % 4])) {}
        break; // nobody stores
    case 6:
        if (t == 0)
            while (!cot::load_relaxed<scope::gpu>(&words[0])) cot::back_off();
        __syncthreads();
        break;
    case 7: { // a warp polls as one
        uint32_t v = 0;
        while (!v) {
            if (t % 32 == 0) v = cot::load_acquire<scope::gpu>(&words[0]);
            v = __shfl_sync(cot::ALL_LANES, v, 0);
        }
    } break;
    }
}

static void who_waits_for_what_is_told(void **)
{
    static const struct {
        int what;
        Fault fault;
        const char *text;
    } cases[] = {
        {0, Fault::BARRIER, "ends while block 0 warp"},
        {1, Fault::DEADLOCK, "block 0 warp 0 lane 0 and 31 more: barrier 1 (test_memory.cpp:"},
        {2, Fault::BARRIER, "threads"},
        {3, Fault::BARRIER, "to barrier 1"},
        {4, Fault::BARRIER, "48 threads"},
        {5, Fault::DEADLOCK, "and 31 more: polling 'words' + 12"},
        {6, Fault::DEADLOCK, "block 0 warp 0 lane 0: polling 'words' + 0"},
        {7, Fault::DEADLOCK, "polling 'words' + 0"},
    };
    for (const auto &c : cases)
        for (uint64_t seed = 1; seed <= 5; seed++) {
            emulate::Session session;
            uint32_t *words = session.allocate<uint32_t>(4, "words");
            session.fill(words, 0, 16);
            emulate::Options options;
            options.seed = seed;
            options.most_steps = 1 << 22;
            const emulate::Result result = emulate::launch({1, 128, 0}, options, meet, words, c.what);
            if (result.fault != c.fault || !strstr(result.message.c_str(), c.text))
                fail_msg("case %d: %s '%s'", c.what, emulate::name_of(result.fault), result.message.c_str());
        }
}

/* Time passes where threads look at it, so that a bounded wait ends, and soon. */
static void bounded(uint32_t *word, uint64_t *ns)
{
    if (threadIdx.x) return;
    const uint64_t began = cot::global_timer();
    while (!cot::load_acquire<scope::gpu>(word) && cot::global_timer() - began < 1000000) cot::back_off();
    ns[0] = cot::global_timer() - began;
}

static void a_bounded_wait_ends(void **)
{
    emulate::Session session;
    uint32_t *word = session.allocate<uint32_t>(1, "word");
    session.fill(word, 0, 4);
    uint64_t *ns = session.allocate<uint64_t>(1, "ns");
    expect_none(emulate::launch({1, 32, 0}, {}, bounded, word, ns));
    assert_true(ns[0] >= 1000000 && ns[0] < 1200000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_business_of_a_kernel),
        cmocka_unit_test(what_was_not_written_is_counted),
        cmocka_unit_test(launches_follow_each_other),
        cmocka_unit_test(who_waits_for_what_is_told),
        cmocka_unit_test(a_bounded_wait_ends),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
