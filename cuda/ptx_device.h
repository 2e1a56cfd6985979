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
