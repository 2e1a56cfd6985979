/* Shuffles, votes and fragments against formulas written from the manual's pictures, not from the emulator. */
#include "expect.h"

#include "cuda/ptx.h"

#include <cmath>
#include <cstring>

using emulate::Fault;

static void shuffles(uint32_t *out, int by, int width)
{
    const unsigned t = threadIdx.x, n = 32;
    out[0 * n + t] = __shfl_sync(cot::ALL_LANES, t, by, width);
    out[1 * n + t] = __shfl_up_sync(cot::ALL_LANES, t, static_cast<unsigned>(by), width);
    out[2 * n + t] = __shfl_down_sync(cot::ALL_LANES, t, static_cast<unsigned>(by), width);
    out[3 * n + t] = __shfl_xor_sync(cot::ALL_LANES, t, by, width);
    const double big = __shfl_xor_sync(cot::ALL_LANES, t + 0.5, 1);
    out[4 * n + t] = static_cast<uint32_t>(2 * big);
    out[5 * n + t] = __ballot_sync(cot::ALL_LANES, t % 3 == 0);
    out[6 * n + t] = static_cast<uint32_t>(__any_sync(cot::ALL_LANES, t == 7)) +
                     2 * static_cast<uint32_t>(__all_sync(cot::ALL_LANES, t == 7)) +
                     4 * static_cast<uint32_t>(__any_sync(cot::ALL_LANES, t > 40)) +
                     8 * static_cast<uint32_t>(__all_sync(cot::ALL_LANES, t < 40));
}

/* The pseudocode of PTX's shfl: lanes, a segment mask and a clamp packed in c. */
static uint32_t ptx_shuffle(int mode, int lane, int b, int width)
{
    const int segmask = 32 - width, clamp = mode == 1 ? 0 : 31;
    const int max_lane = (lane & segmask) | (clamp & ~segmask), min_lane = lane & segmask;
    int j = 0;
    bool inside = false;
    switch (mode) {
    case 0:
        j = min_lane | ((b & 31) & ~segmask), inside = j <= max_lane;
        break;
    case 1:
        j = lane - (b & 31), inside = j >= max_lane;
        break;
    case 2:
        j = lane + (b & 31), inside = j <= max_lane;
        break;
    case 3:
        j = lane ^ (b & 31), inside = j <= max_lane;
        break;
    }
    return static_cast<uint32_t>(inside ? j : lane);
}

static void shuffles_are_those_of_ptx(void **)
{
    emulate::Session session;
    for (int width = 1; width <= 32; width *= 2)
        for (int by = 0; by < 32; by++) {
            uint32_t *out = session.allocate<uint32_t>(7 * 32, "out");
            emulate::Options options;
            options.seed = static_cast<uint64_t>(by + 1);
            expect_none(emulate::launch({1, 32, 0}, options, shuffles, out, by, width));
            for (int mode = 0; mode < 4; mode++)
                for (int lane = 0; lane < 32; lane++)
                    assert_int_equal(out[mode * 32 + lane], ptx_shuffle(mode, lane, by, width));
            for (uint32_t lane = 0; lane < 32; lane++) {
                assert_int_equal(out[4 * 32 + lane], 2 * (lane ^ 1) + 1);
                assert_int_equal(out[5 * 32 + lane], 0x49249249u);
                assert_int_equal(out[6 * 32 + lane], 1 + 8);
            }
        }
}

/* A quarter of the warp sums up on its own, in a branch that the others do not take. */
static void diverged(uint32_t *out)
{
    const unsigned t = threadIdx.x;
    const uint32_t mask = 0xffu << (t & ~7u);
    uint32_t sum = t;
    if (t / 8 % 2)
        for (int by = 4; by; by /= 2) sum += __shfl_xor_sync(mask, sum, by);
    else
        for (int by = 1; by < 8; by *= 2) sum += __shfl_xor_sync(mask, sum, by);
    out[t] = sum;
}

