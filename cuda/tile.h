/* Tiles of matrix products with fp32 sums, C[m][n] = sum over k of A[m][k] B[n][k], through a pipeline of cp.async, on sm_80
 * and later: bf16 by mma.sync m16n8k16 with ldmatrix (mma_tile), fp32 by fused multiply-adds (fma_tile).
 *
 * An engine loads parts of a tile's operands into a stage of shared memory, multiplies a stage into its sums, and stores
 * the sums by a function that the caller gives; tile_run drives any engine that has these three. Another architecture's
 * engine takes its place behind the same names. In bf16 blocks of 16 rows that a
 * tile does not have are neither loaded nor multiplied.
 *
 *   shared memory of a stage of mma_shape:  A, M rows of 128 bytes (64 values of k), then B, N rows likewise
 *     row r:  | c0 | c1 | ... | c7 |   16 bytes each; chunk c of row r lies at place c ^ (r % 8), so that eight rows'
 *                                      chunks of one k meet no bank twice, where ldmatrix reads and where copies write
 *
 * Rows and columns beyond the operands are zeros, and so is k beyond K: no tile has a slow path. The order of each sum is
 * that of k, by sixteens (mma_shape) or one by one (fma_tile), which K alone gives; A is on the same side of mma in every shape.
 * So a row's products have the same bits in tiles of any shape. */
#ifndef COT_CUDA_TILE_H
#define COT_CUDA_TILE_H
#include "cuda/ptx.h"

#include <math.h>

