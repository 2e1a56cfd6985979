/* Tiles of matrix products with fp32 sums, C[m][n] = sum over k of A[m][k] B[n][k], through a pipeline of cp.async, on sm_80
 * and later: bf16 by mma.sync m16n8k16 with ldmatrix (mma_engine), fp32 by fused multiply-adds (fma_engine).
 *
 * A tile is computed in three steps, so that the first stages of the next one can be under way while the sums of this one are put away:
 * its first stages are asked for (ask), all are multiplied (run), and the sums are given to a function of the caller's (put). A shape
 * loads parts of a tile's operands into a stage of shared memory and multiplies a stage into its sums; tile_run drives any shape that has
 * these two. An engine takes for a tile the shape that suits its rows, and says how many columns that one has; mma_many_engine has one, for up to 128
 * rows. Another architecture's engine takes its place behind the same names.
 *
 *   shared memory of a stage:  A, M rows of K values, then B, N rows likewise, in lines of 128 bytes: one row of bf16 a line, two of fp32
 *     line l:  | c0 | c1 | ... | c7 |   16 bytes each; chunk c of line l lies at place c ^ (l % 8), so that eight rows'
 *                                       chunks of one k meet no bank twice, where ldmatrix reads and where copies write
 *
 * Rows beyond the operands are zeros, and so is k beyond K; columns beyond are zeros in fp32, in bf16 the last one again, which is not
 * kept: no tile has a slow path. The order of each sum is
 * that of k, by sixteens (mma_shape) or one by one (fma_shape), which K alone gives; A is on the same side of mma in every shape.
 * So a row's products have the same bits in tiles of any shape. */
#ifndef COT_CUDA_TILE_H
#define COT_CUDA_TILE_H
#include "cuda/ptx.h"

#include <math.h>