static void parts_of_a_warp_meet_on_their_own(void **)
{
    for (uint64_t seed = 1; seed < 30; seed++) {
        emulate::Session session;
        uint32_t *out = session.allocate<uint32_t>(32, "out");
        emulate::Options options;
        options.seed = seed;
        expect_none(emulate::launch({1, 32, 0}, options, diverged, out));
        for (uint32_t t = 0; t < 32; t++) assert_int_equal(out[t], 8 * (t & ~7u) + 28);
    }
}

static uint16_t bf16(float value) // of what bf16 holds
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
}

/* One mma on fragments that lie in memory register by register. */
static void multiply(float *d, const uint32_t *a, const uint32_t *b, const float *c)
{
    const unsigned t = threadIdx.x;
    uint32_t a4[4], b2[2];
    float d4[4];
    for (unsigned i = 0; i < 4; i++) a4[i] = a[4 * t + i], d4[i] = c[4 * t + i];
    for (unsigned i = 0; i < 2; i++) b2[i] = b[2 * t + i];
    cot::mma_bf16(d4, a4, b2);
    for (unsigned i = 0; i < 4; i++) d[4 * t + i] = d4[i];
}

/* A is four quarters of 8 x 8, register by register down the left and then down the right; lane l holds row l / 4 of each and
 * columns 2 (l mod 4), + 1. B is two quarters one above the other, held by columns. D is two, one above the other. */
struct Fragments {
    uint32_t a[32][4], b[32][2];
    float c[32][4];
    void set(const float whole_a[16][16], const float whole_b[16][8], const float whole_c[16][8])
    {
        for (int l = 0; l < 32; l++) {
            const int r = l / 4, s = l % 4 * 2;
            for (int left = 0; left < 2; left++)
                for (int upper = 0; upper < 2; upper++) {
                    const float *row = &whole_a[r + 8 * upper][s + 8 * left];
                    a[l][2 * left + upper] = bf16(row[0]) | static_cast<uint32_t>(bf16(row[1])) << 16;
                }
            for (int lower = 0; lower < 2; lower++) {
                b[l][lower] = bf16(whole_b[8 * lower + s][r]) |
                              static_cast<uint32_t>(bf16(whole_b[8 * lower + s + 1][r])) << 16;
                c[l][2 * lower] = whole_c[r + 8 * lower][s];
                c[l][2 * lower + 1] = whole_c[r + 8 * lower][s + 1];
            }
        }
    }
};

static void fragments_lie_as_the_manual_has_them(void **)
{
    float a[16][16], b[16][8], c[16][8];
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) a[i][j] = static_cast<float>((i * 7 + j * 3) % 11 - 5);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++)
            b[i][j] = static_cast<float>((i * 5 + j * 9) % 13 - 6), c[i][j] = static_cast<float>(100 * i + j);
    Fragments f;
    f.set(a, b, c);
    for (int rounding = 0; rounding < static_cast<int>(emulate::Rounding::COUNT); rounding++) {
        emulate::Session session;
        float *d = session.allocate<float>(128, "d");
        emulate::Options options;
        options.rounding = static_cast<emulate::Rounding>(rounding);
        expect_none(emulate::launch({1, 32, 0}, options, multiply, d, session.copy(&f.a[0][0], 128, "a"),
                                    session.copy(&f.b[0][0], 64, "b"), session.copy(&f.c[0][0], 128, "c")));
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                float wanted = c[i][j];
                for (int k = 0; k < 16; k++) wanted += a[i][k] * b[k][j];
                assert_true(d[4 * (4 * (i % 8) + j / 2) + 2 * (i / 8) + j % 2] == wanted);
            }
    }
}

