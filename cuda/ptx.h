/* The words of device code: one text that nvcc compiles for the device and the host's compiler for an emulator that checks
 * what a device forgives (tests/cuda/emulate). What CUDA has a word for is written in CUDA's word; this header names the
 * PTX instructions that it has none for, and the places that a test may weaken. */
#ifndef COT_CUDA_PTX_H
#define COT_CUDA_PTX_H
#include "cuda/tile_map.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
/* A loop over 0 to n - 1 that is written out, so that what `i` numbers can lie in registers. */
#define COT_EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
/* The loop that follows is not written out: what its turns have alike is not kept in registers. */
#define COT_ONE_BY_ONE _Pragma("unroll 1")
/* In a test of the emulator, the statement that follows is left out where that mutant is on. */
#define COT_UNLESS(mutant)
/* In a test of the emulator, the second where that mutant is on; else the first. */
#define COT_EITHER(mutant, strong, weak) (strong)
namespace cot {
using shared_place = uint32_t;
}
#else
#include <emulate/cuda.h>
#define COT_EACH(i, n) for (int i = 0; i < (n); i++)
#define COT_ONE_BY_ONE
#define COT_UNLESS(mutant) if (!emulate::weakened(#mutant))
#define COT_EITHER(mutant, strong, weak) (emulate::weakened(#mutant) ? (weak) : (strong))
namespace cot {
using shared_place = unsigned char *;
}
#endif

/* Whether words are there that compute capability 9.0 alone has: the emulator has all. */
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define COT_90A
#endif

#define COT_KERNEL extern "C" __global__ void
#define COT_DEVICE static __device__ __forceinline__

