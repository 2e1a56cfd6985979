/* Tiles of matrix products with fp32 sums, C[m][n] = sum over k of A[m][k] B[n][k], through a pipeline of cp.async, on sm_80
 * and later: bf16 by mma.sync m16n8k16 with ldmatrix (mma_engine), fp32 by fused multiply-adds (fma_engine).
 *
 * A shape loads parts of a tile's operands into a stage of shared memory, multiplies a stage into its sums, and stores
 * the sums by a function that the caller gives; tile_run drives any shape that has these three. An engine takes for a tile the
 * shape that suits its rows, and says how many columns that one has. Another architecture's engine takes its place behind the
 * same names.
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

/* A tile: a.rows rows of A, which `pick` names, by columns, which are rows of B from the n-th on; and a number of the caller's. */
template <typename Value> struct tile_job {
    rows_of<Value> a, b;
    row_index pick;
    int32_t n, tag;
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

/* 128 threads, four warps, DOWN of them below each other: of blocks of 16 rows each takes every DOWN-th, BLOCKS in all, by
 * 16 PAIRS columns. A stage has DEPTH values of k. What a copy and an ldmatrix need stands in registers from the first stage to the last:
 * where rows are, how many stages have values of the thread's k, and places in the first stage, from which the others' are so many bytes. */
template <int DOWN, int BLOCKS, int PAIRS, int DEPTH, int RING> struct mma_shape {
    using Value = uint16_t;
    static constexpr int M = 16 * DOWN * BLOCKS, N = 4 / DOWN * 16 * PAIRS, K = DEPTH, THREADS = 128,
                         STAGES = RING, TURN = RING, CHUNKS = K / 8;
    static constexpr int STAGE_BYTES = (M + N) * K * 2, SHARED_BYTES = STAGES * STAGE_BYTES;
    static constexpr int PASS = THREADS / CHUNKS, // rows that all threads copy a chunk of, a multiple of 16
        PASSES_A = (M + PASS - 1) / PASS, PASSES_B = N / PASS;
    static_assert(PASS % 16 == 0 && M % PASS == 0 && N % PASS == 0, "whole passes");

    float sums[BLOCKS][2 * PAIRS][4]; // of 16 x 8 each: rows, columns, registers of mma
    shared_place to, at_a[K / 16], at_b[K / 16];
    const unsigned char *from_a[PASSES_A], *from_b[PASSES_B];
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

    __device__ __forceinline__ void begin(unsigned char *shared, const tile_job<Value> &job, uint32_t thread)
    {
        const int row = static_cast<int>(thread / CHUNKS), chunk = static_cast<int>(thread % CHUNKS),
                  k = job.a.k;
        const uint32_t lane = thread % 32;
        const shared_place stage = place_of(shared);
        const auto row_of = [=](const uint16_t *values, int number) {
            return reinterpret_cast<const unsigned char *>(values + static_cast<int64_t>(number) * k +
                                                           8 * chunk);
        };
        live = (k - 8 * chunk + K - 1) / K;
        COT_EACH (i, PASSES_B) { // what is beyond the columns is the last one again, and kept nowhere
            const int r = job.n + row + i * PASS;
            from_b[i] = row_of(job.b.values, r < job.b.rows ? r : job.b.rows - 1);
        }
        COT_EACH (i, PASSES_A) {
            const int r = row + i * PASS;
            live_a[i] = r < job.a.rows ? live : 0;
            from_a[i] = row_of(job.a.values, row_at(job.pick, r < job.a.rows ? r : 0));
        }
        to = kept(stage + place_in_lines<CHUNKS>(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk)));
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
    __device__ __forceinline__ void load(int slot, int ahead, int number)
    {
        COT_EACH (i, PASSES_B)
            copy_async_16(to + slot * STAGE_BYTES + M * K * 2 + i * (PASS * K * 2),
                          from_b[i] + ahead * (K * 2), number < live ? 16 : 0);
        COT_EACH (i, PASSES_A)
            copy_async_16(to + slot * STAGE_BYTES + i * (PASS * K * 2), from_a[i] + ahead * (K * 2),
                          number < live_a[i] ? 16 : 0);
    }
    __device__ __forceinline__ void advance()
    {
        COT_EACH (i, PASSES_B) from_b[i] += TURN * K * 2;
        COT_EACH (i, PASSES_A) from_a[i] += TURN * K * 2;
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

    /* Leaves the sums in `all`, [SUMS][THREADS]. */
    __device__ __forceinline__ void keep(float *all, uint32_t thread) const
    {
        COT_EACH (i, BLOCKS)
            COT_EACH (j, 2 * PAIRS)
                COT_EACH (r, 4)
                    all[((i * 2 * PAIRS + j) * 4 + r) * THREADS + static_cast<int>(thread)] = sums[i][j][r];
    }
};
using mma_least = mma_shape<1, 1, 2, 64, 4>; // up to 16 x 128
using mma_few = mma_shape<1, 2, 2, 64, 3>;   // up to 32 x 128
using mma_some = mma_shape<2, 2, 2, 64, 4>;  // up to 64 x 64

/* 128 threads, 64 x 64 in fp32: each thread eight rows (every eighth) by four columns (two pairs). A stage holds 16 values of k,
 * two rows a line. */
struct fma_shape {
    using Value = float;
    static constexpr int M = 64, N = 64, K = 16, THREADS = 128, STAGES = 4, TURN = 1, CHUNKS = K / 4;
    static constexpr int STAGE_BYTES = (M + N) * K * 4, SHARED_BYTES = STAGES * STAGE_BYTES;
    struct alignas(16) four {
        float v[4];
    };

    float sums[8][4];
    unsigned char *stages;
    tile_job<float> todo;
    uint32_t thread;

    __device__ __forceinline__ void begin(unsigned char *shared, const tile_job<float> &job, uint32_t number)
    {
        stages = shared, todo = job, thread = number;
        todo.b = rows_from(job.b, job.n);
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

    __device__ __forceinline__ void load(int slot, int, int number) const
    {
        unsigned char *const stage = stages + slot * STAGE_BYTES;
        load_rows(stage, todo.a, todo.pick, number * K, thread);
        load_rows(stage + M * K * 4, todo.b, {}, number * K, thread);
    }
    __device__ __forceinline__ void advance() {}

    __device__ __forceinline__ void multiply(int slot)
    {
        const unsigned char *const stage = stages + slot * STAGE_BYTES;
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

/* Computes a tile, and leaves it in the shape's sums. `shared` is the team's, SHARED_BYTES, aligned to 128. When it returns all copies
 * have come; others may still read the last stage, but none the one before it, whose slot it gives. The loop is written out over TURN
 * stages, all of the ring or one. */
template <typename Shape>
COT_DEVICE int tile_run(Shape &shape, unsigned char *shared, const tile_job<typename Shape::Value> &job,
                        const tile_team &team)
{
    constexpr int STAGES = Shape::STAGES, TURN = Shape::TURN, AHEAD = STAGES - 1;
    static_assert(TURN == STAGES || TURN == 1, "whose slot is known");
    const int stages = (job.a.k + Shape::K - 1) / Shape::K;
    shape.begin(shared, job, team.thread);
    COT_EACH (i, AHEAD) {
        if (i < stages) shape.load(i, i, i);
        copy_async_commit();
    }
    COT_ONE_BY_ONE
    for (int first = 0; first < stages; first += TURN) {
        COT_EACH (i, TURN) {
            if (first + i >= stages) break;
            const int slot = TURN == 1 ? first % STAGES : i, next = first + i + AHEAD;
            COT_UNLESS(tile_wait_group) copy_async_wait<STAGES - 2>();
            /* Everyone's copies of this part are there, and nobody reads the stage that is filled next. */
            COT_UNLESS(tile_barrier) barrier_sync(team.barrier, Shape::THREADS);
            if (next < stages) shape.load((slot + AHEAD) % STAGES, i + AHEAD, next);
            copy_async_commit();
            shape.multiply(slot);
        }
        shape.advance();
    }
    /* The last wait was for the last part's copies: the groups behind it are empty. */
    return (stages + STAGES - 2) % STAGES;
}

/* An engine: tiles of up to ROWS rows by columns_of(rows) columns, at least N. When all sums are there, compute calls begin(tag),
 * and what that returns as put(row, column, sum, sum of the next column) for even columns within the tile, and rows, some beyond
 * a's. `shared` is as tile_run's; before it is used again, the team meets at a barrier. */
struct mma_engine {
    using Value = uint16_t;
    using job = tile_job<Value>;
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

    template <int DOWN, int BLOCKS, int PAIRS, int DEPTH, int RING>
    static __device__ __forceinline__ sums run(mma_shape<DOWN, BLOCKS, PAIRS, DEPTH, RING> shape,
                                               unsigned char *shared, const job &todo, const tile_team &team)
    {
        static_assert(shape.SUMS * THREADS * 4 <= shape.STAGE_BYTES, "sums lie in one slot");
        const int slot = COT_EITHER(tile_sums_slot, tile_run(shape, shared, todo, team),
                                    tile_run(shape, shared, todo, team) + 1) %
                         RING;
        float *const all = reinterpret_cast<float *>(shared + slot * shape.STAGE_BYTES);
        shape.keep(all, team.thread);
        return {all, DOWN, 2 * PAIRS, shape.SUMS};
    }

    /* The sums pass through shared memory in the end, each read by the thread that wrote it, so that what is done with one is there once
     * in the code, not for every register. */
    template <typename Begin>
    static __device__ __forceinline__ void compute(unsigned char *shared, const job &todo,
                                                   const tile_team &team, Begin begin)
    {
        const int rows = todo.a.rows;
        sums s;
        if (rows <= mma_least::M)
            s = run(mma_least(), shared, todo, team);
        else if (rows <= mma_few::M)
            s = run(mma_few(), shared, todo, team);
        else
            s = run(mma_some(), shared, todo, team);
        const auto put = begin(todo.tag, todo.n);
        const uint32_t lane = team.thread % 32, warp = team.thread / 32, beside = 4 / s.down;
        const float *const mine = s.all + team.thread;
        COT_ONE_BY_ONE
        for (uint32_t at = 0; at < s.count; at += 2) {
            const uint32_t half = at / 2 % 2, j = at / 4 % s.columns, i = at / 4 / s.columns;
            put(static_cast<int>(16 * (i * s.down + warp / beside) + 8 * half + lane / 4),
                static_cast<int>(8 * (warp % beside * s.columns + j) + lane % 4 * 2), mine[at * THREADS],
                mine[(at + 1) * THREADS]);
        }
    }
};

/* 64 rows at a time: its sums are what threads have registers for. */
struct fma_engine {
    using Value = float;
    using job = tile_job<Value>;
    static constexpr int ROWS = fma_shape::M, N = fma_shape::N, THREADS = 128,
                         SHARED_BYTES = fma_shape::SHARED_BYTES;

    static __device__ __forceinline__ constexpr int columns_of(int) { return fma_shape::N; }

    template <typename Begin>
    static __device__ __forceinline__ void compute(unsigned char *shared, const job &todo,
                                                   const tile_team &team, Begin begin)
    {
        fma_shape shape;
        tile_run(shape, shared, todo, team);
        shape.store(begin(todo.tag, todo.n));
    }
};

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
COT_KERNEL cot_cuda_product_f32_kernel(cot_cuda_product_f32 p);

#endif
