/* What a device can do at most, a line of JSON each: bytes read from its memory, and, where the toolkit has cuBLAS, the largest
 * product of bf16 matrices. */
#include <cuda_runtime.h>
#ifdef COT_CUBLAS
#include <cublas_v2.h>
#include <cuda_bf16.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>

static void check(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "device_roofs: cannot %s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
    exit(1);
}

/* Pseudo-random bits: what is all alike takes less power, and the device runs faster than it would. */
__device__ unsigned bits_of(size_t i, unsigned seed)
{
    unsigned x = static_cast<unsigned>(i) * 0x9e3779b9u + seed;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

__global__ void fill_bits(unsigned *to, size_t count, unsigned seed)
{
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = bits_of(i, seed);
}

/* Each thread reads 16 bytes at a time, the blocks side by side; what it makes of them is written where it is a number that it hardly
 * ever is, so that nothing is left out. */
__global__ void read_all(const uint4 *from, size_t count, unsigned *out)
{
    unsigned sum = 0;
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const uint4 v = from[i];
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x5eed5eedu) *out = sum;
}

/* The median of eleven runs, the first not counted. */
template <typename Run> static double median_ms(Run run)
{
    cudaEvent_t begin, end;
    float ms[11];
    check(!cudaEventCreate(&begin) && !cudaEventCreate(&end), "make events");
    run();
    for (float &one : ms) {
        cudaEventRecord(begin);
        run();
        cudaEventRecord(end);
        check(!cudaEventSynchronize(end) && !cudaEventElapsedTime(&one, begin, end), "run");
    }
    std::sort(ms, ms + 11);
    return static_cast<double>(ms[5]);
}

static void read_roof()
{
    size_t free_bytes = 0, all = 0;
    check(!cudaMemGetInfo(&free_bytes, &all), "ask for memory");
    const size_t bytes = std::min(free_bytes / 2, size_t{4} << 30) / 16 * 16; // beyond every cache
    uint4 *memory = nullptr;
    unsigned *out = nullptr;
    cudaDeviceProp about;
    check(!cudaGetDeviceProperties(&about, 0) && !cudaMalloc(&memory, bytes) && !cudaMalloc(&out, 4),
          "take memory");
    fill_bits<<<1024, 256>>>(reinterpret_cast<unsigned *>(memory), bytes / 4, 1);
    check(!cudaDeviceSynchronize(), "fill memory");
    const double ms =
        median_ms([&] { read_all<<<about.multiProcessorCount * 8, 512>>>(memory, bytes / 16, out); });
    printf("{\"roof\": \"read\", \"bytes\": %zu, \"bytes_per_second\": %.4g}\n", bytes,
           static_cast<double>(bytes) / ms * 1e3);
    fflush(stdout);
    cudaFree(memory);
    cudaFree(out);
}

#ifdef COT_CUBLAS
/* In [-1, 1). */
__global__ void fill_numbers(__nv_bfloat16 *to, size_t count, unsigned seed)
{
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = __float2bfloat16(static_cast<float>(bits_of(i, seed) >> 8) * 0x1p-23f - 1);
}

static void multiply_roof(int n)
{
    const size_t count = static_cast<size_t>(n) * static_cast<size_t>(n);
    __nv_bfloat16 *m[3];
    for (unsigned i = 0; i < 3; i++) {
        check(!cudaMalloc(&m[i], count * sizeof *m[i]), "take memory");
        fill_numbers<<<1024, 256>>>(m[i], count, i);
    }
    check(!cudaDeviceSynchronize(), "fill memory");
    cublasHandle_t handle;
    const float one = 1, zero = 0;
    check(!cublasCreate(&handle), "open cuBLAS");
    const double ms = median_ms([&] {
        check(!cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, m[0], CUDA_R_16BF, n, m[1],
                            CUDA_R_16BF, n, &zero, m[2], CUDA_R_16BF, n, CUBLAS_COMPUTE_32F,
                            CUBLAS_GEMM_DEFAULT),
              "multiply");
    });
    printf("{\"roof\": \"cublas\", \"n\": %d, \"flops_per_second\": %.4g}\n", n,
           2.0 * static_cast<double>(n) * static_cast<double>(count) / ms * 1e3);
    fflush(stdout);
}
#endif

/* With a word it only shows that it starts, which needs the libraries and no device. */
int main(int argc, char **)
{
    if (argc > 1) return 0;
    read_roof();
#ifdef COT_CUBLAS
    multiply_roof(8192);
#else
    printf("{\"roof\": \"cublas\", \"absent\": \"the toolkit has no cuBLAS\"}\n");
#endif
    return 0;
}