namespace cot {

/* Rows of K values one after another: in bf16 each K a multiple of 8 and 16-byte aligned, in fp32 any K, and aligned to 16
 * bytes where K is a multiple of 4. */
template <typename Value> struct rows_of {
    const Value *values;
    int32_t rows, k;
};

/* The same rows without the first ones. */
template <typename Value> COT_DEVICE rows_of<Value> rows_from(rows_of<Value> rows, int first)
{
    rows.values += static_cast<int64_t>(first) * rows.k;
    rows.rows -= first;
    return rows;
}

/* Which rows: the r-th is row index[r] where `gathered`, else row r, and `index` is not looked at. The two are apart, since code that
 * chose between an index and null was compiled so that a device tested a register that was not null yet (docs/DEVICE.md). */
struct row_index {
    const int32_t *index;
    int32_t gathered; // 0 or 1
};

COT_DEVICE int row_at(const row_index &rows, int r)
{
    return rows.gathered ? rows.index[r] : r;
}

/* Where a stage has a row's chunk of 16 bytes, of so many a row. What is a multiple of 16 rows on lies so much further on. */
template <uint32_t CHUNKS> COT_DEVICE uint32_t place_in_lines(uint32_t row, uint32_t chunk)
{
    constexpr uint32_t ROWS = 8 / CHUNKS; // a line
    const uint32_t line = row / ROWS, at = row % ROWS * CHUNKS + chunk;
    return line * 128 + ((at ^ (line & 7)) << 4);
}

/* A tile: a.rows rows of A, which `pick` names, by columns, which are rows of B from the n-th on. */
template <typename Value> struct tile_job {
    rows_of<Value> a, b;
    row_index pick;
    int32_t n;
};

/* The same tile without the first rows. */
template <typename Value> COT_DEVICE tile_job<Value> job_from(tile_job<Value> job, int first)
{
    if (!job.pick.gathered) {
        job.a = rows_from(job.a, first);
        return job;
    }
    job.pick.index += first;
    job.a.rows -= first;
    return job;
}

/* Threads that compute a tile together: whole warps of one block, and the barrier that is theirs. */
struct tile_team {
    uint32_t thread; // its number in the team
    int barrier;     // 0..15
};

/* A tile that is asked for keeps in registers where the thread reads its chunk of each row that it copies, of which a shape uses as many as
 * it copies rows; and how large A is, so that the job is not looked at again. */
struct mma_asked {
    const unsigned char *a[4], *b[8];
    int rows, k;
};

/* 128 threads, four warps, DOWN of them below each other: of blocks of 16 rows each takes every DOWN-th, BLOCKS in all, by
 * 16 PAIRS columns. A stage has DEPTH values of k. What a copy and an ldmatrix need stands in registers from the first stage to the last:
 * mma_asked, how many stages have values of the thread's k, and places in the first stage, from which the others' are so many bytes. */
template <int DOWN, int BLOCKS, int PAIRS, int DEPTH, int RING> struct mma_shape {
    using Value = uint16_t;
    using asked = mma_asked;
    static constexpr int M = 16 * DOWN * BLOCKS, N = 4 / DOWN * 16 * PAIRS, K = DEPTH, THREADS = 128,
                         STAGES = RING, TURN = RING, CHUNKS = K / 8;
    static constexpr uint32_t WARPS_DOWN = DOWN, EIGHTS = 2 * PAIRS; // how its sums lie: tile_put_sums
    static constexpr int STAGE_BYTES = (M + N) * K * 2, SHARED_BYTES = STAGES * STAGE_BYTES;
    static constexpr int PASS = THREADS / CHUNKS, // rows that all threads copy a chunk of, a multiple of 16
        PASSES_A = (M + PASS - 1) / PASS, PASSES_B = N / PASS;
    static_assert(PASS % 16 == 0 && M % PASS == 0 && N % PASS == 0, "whole passes");
    static_assert(PASSES_A <= 4 && PASSES_B <= 8, "mma_asked has room");

    float sums[BLOCKS][2 * PAIRS][4]; // of 16 x 8 each: rows, columns, registers of mma
    shared_place to, at_a[K / 16], at_b[K / 16];
    int live, live_a[PASSES_A];

    /* A warp's i-th block; those of one i are beside each other. */
    static __device__ __forceinline__ uint32_t block_of(uint32_t thread, int i)
    {
        return static_cast<uint32_t>(i * DOWN) + thread / 32 / (4 / DOWN);
    }
    static __device__ __forceinline__ uint32_t first_column(uint32_t thread)
    {
        return thread / 32 % (4 / DOWN) * (16 * PAIRS);
    }

    static __device__ __forceinline__ void find(asked &all, const tile_job<uint16_t> &job, uint32_t thread)
    {
        const int row = static_cast<int>(thread / CHUNKS), chunk = static_cast<int>(thread % CHUNKS),
                  k = job.a.k;
        const auto row_of = [=](const uint16_t *values, int number) {
            return reinterpret_cast<const unsigned char *>(values + static_cast<int64_t>(number) * k +
                                                           8 * chunk);
        };
        all.rows = job.a.rows, all.k = k;
        COT_EACH (i, PASSES_B) { // what is beyond the columns is the last one again, and kept nowhere
            const int r = job.n + row + i * PASS;
            all.b[i] = row_of(job.b.values, r < job.b.rows ? r : job.b.rows - 1);
        }
        COT_EACH (i, PASSES_A) {
            const int r = row + i * PASS;
            all.a[i] = row_of(job.a.values, row_at(job.pick, r < job.a.rows ? r : 0));
        }
    }

    static __device__ __forceinline__ int stages_of(const asked &all) { return (all.k + K - 1) / K; }

    /* Works out where this thread copies from and to, before the first stage is asked for. */
    __device__ __forceinline__ void begin_copies(const asked &all, unsigned char *shared, uint32_t thread)
    {
        const int row = static_cast<int>(thread / CHUNKS), chunk = static_cast<int>(thread % CHUNKS);
        to = kept(place_of(shared) + place_in_lines<CHUNKS>(thread / CHUNKS, thread % CHUNKS));
        live = (all.k - 8 * chunk + K - 1) / K;
        COT_EACH (i, PASSES_A) live_a[i] = kept(row + i * PASS < all.rows ? live : 0);
    }

    __device__ __forceinline__ void begin(unsigned char *shared, uint32_t thread)
    {
        const uint32_t lane = thread % 32;
        const shared_place stage = place_of(shared);
        /* Lanes name rows of four 8 x 8 parts. A: upper left, lower left, upper right, lower right. B: columns 0..7 with the
         * first half of k, then its second half; columns 8..15 likewise. A step of 16 values of k is two chunks, whose numbers
         * differ in no other bits. */
        const uint32_t a = place_in_lines<CHUNKS>(16 * block_of(thread, 0) + lane % 16, lane / 16),
                       b = place_in_lines<CHUNKS>(first_column(thread) + lane % 8 + lane / 16 * 8,
                                                  lane / 8 % 2);
        COT_EACH (step, K / 16) {
            at_a[step] = kept(stage + (a ^ (step * 32u)));
            at_b[step] = kept(stage + M * K * 2 + (b ^ (step * 32u)));
        }
        COT_EACH (i, BLOCKS)
            COT_EACH (j, 2 * PAIRS)
                COT_EACH (r, 4) sums[i][j][r] = 0;
    }

    /* Asks for the `number`-th stage, which is `ahead` of what the rows' places tell, in a slot of the ring. */
    __device__ __forceinline__ void load(const asked &all, int slot, int ahead, int number) const
    {
        COT_EACH (i, PASSES_B)
            copy_async_16(to + slot * STAGE_BYTES + M * K * 2 + i * (PASS * K * 2),
                          all.b[i] + ahead * (K * 2), number < live ? 16 : 0);
        COT_EACH (i, PASSES_A)
            copy_async_16(to + slot * STAGE_BYTES + i * (PASS * K * 2), all.a[i] + ahead * (K * 2),
                          number < live_a[i] ? 16 : 0);
    }
    static __device__ __forceinline__ void advance(asked &all)
    {
        COT_EACH (i, PASSES_B) all.b[i] += TURN * K * 2;
        COT_EACH (i, PASSES_A) all.a[i] += TURN * K * 2;
    }

    __device__ __forceinline__ void multiply(int slot)
    {
        COT_EACH (step, K / 16) {
            uint32_t a[BLOCKS][4];
            COT_EACH (i, BLOCKS)
                load_matrix_x4(a[i], at_a[step] + slot * STAGE_BYTES + i * (DOWN * 16 * K * 2));
            COT_EACH (pair, PAIRS) {
                uint32_t b[4];
                load_matrix_x4(b, at_b[step] + slot * STAGE_BYTES + pair * (16 * K * 2));
                COT_EACH (i, BLOCKS)
                    COT_EACH (half, 2) {
                        const uint32_t both[2] = {b[2 * half], b[2 * half + 1]};
                        mma_bf16(sums[i][2 * pair + half], a[i], both);
                    }
            }
        }
    }

    static constexpr uint32_t SUMS = BLOCKS * 2 * PAIRS * 4; // of a thread

    /* Leaves the part-th COUNT sums at `mine`, the thread's first of [COUNT][THREADS]. */
    template <uint32_t COUNT> __device__ __forceinline__ void keep(float *mine, uint32_t part) const
    {
        COT_EACH (p, static_cast<int>(SUMS / COUNT))
            if (static_cast<uint32_t>(p) == part)
                COT_EACH (i, static_cast<int>(COUNT)) {
                    const int number = p * static_cast<int>(COUNT) + i;
                    mine[i * THREADS] = sums[number / (8 * PAIRS)][number / 4 % (2 * PAIRS)][number % 4];
                }
    }
};
using mma_least = mma_shape<1, 1, 2, 64, 4>; // up to 16 x 128
using mma_few = mma_shape<1, 2, 2, 64, 3>;   // up to 32 x 128
using mma_some = mma_shape<2, 2, 2, 64, 4>;  // up to 64 x 64
using mma_most = mma_shape<2, 4, 4, 32, 4>;  // up to 128 x 128

/* 128 threads, 64 x 64 in fp32: each thread eight rows (every eighth) by four columns (two pairs). A stage holds 16 values of k,
 * two rows a line. */
struct fma_shape {
    using Value = float;
    static constexpr int M = 64, N = 64, K = 16, THREADS = 128, STAGES = 4, TURN = 1, CHUNKS = K / 4;
    static constexpr int STAGE_BYTES = (M + N) * K * 4, SHARED_BYTES = STAGES * STAGE_BYTES;
    struct alignas(16) four {
        float v[4];
    };
    struct asked {
        tile_job<float> todo; // B's rows from the first column on
    };

