/* Logits of many tokens, as tiles of a product in fp32: 16 tokens by 32 experts, by the four warps of a team. Each row is read from
 * global memory once a tile, into stages of shared memory, where gate_logits (gate.h) reads a token's once for four experts, and an
 * expert's once for four tokens. Logits have the bits that gate_logits gives, so that a token's do not depend on how many others there are.
 *
 * In gate_logits a lane adds up every 32nd four values of k, and lanes' sums are added in pairs: those whose numbers differ by 16, then
 * by 8, 4, 2, 1. Here a thread takes eight lanes' parts, those of l = 4 m + (its lane % 4), one after the other for 4 tokens by 4 experts:
 * m = 0, 4, 2, 6, 1, 5, 3, 7, so that it adds the pairs by 16, 8 and 4 as soon as both are there. The pairs by 2 and 1 are of threads
 * beside each other, whose four chunks are 64 bytes of a row. */
#ifndef COT_CUDA_GATE_TILE_H
#define COT_CUDA_GATE_TILE_H
#include "cuda/gate.h"
#include "cuda/tile.h"

namespace cot {

struct gate_tile {
    static constexpr int TOKENS = 16, EXPERTS = 32, ROWS = TOKENS + EXPERTS, THREADS = 128, STAGES = 4;
    /* A stage has of each row, in a line of its own, eight chunks of 16 bytes: those of one m in 256 values of k. */
    static constexpr int SPAN = 256, STAGE_BYTES = ROWS * 128,
                         SHARED_BYTES = STAGES * STAGE_BYTES + 2 * 16 * THREADS * 4;
    static constexpr int PASSES = ROWS / (THREADS / 8), PARTS = 8;
    static_assert(PARTS % STAGES == 0, "the last stage of a tile is in the last slot");
    using four = gate_values<4>;

    /* The n-th m. */
    static __device__ __forceinline__ int part_of(int n) { return (n & 1) << 2 | (n & 2) | n >> 2; }

    /* Where a stage has a row's chunk. Rows four apart, which are read at once, meet no bank twice; rows below them are so many lines on. */
    static __device__ __forceinline__ uint32_t place_of_chunk(uint32_t row, uint32_t chunk)
    {
        return row * 128 + ((chunk ^ (row & 4)) << 4);
    }

    /* Adds the products of a stage: of four tokens whose first chunk of this thread is at x, and four experts at w. Of the warp's lanes eight
     * beside each other read of one expert, and of two tokens four apart. */
    static __device__ __forceinline__ void multiply(float (&sums)[4][4], const unsigned char *stage,
                                                    uint32_t x, uint32_t w)
    {
        /* Sixteen loads at once would take more registers than there are. */
        COT_ONE_BY_ONE
        for (uint32_t half = 0; half < 128; half += 64) {
            four token[4];
            COT_EACH (i, 4) token[i] = *reinterpret_cast<const four *>(stage + (x ^ half) + i * 128);
            COT_EACH (j, 4) {
                const four expert = *reinterpret_cast<const four *>(stage + (w ^ half) + j * 128);
                COT_EACH (i, 4)
                    COT_EACH (k, 4) sums[i][j] = fmaf(expert.v[k], token[i].v[k], sums[i][j]);
            }
        }
    }

