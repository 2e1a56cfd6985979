/* Tiles of matrix products for many rows, C[m][n] = sum over k of A[m][k] B[n][k], bf16 with fp32 sums, by the instructions that compute
 * capability 9.0 alone has: wgmma, and copies of whole tiles. Up to 128 rows of A, gathered, by COLUMNS rows of B, which lie as a map
 * says.
 *
 *   warps 0 to 7    two groups of four, of 64 rows each: multiply, and give the sums to a function of the caller's
 *   warps 8 and on  bring what is multiplied, stage after stage and tile after tile: rows of A by cp.async, B's by one copy a stage
 *
 * A stage has 64 values of k of all rows, in lines of 128 bytes as tile.h has them. It has two words: `full`, at which those who bring it
 * and the bytes of B arrive, and `empty`, at which each multiplying warp arrives when it has read it. Both sides go through the same tiles, so
 * that a tile's first stages are on their way while the sums of the one before are put away.
 *
 * Rows and values of k that the operands do not have are zeros, columns likewise. The order of each sum is that of k, by sixteens: the same bits as
 * tile.h's. */
#ifndef COT_CUDA_MANY_H
#define COT_CUDA_MANY_H
#include "cuda/tile.h"

namespace cot {

/* A tile: a.rows rows of A, which `pick` names, by columns n and on of a slot of B. */
struct many_job {
    rows_of<uint16_t> a;
    row_index pick;
    const tile_map *b; // of tiles of COLUMNS rows
    int32_t slot, n;
};

/* A place in the ring of stages. */
template <int STAGES> struct ring_place {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next()
    {
        if (++slot == STAGES) slot = 0, parity ^= 1;
    }
};

template <int COLUMNS, int BRINGERS = 128> struct many_engine {
    static constexpr int ROWS = 128, N = COLUMNS, K = 64, MULTIPLYING = 256, BRINGING = BRINGERS,
                         THREADS = MULTIPLYING + BRINGING;
    static constexpr int A_BYTES = ROWS * K * 2, STAGE_BYTES = A_BYTES + N * K * 2,
                         STAGES = 196608 / STAGE_BYTES;
    /* Stages on their way before the oldest is waited for. A stage stays read until the next one's products are begun. */
    static constexpr int AHEAD = STAGES / 2;
    static_assert(AHEAD + 2 <= STAGES, "no side waits for the other in a ring");
    /* Sums that a thread puts away at once, behind the stages; then the words. All of it begins at a multiple of 1,024 bytes. */
    static constexpr int PART = 16, SUMS_AT = STAGES * STAGE_BYTES,
                         WORDS_AT = SUMS_AT + PART * MULTIPLYING * 4,
                         SHARED_BYTES = 1024 + WORDS_AT + 2 * STAGES * 8;
    static constexpr int ROWS_APART = BRINGING / 8, ROWS_A_THREAD = ROWS / ROWS_APART;
    static constexpr bool GATE_TILES = true, BY_SLOTS = true;
    using place = ring_place<STAGES>;
    using Value = uint16_t;

    static __device__ __forceinline__ constexpr int columns_of(int) { return N; }

    static __device__ __forceinline__ int stages_of(const many_job &job) { return (job.a.k + K - 1) / K; }
    static __device__ __forceinline__ shared_place full(shared_place all, int slot)
    {
        return all + (WORDS_AT + slot * 8);
    }
    static __device__ __forceinline__ shared_place empty(shared_place all, int slot)
    {
        return all + (WORDS_AT + (STAGES + slot) * 8);
    }

    /* By all threads, for each map of a job's, before the tiles are computed. */
    static __device__ __forceinline__ void know(const tile_map *map)
    {
        if (thread_number() == MULTIPLYING) COT_UNLESS(many_map) acquire_map(map); // who copies B's tiles
    }

    /* Makes the words. By all threads, which meet. */
    static __device__ __forceinline__ void begin(shared_place all)
    {
        if (thread_number() == 0)
            COT_EACH (i, STAGES) {
                word_init(full(all, i), BRINGING + COT_EITHER(many_arrivals, 1, 0)); // one tells of B's bytes
                word_init(empty(all, i), MULTIPLYING / 32);
            }
        COT_UNLESS(many_words_for_all) __syncthreads();
    }

    /* What a thread that brings stages knows from one tile to the next. */
    struct bringing {
        place at, told; // told: of the stages whose rows are there
        int behind = 0; // how many are on their way from there on
    };

    static __device__ __forceinline__ void tell_stage(shared_place all, bringing &b)
    {
        COT_UNLESS(many_rows_for_products) fence_async();
        word_arrive(full(all, b.told.slot));
        b.told.next();
    }

    /* Brings the stages of a tile, of which the last may be on their way when it returns. */
    static __device__ __forceinline__ void bring_tile(shared_place all, bringing &b, const many_job &todo)
    {
        const uint32_t thread = static_cast<uint32_t>(thread_number() - MULTIPLYING), row = thread / 8,
                       chunk = thread % 8;
        const shared_place to = kept(all + place_in_lines<8>(row, chunk));
        const int live = (todo.a.k - 8 * static_cast<int>(chunk) + K - 1) / K, stages = stages_of(todo);
        /* Of sixteens of bytes, so that a row's place takes one register. */
        const unsigned char *values = reinterpret_cast<const unsigned char *>(todo.a.values);
        uint32_t from[ROWS_A_THREAD];
        COT_EACH (i, ROWS_A_THREAD) {
            const int r = static_cast<int>(row) + i * ROWS_APART,
                      source = row_at(todo.pick, r < todo.a.rows ? r : 0);
            from[i] = static_cast<uint32_t>(source) * static_cast<uint32_t>(todo.a.k / 8) + chunk;
        }
        COT_ONE_BY_ONE
        for (int s = 0; s < stages; s++) {
            const shared_place stage = all + b.at.slot * STAGE_BYTES;
            COT_UNLESS(many_wait_empty) word_wait(empty(all, b.at.slot), b.at.parity ^ 1);
            if (thread == 0) {
                word_expect(full(all, b.at.slot), N * K * COT_EITHER(many_bytes, 2, 1));
                copy_tile_async(stage + A_BYTES, todo.b, s * K, todo.n, todo.slot, full(all, b.at.slot));
            }
            __syncwarp();
            COT_EACH (i, ROWS_A_THREAD) {
                const bool there = s < live && static_cast<int>(row) + i * ROWS_APART < todo.a.rows;
                copy_async_16(to + (b.at.slot * STAGE_BYTES + i * (ROWS_APART * K * 2)),
                              values + static_cast<uint64_t>(from[i]) * 16, there ? 16 : 0);
            }
            values += K * 2;
            copy_async_commit();
            if (b.behind == AHEAD) {
                COT_EITHER(many_wait_rows, copy_async_wait<AHEAD>(), copy_async_wait<AHEAD + 1>());
                tell_stage(all, b);
            } else {
                b.behind++;
            }
            b.at.next();
        }
    }

    /* All stages so far have come, and those who multiply are told. */
    static __device__ __forceinline__ void bring_last(shared_place all, bringing &b)
    {
        copy_async_wait<0>();
        COT_ONE_BY_ONE
        for (; b.behind > 0; b.behind--) tell_stage(all, b);
    }

    /* Brings the stages of `tile`, next(tile), ... until -1, each as job(tile) says. */
    template <typename Next, typename Job>
    static __device__ __forceinline__ void bring(shared_place all, int tile, Next next, Job job)
    {
        bringing b;
        COT_ONE_BY_ONE
        for (; tile >= 0; tile = next(tile)) bring_tile(all, b, job(tile));
        bring_last(all, b);
    }

    /* Multiplies a tile of so many stages, and calls what put() gives with row, column, sum, sum of the next column, for rows and even columns of the
     * tile and beyond. */
    template <typename Put>
    static __device__ __forceinline__ void multiply_tile(shared_place all, float *kept_sums, place &at,
                                                         int stages, Put put)
    {
        const int lane = thread_number() % 32, rows = thread_number() / 128 * 64;
        float sums[N / 2];
        COT_EACH (i, N / 2) sums[i] = 0;
        int before = 0;
        COT_ONE_BY_ONE
        for (int s = 0; s < stages; s++) {
            const shared_place stage = all + at.slot * STAGE_BYTES;
            COT_UNLESS(many_wait_full)
            word_wait(full(all, at.slot), COT_EITHER(many_parity, at.parity, at.parity ^ 1));
            COT_UNLESS(many_sums_for_products) wgmma_fence();
            COT_EACH (step, K / 16)
                wgmma_bf16<N>(sums, stage + (rows * K * 2 + step * 32), stage + (A_BYTES + step * 32));
            COT_UNLESS(many_commit) wgmma_commit();
            COT_EITHER(many_wait_products, wgmma_wait<1>(), wgmma_wait<2>());
            if (s > 0 && lane == 0) word_arrive(empty(all, before));
            before = at.slot;
            at.next();
        }
        COT_UNLESS(many_wait_last) wgmma_wait<0>();
        if (lane == 0) word_arrive(empty(all, before));
        /* Sums pass through shared memory, each read by the thread that wrote it, so that what is done with one is there once in the code. */
        COT_ONE_BY_ONE
        for (int part = 0; part < N / 2 / PART; part++) {
            /* Worked out anew, so that it stands in no register while tiles are multiplied. */
            const int number = thread_number(),
                      row = number / 128 * 64 + number % 128 / 32 * 16 + number % 32 / 4,
                      column = 8 * part * (PART / 4) + number % 4 * 2;
            float *const mine = kept_sums + number;
            COT_EACH (p, N / 2 / PART)
                if (p == part)
                    COT_EACH (i, PART) mine[i * MULTIPLYING] = sums[p * PART + i];
            const auto give = put();
            COT_ONE_BY_ONE
            for (int i = 0; i < PART; i += 2)
                give(row + i / 2 % 2 * 8, column + i / 4 * 8, mine[i * MULTIPLYING],
                     mine[(i + 1) * MULTIPLYING]);
        }
    }

    /* Multiplies the tiles that are brought, and gives the sums of each to what put(tile) gives. */
    template <typename Next, typename Job, typename Put>
    static __device__ __forceinline__ void multiply(shared_place all, float *kept_sums, int tile, Next next,
                                                    Job job, Put put)
    {
        place at;
        COT_ONE_BY_ONE
        for (; tile >= 0; tile = next(tile))
            multiply_tile(all, kept_sums, at, stages_of(job(tile)), [&] { return put(tile); });
    }

    /* Computes `tile`, next(tile), ... until -1. By THREADS threads, with SHARED_BYTES of dynamic shared memory at `memory`. All threads know the
     * maps. */
    template <typename Next, typename Job, typename Put>
    static __device__ __forceinline__ void compute_all(void *memory, int tile, Next next, Job job, Put put)
    {
        unsigned char *const aligned =
            static_cast<unsigned char *>(memory) + (1024 - reinterpret_cast<uintptr_t>(memory) % 1024) % 1024;
        const shared_place all = place_of(aligned);
        begin(all);
        /* A launch gives all threads 168: sums take 128 of them. */
        if (thread_number() < MULTIPLYING) {
            take_registers<216>();
            multiply(all, reinterpret_cast<float *>(aligned + SUMS_AT), tile, next, job, put);
        } else {
            COT_UNLESS(many_registers) give_registers<72>();
            bring(all, tile, next, job);
        }
    }
};

} // namespace cot

struct cot_cuda_many_product {
    cot::rows_of<uint16_t> a;
    cot::row_index pick; // of A's rows
    const cot::tile_map *b;
    int32_t slot, columns; // rows of B, of the slot that is meant
    float *c;              // [M][columns]
};

/* C = A B^T, in tiles of 128 rows by 256 columns, or 128; blocks of many_engine's THREADS with its SHARED_BYTES. */
COT_KERNEL cot_cuda_many_256_kernel(cot_cuda_many_product p);
COT_KERNEL cot_cuda_many_128_kernel(cot_cuda_many_product p);

#endif