    float sums[8][4];
    unsigned char *to;
    uint32_t thread;

    static __device__ __forceinline__ void find(asked &all, const tile_job<float> &job, uint32_t)
    {
        all.todo = job;
        all.todo.b = rows_from(job.b, job.n);
    }
    static __device__ __forceinline__ int stages_of(const asked &all) { return (all.todo.a.k + K - 1) / K; }

    __device__ __forceinline__ void begin_copies(const asked &, unsigned char *shared, uint32_t number)
    {
        to = shared, thread = number;
    }
    __device__ __forceinline__ void begin(unsigned char *, uint32_t)
    {
        COT_EACH (i, 8)
            COT_EACH (j, 4) sums[i][j] = 0;
    }

    static __device__ __forceinline__ uint32_t column_of(uint32_t thread, int j)
    {
        return thread % 16 * 2 + static_cast<uint32_t>(j / 2 * 32 + j % 2);
    }

    static __device__ __forceinline__ void load_rows(unsigned char *to, const rows_of<float> &from,
                                                     const row_index &pick, int k0, uint32_t thread)
    {
        for (uint32_t i = thread; i < 64 * CHUNKS; i += THREADS) {
            const uint32_t row = i / CHUNKS, chunk = i % CHUNKS;
            const int r = static_cast<int>(row), k = k0 + 4 * static_cast<int>(chunk);
            const bool live = r < from.rows && k < from.k;
            const float *const values =
                from.values + (live ? static_cast<int64_t>(row_at(pick, r)) * from.k + k : 0);
            const shared_place place = place_of(to) + place_in_lines<CHUNKS>(row, chunk);
            if (from.k % 4 == 0)
                copy_async_16(place, values, live ? 16 : 0);
            else
                COT_EACH (j, 4) {
                    const bool one = live && k + j < from.k;
                    copy_async_4(place + 4 * j, one ? values + j : from.values, one ? 4 : 0);
                }
        }
    }

