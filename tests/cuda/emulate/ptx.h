/* The bodies of cuda/ptx.h for the emulator. */
#ifndef COT_TESTS_CUDA_EMULATE_PTX_H
#define COT_TESTS_CUDA_EMULATE_PTX_H

namespace cot {

constexpr emulate::Scope reach(scope s)
{
    return s == scope::cta   ? emulate::Scope::CTA
           : s == scope::gpu ? emulate::Scope::GPU
                             : emulate::Scope::SYS;
}

COT_DEVICE void *shared_memory()
{
    return emulate::shared_memory();
}

COT_DEVICE int thread_number()
{
    return static_cast<int>(threadIdx.x);
}

template <scope S, typename T> COT_DEVICE T load_relaxed(const T *p)
{
    return static_cast<T>(emulate::atomic_load(p, sizeof(T), emulate::Order::RELAXED, reach(S)));
}
template <scope S, typename T> COT_DEVICE T load_acquire(const T *p)
{
    return static_cast<T>(emulate::atomic_load(p, sizeof(T), emulate::Order::ACQUIRE, reach(S)));
}
template <scope S, typename T> COT_DEVICE void store_relaxed(T *p, T value)
{
    emulate::atomic_store(p, static_cast<uint64_t>(value), sizeof(T), emulate::Order::RELAXED, reach(S));
}
template <scope S, typename T> COT_DEVICE void store_release(T *p, T value)
{
    emulate::atomic_store(p, static_cast<uint64_t>(value), sizeof(T), emulate::Order::RELEASE, reach(S));
}
template <scope S, typename T> COT_DEVICE T add_relaxed(T *p, T value)
{
    return static_cast<T>(emulate::atomic_update(p, emulate::Update::ADD, static_cast<uint64_t>(value), 0,
                                                 sizeof(T), emulate::Order::RELAXED, reach(S)));
}
template <scope S, typename T> COT_DEVICE T add_acq_rel(T *p, T value)
{
    return static_cast<T>(emulate::atomic_update(p, emulate::Update::ADD, static_cast<uint64_t>(value), 0,
                                                 sizeof(T), emulate::Order::ACQ_REL, reach(S)));
}
template <scope S> COT_DEVICE void min_relaxed(uint32_t *p, uint32_t value)
{
    emulate::atomic_update(p, emulate::Update::MIN, value, 0, sizeof *p, emulate::Order::RELAXED, reach(S));
}
template <scope S>
COT_DEVICE uint64_t compare_exchange_relaxed(uint64_t *p, uint64_t expected, uint64_t value)
{
    return emulate::atomic_update(p, emulate::Update::COMPARE_EXCHANGE, value, expected, sizeof *p,
                                  emulate::Order::RELAXED, reach(S));
}
template <scope S> COT_DEVICE void fence()
{
    emulate::fence(reach(S));
}

COT_DEVICE void barrier_sync(int number, int threads)
{
    emulate::barrier_sync(number, threads);
}
COT_DEVICE void barrier_arrive(int number, int threads)
{
    emulate::barrier_arrive(number, threads);
}

COT_DEVICE shared_place place_of(void *shared)
{
    return static_cast<unsigned char *>(shared);
}
COT_DEVICE shared_place kept(shared_place place)
{
    return place;
}
COT_DEVICE int kept(int number)
{
    return number;
}

COT_DEVICE void copy_async_16(shared_place shared, const void *global, int live)
{
    emulate::copy_async(shared, global, 16, static_cast<uint32_t>(live));
}
COT_DEVICE void copy_async_4(shared_place shared, const void *global, int live)
{
    emulate::copy_async(shared, global, 4, static_cast<uint32_t>(live));
}
COT_DEVICE void copy_async_commit()
{
    emulate::commit_copies();
}
template <int LEFT> COT_DEVICE void copy_async_wait()
{
    emulate::wait_copies(LEFT);
}

COT_DEVICE void prefetch(const void *p)
{
    emulate::prefetch(p);
}

COT_DEVICE void load_matrix_x4(uint32_t (&registers)[4], shared_place row)
{
    emulate::load_matrix(registers, row, 4, false);
}
COT_DEVICE void load_matrix_x4_transposed(uint32_t (&registers)[4], shared_place row)
{
    emulate::load_matrix(registers, row, 4, true);
}
COT_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    emulate::mma_m16n8k16(d, a, b, d);
}

COT_DEVICE void word_init(shared_place word, int arrivals)
{
    emulate::init_word(word, arrivals);
}
COT_DEVICE void word_expect(shared_place word, int bytes)
{
    emulate::arrive_at_word(word, bytes);
}
COT_DEVICE void word_arrive(shared_place word)
{
    emulate::arrive_at_word(word, 0);
}
COT_DEVICE void word_wait(shared_place word, uint32_t parity)
{
    emulate::wait_for_word(word, parity);
}
COT_DEVICE void acquire_map(const tile_map *map)
{
    emulate::acquire_map(map);
}
COT_DEVICE void copy_tile_async(shared_place to, const tile_map *map, int k, int row, int slot,
                                shared_place word)
{
    emulate::copy_tile(to, map, k, row, slot, word);
}
template <int COUNT> COT_DEVICE void give_registers()
{
    emulate::set_registers(COUNT, false);
}
template <int COUNT> COT_DEVICE void take_registers()
{
    emulate::set_registers(COUNT, true);
}
COT_DEVICE void fence_async()
{
    emulate::fence_copies();
}
template <int N> COT_DEVICE void wgmma_bf16(float (&sums)[N / 2], shared_place a, shared_place b)
{
    emulate::multiply_group(sums, N, a, b);
}
COT_DEVICE void wgmma_fence()
{
    emulate::fence_products();
}
COT_DEVICE void wgmma_commit()
{
    emulate::commit_products();
}
template <int LEFT> COT_DEVICE void wgmma_wait()
{
    emulate::wait_products(LEFT);
}

COT_DEVICE uint64_t global_timer()
{
    return emulate::globaltimer();
}
COT_DEVICE void back_off()
{
    emulate::nanosleep();
}

} // namespace cot

#endif
