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

/* Each thread reads 16 bytes at a time, the blocks side by side; the sum is written where it is not 0, and all is 0. */
__global__ void read_all(const uint4 *from, size_t count, unsigned *out)
{
    unsigned sum = 0;
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const uint4 v = from[i];
        sum |= v.x | v.y | v.z | v.w;
    }
    if (sum) *out = sum;
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
    check(!cudaGetDeviceProperties(&about, 0) && !cudaMalloc(&memory, bytes) && !cudaMalloc(&out, 4) &&
              !cudaMemset(memory, 0, bytes),
          "take memory");
    const double ms =
        median_ms([&] { read_all<<<about.multiProcessorCount * 8, 512>>>(memory, bytes / 16, out); });
    printf("{\"roof\": \"read\", \"bytes\": %zu, \"bytes_per_second\": %.4g}\n", bytes,
           static_cast<double>(bytes) / ms * 1e3);
    fflush(stdout);
    cudaFree(memory);
    cudaFree(out);
}

#ifdef COT_CUBLAS
static void multiply_roof(int n)
{
    const size_t count = static_cast<size_t>(n) * static_cast<size_t>(n);
    __nv_bfloat16 *m[3];
    for (auto &one : m)
        check(!cudaMalloc(&one, count * sizeof *one) && !cudaMemset(one, 0x3c, count * sizeof *one),
              "take memory");
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

int main()
{
    read_roof();
#ifdef COT_CUBLAS
    multiply_roof(8192);
#else
    printf("{\"roof\": \"cublas\", \"absent\": \"the toolkit has no cuBLAS\"}\n");
#endif
    return 0;
}
