/* The bodies of cuda/ptx.h for the device: inline PTX. The memory operand and "memory" keep the compiler from moving
 * accesses across; the instruction keeps the device from it. */
#ifndef COT_CUDA_PTX_DEVICE_H
#define COT_CUDA_PTX_DEVICE_H

namespace cot {

COT_DEVICE void *shared_memory()
{
    extern __shared__ uint4 cot_shared_memory[];
    return cot_shared_memory;
}

COT_DEVICE int thread_number()
{
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
}

COT_DEVICE shared_place place_of(void *shared)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
COT_DEVICE shared_place kept(shared_place place)
{
    return __shfl_sync(ALL_LANES, place, static_cast<int>(threadIdx.x % 32));
}
COT_DEVICE int kept(int number)
{
    return __shfl_sync(ALL_LANES, number, static_cast<int>(threadIdx.x % 32));
}

/* NAME.SCOPE.uBITS for the scope and the size of T. */
#define COT_LOAD(name, order)                                                                                \
    template <scope S, typename T> COT_DEVICE T name(const T *p)                                             \
    {                                                                                                        \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "words have 4 or 8 bytes");                          \
        T value;                                                                                             \
        if constexpr (sizeof(T) == 4) {                                                                      \
            if constexpr (S == scope::cta)                                                                   \
                asm volatile("ld." order ".cta.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");            \
            else if constexpr (S == scope::gpu)                                                              \
                asm volatile("ld." order ".gpu.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");            \
            else                                                                                             \
                asm volatile("ld." order ".sys.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");            \
        } else {                                                                                             \
            if constexpr (S == scope::cta)                                                                   \
                asm volatile("ld." order ".cta.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");            \
            else if constexpr (S == scope::gpu)                                                              \
                asm volatile("ld." order ".gpu.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");            \
            else                                                                                             \
                asm volatile("ld." order ".sys.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");            \
        }                                                                                                    \
        return value;                                                                                        \
    }
#define COT_STORE(name, order)                                                                               \
    template <scope S, typename T> COT_DEVICE void name(T *p, T value)                                       \
    {                                                                                                        \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "words have 4 or 8 bytes");                          \
        if constexpr (sizeof(T) == 4) {                                                                      \
            if constexpr (S == scope::cta)                                                                   \
                asm volatile("st." order ".cta.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");              \
            else if constexpr (S == scope::gpu)                                                              \
                asm volatile("st." order ".gpu.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");              \
            else                                                                                             \
                asm volatile("st." order ".sys.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");              \
        } else {                                                                                             \
            if constexpr (S == scope::cta)                                                                   \
                asm volatile("st." order ".cta.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");              \
            else if constexpr (S == scope::gpu)                                                              \
                asm volatile("st." order ".gpu.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");              \
            else                                                                                             \
                asm volatile("st." order ".sys.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");              \
        }                                                                                                    \
    }
#define COT_ADD(name, order)                                                                                 \
    template <scope S, typename T> COT_DEVICE T name(T *p, T value)                                          \
    {                                                                                                        \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "words have 4 or 8 bytes");                          \
        T before;                                                                                            \
        if constexpr (sizeof(T) == 4) {                                                                      \
            if constexpr (S == scope::cta)                                                                   \
                asm volatile("atom." order ".cta.add.u32 %0, [%1], %2;"                                      \
                             : "=r"(before)                                                                  \
                             : "l"(p), "r"(value)                                                            \
                             : "memory");                                                                    \
            else if constexpr (S == scope::gpu)                                                              \
                asm volatile("atom." order ".gpu.add.u32 %0, [%1], %2;"                                      \
                             : "=r"(before)                                                                  \
                             : "l"(p), "r"(value)                                                            \
                             : "memory");                                                                    \
            else                                                                                             \
                asm volatile("atom." order ".sys.add.u32 %0, [%1], %2;"                                      \
                             : "=r"(before)                                                                  \
                             : "l"(p), "r"(value)                                                            \
                             : "memory");                                                                    \
        } else {                                                                                             \
            if constexpr (S == scope::cta)                                                                   \
                asm volatile("atom." order ".cta.add.u64 %0, [%1], %2;"                                      \
                             : "=l"(before)                                                                  \
                             : "l"(p), "l"(value)                                                            \
                             : "memory");                                                                    \
            else if constexpr (S == scope::gpu)                                                              \
                asm volatile("atom." order ".gpu.add.u64 %0, [%1], %2;"                                      \
                             : "=l"(before)                                                                  \
                             : "l"(p), "l"(value)                                                            \
                             : "memory");                                                                    \
            else                                                                                             \
                asm volatile("atom." order ".sys.add.u64 %0, [%1], %2;"                                      \
                             : "=l"(before)                                                                  \
                             : "l"(p), "l"(value)                                                            \
                             : "memory");                                                                    \
        }                                                                                                    \
        return before;                                                                                       \
    }
