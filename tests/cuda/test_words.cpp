/* Words that copies arrive at, copies of tiles and wgmma on the emulator, in little kernels that are right, and each used otherwise than the
 * manual has it. */
#include "expect.h"

#include "cuda/ptx.h"

extern "C" {
#include "harness/draw.h"
#include "harness/seed.h"
}

#include <cmath>
#include <vector>

using emulate::Fault;

static constexpr int TILE_BYTES = 16 * 128, SHARED_BYTES = 3 * TILE_BYTES + 8;

struct tile_call {
    const cot::tile_map *map;
    uint16_t *out; // [2][16][64]: lines of shared memory as they are
    int k, row, slot, what;
};

enum {
    RIGHT,
    MORE_BYTES,
    FEWER_BYTES,
    NO_WAIT,
    ARRIVED_TWICE,
    TWO_PHASES,
    NO_WORD,
    ASKEW,
    NO_MAP,
    NOT_ACQUIRED,
    ACQUIRED_BY_ANOTHER,
    LEFT_ALONE,
    TOUCHED,
    WRITTEN_BEFORE,
    FENCED,
    OUTSIDE
};

/* Two tiles, one a phase, of a word that one thread arrives at. */
static void tiles(tile_call c)
{
    const int t = cot::thread_number(), what = c.what;
    unsigned char *const memory = static_cast<unsigned char *>(cot::shared_memory());
    const cot::shared_place first = cot::place_of(memory), word = first + 3 * TILE_BYTES;
    if (t == 0 && what != NO_WORD) cot::word_init(word, 1);
    if (what == WRITTEN_BEFORE || what == FENCED) memory[t] = 1;
    if (what == FENCED) cot::fence_async();
    if (t == (what == ACQUIRED_BY_ANOTHER) && what != NOT_ACQUIRED) cot::acquire_map(c.map);
    __syncthreads();
    for (int i = 0; i < 2; i++) {
        const cot::shared_place to = first + i * TILE_BYTES;
        if (t == 0) {
            cot::word_expect(word, what == MORE_BYTES    ? 2 * TILE_BYTES
                                   : what == FEWER_BYTES ? TILE_BYTES / 2
                                                         : TILE_BYTES);
            if (what == ARRIVED_TWICE && i == 1) cot::word_arrive(word);
            cot::copy_tile_async(to + (what == ASKEW     ? 128
                                       : what == OUTSIDE ? 2 * TILE_BYTES + 1024
                                                         : 0),
                                 c.map + (what == NO_MAP), c.k, c.row + 16 * i, c.slot, word);
            if (what == TOUCHED) memory[i * TILE_BYTES] = 1;
        }
        if (what == LEFT_ALONE) return;
        if (what == TWO_PHASES && t == 1) continue;
        if (what != NO_WAIT) cot::word_wait(word, static_cast<uint32_t>(i));
        if (what == NO_WAIT) __syncthreads();
        for (int at = t; at < 1024; at += 32)
            c.out[1024 * i + at] = reinterpret_cast<uint16_t *>(memory)[1024 * i + at];
    }
    if (what == TWO_PHASES) __syncwarp();
    if (what == TWO_PHASES && t == 1) cot::word_wait(word, 0);
}

struct Tiles {
    emulate::Result result;
    std::vector<uint16_t> out;
};
static constexpr int K = 72, ROWS = 20, SLOTS = 2;

static uint16_t value(int slot, int row, int k)
{
    return static_cast<uint16_t>(1 + (slot * ROWS + row) * K + k);
}

static Tiles copy(int k, int row, int slot, int what, uint64_t seed)
{
    emulate::Session session;
    std::vector<uint16_t> values;
    for (int s = 0; s < SLOTS; s++)
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < K; i++) values.push_back(value(s, r, i));
    cot::tile_map maps[2] = {};
    emulate::make_tile_map(maps, session.copy(values.data(), values.size(), "values"), K, ROWS, SLOTS,
                           ROWS * K * 2, 16);
    const tile_call call = {
        session.copy(maps, 2, "maps"), session.allocate<uint16_t>(2048, "out"), k, row, slot, what};
    Tiles r;
    r.result = emulate::launch({1, 32, SHARED_BYTES}, seeded(seed), tiles, call);
    if (r.result.fault == Fault::NONE && what == RIGHT) r.out.assign(call.out, call.out + 2048);
    return r;
}

