/* Tiles of matrix products with fp32 sums, C[m][n] = sum over k of A[m][k] B[n][k], through a pipeline of cp.async, on sm_80
 * and later: bf16 by mma.sync m16n8k16 with ldmatrix (mma_engine), fp32 by fused multiply-adds (fma_engine).
 *
 * A shape loads parts of a tile's operands into a stage of shared memory, multiplies a stage into its sums, and stores
 * the sums by a function that the caller gives; tile_run drives any shape that has these three. An engine takes for a tile the
 * shape that suits its rows, and says how many columns that one has. Another architecture's engine takes its place behind the
 * same names. In bf16 blocks of 16 rows that a tile does not have are neither loaded nor multiplied.
 *
 *   shared memory of a stage:  A, M rows of K values, then B, N rows likewise, in lines of 128 bytes: one row or two a line
 *     line l:  | c0 | c1 | ... | c7 |   16 bytes each; chunk c of line l lies at place c ^ (l % 8), so that eight rows'
 *                                       chunks of one k meet no bank twice, where ldmatrix reads and where copies write
 *
 * Rows and columns beyond the operands are zeros, and so is k beyond K: no tile has a slow path. The order of each sum is
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

/* 128 threads, four warps, DOWN of them below each other: of blocks of 16 rows each takes every DOWN-th, BLOCKS at most, by
 * 16 PAIRS columns. A stage has DEPTH values of k. */
template <int DOWN, int BLOCKS, int PAIRS, int DEPTH> struct mma_shape {
    using Value = uint16_t;
    static constexpr int M = 16 * DOWN * BLOCKS, N = 4 / DOWN * 16 * PAIRS, K = DEPTH, THREADS = 128,
                         STAGES = 4, CHUNKS = K / 8;
    static constexpr int STAGE_BYTES = (M + N) * K * 2, SHARED_BYTES = STAGES * STAGE_BYTES;

    float sums[BLOCKS][2 * PAIRS][4]; // of 16 x 8 each: rows, columns, registers of mma

    __device__ __forceinline__ void begin()
    {
        COT_EACH (i, BLOCKS)
            COT_EACH (j, 2 * PAIRS)
                COT_EACH (r, 4) sums[i][j][r] = 0;
    }

    /* A warp's i-th block; those of one i are beside each other, so that no warp has two more than another. */
    static __device__ __forceinline__ uint32_t block_of(uint32_t thread, int i)
    {
        return static_cast<uint32_t>(i * DOWN) + thread / 32 / (4 / DOWN);
    }
    static __device__ __forceinline__ uint32_t first_column(uint32_t thread)
    {
        return thread / 32 % (4 / DOWN) * (16 * PAIRS);
    }
    /* Whether a warp multiplies its i-th block; all lanes say the same. */
    static __device__ __forceinline__ bool has(uint32_t thread, int i, int rows)
    {
        return static_cast<int>(16 * block_of(thread, i)) < rows;
    }

    /* Asks for K values from k0 on of the first `count` rows, into a stage's part. */
    static __device__ __forceinline__ void load_rows(unsigned char *to, const rows_of<Value> from,
                                                     const row_index pick, int count, int k0, uint32_t thread)
    {
        constexpr int TOGETHER = THREADS / CHUNKS; // rows, a multiple of 16
        const uint32_t chunk = thread % CHUNKS;
        const int k = k0 + 8 * static_cast<int>(chunk);
        to += place_in_lines<CHUNKS>(thread / CHUNKS, chunk);
        COT_ONE_BY_ONE
        for (int r = static_cast<int>(thread / CHUNKS); r < count; r += TOGETHER, to += TOGETHER * K * 2) {
            const bool live = r < from.rows && k < from.k;
            const uint32_t row = static_cast<uint32_t>(live ? row_at(pick, r) : 0);
            copy_async_16(
                to, from.values + static_cast<uint64_t>(row) * static_cast<uint32_t>(from.k) + (live ? k : 0),
                live ? 16 : 0);
        }
    }

    static __device__ __forceinline__ void load(unsigned char *stage, const tile_job<Value> &job, int k,
                                                uint32_t thread)
    {
        thread = hidden(thread);
        const int rows = job.a.rows < M ? (job.a.rows + 15) / 16 * 16 : M;
        load_rows(stage, job.a, job.pick, rows, k, thread);
        load_rows(stage + M * K * 2, job.b, {}, N, k, thread);
    }

    __device__ __forceinline__ void multiply(const unsigned char *stage, const tile_job<Value> &job,
                                             uint32_t thread)
    {
        thread = hidden(thread);
        const int rows = job.a.rows;
        const uint32_t lane = thread % 32;
        if (!has(thread, 0, rows)) return;
        /* Lanes name rows of four 8 x 8 parts. A: upper left, lower left, upper right, lower right. B: columns 0..7 with the
         * first half of k, then its second half; columns 8..15 likewise. */
        const uint32_t first_a = place_in_lines<CHUNKS>(16 * block_of(thread, 0) + lane % 16, lane / 16),
                       first_b = place_in_lines<CHUNKS>(first_column(thread) + lane % 8 + lane / 16 * 8,
                                                        lane / 8 % 2);
        COT_EACH (step, K / 16) { // of 16 values of k: two chunks, whose numbers differ in no other bits
            const unsigned char *const at_a = stage + (first_a ^ (step * 32)), *const at_b =
                                                                                   stage + M * K * 2 +
                                                                                   (first_b ^ (step * 32));
            uint32_t a[BLOCKS][4];
            COT_EACH (i, BLOCKS)
                if (has(thread, i, rows)) load_matrix_x4(a[i], at_a + i * DOWN * (16 * K * 2));
            COT_EACH (pair, PAIRS) {
                uint32_t b[4];
                load_matrix_x4(b, at_b + pair * (16 * K * 2));
                COT_EACH (i, BLOCKS)
                    if (has(thread, i, rows))
                        COT_EACH (half, 2) {
                            const uint32_t both[2] = {b[2 * half], b[2 * half + 1]};
                            mma_bf16(sums[i][2 * pair + half], a[i], both);
                        }
            }
        }
    }

    static constexpr uint32_t SUMS = BLOCKS * 2 * PAIRS * 4; // of a thread

    /* Leaves the sums in `to`, [SUMS][THREADS]. */
    __device__ __forceinline__ void keep(float *to, uint32_t thread) const
    {
        COT_EACH (i, BLOCKS)
            COT_EACH (j, 2 * PAIRS)
                COT_EACH (r, 4)
                    to[((i * 2 * PAIRS + j) * 4 + r) * THREADS + static_cast<int>(thread)] = sums[i][j][r];
    }
};
using mma_few = mma_shape<1, 2, 1, 64>;  // up to 32 x 64: each warp takes what blocks there are
using mma_some = mma_shape<2, 2, 2, 64>; // up to 64 x 64
using mma_many = mma_shape<2, 4, 4, 32>; // up to 128 x 128: the most products a byte that is read