COT_LOAD(load_relaxed, "relaxed")
COT_LOAD(load_acquire, "acquire")
COT_STORE(store_relaxed, "relaxed")
COT_STORE(store_release, "release")
COT_ADD(add_relaxed, "relaxed")
COT_ADD(add_acq_rel, "acq_rel")
#undef COT_LOAD
#undef COT_STORE
#undef COT_ADD

template <scope S> COT_DEVICE void min_relaxed(uint32_t *p, uint32_t value)
{
    if constexpr (S == scope::cta)
        asm volatile("red.relaxed.cta.min.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
    else if constexpr (S == scope::gpu)
        asm volatile("red.relaxed.gpu.min.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
    else
        asm volatile("red.relaxed.sys.min.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

template <scope S>
COT_DEVICE uint64_t compare_exchange_relaxed(uint64_t *p, uint64_t expected, uint64_t value)
{
    uint64_t before;
    if constexpr (S == scope::cta)
        asm volatile("atom.relaxed.cta.cas.b64 %0, [%1], %2, %3;"
                     : "=l"(before)
                     : "l"(p), "l"(expected), "l"(value)
                     : "memory");
    else if constexpr (S == scope::gpu)
        asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;"
                     : "=l"(before)
                     : "l"(p), "l"(expected), "l"(value)
                     : "memory");
    else
        asm volatile("atom.relaxed.sys.cas.b64 %0, [%1], %2, %3;"
                     : "=l"(before)
                     : "l"(p), "l"(expected), "l"(value)
                     : "memory");
    return before;
}

template <scope S> COT_DEVICE void fence()
{
    if constexpr (S == scope::cta)
        asm volatile("fence.acq_rel.cta;" ::: "memory");
    else if constexpr (S == scope::gpu)
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    else
        asm volatile("fence.acq_rel.sys;" ::: "memory");
}

COT_DEVICE void barrier_sync(int number, int threads)
{
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
COT_DEVICE void barrier_arrive(int number, int threads)
{
    asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

COT_DEVICE void copy_async_16(shared_place shared, const void *global, int live)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(live)
                 : "memory");
}
COT_DEVICE void copy_async_4(shared_place shared, const void *global, int live)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(live)
                 : "memory");
}
COT_DEVICE void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> COT_DEVICE void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

COT_DEVICE void prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

COT_DEVICE void load_matrix_x4(uint32_t (&r)[4], shared_place row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}
COT_DEVICE void load_matrix_x4_transposed(uint32_t (&r)[4], shared_place row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}
COT_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

COT_DEVICE void word_init(shared_place word, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(word), "r"(arrivals) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); // for what copies arrive at it
}
COT_DEVICE void word_expect(shared_place word, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(word), "r"(bytes) : "memory");
}
COT_DEVICE void word_arrive(shared_place word)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(word) : "memory");
}
COT_DEVICE void word_wait(shared_place word, uint32_t parity)
{
    uint32_t over;
    do
        asm volatile("{\n"
                     ".reg .pred over;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, over;\n"
                     "}\n"
                     : "=r"(over)
                     : "r"(word), "r"(parity)
                     : "memory");
    while (!over);
}

COT_DEVICE void acquire_map(const tile_map *map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}
COT_DEVICE void copy_tile_async(shared_place to, const tile_map *map, int k, int row, int slot,
                                shared_place word)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
        "%3, %4}], [%5];" ::"r"(to),
        "l"(map), "r"(k), "r"(row), "r"(slot), "r"(word)
        : "memory");
}
template <int COUNT> COT_DEVICE void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT) : "memory");
}
template <int COUNT> COT_DEVICE void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT) : "memory");
}
COT_DEVICE void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* How wgmma names a matrix: rows of 128 bytes with the swizzle of that size, by eights that are 1024 bytes apart. */
COT_DEVICE uint64_t matrix_at(shared_place place)
{
    return uint64_t{(place & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
           uint64_t{1} << 62;
}
#define COT_SUMS_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define COT_SUMS_16(i) COT_SUMS_4(i), COT_SUMS_4((i) + 4), COT_SUMS_4((i) + 8), COT_SUMS_4((i) + 12)
#define COT_SUMS_32(i) COT_SUMS_16(i), COT_SUMS_16((i) + 16)
template <> __device__ __forceinline__ void wgmma_bf16<128>(float (&d)[64], shared_place a, shared_place b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, 1, 1, 1, 0, 0;"
                 : COT_SUMS_32(0), COT_SUMS_32(32)
                 : "l"(matrix_at(a)), "l"(matrix_at(b)));
}
template <> __device__ __forceinline__ void wgmma_bf16<256>(float (&d)[128], shared_place a, shared_place b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, 1, 1, 1, 0, 0;"
        : COT_SUMS_32(0), COT_SUMS_32(32), COT_SUMS_32(64), COT_SUMS_32(96)
        : "l"(matrix_at(a)), "l"(matrix_at(b)));
}
#undef COT_SUMS_4
#undef COT_SUMS_16
#undef COT_SUMS_32
COT_DEVICE void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
COT_DEVICE void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> COT_DEVICE void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

COT_DEVICE uint64_t global_timer()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}
COT_DEVICE void back_off()
{
    __nanosleep(64);
}

} // namespace cot

#endif