    __device__ __forceinline__ void load(const asked &all, int slot, int, int number) const
    {
        unsigned char *const stage = to + slot * STAGE_BYTES;
        load_rows(stage, all.todo.a, all.todo.pick, number * K, thread);
        load_rows(stage + M * K * 4, all.todo.b, {}, number * K, thread);
    }
    static __device__ __forceinline__ void advance(asked &) {}

    __device__ __forceinline__ void multiply(int slot)
    {
        const unsigned char *const stage = to + slot * STAGE_BYTES;
        for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
            four b[4];
            COT_EACH (j, 4)
                b[j] = *reinterpret_cast<const four *>(stage + M * K * 4 +
                                                       place_in_lines<CHUNKS>(column_of(thread, j), chunk));
            COT_EACH (i, 8) {
                const uint32_t row = thread / 16 + 8 * static_cast<uint32_t>(i);
                const four a = *reinterpret_cast<const four *>(stage + place_in_lines<CHUNKS>(row, chunk));
                COT_EACH (j, 4)
                    COT_EACH (k, 4) sums[i][j] = fmaf(a.v[k], b[j].v[k], sums[i][j]);
            }
        }
    }

    /* Calls put(row, column, sum, sum of the next column) for rows and even columns within the shape. */
    template <typename Put> __device__ __forceinline__ void store(Put put) const
    {
        COT_EACH (i, 8)
            COT_EACH (pair, 2)
                put(static_cast<int>(thread / 16) + 8 * i, static_cast<int>(column_of(thread, 2 * pair)),
                    sums[i][2 * pair], sums[i][2 * pair + 1]);
    }
};

/* Asks for the first stages of a tile: all slots but the last have one. `shared` is the team's, SHARED_BYTES, aligned to 128, of which nobody
 * reads these slots any more. */
template <typename Shape>
COT_DEVICE void tile_ask(typename Shape::asked &all, unsigned char *shared,
                         const tile_job<typename Shape::Value> &job, const tile_team &team)
{
    Shape shape;
    Shape::find(all, job, team.thread);
    shape.begin_copies(all, shared, team.thread);
    COT_EACH (i, Shape::STAGES - 1) {
        if (i < Shape::stages_of(all)) shape.load(all, i, i, i);
        copy_async_commit();
    }
}