/* 1 + 15 (2^-24 + ...): in full, one after the other (each 2^-25 is lost), cut off. */
static void roundings_differ_where_they_may(void **)
{
    float a[16][16] = {}, b[16][8] = {}, c[16][8] = {}, got[3];
    for (int k = 0; k < 16; k++) a[0][k] = k ? ldexpf(1, -25) : 1, b[k][0] = 1;
    Fragments f;
    f.set(a, b, c);
    for (int rounding = 0; rounding < 3; rounding++) {
        emulate::Session session;
        float *d = session.allocate<float>(128, "d");
        emulate::Options options;
        options.rounding = static_cast<emulate::Rounding>(rounding);
        expect_none(emulate::launch({1, 32, 0}, options, multiply, d, session.copy(&f.a[0][0], 128, "a"),
                                    session.copy(&f.b[0][0], 64, "b"), session.copy(&f.c[0][0], 128, "c")));
        got[rounding] = d[0];
    }
    assert_true(got[0] == 1 + ldexpf(1, -21) && got[1] == 1);
    assert_true(got[2] <= got[0] && got[2] != got[0]);
}

/* Rows of eight in shared memory, `stride` bytes apart. */
static void matrices(uint32_t *out, int stride)
{
    uint16_t *to = static_cast<uint16_t *>(cot::shared_memory());
    const unsigned t = threadIdx.x;
    for (unsigned i = 0; i < 8; i++)
        to[t * static_cast<unsigned>(stride) / 2 + i] = static_cast<uint16_t>(t * 8 + i);
    COT_UNLESS(matrices_sync) __syncwarp();
    uint32_t r[4];
    char *const row = static_cast<char *>(cot::shared_memory()) + static_cast<int>(t) * stride;
    cot::load_matrix_x4(r, cot::place_of(row));
    for (unsigned i = 0; i < 4; i++) out[4 * t + i] = r[i];
    cot::load_matrix_x4_transposed(r, cot::place_of(row));
    for (unsigned i = 0; i < 4; i++) out[128 + 4 * t + i] = r[i];
}

/* Each lane writes and reads again one value, `stride` bytes behind its neighbour's; lanes come from their loops one by one. */
template <typename T> static void strided(T *out, int stride)
{
    const unsigned lane = threadIdx.x;
    T *const own = reinterpret_cast<T *>(static_cast<char *>(cot::shared_memory()) +
                                         lane * static_cast<unsigned>(stride));
    for (unsigned i = 0; i < 2; i++) {
        *own = T();
        __syncwarp();
        out[lane] = *own;
    }
}

static void passes_over_banks_are_counted(void **)
{
    emulate::Session session;
    uint32_t *const words = session.allocate<uint32_t>(32, "words");
    uint16_t *const halves = session.allocate<uint16_t>(32, "halves");
    uint64_t *const doubles = session.allocate<uint64_t>(32, "doubles");
    const auto counts = [](const emulate::Result &r, uint64_t beyond) {
        expect_none(r);
        assert_int_equal(r.counters.shared_accesses, 4); // twice a write and a read
        assert_int_equal(r.counters.shared_conflicts, 4 * beyond);
    };
    for (uint64_t seed = 1; seed < 4; seed++) {
        const auto run = [&](auto *out, int stride) {
            return emulate::launch({1, 32, 8192}, seeded(seed), strided<std::remove_pointer_t<decltype(out)>>,
                                   out, stride);
        };
        counts(run(words, 4), 0);
        counts(run(words, 8), 1); // word 0 and word 32, ...
        counts(run(words, 12), 0);
        counts(run(words, 64), 15);
        counts(run(words, 128), 31);
        counts(run(halves, 2), 0); // two lanes a word
        counts(run(halves, 128), 31);
        counts(run(doubles, 8), 0); // a half of the warp at a time
        counts(run(doubles, 16), 2 * 1);
        counts(run(doubles, 128), 2 * 15);
    }
}

