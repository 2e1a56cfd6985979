/* CUDA's words for the host's compiler: what device code that is compiled for the emulator sees in place of the toolkit's
 * headers, and the PTX instructions that cuda/ptx.h gives names to. Nothing here allocates or reads the host's state.
 *
 * Device code is compiled with -fsanitize=thread, so that its plain loads and stores reach the emulator
 * (sanitizer.cpp); a function here is a call, whose place in the code is known by its return address. */
#ifndef COT_TESTS_CUDA_EMULATE_CUDA_H
#define COT_TESTS_CUDA_EMULATE_CUDA_H
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

namespace emulate {

enum class Order { RELAXED, ACQUIRE, RELEASE, ACQ_REL };
enum class Scope { CTA, GPU, SYS };

struct Index {
    unsigned x, y, z;
};
Index thread_index();
Index block_index();
Index block_size();
Index grid_size();
void *shared_memory();

// barrier.cpp
void barrier_sync(int number, int threads);
void barrier_arrive(int number, int threads);
void sync_threads() __attribute__((noinline));

// warp.cpp
void sync_warp(uint32_t mask) __attribute__((noinline));
enum class Lane { INDEX, UP, DOWN, XOR };
uint64_t shuffle(uint32_t mask, uint64_t value, int lane, int width, Lane how) __attribute__((noinline));
uint32_t ballot(uint32_t mask, bool vote) __attribute__((noinline));
void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
    __attribute__((noinline));
void load_matrix(uint32_t *registers, const void *row, int matrices, bool transposed)
    __attribute__((noinline));

// copies.cpp
void copy_async(void *to, const void *from, uint32_t bytes, uint32_t live) __attribute__((noinline));
void commit_copies();
void prefetch(const void *p) __attribute__((noinline));
void wait_copies(int groups_left) __attribute__((noinline));

// tiles.cpp
void init_word(void *word, int arrivals) __attribute__((noinline));
void arrive_at_word(void *word, int bytes) __attribute__((noinline)); // bytes: to come in this phase
void wait_for_word(void *word, uint32_t parity) __attribute__((noinline));
void acquire_map(const void *map);
void copy_tile(void *to, const void *map, int k, int row, int slot, void *word) __attribute__((noinline));
void fence_copies();
void multiply_group(float *sums, int columns, const void *a, const void *b) __attribute__((noinline));
void set_registers(int count, bool more) __attribute__((noinline)); // of each thread of four warps
void fence_products();
void commit_products();
void wait_products(int groups_left) __attribute__((noinline));

// atomics.cpp
uint64_t atomic_load(const void *p, size_t bytes, Order order, Scope scope);
void atomic_store(void *p, uint64_t value, size_t bytes, Order order, Scope scope);
/* Gives what was there before. */
enum class Update { ADD, MIN, COMPARE_EXCHANGE };
uint64_t atomic_update(void *p, Update update, uint64_t operand, uint64_t expected, size_t bytes, Order order,
                       Scope scope);
void fence(Scope scope);
uint64_t globaltimer();
void nanosleep();
/* Whether the run weakens device code at the place of that name. */
bool weakened(const char *mutant);

template <typename T> __forceinline__ T shuffle_any(uint32_t mask, T value, int lane, int width, Lane how)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = shuffle(mask, bits, lane, width, how);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

} // namespace emulate

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

#define threadIdx (emulate::thread_index())
#define blockIdx (emulate::block_index())
#define blockDim (emulate::block_size())
#define gridDim (emulate::grid_size())
#define __syncthreads() emulate::sync_threads()
#define __syncwarp(...) emulate::sync_warp(emulate_full_mask(__VA_ARGS__))
#define __popc(bits) __builtin_popcount(bits)
#define __ballot_sync(mask, vote) emulate::ballot(mask, vote)
#define __any_sync(mask, vote) (emulate::ballot(mask, vote) != 0)
#define __all_sync(mask, vote) (emulate::ballot(mask, !(vote)) == 0)

static inline uint32_t emulate_full_mask(uint32_t mask = 0xffffffffu)
{
    return mask;
}

template <typename T> __forceinline__ T __shfl_sync(uint32_t mask, T value, int lane, int width = 32)
{
    return emulate::shuffle_any(mask, value, lane, width, emulate::Lane::INDEX);
}
template <typename T> __forceinline__ T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32)
{
    return emulate::shuffle_any(mask, value, static_cast<int>(by), width, emulate::Lane::UP);
}
template <typename T> __forceinline__ T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32)
{
    return emulate::shuffle_any(mask, value, static_cast<int>(by), width, emulate::Lane::DOWN);
}
template <typename T> __forceinline__ T __shfl_xor_sync(uint32_t mask, T value, int with, int width = 32)
{
    return emulate::shuffle_any(mask, value, with, width, emulate::Lane::XOR);
}

#endif