/* Chunk c of 16 bytes of row r lies at place c ^ (r % 8) of line r; what is not there is zeros. */
static void tiles_lie_as_the_manual_has_them(void **)
{
    for (int k : {0, 64, 128})
        for (int row : {0, 3, 10})
            for (int slot = -1; slot <= SLOTS; slot++) {
                const Tiles r = copy(k, row, slot, RIGHT, static_cast<uint64_t>(k + row + slot + 2));
                expect_none(r.result);
                assert_int_equal(r.result.counters.tiles, 2);
                for (int line = 0; line < 32; line++)
                    for (int i = 0; i < 64; i++) {
                        const bool there = slot >= 0 && slot < SLOTS && row + line < ROWS && k + i < K;
                        const int at = line * 64 + ((i / 8) ^ (line % 8)) * 8 + i % 8;
                        assert_int_equal(r.out[static_cast<size_t>(at)],
                                         there ? value(slot, row + line, k + i) : 0);
                    }
            }
}

static void words_are_used_as_the_manual_has_it(void **)
{
    static const struct {
        int what;
        Fault fault;
        const char *said;
    } wrong[] = {{MORE_BYTES, Fault::COPY, "expects 4096 bytes, and 2048 are on their way"},
                 {FEWER_BYTES, Fault::COPY, "is brought 2048 bytes in a phase that expects 1024"},
                 {ARRIVED_TWICE, Fault::COPY, "beyond its count of 1"},
                 {TWO_PHASES, Fault::COPY, "waits for phase 0 of the word"},
                 {NO_WORD, Fault::UNWRITTEN, "never written"},
                 {ASKEW, Fault::ALIGNMENT, "a tile to"},
                 {OUTSIDE, Fault::BOUNDS, "outside its shared memory"},
                 {NO_MAP, Fault::COPY, "is no map of tiles"},
                 {NOT_ACQUIRED, Fault::COPY, "which it has not acquired"},
                 {ACQUIRED_BY_ANOTHER, Fault::COPY, "which it has not acquired"},
                 {LEFT_ALONE, Fault::COPY, "copies of tiles are on their way"},
                 {NO_WAIT, Fault::RACE, ""},
                 {TOUCHED, Fault::RACE, ""},
                 {WRITTEN_BEFORE, Fault::RACE, "which a thread wrote without a fence"}};
    for (const auto &one : wrong)
        for (uint64_t seed = 1; seed <= 10; seed++)
            expect(copy(0, 0, 0, one.what, seed).result, one.fault, one.said);
    expect_none(copy(0, 0, 0, FENCED, 1).result);
}

enum {
    NO_FENCE_ASYNC = 1,
    FENCED_BEFORE,
    NO_FENCE,
    NO_PRODUCTS_WAIT,
    WRITTEN_MEANWHILE,
    READ_MEANWHILE,
    TWO_PLACES,
    TURNED,
    NOT_COMMITTED
};

/* c = a b^T, 64 x 128 of k 32, whose operands threads write themselves. */
static void products(const uint16_t *a, const uint16_t *b, float *c, int what)
{
    const int t = cot::thread_number();
    unsigned char *const memory = static_cast<unsigned char *>(cot::shared_memory());
    const auto put = [=](unsigned char *to, int row, int k, uint16_t v) {
        *reinterpret_cast<uint16_t *>(to + row * 128 + (((k / 8) ^ (row % 8)) * 16 + k % 8 * 2)) = v;
    };
    if (what == FENCED_BEFORE) cot::fence_async();
    for (int i = t; i < 192 * 32; i += 128) put(memory, i / 32, i % 32, i < 64 * 32 ? a[i] : b[i - 64 * 32]);
    if (what != NO_FENCE_ASYNC && what != FENCED_BEFORE) cot::fence_async();
    __syncthreads();
    float sums[64];
    for (float &s : sums) s = 1;
    const cot::shared_place at = cot::place_of(memory);
    if (what != NO_FENCE) cot::wgmma_fence();
    if (what == TWO_PLACES && t < 32)
        cot::wgmma_bf16<128>(sums, at, at + 64 * 128);
    else
        cot::wgmma_bf16<128>(sums, at + (what == TURNED ? 128 : 0), at + 64 * 128);
    cot::wgmma_bf16<128>(sums, at + 32, at + (64 * 128 + 32));
    if (what != NOT_COMMITTED) cot::wgmma_commit();
    if (what == WRITTEN_MEANWHILE && t == 0) put(memory, 0, 0, 0);
    float early = sums[0];
    if (what != NO_PRODUCTS_WAIT) cot::wgmma_wait<0>();
    if (what == READ_MEANWHILE) sums[0] = early;
    for (int s = 0; s < 64; s++)
        c[(t / 32 * 16 + t % 32 / 4 + s / 2 % 2 * 8) * 128 + s / 4 * 8 + t % 4 * 2 + s % 2] = sums[s];
}