static void ldmatrix_spreads_rows_over_lanes(void **)
{
    emulate::Session session;
    uint32_t *out = session.allocate<uint32_t>(256, "out");
    const emulate::Result result = emulate::launch({1, 32, 32 * 144}, {}, matrices, out, 16);
    expect_none(result);
    assert_int_equal(result.counters.ldmatrix_conflicts, 0);
    for (uint32_t m = 0; m < 4; m++)
        for (uint32_t r = 0; r < 8; r++)
            for (uint32_t c = 0; c < 8; c++) { // element (r, c) of matrix m holds m * 64 + r * 8 + c
                const uint32_t plain = out[4 * (4 * r + c / 2) + m] >> 16 * (c % 2) & 0xffff;
                const uint32_t transposed = out[128 + 4 * (4 * c + r / 2) + m] >> 16 * (r % 2) & 0xffff;
                assert_int_equal(plain, m * 64 + r * 8 + c);
                assert_int_equal(transposed, m * 64 + r * 8 + c);
            }
    /* Rows of 128 bytes begin in one bank: eight passes for one; with 16 bytes between them none too many. */
    assert_int_equal(emulate::launch({1, 32, 32 * 144}, {}, matrices, out, 128).counters.ldmatrix_conflicts,
                     2 * 4 * 7);
    assert_int_equal(emulate::launch({1, 32, 32 * 144}, {}, matrices, out, 144).counters.ldmatrix_conflicts,
                     0);
    emulate::Options options;
    options.mutant = "matrices_sync";
    for (options.seed = 1; options.seed < 20; options.seed++) {
        const Fault fault = emulate::launch({1, 32, 32 * 144}, options, matrices, out, 16).fault;
        assert_true(fault == Fault::RACE || fault == Fault::UNWRITTEN);
    }
    expect(emulate::launch({1, 32, 32 * 144}, {}, matrices, out, 20), Fault::ALIGNMENT);
    expect(emulate::launch({1, 32, 496}, {}, matrices, out, 16), Fault::BOUNDS);
}

static void masks(uint32_t *out, int what)
{
    const unsigned t = threadIdx.x;
    uint32_t v = t;
    switch (what) {
    case 0:
        v = __shfl_sync(t == 5 ? 0xfffffffeu : cot::ALL_LANES, v, 0);
        break; // masks disagree
    case 1:
        v = __shfl_sync(0xffffu, v, 0);
        break; // not in its mask
    case 2:
        if (t < 16) v = __shfl_sync(0xffffu, v, 20);
        break; // from a lane left out
    case 3:
        if (t == 9) return;
        __syncwarp();
        break; // a lane has ended
    case 4:
        if (t & 1)
            v = __ballot_sync(cot::ALL_LANES, true);
        else
            __syncwarp();
        break; // different words
    case 5:
        if (t < 16)
            __syncwarp();
        else
            v = t;
        break; // ends while others wait
    }
    out[t] = v;
}

static void lanes_that_disagree_are_told(void **)
{
    const char *const texts[] = {
        "mask 0xfffffffe", "in which it is not", "which mask 0xffff leaves out", "", "calls ", ""};
    for (int what = 0; what < 6; what++)
        for (uint64_t seed = 1; seed <= 10; seed++) {
            emulate::Session session;
            emulate::Options options;
            options.seed = seed;
            uint32_t *out = session.allocate<uint32_t>(32, "out");
            expect(emulate::launch({1, 32, 0}, options, masks, out, what), Fault::MASK,
                   what ? texts[what] : "mask 0x");
        }
}

/* `.aligned`: the lanes of a warp call mma, ldmatrix and barriers in one place. */
static void two_places(float *out, int what)
{
    const unsigned t = threadIdx.x;
    float d[4] = {0, 0, 0, 0};
    const uint32_t a[4] = {t, t, t, t}, b[2] = {t, t};
    if (what == 0) {
        if (t < 16)
            cot::mma_bf16(d, a, b);
        else
            cot::mma_bf16(d, a, b), d[0] += 1;
    } else if (t < 16) {
        __syncthreads();
        d[0] = 1;
    } else {
        d[0] = 2;
        __syncthreads();
    }
    out[t] = d[0];
}