namespace cot {

/* Rows of K values one after another: in bf16 each K a multiple of 8 and 16-byte aligned, in fp32 any K, and aligned to 16
 * bytes where K is a multiple of 4. Row r is the index[r]-th of them; without an index, the r-th. */
template <typename Value> struct rows_of {
    const Value *values;
    int32_t rows, k;
    const int32_t *index = nullptr;
};
using tile_rows = rows_of<uint16_t>; // bf16

template <typename Value> COT_DEVICE const Value *row_of(const rows_of<Value> &from, int row)
{
    return from.values + static_cast<int64_t>(from.index ? from.index[row] : row) * from.k;
}

/* Threads that compute a tile together: whole warps of one block, and the barrier that is theirs. */
struct tile_team {
    int thread, barrier; // number in the team; 0..15
};

/* 128 threads, four warps, DOWN of them below each other: each takes BLOCKS blocks of 16 rows by 16 DOWN columns. */
template <int DOWN, int BLOCKS> struct mma_shape {
    using Value = uint16_t;
    static constexpr int M = 16 * DOWN * BLOCKS, N = 64, K = 64, THREADS = 128, STAGES = 4, BLOCK = 16;
    static constexpr int STAGE_BYTES = (M + N) * K * 2, SHARED_BYTES = STAGES * STAGE_BYTES;

    int blocks;                      // that the tile has
    float sums[BLOCKS][2 * DOWN][4]; // of 16 x 8 each: rows, columns, registers of mma

    __device__ __forceinline__ void begin(int rows)
    {
        blocks = rows < M ? (rows + BLOCK - 1) / BLOCK : M / BLOCK;
        COT_EACH (i, BLOCKS)
            COT_EACH (j, 2 * DOWN)
                COT_EACH (r, 4) sums[i][j][r] = 0;
    }

    static __device__ __forceinline__ int first_row(int thread)
    {
        return thread / 32 / (4 / DOWN) * (BLOCK * BLOCKS);
    }
    static __device__ __forceinline__ int first_column(int thread)
    {
        return thread / 32 % (4 / DOWN) * (16 * DOWN);
    }
    /* Whether a warp multiplies its i-th block; all lanes say the same. */
    __device__ __forceinline__ bool has(int thread, int i) const
    {
        return first_row(thread) / BLOCK + i < blocks;
    }

    static __device__ __forceinline__ int place_of(int row, int chunk)
    {
        return row * (K * 2) + ((chunk ^ (row & 7)) << 4);
    }

    /* Asks for k0 to k0 + 63 of rows first, first + 1, ... `count` of them, into a stage's part. */
    static __device__ __forceinline__ void load_rows(unsigned char *to, const tile_rows &from, int first,
                                                     int count, int k0, int thread)
    {
        for (int i = thread; i < count * 8; i += THREADS) {
            const int r = i / 8, chunk = i % 8, k = k0 + 8 * chunk;
            const bool live = first + r < from.rows && k < from.k;
            const uint16_t *const values = live ? row_of(from, first + r) + k : from.values;
            copy_async_16(to + place_of(r, chunk), values, live ? 16 : 0);
        }
    }

    __device__ __forceinline__ void load(unsigned char *stage, const tile_rows &a, const tile_rows &b, int m,
                                         int n, int k, int thread) const
    {
        load_rows(stage, a, m, BLOCK * blocks, k, thread);
        load_rows(stage + M * K * 2, b, n, N, k, thread);
    }

    __device__ __forceinline__ void multiply(const unsigned char *stage, int thread)
    {
        const int lane = thread % 32, rows = first_row(thread), columns = first_column(thread);
        if (!has(thread, 0)) return;
        for (int k = 0; k < K / 8; k += 2) { // chunks: 16 values of k at a time
            uint32_t a[BLOCKS][4], b[DOWN][4];
            /* Lanes name rows of four 8 x 8 parts. A: upper left, lower left, upper right, lower right. */
            COT_EACH (i, BLOCKS)
                if (has(thread, i))
                    load_matrix_x4(a[i], stage + place_of(rows + 16 * i + lane % 16, k + lane / 16));
            /* B: columns 0..7 with the first half of k, then its second half; columns 8..15 likewise. */
            COT_EACH (j, DOWN)
                load_matrix_x4(b[j],
                               stage + M * K * 2 +
                                   place_of(columns + 16 * j + lane % 8 + lane / 16 * 8, k + lane / 8 % 2));
            COT_EACH (i, BLOCKS)
                if (has(thread, i))
                    COT_EACH (j, 2 * DOWN) {
                        const uint32_t pair[2] = {b[j / 2][2 * (j % 2)], b[j / 2][2 * (j % 2) + 1]};
                        mma_bf16(sums[i][j], a[i], pair);
                    }
        }
    }

    /* Calls put(row, column, sum, sum of the next column) for rows and even columns within the tile. */
    template <typename Put> __device__ __forceinline__ void store(int thread, Put put) const
    {
        const int lane = thread % 32, rows = first_row(thread), columns = first_column(thread);
        COT_EACH (i, BLOCKS)
            COT_EACH (j, 2 * DOWN)
                COT_EACH (half, 2)
                    put(rows + 16 * i + 8 * half + lane / 4, columns + 8 * j + lane % 4 * 2,
                        sums[i][j][2 * half], sums[i][j][2 * half + 1]);
    }
};
using mma_tile = mma_shape<2, 2>; // 64 x 64; the most products a byte that is read from shared memory
using mma_few = mma_shape<1, 2>;  // up to 32 x 64: each warp takes what blocks there are

/* 128 threads, 64 x 64 in fp32: each thread eight rows (every eighth) by four columns (two pairs). A stage holds 16 values of k:
 * rows of 64 bytes, of which two are a line of eight chunks that are exchanged by the line's number, so that chunks of one k in
 * eight lines meet no bank twice. */
struct fma_tile {
    using Value = float;
    static constexpr int M = 64, N = 64, K = 16, THREADS = 128, STAGES = 4;
    static constexpr int STAGE_BYTES = (M + N) * K * 4, SHARED_BYTES = STAGES * STAGE_BYTES;
    struct alignas(16) four {
        float v[4];
    };

    float sums[8][4];

    __device__ __forceinline__ void begin(int)
    {
        COT_EACH (i, 8)
            COT_EACH (j, 4) sums[i][j] = 0;
    }

    static __device__ __forceinline__ int place_of(int row, int chunk)
    {
        const int line = row >> 1;
        return line * (2 * K * 4) + ((((row & 1) << 2 | chunk) ^ (line & 7)) << 4);
    }
    static __device__ __forceinline__ int column_of(int thread, int j)
    {
        return thread % 16 * 2 + j / 2 * 32 + j % 2;
    }

    static __device__ __forceinline__ void load_rows(unsigned char *to, const rows_of<float> &from, int first,
                                                     int count, int k0, int thread)
    {
        for (int i = thread; i < count * (K / 4); i += THREADS) {
            const int r = i / (K / 4), chunk = i % (K / 4), k = k0 + 4 * chunk;
            const bool live = first + r < from.rows && k < from.k;
            const float *const values = live ? row_of(from, first + r) + k : from.values;
            unsigned char *const place = to + place_of(r, chunk);
            if (from.k % 4 == 0)
                copy_async_16(place, values, live ? 16 : 0);
            else
                COT_EACH (j, 4) {
                    const bool one = live && k + j < from.k;
                    copy_async_4(place + 4 * j, one ? values + j : from.values, one ? 4 : 0);
                }
        }
    }

