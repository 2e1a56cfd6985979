/* The words of CUDA's driver that the module uses, as a table: of libcuda.so.1, which is opened when a device is asked for, or of
 * an emulator. Nothing is linked with CUDA. All return 0 or an error of the driver. */
#ifndef COT_CUDA_MODULE_DRIVER_H
#define COT_CUDA_MODULE_DRIVER_H
#include "cuda/module/house.h"

/* X(member, the driver's symbol, parameters) */
#define COT_CUDA_DRIVER_LIST(X)                                                                              \
    X(init, cuInit, (unsigned flags))                                                                        \
    X(driver_version, cuDriverGetVersion, (int *version))                                                    \
    X(error_name, cuGetErrorName, (int error, const char **name))                                            \
    X(device_count, cuDeviceGetCount, (int *count))                                                          \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                                                   \
    X(device_name, cuDeviceGetName, (char *name, int bytes, int device))                                     \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, int device))                       \
    X(context_retain, cuDevicePrimaryCtxRetain, (void **context, int device))                                \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                                           \
    X(context_push, cuCtxPushCurrent_v2, (void *context))                                                    \
    X(context_pop, cuCtxPopCurrent_v2, (void **context))                                                     \
    X(synchronise, cuCtxSynchronize, (void))                                                                 \
    X(module_load, cuModuleLoadData, (void **module, const void *image))                                     \
    X(module_function, cuModuleGetFunction, (void **function, void *module, const char *name))               \
    X(function_attribute, cuFuncSetAttribute, (void *function, int attribute, int value))                    \
    X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                \
      (int *blocks, void *function, int threads, size_t shared_bytes))                                       \
    X(memory_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * all_bytes))                               \
    X(take, cuMemAlloc_v2, (uint64_t * at, size_t bytes))                                                    \
    X(give_back, cuMemFree_v2, (uint64_t at))                                                                \
    X(fill, cuMemsetD8_v2, (uint64_t at, unsigned char byte, size_t bytes))                                  \
    X(to_device, cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t bytes))                             \
    X(to_host, cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes))                                     \
    X(host_register, cuMemHostRegister_v2, (void *at, size_t bytes, unsigned flags))                         \
    X(host_unregister, cuMemHostUnregister, (void *at))                                                      \
    X(to_device_async, cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream))    \
    X(to_host_async, cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream))            \
    X(event_create, cuEventCreate, (void **event, unsigned flags))                                           \
    X(event_record, cuEventRecord, (void *event, void *stream))                                              \
    X(event_elapsed, cuEventElapsedTime, (float *ms, void *begin, void *end))                                \
    X(event_destroy, cuEventDestroy_v2, (void *event))                                                       \
    X(launch, cuLaunchKernel,                                                                                \
      (void *function, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads,              \
       unsigned threads_y, unsigned threads_z, unsigned shared_bytes, void *stream, void **parameters,       \
       void **extra))                                                                                        \
    X(launch_cooperative, cuLaunchCooperativeKernel,                                                         \
      (void *function, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads,              \
       unsigned threads_y, unsigned threads_z, unsigned shared_bytes, void *stream, void **parameters))

/* Words that older drivers lack: they are NULL there, so that one without them is taken all the same. */
#define COT_CUDA_DRIVER_NEWER_LIST(X)                                                                        \
    X(map_tiles, cuTensorMapEncodeTiled,                                                                     \
      (void *map, int type, uint32_t rank, void *at, const uint64_t *sizes, const uint64_t *strides,         \
       const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill))

struct cot_cuda_driver {
#define COT_CUDA_DRIVER_MEMBER(member, symbol, parameters) int(*member) parameters;
    COT_CUDA_DRIVER_LIST(COT_CUDA_DRIVER_MEMBER)
    COT_CUDA_DRIVER_NEWER_LIST(COT_CUDA_DRIVER_MEMBER)
#undef COT_CUDA_DRIVER_MEMBER
};

/* Its errors that are told apart. */
enum { COT_CUDA_NO_MEMORY = 2, COT_CUDA_NO_DEVICE = 100 };

/* Attributes of a device, and of a function, by the driver's numbers. */
enum cot_cuda_attribute {
    COT_CUDA_MULTIPROCESSORS = 16,
    COT_CUDA_CACHE_BYTES = 38, // the second cache
    COT_CUDA_CAPABILITY_MAJOR = 75,
    COT_CUDA_CAPABILITY_MINOR = 76,
    COT_CUDA_COOPERATIVE_LAUNCH = 95,
    COT_CUDA_SHARED_BYTES_MOST = 97, // of a block that asks for more than is usual
    COT_CUDA_FUNCTION_SHARED_BYTES = 8
};

/* Of maps of tiles, by the driver's numbers: numbers in bf16; chunks of a row's 128 bytes as tile.h has them; what the second cache fetches at
 * once, 256 bytes. */
enum { COT_CUDA_MAP_BF16 = 9, COT_CUDA_MAP_SWIZZLE_128 = 3, COT_CUDA_MAP_FETCH_256 = 3 };

/* This machine's driver, by the name of its library. Errors: NOT_FOUND (there is none), UNSUPPORTED (it lacks a word). */
cot_status cot_cuda_driver_open(cot_cuda_driver *driver, const char *library, cot_error *error);

#endif