static void aligned_words_have_one_place(void **)
{
    emulate::Session session;
    float *out = session.allocate<float>(64, "out");
    expect(emulate::launch({1, 32, 0}, {}, two_places, out, 0), Fault::MASK, "in two places");
    expect(emulate::launch({1, 32, 0}, {}, two_places, out, 1), Fault::BARRIER, "in two places");
}

static void read_timer(uint64_t *out)
{
    for (int i = 0; i < 32; i++) out[32 * threadIdx.x + static_cast<unsigned>(i)] = cot::global_timer();
}

/* %globaltimer ticks as it likes, and may say less than before. */
static void the_timer_is_coarse_and_goes_back(void **)
{
    emulate::Session session;
    uint64_t *const out = session.allocate<uint64_t>(1024, "out");
    bool coarse = false, fine = false, back = false;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        expect_none(emulate::launch({1, 32, 0}, seeded(seed), read_timer, out));
        bool whole = true; // in ticks of 1024 ns
        for (int i = 0; i < 1024; i++) {
            whole = whole && out[i] % 1024 == 0;
            back = back || (i % 32 && out[i] < out[i - 1]);
        }
        coarse = coarse || whole, fine = fine || !whole;
    }
    assert_true(coarse && fine && back);
}

/* 16 products and the sum, each cut toward zero at 25 bits behind the largest one's point, and the result at fp32's 23. */
static void sums_are_cut_as_an_h200_was_found_to(void **)
{
    const float h = 0x1p-12f; // h^2 / 2 is the 25th bit, h^2 / 4 the one behind it
    const struct {
        float c, terms[3]; // times h
        float wanted;
    } all[] = {{1, {h / 2, 0, 0}, 1},                // the 25th bit is kept, and lost in fp32
               {1, {h / 2, h / 2, 0}, 1},            // the 24th
               {1, {h, h / 2, h / 2}, 1 + 0x1p-23f}, // together the 23rd
               {1, {h, h / 2, h / 4}, 1},            // what is behind the 25th is no part of the sum
               {-1, {-h, -h / 2, -h / 2}, -1 - 0x1p-23f},
               {-1, {h / 4, 0, 0}, -1},            // toward zero: the term, not the sum
               {-1, {h / 2, 0, 0}, -1 + 0x1p-24f}, // 1 - 2^-25 is cut toward zero, where 24 bits begin at 1/2
               {0, {0x1p12f, h / 2, 0}, 1}};
    for (const auto &one : all) {
        float a[16][16] = {}, b[16][8] = {}, c[16][8] = {};
        for (int i = 0; i < 3; i++) a[3][5 * i] = one.terms[i], b[5 * i][2] = h;
        c[3][2] = one.c;
        Fragments f;
        f.set(a, b, c);
        emulate::Session session;
        float *d = session.allocate<float>(128, "d");
        emulate::Options options;
        options.rounding = emulate::Rounding::SM_90;
        expect_none(emulate::launch({1, 32, 0}, options, multiply, d, session.copy(&f.a[0][0], 128, "a"),
                                    session.copy(&f.b[0][0], 64, "b"), session.copy(&f.c[0][0], 128, "c")));
        assert_float_equal(d[4 * (4 * 3 + 1)], one.wanted, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shuffles_are_those_of_ptx),
        cmocka_unit_test(parts_of_a_warp_meet_on_their_own),
        cmocka_unit_test(fragments_lie_as_the_manual_has_them),
        cmocka_unit_test(roundings_differ_where_they_may),
        cmocka_unit_test(sums_are_cut_as_an_h200_was_found_to),
        cmocka_unit_test(passes_over_banks_are_counted),
        cmocka_unit_test(ldmatrix_spreads_rows_over_lanes),
        cmocka_unit_test(lanes_that_disagree_are_told),
        cmocka_unit_test(aligned_words_have_one_place),
        cmocka_unit_test(the_timer_is_coarse_and_goes_back),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