static emulate::Result multiply(int what, uint64_t seed, std::vector<uint16_t> &a, std::vector<uint16_t> &b,
                                std::vector<float> &c)
{
    emulate::Session session;
    float *const out = session.allocate<float>(64 * 128, "c");
    const emulate::Result r =
        emulate::launch({1, 128, 192 * 128}, seeded(seed), products, session.copy(a.data(), a.size(), "a"),
                        session.copy(b.data(), b.size(), "b"), out, what);
    if (r.fault == Fault::NONE) c.assign(out, out + 64 * 128);
    return r;
}

static void wgmma_is_used_as_the_manual_has_it(void **)
{
    struct draw draw = {test_seed(), 9, 0};
    std::vector<uint16_t> a, b;
    std::vector<float> c;
    for (int i = 0; i < 64 * 32; i++)
        a.push_back(cot_f32_to_bf16(static_cast<float>(draw_below(&draw, 9) - 4)));
    for (int i = 0; i < 128 * 32; i++)
        b.push_back(cot_f32_to_bf16(static_cast<float>(draw_below(&draw, 9) - 4)));
    for (uint64_t seed = 1; seed <= 3; seed++) {
        expect_none(multiply(RIGHT, seed, a, b, c));
        for (int i = 0; i < 64; i++)
            for (int j = 0; j < 128; j++) {
                float wanted = 1; // of whole numbers
                for (int k = 0; k < 32; k++)
                    wanted += cot_bf16_to_f32(a[static_cast<size_t>(i * 32 + k)]) *
                              cot_bf16_to_f32(b[static_cast<size_t>(j * 32 + k)]);
                assert_true(c[static_cast<size_t>(i * 128 + j)] == wanted);
            }
        expect_none(multiply(READ_MEANWHILE, seed, a, b, c));
        assert_true(std::isnan(c[0]));
        expect(multiply(NO_FENCE_ASYNC, seed, a, b, c), Fault::RACE, "without a fence_async behind it");
        expect(multiply(FENCED_BEFORE, seed, a, b, c), Fault::RACE, "without a fence_async behind it");
        expect(multiply(NO_FENCE, seed, a, b, c), Fault::COPY, "without a wgmma_fence");
        expect(multiply(NO_PRODUCTS_WAIT, seed, a, b, c), Fault::COPY, "its wgmma are on their way");
        expect(multiply(NOT_COMMITTED, seed, a, b, c), Fault::COPY, "its wgmma are on their way");
        expect(multiply(WRITTEN_MEANWHILE, seed, a, b, c), Fault::RACE);
        expect(multiply(TWO_PLACES, seed, a, b, c), Fault::MASK, "in two places");
        expect(multiply(TURNED, seed, a, b, c), Fault::ALIGNMENT, "wgmma of matrices");
    }
}

/* The first of three groups of warps gives registers, and the others take them. */
static void registers(int what)
{
    if (cot::thread_number() >= 128) {
        if (what == 3)
            cot::take_registers<212>();
        else
            cot::take_registers<216>();
    } else if (what == 2) {
        cot::give_registers<176>();
    } else if (what != 1) {
        cot::give_registers<72>();
    }
}

static void registers_come_from_others(void **)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        expect_none(emulate::launch({1, 384, 0}, seeded(seed), registers, 0));
        expect(emulate::launch({1, 384, 0}, seeded(seed), registers, 1), Fault::DEADLOCK, "registers 216");
        expect(emulate::launch({1, 384, 0}, seeded(seed), registers, 2), Fault::MISUSE,
               "from 168 registers to 176");
        expect(emulate::launch({1, 384, 0}, seeded(seed), registers, 3), Fault::MISUSE,
               "from 168 registers to 212");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_lie_as_the_manual_has_them),
        cmocka_unit_test(words_are_used_as_the_manual_has_it),
        cmocka_unit_test(wgmma_is_used_as_the_manual_has_it),
        cmocka_unit_test(registers_come_from_others),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