/* Computes a tile whose first stages are asked for, and leaves it in the shape's sums. When it returns all copies
 * have come; others may still read the last stage, but none the one before it, whose slot it gives. The loop is written out over TURN
 * stages, all of the ring or one. */
template <typename Shape>
COT_DEVICE int tile_run(Shape &shape, typename Shape::asked &all, unsigned char *shared,
                        const tile_team &team)
{
    constexpr int STAGES = Shape::STAGES, TURN = Shape::TURN, AHEAD = STAGES - 1;
    static_assert(TURN == STAGES || TURN == 1, "whose slot is known");
    const int stages = Shape::stages_of(all);
    shape.begin_copies(all, shared, team.thread);
    shape.begin(shared, team.thread);
    COT_ONE_BY_ONE
    for (int first = 0; first < stages; first += TURN) {
        COT_EACH (i, TURN) {
            if (first + i >= stages) break;
            const int slot = TURN == 1 ? first % STAGES : i, next = first + i + AHEAD;
            COT_UNLESS(tile_wait_group) copy_async_wait<STAGES - 2>();
            /* Everyone's copies of this part are there, and nobody reads the stage that is filled next. */
            COT_UNLESS(tile_barrier) barrier_sync(team.barrier, Shape::THREADS);
            if (next < stages) shape.load(all, (slot + AHEAD) % STAGES, i + AHEAD, next);
            copy_async_commit();
            shape.multiply(slot);
        }
        Shape::advance(all);
    }
    /* The last wait was for the last part's copies: the groups behind it are empty. */
    return (stages + STAGES - 2) % STAGES;
}

/* All stages are multiplied by everyone, so that their slots may be used for another tile. */
template <int THREADS> COT_DEVICE void tile_meet_before_next(const tile_team &team)
{
    COT_UNLESS(tile_barrier_before_next) barrier_sync(team.barrier, THREADS);
}

/* Calls put(row, column, sum, sum of the next column) for `count` of a thread's sums, from the `first` on, which lie at `mine`, [count][THREADS]: of a
 * shape of mma with so many warps below each other, and so many eights of columns a warp. */
template <int THREADS, typename Put>
COT_DEVICE void tile_put_sums(const float *mine, const tile_team &team, uint32_t down, uint32_t columns,
                              uint32_t first, uint32_t count, Put put)
{
    const uint32_t lane = team.thread % 32, warp = team.thread / 32, beside = THREADS / 32 / down;
    COT_ONE_BY_ONE
    for (uint32_t i = 0; i < count; i += 2) {
        const uint32_t at = first + i, half = at / 2 % 2, j = at / 4 % columns, block = at / 4 / columns;
        put(static_cast<int>(16 * (block * down + warp / beside) + 8 * half + lane / 4),
            static_cast<int>(8 * (warp % beside * columns + j) + lane % 4 * 2), mine[i * THREADS],
            mine[(i + 1) * THREADS]);
    }
}

/* An engine: tiles of up to ROWS rows by columns_of(rows) columns, at least N.
 *   ask    asks for the first stages of a tile
 *   run    computes it; `ahead()`, which is called when all stages are multiplied and is the same for all threads, says whether the next
 *          tile is asked for before the sums are put: then the team meets, and the first stages' slots are free
 *   put    calls put(row, column, sum, sum of the next column) for even columns within the tile, and rows, some beyond a's
 * `shared` is as tile_ask's; before it is used for anything but what is asked for ahead, the team meets at a barrier. GATE_TILES: whether the
 * fused launch has registers for a gate in tiles beside it, too. BY_SLOTS: whether tiles of a slot begin beside each other in it. */
struct mma_engine {
    static constexpr bool GATE_TILES = false, BY_SLOTS = false;
    using Value = uint16_t;
    using job = tile_job<Value>;
    using asked = mma_asked;
    static constexpr int ROWS = mma_some::M, N = mma_some::N, THREADS = 128,
                         SHARED_BYTES = mma_least::SHARED_BYTES;
    static_assert(mma_some::SHARED_BYTES <= SHARED_BYTES && mma_few::SHARED_BYTES <= SHARED_BYTES,
                  "one size of shared memory for all");