namespace cot {

/* threadIdx.x, read anew each time: what is worked out of it stands in no register from one task to the next. */
COT_DEVICE int thread_number();

/* How far an atomic access or a fence reaches: the block, the device, or other devices and the host too. */
enum class scope { cta, gpu, sys };

constexpr uint32_t ALL_LANES = 0xffffffffu;

/* The dynamic shared memory of the block, aligned to 16 bytes. */
COT_DEVICE void *shared_memory();

/* Loads and stores of whole words that threads share: relaxed ones order nothing, an acquire sees what was done before
 * the release that wrote what it reads. T has 4 or 8 bytes. */
template <scope S, typename T> COT_DEVICE T load_relaxed(const T *p);
template <scope S, typename T> COT_DEVICE T load_acquire(const T *p);
template <scope S, typename T> COT_DEVICE void store_relaxed(T *p, T value);
template <scope S, typename T> COT_DEVICE void store_release(T *p, T value);

/* Updates of unsigned words that give what was there before; relaxed, or acquire and release at once. */
template <scope S, typename T> COT_DEVICE T add_relaxed(T *p, T value);
template <scope S, typename T> COT_DEVICE T add_acq_rel(T *p, T value);
/* The lower of the two stays. */
template <scope S> COT_DEVICE void min_relaxed(uint32_t *p, uint32_t value);
/* `value` where `expected` was. */
template <scope S>
COT_DEVICE uint64_t compare_exchange_relaxed(uint64_t *p, uint64_t expected, uint64_t value);

/* Orders what this thread did before it before what it does after, for relaxed accesses of that scope. */
template <scope S> COT_DEVICE void fence();

/* Barrier 0..15 of `threads` threads of the block: sync waits for all of them, arrive does not wait. All lanes of a warp
 * call it in one place. */
COT_DEVICE void barrier_sync(int number, int threads);
COT_DEVICE void barrier_arrive(int number, int threads);

/* Shared memory as instructions take it: shared_place, to which numbers of bytes are added. `kept` gives the same one, or the same
 * number, of which the compiler does not know how to compute it again, so that it stays in a register; by whole warps. */
COT_DEVICE shared_place place_of(void *shared);
COT_DEVICE shared_place kept(shared_place place);
COT_DEVICE int kept(int number);

/* Copies 16 bytes from global to shared memory, of which only the first `live` are read and the rest is zeros. The bytes
 * are there for this thread after the wait for their group, for others after a barrier that follows it. */
COT_DEVICE void copy_async_16(shared_place shared, const void *global, int live);
COT_DEVICE void copy_async_4(shared_place shared, const void *global, int live); // 4 bytes, likewise
COT_DEVICE void copy_async_commit();
template <int LEFT> COT_DEVICE void copy_async_wait(); // until at most LEFT groups are on their way

/* Asks for the 32 bytes of global memory that p lies in to be brought to the second cache. It reads nothing and orders nothing. */
COT_DEVICE void prefetch(const void *p);
constexpr int PREFETCH_BYTES = 32;

/* ldmatrix.m8n8.x4.b16: lane l names row l % 8 of matrix l / 8 (16 bytes in shared memory, aligned); lane l receives
 * elements 2 (l % 4) and + 1 of row l / 4 of each matrix, or, transposed, of column l / 4. */
COT_DEVICE void load_matrix_x4(uint32_t (&registers)[4], shared_place row);
COT_DEVICE void load_matrix_x4_transposed(uint32_t (&registers)[4], shared_place row);

/* mma.sync.m16n8k16, bf16 into fp32: d += a b. */
COT_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

/* A word of 8 bytes in shared memory that threads and copies arrive at, phase after phase (mbarrier): a phase is over when as many
 * arrivals have come as the word was made for, and all bytes that were expected in it; then the next one goes on. word_expect is an arrival that tells of bytes.
 * An arrival releases, and word_wait, which returns when the phase of that parity is over (the first one's is 0, and one before it, 1, is
 * over from the beginning), acquires. Nobody may be two phases late. word_init is for one thread, before a barrier. */
COT_DEVICE void word_init(shared_place word, int arrivals);
COT_DEVICE void word_expect(shared_place word, int bytes);
COT_DEVICE void word_arrive(shared_place word);
COT_DEVICE void word_wait(shared_place word, uint32_t parity);

/* What others wrote in a map in global memory before the launch is there for tiles that this thread copies by it. From here on: compute
 * capability 9.0 alone. */
COT_DEVICE void acquire_map(const tile_map *map);

/* Copies a tile of a map to shared memory, aligned to 1024 bytes, its rows in lines of 128 bytes as tile.h has them: bytes arrive at the
 * word, as many as the tile has, and are there for who waits for the phase that expects them. By one thread, which has acquired the map. */
COT_DEVICE void copy_tile_async(shared_place to, const tile_map *map, int k, int row, int slot,
                                shared_place word);

/* What this thread wrote to shared memory before it, copies that it has waited for included, is there for wgmma_bf16 of who acquires what
 * it releases behind it. */
COT_DEVICE void fence_async();

/* sums += a b^T by four warps, the first of which is a multiple of four: a is 64 x 16, b N x 16 (N: 128, 256), in lines of 128 bytes of
 * shared memory as tile.h has them, whose first is aligned to 1024 bytes; further values of k are as many bytes further. Warp w of the four
 * has rows 16 w and on: sums 4 j and 4 j + 1 are of row lane / 4, columns 8 j + 2 (lane % 4) and the next, 4 j + 2 and + 3 of row lane / 4 + 8. Operands are
 * read, and sums are to be had, when the wait for their group is over. */
template <int N> COT_DEVICE void wgmma_bf16(float (&sums)[N / 2], shared_place a, shared_place b);
COT_DEVICE void wgmma_fence(); // before the first one that adds to sums that the thread has touched
COT_DEVICE void wgmma_commit();
template <int LEFT> COT_DEVICE void wgmma_wait(); // until at most LEFT groups are on their way

/* By four warps, as wgmma_bf16: from now on each of their threads has so many registers, a multiple of 8 from 24 to 256: fewer than it had, or more,
 * for which it waits until others of the block have given as many. */
template <int COUNT> COT_DEVICE void give_registers();
template <int COUNT> COT_DEVICE void take_registers();

/* Nanoseconds, the same clock for all threads; has_passed (fabric.h) is how to compare two of them. */
COT_DEVICE uint64_t global_timer();
/* Lets others run for a moment. */
COT_DEVICE void back_off();

} // namespace cot

#ifdef __CUDACC__
#include "cuda/ptx_device.h"
#else
#include <emulate/ptx.h>
#endif

#endif