/* 128 threads, 64 x 64 in fp32: each thread eight rows (every eighth) by four columns (two pairs). A stage holds 16 values of k,
 * two rows a line. */
struct fma_shape {
    using Value = float;
    static constexpr int M = 64, N = 64, K = 16, THREADS = 128, STAGES = 4, CHUNKS = K / 4;
    static constexpr int STAGE_BYTES = (M + N) * K * 4, SHARED_BYTES = STAGES * STAGE_BYTES;
    struct alignas(16) four {
        float v[4];
    };

    float sums[8][4];

    __device__ __forceinline__ void begin()
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
            unsigned char *const place = to + place_in_lines<CHUNKS>(row, chunk);
            if (from.k % 4 == 0)
                copy_async_16(place, values, live ? 16 : 0);
            else
                COT_EACH (j, 4) {
                    const bool one = live && k + j < from.k;
                    copy_async_4(place + 4 * j, one ? values + j : from.values, one ? 4 : 0);
                }
        }
    }

    static __device__ __forceinline__ void load(unsigned char *stage, const tile_job<float> &job, int k,
                                                uint32_t thread)
    {
        load_rows(stage, job.a, job.pick, k, thread);
        load_rows(stage + M * K * 4, job.b, {}, k, thread);
    }

    __device__ __forceinline__ void multiply(const unsigned char *stage, const tile_job<float> &,
                                             uint32_t thread)
    {
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
    template <typename Put> __device__ __forceinline__ void store(uint32_t thread, Put put) const
    {
        COT_EACH (i, 8)
            COT_EACH (pair, 2)
                put(static_cast<int>(thread / 16) + 8 * i, static_cast<int>(column_of(thread, 2 * pair)),
                    sums[i][2 * pair], sums[i][2 * pair + 1]);
    }
};

/* Computes a tile whose b begins at n, and leaves it in the shape's sums. `shared` is the team's, SHARED_BYTES, aligned
 * to 128. When it returns all copies have come and nobody reads `shared` any more. */
template <typename Shape>
COT_DEVICE void tile_run(Shape &shape, unsigned char *shared, const tile_job<typename Shape::Value> &job,
                         const tile_team &team)
{
    const int depth = job.a.k;
    constexpr int STAGES = Shape::STAGES, K = Shape::K;
    const auto stage_of = [=](int k) { return shared + k / K % STAGES * Shape::STAGE_BYTES; };
    shape.begin();
    for (int k = 0; k < (STAGES - 1) * K; k += K) {
        if (k < depth) shape.load(stage_of(k), job, k, team.thread);
        copy_async_commit();
    }
    for (int k = 0; k < depth; k += K) {
        COT_UNLESS(tile_wait_group) copy_async_wait<STAGES - 2>();
        /* Everyone's copies of this part are there, and nobody reads the stage that is filled next. */
        COT_UNLESS(tile_barrier) barrier_sync(team.barrier, Shape::THREADS);
        const int next = k + (STAGES - 1) * K;
        if (next < depth) shape.load(stage_of(next), job, next, team.thread);
        copy_async_commit();
        shape.multiply(stage_of(k), job, team.thread);
    }
    /* The last wait was for the last part's copies: the groups behind it are empty. */
    COT_UNLESS(tile_last_barrier) barrier_sync(team.barrier, Shape::THREADS);
}