    static __device__ __forceinline__ constexpr int columns_of(int rows)
    {
        return rows <= mma_least::M ? mma_least::N : rows <= mma_few::M ? mma_few::N : mma_some::N;
    }

    /* How a shape's sums lie. */
    struct sums {
        const float *all;
        uint32_t down, columns, count; // warps below each other; a warp's columns in eights; a thread's sums
    };

    /* Where they lie when the next tile is asked for: behind the first stages of every shape. */
    static constexpr int SUMS_AT = SHARED_BYTES - 64 * 64 * 4;
    static_assert(SUMS_AT >= (mma_least::STAGES - 1) * mma_least::STAGE_BYTES &&
                      SUMS_AT >= (mma_few::STAGES - 1) * mma_few::STAGE_BYTES &&
                      SUMS_AT >= (mma_some::STAGES - 1) * mma_some::STAGE_BYTES,
                  "first stages end before it");

    static __device__ __forceinline__ void ask(asked &all, unsigned char *shared, const job &todo,
                                               const tile_team &team)
    {
        if (todo.a.rows <= mma_least::M)
            tile_ask<mma_least>(all, shared, todo, team);
        else if (todo.a.rows <= mma_few::M)
            tile_ask<mma_few>(all, shared, todo, team);
        else
            tile_ask<mma_some>(all, shared, todo, team);
    }

    template <typename Ahead, int DOWN, int BLOCKS, int PAIRS, int DEPTH, int RING>
    static __device__ __forceinline__ sums run_shape(mma_shape<DOWN, BLOCKS, PAIRS, DEPTH, RING> shape,
                                                     asked &all, unsigned char *shared, const tile_team &team,
                                                     Ahead ahead)
    {
        static_assert(shape.SUMS * THREADS * 4 <= shape.STAGE_BYTES &&
                          shape.SUMS * THREADS * 4 <= 64 * 64 * 4,
                      "sums lie in one slot");
        const int before = COT_EITHER(tile_sums_slot, tile_run(shape, all, shared, team),
                                      tile_run(shape, all, shared, team) + 1) %
                           RING;
        int at = before * shape.STAGE_BYTES;
        if (ahead()) {
            tile_meet_before_next<THREADS>(team);
            at = COT_EITHER(tile_sums_behind_next, SUMS_AT, 0);
        }
        float *const to = reinterpret_cast<float *>(shared + at);
        shape.template keep<shape.SUMS>(to + team.thread, 0);
        return {to, shape.WARPS_DOWN, shape.EIGHTS, shape.SUMS};
    }

    /* The sums pass through shared memory in the end, each read by the thread that wrote it, so that what is done with one is there once
     * in the code, not for every register. */
    template <typename Ahead>
    static __device__ __forceinline__ sums run(asked &all, unsigned char *shared, const tile_team &team,
                                               Ahead ahead)
    {
        if (all.rows <= mma_least::M) return run_shape(mma_least(), all, shared, team, ahead);
        if (all.rows <= mma_few::M) return run_shape(mma_few(), all, shared, team, ahead);
        return run_shape(mma_some(), all, shared, team, ahead);
    }

    template <typename Put>
    static __device__ __forceinline__ void put(const sums &s, const tile_team &team, Put put)
    {
        tile_put_sums<THREADS>(s.all + team.thread, team, s.down, s.columns, 0, s.count, put);
    }
};

/* Tiles of many rows. A thread has so many sums that shared memory has no room for all of them beside the next tile's first stages: they stay in
 * registers, and pass through memory behind the stages, PART of a thread at once. */
struct mma_many_engine {
    using Value = uint16_t;
    using job = tile_job<Value>;
    using asked = mma_asked;
    using shape = mma_most;
    static constexpr int ROWS = shape::M, N = shape::N, THREADS = shape::THREADS,
                         SUMS_AT = shape::SHARED_BYTES;
    static constexpr uint32_t PART = 16;
    static constexpr int SHARED_BYTES = SUMS_AT + static_cast<int>(PART) * THREADS * 4;
    struct sums {
        shape all;
        float *part; // of this thread, [PART][THREADS]
    };