    /* logits[t][e] = x[t] . weight[e] + bias[e] for `count` tokens, at most TOKENS, and experts first to end - 1, at most EXPERTS; a token's
     * are E apart. 4 divides H. `shared` is the team's, SHARED_BYTES, aligned to 16. */
    static __device__ __forceinline__ void compute(const gate_rules &g, const float *x, int count, int first,
                                                   int end, float *logits, unsigned char *shared,
                                                   const tile_team &team)
    {
        const int hidden = kept(g.hidden); // what is worked out of it stands in no register between tasks
        const uint32_t row = team.thread / 8, chunk = team.thread % 8, quarter = team.thread % 4,
                       down = team.thread / 4 % 4, across = team.thread / 16;
        const int begin = 128 * static_cast<int>(chunk / 4) + 4 * static_cast<int>(chunk % 4),
                  turns = (hidden + SPAN - 1) / SPAN;
        const uint32_t x_at = place_of_chunk(4 * down, quarter),
                       w_at = place_of_chunk(TOKENS + 4 * across, quarter);
        const shared_place to = place_of(shared) + place_of_chunk(row, chunk);
        const float *from[PASSES];
        bool there[PASSES]; // whether the tile has that row
        const int live = hidden - begin;
        COT_EACH (i, PASSES) {
            const int r = static_cast<int>(row) + i * (THREADS / 8), e = first + r - TOKENS;
            there[i] = i ? e < end : r < count;
            from[i] = begin + (i ? g.weight + static_cast<int64_t>(there[i] ? e : first) * hidden
                                 : x + static_cast<int64_t>(there[i] ? r : 0) * hidden);
        }
        int part = 0, turn = 0, slot = 0; // of the stage that is asked for next
        const auto ask = [&] {
            if (part < PARTS) {
                const int k = SPAN * turn + 16 * part_of(part);
                COT_EACH (i, PASSES)
                    copy_async_16(to + slot * STAGE_BYTES + i * (THREADS / 8 * 128), from[i] + k,
                                  there[i] && k < live ? 16 : 0);
                if (++turn == turns) turn = 0, part++;
            }
            copy_async_commit();
            slot = (slot + 1) % STAGES;
        };
        COT_EACH (i, STAGES - 1)
            ask(); // slots that were read before the last barrier of a tile before this one
        float sums[4][4], by_16[4][4]; // and behind the stages:
        float *const by_8 = reinterpret_cast<float *>(shared + STAGES * STAGE_BYTES) + team.thread,
                     *const by_4 = by_8 + 16 * THREADS;
        COT_ONE_BY_ONE
        for (int n = 0; n < PARTS; n++) {
            COT_EACH (i, 4)
                COT_EACH (j, 4) sums[i][j] = 0;
            COT_ONE_BY_ONE
            for (int i = 0; i < turns; i++) {
                COT_EITHER(gate_tile_wait, copy_async_wait<STAGES - 2>(), copy_async_wait<STAGES - 1>());
                COT_UNLESS(gate_tile_barrier) barrier_sync(team.barrier, THREADS);
                ask(); // into the slot that was read before the barrier; the next one is the oldest
                multiply(sums, shared + slot * STAGE_BYTES, x_at, w_at);
            }
            /* A pair's first half waits for its second, of each size one. */
            if (n % 2 == 0)
                COT_EACH (i, 4)
                    COT_EACH (j, 4) by_16[i][j] = sums[i][j];
            else
                COT_EACH (i, 4)
                    COT_EACH (j, 4) sums[i][j] += by_16[i][j];
            if (n % 4 == 1)
                COT_EACH (i, 4)
                    COT_EACH (j, 4) by_8[(4 * i + j) * THREADS] = sums[i][j];
            if (n % 4 == 3)
                COT_EACH (i, 4)
                    COT_EACH (j, 4) sums[i][j] += by_8[(4 * i + j) * THREADS];
            if (n == 3)
                COT_EACH (i, 4)
                    COT_EACH (j, 4) by_4[(4 * i + j) * THREADS] = sums[i][j];
            if (n == 7)
                COT_EACH (i, 4)
                    COT_EACH (j, 4) sums[i][j] += by_4[(4 * i + j) * THREADS];
        }
        COT_EACH (i, 4)
            COT_EACH (j, 4)
                for (int by = 2; by; by /= 2) sums[i][j] += __shfl_xor_sync(ALL_LANES, sums[i][j], by);
        const int e = first + 4 * static_cast<int>(across);
        COT_EACH (i, 4) { // the four threads beside each other write a token's each
            const int t = 4 * static_cast<int>(down) + i;
            if (static_cast<int>(quarter) == i && t < count)
                COT_EACH (j, 4)
                    if (e + j < end)
                        logits[static_cast<int64_t>(t) * g.experts + e + j] =
                            g.bias ? sums[i][j] + g.bias[e + j] : sums[i][j];
        }
    }
};

} // namespace cot

struct cot_cuda_gate_product {
    cot::gate_rules rules;
    const float *x; // [tokens][H]
    float *logits;  // [tokens][E] out
    int32_t tokens;
};

/* All logits, in tiles; blocks of gate_tile's THREADS with its SHARED_BYTES. */
COT_KERNEL cot_cuda_gate_tile_kernel(cot_cuda_gate_product p);

#endif