    __device__ __forceinline__ void load(unsigned char *stage, const rows_of<float> &a,
                                         const rows_of<float> &b, int m, int n, int k, int thread) const
    {
        load_rows(stage, a, m, M, k, thread);
        load_rows(stage + M * K * 4, b, n, N, k, thread);
    }

    __device__ __forceinline__ void multiply(const unsigned char *stage, int thread)
    {
        for (int chunk = 0; chunk < K / 4; chunk++) {
            four b[4];
            COT_EACH (j, 4)
                b[j] = *reinterpret_cast<const four *>(stage + M * K * 4 +
                                                       place_of(column_of(thread, j), chunk));
            COT_EACH (i, 8) {
                const four a = *reinterpret_cast<const four *>(stage + place_of(thread / 16 + 8 * i, chunk));
                COT_EACH (j, 4)
                    COT_EACH (k, 4) sums[i][j] = fmaf(a.v[k], b[j].v[k], sums[i][j]);
            }
        }
    }

    /* As mma_shape's. */
    template <typename Put> __device__ __forceinline__ void store(int thread, Put put) const
    {
        COT_EACH (i, 8)
            COT_EACH (pair, 2)
                put(thread / 16 + 8 * i, column_of(thread, 2 * pair), sums[i][2 * pair],
                    sums[i][2 * pair + 1]);
    }
};

/* Computes the tile that begins at (m, n) and leaves it in the engine's sums. `shared` is the team's, SHARED_BYTES, aligned
 * to 128. When it returns all copies have come and nobody reads `shared` any more. */
template <typename Engine>
COT_DEVICE void tile_run(Engine &engine, unsigned char *shared, const rows_of<typename Engine::Value> &a,
                         const rows_of<typename Engine::Value> &b, int m, int n, const tile_team &team)
{
    const int parts = (a.k + Engine::K - 1) / Engine::K;
    engine.begin(a.rows - m);
    for (int part = 0; part < Engine::STAGES - 1; part++) {
        if (part < parts)
            engine.load(shared + part * Engine::STAGE_BYTES, a, b, m, n, part * Engine::K, team.thread);
        copy_async_commit();
    }
    for (int part = 0; part < parts; part++) {
        COT_UNLESS(tile_wait_group) copy_async_wait<Engine::STAGES - 2>();
        /* Everyone's copies of this part are there, and nobody reads the stage that is filled next. */
        COT_UNLESS(tile_barrier) barrier_sync(team.barrier, Engine::THREADS);
        const int next = part + Engine::STAGES - 1;
        if (next < parts)
            engine.load(shared + next % Engine::STAGES * Engine::STAGE_BYTES, a, b, m, n, next * Engine::K,
                        team.thread);
        copy_async_commit();
        engine.multiply(shared + part % Engine::STAGES * Engine::STAGE_BYTES, team.thread);
    }
    copy_async_wait<0>();
    COT_UNLESS(tile_last_barrier) barrier_sync(team.barrier, Engine::THREADS);
}

/* The engine for tiles with few rows. */
template <typename Engine> struct few_of {
    using engine = Engine;
};
template <> struct few_of<mma_tile> {
    using engine = mma_few;
};
static_assert(mma_few::SHARED_BYTES <= mma_tile::SHARED_BYTES, "one size of shared memory for both");

/* The same, in the shape that suits how many rows the tile has; then calls put as an engine's store does. */
template <typename Engine, typename Put>
COT_DEVICE void tile_compute(unsigned char *shared, const rows_of<typename Engine::Value> &a,
                             const rows_of<typename Engine::Value> &b, int m, int n, const tile_team &team,
                             Put put)
{
    using Few = typename few_of<Engine>::engine;
    if (Few::M < Engine::M && a.rows - m <= Few::M) {
        Few few;
        tile_run(few, shared, a, b, m, n, team);
        few.store(team.thread, put);
        return;
    }
    Engine engine;
    tile_run(engine, shared, a, b, m, n, team);
    engine.store(team.thread, put);
}

} // namespace cot

template <typename Value> struct cot_cuda_product_of {
    cot::rows_of<Value> a, b;
    float *c; // [M][N]
};
using cot_cuda_product = cot_cuda_product_of<uint16_t>;
using cot_cuda_product_f32 = cot_cuda_product_of<float>;

/* C = A B^T, one tile after the other; blocks of 128 threads with the engine's SHARED_BYTES. */
COT_KERNEL cot_cuda_product_kernel(cot_cuda_product p);
COT_KERNEL cot_cuda_product_f32_kernel(cot_cuda_product_f32 p);

#endif