    static __device__ __forceinline__ constexpr int columns_of(int) { return N; }

    static __device__ __forceinline__ void ask(asked &all, unsigned char *shared, const job &todo,
                                               const tile_team &team)
    {
        tile_ask<shape>(all, shared, todo, team);
    }
    template <typename Ahead>
    static __device__ __forceinline__ sums run(asked &all, unsigned char *shared, const tile_team &team,
                                               Ahead ahead)
    {
        sums s;
        tile_run(s.all, all, shared, team);
        if (ahead()) tile_meet_before_next<THREADS>(team);
        s.part =
            reinterpret_cast<float *>(shared + COT_EITHER(tile_sums_behind_stages, SUMS_AT, 0)) + team.thread;
        return s;
    }
    template <typename Put>
    static __device__ __forceinline__ void put(const sums &s, const tile_team &team, Put put)
    {
        COT_ONE_BY_ONE
        for (uint32_t part = 0; part < shape::SUMS / PART; part++) {
            s.all.template keep<PART>(s.part, part);
            tile_put_sums<THREADS>(s.part, team, shape::WARPS_DOWN, shape::EIGHTS, part * PART, PART, put);
        }
    }
};

/* 64 rows at a time: its sums are what threads have registers for, in which they stay. */
struct fma_engine {
    static constexpr bool GATE_TILES = false, BY_SLOTS = false;
    using Value = float;
    using job = tile_job<Value>;
    using asked = fma_shape::asked;
    using sums = fma_shape;
    static constexpr int ROWS = fma_shape::M, N = fma_shape::N, THREADS = 128,
                         SHARED_BYTES = fma_shape::SHARED_BYTES;

    static __device__ __forceinline__ constexpr int columns_of(int) { return fma_shape::N; }

    static __device__ __forceinline__ void ask(asked &all, unsigned char *shared, const job &todo,
                                               const tile_team &team)
    {
        tile_ask<fma_shape>(all, shared, todo, team);
    }
    template <typename Ahead>
    static __device__ __forceinline__ sums run(asked &all, unsigned char *shared, const tile_team &team,
                                               Ahead ahead)
    {
        fma_shape shape;
        tile_run(shape, all, shared, team);
        if (ahead()) tile_meet_before_next<THREADS>(team);
        return shape;
    }
    template <typename Put>
    static __device__ __forceinline__ void put(const sums &s, const tile_team &, Put put)
    {
        s.store(put);
    }
};

/* Computes one tile after the other, each asked for before the sums of the one before it are put: `tile`, then next(tile), numbers of
 * tiles or -1; job(tile); and put(tile), what Engine::put calls. */
template <typename Engine, typename Next, typename Job, typename Put>
COT_DEVICE void tile_compute_all(unsigned char *shared, const tile_team &team, int tile, Next next, Job job,
                                 Put put)
{
    typename Engine::asked all;
    if (tile < 0) return;
    Engine::ask(all, shared, job(tile), team);
    COT_ONE_BY_ONE
    while (tile >= 0) {
        const int then = next(tile);
        const typename Engine::sums sums = Engine::run(all, shared, team, [=] { return then >= 0; });
        if (then >= 0) Engine::ask(all, shared, job(then), team);
        Engine::put(sums, team, put(tile));
        tile = then;
    }
}

} // namespace cot

template <typename Value> struct cot_cuda_product_of {
    cot::rows_of<Value> a, b;
    float *c;            // [M][N]
    cot::row_index pick; // of A's rows
};
using cot_cuda_product = cot_cuda_product_of<uint16_t>;
using cot_cuda_product_f32 = cot_cuda_product_of<float>;

/* C = A B^T, in tiles of as many rows as the engine has; blocks of 128 threads with its SHARED_BYTES. */
COT_KERNEL cot_cuda_product_kernel(cot_cuda_product p);
COT_KERNEL cot_cuda_product_many_kernel(cot_cuda_product p); // by mma_many_engine
COT_KERNEL cot_cuda_product_f32_kernel(cot_cuda_product_f32 p);

#endif