/* An engine: tiles of up to ROWS rows by columns_of(rows) columns, at least N. When all sums are there, compute calls begin(tag),
 * and what that returns as put(row, column, sum, sum of the next column) for even columns within the tile, and rows, some beyond
 * a's. `shared` is as tile_run's; before it is used again, the team meets at a barrier. */
template <int MOST> struct mma_engine {
    static_assert(MOST == mma_some::M || MOST == mma_many::M, "rows of the largest shape");
    using Value = uint16_t;
    using job = tile_job<Value>;
    static constexpr int ROWS = MOST, N = mma_some::N, THREADS = 128, STAGES_BYTES = 65536, JOB_BYTES = 64,
                         SHARED_BYTES = STAGES_BYTES + JOB_BYTES + MOST * 4;
    static_assert(mma_many::SHARED_BYTES == STAGES_BYTES && mma_some::SHARED_BYTES == STAGES_BYTES &&
                      mma_few::SHARED_BYTES < STAGES_BYTES && mma_many::M * mma_many::N * 4 <= STAGES_BYTES &&
                      sizeof(job) <= JOB_BYTES && MOST <= THREADS,
                  "one size of shared memory for all");

    static __device__ __forceinline__ int columns_of(int rows)
    {
        return rows <= mma_some::M ? mma_some::N : mma_many::N;
    }

    /* How a shape's sums lie. */
    struct sums {
        uint32_t down, columns, count; // warps below each other; a warp's columns in eights; a thread's sums
    };

    template <int DOWN, int BLOCKS, int PAIRS, int DEPTH>
    static __device__ __forceinline__ sums run(mma_shape<DOWN, BLOCKS, PAIRS, DEPTH> shape,
                                               unsigned char *shared, const job &what, const tile_team &team)
    {
        tile_run(shape, shared, what, team);
        shape.keep(reinterpret_cast<float *>(shared), team.thread);
        return {DOWN, 2 * PAIRS, shape.SUMS};
    }

    /* Registers are for sums: what is to be done, and which rows, lie in shared memory meanwhile, and the sums, too, pass through it in
     * the end, each read by the thread that wrote it, so that what is done with one is there once in the code, not for every register. */
    template <typename Begin>
    static __device__ __forceinline__ void compute(unsigned char *shared, const job &todo,
                                                   const tile_team &team, Begin begin)
    {
        job *const what = reinterpret_cast<job *>(shared + STAGES_BYTES);
        int32_t *const index = reinterpret_cast<int32_t *>(shared + STAGES_BYTES + JOB_BYTES);
        if (team.thread == 0)
            *what = {todo.a, rows_from(todo.b, todo.n), {index, todo.pick.gathered}, todo.n, todo.tag};
        if (const int thread = static_cast<int>(team.thread);
            todo.pick.gathered && thread < todo.a.rows && thread < MOST)
            index[thread] = todo.pick.index[thread];
        COT_UNLESS(tile_job_for_all) barrier_sync(team.barrier, THREADS);
        const int rows = what->a.rows;
        sums s;
        if (rows <= mma_few::M)
            s = run(mma_few(), shared, *what, team);
        else if (ROWS == mma_some::M || rows <= mma_some::M)
            s = run(mma_some(), shared, *what, team);
        else if constexpr (ROWS > mma_some::M)
            s = run(mma_many(), shared, *what, team);
        const auto put = begin(what->tag, what->n);
        const uint32_t lane = team.thread % 32, warp = team.thread / 32, beside = 4 / s.down;
        const float *const mine = reinterpret_cast<const float *>(shared) + team.thread;
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
template <int MOST> struct fma_engine {
    using Value = float;
    using job = tile_job<Value>;
    static constexpr int ROWS = MOST, N = fma_shape::N, THREADS = 128, SHARED_BYTES = fma_shape::SHARED_BYTES;

    static __device__ __forceinline__ int columns_of(int) { return fma_shape::N; }

    template <typename Begin>
    static __device__ __forceinline__ void compute(unsigned char *shared, const job &todo,
                                                   const tile_team &team, Begin begin)
    {
        for (int m = 0; m < todo.a.rows; m += fma_shape::M) {
            fma_shape shape;
            job rest = job_from(todo, m);
            rest.b = rows_from(todo.b, todo.n);
            tile_run(shape, shared, rest, team);
            const auto put = begin(todo.tag, todo.n);
            shape.store(team.thread,
                        [&](int row, int column, float v, float next) { put(m + row, column, v, next); });
        }
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
