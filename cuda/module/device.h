/* The device that the operator runs on: found once, with its kernels loaded. */
#ifndef COT_CUDA_MODULE_DEVICE_H
#define COT_CUDA_MODULE_DEVICE_H
#include "cuda/module/driver.h"

/* Kernels as nvcc made them. */
struct cot_cuda_image {
    const void *fused, *bulk; // fat binaries
    int cuda_version;         // of the compiler: 1000 major + 10 minor
    const int *majors; // compute capabilities that it has kernels for, by their first numbers; 0 at the end
    const char *made_for; // the same for people
};

extern const cot_cuda_image cot_cuda_kernels; // image.cpp

/* What runs a layer: one cooperative launch, or a plain kernel a phase. */
enum class cot_cuda_kind { fused, bulk };

/* The kernels of bulk (cuda/bulk.h), in the order in which they are launched. */
enum cot_cuda_phase {
    COT_CUDA_GATE,
    COT_CUDA_ROUTE,
    COT_CUDA_DISPATCH,
    COT_CUDA_COUNT,
    COT_CUDA_RECEIVE,
    COT_CUDA_ENTER,
    COT_CUDA_UP,
    COT_CUDA_DOWN,
    COT_CUDA_COMBINE,
    COT_CUDA_PHASES
};

struct cot_cuda_device {
    const cot_cuda_driver *driver;
    int ordinal, multiprocessors;
    size_t shared_bytes_most; // a block
    void *context;
    void *fused[2], *bulk[2][COT_CUDA_PHASES]; // kernels: in bf16, in fp32
    /* Bulk's up and down in tiles of up to 128 rows, in bf16, by wgmma or else by mma.sync; and what a block of theirs has. */
    void *many[2];
    unsigned many_threads;
    size_t many_bytes;
    void *fused_many;     // the fused operator in such tiles, by wgmma alone
    const char *no_wgmma; // why not by wgmma, or NULL
    char name[96];
};

/* The first device that the driver shows, whose primary context is held until close. Errors: NOT_FOUND (no device), UNSUPPORTED
 * (an old driver, another compute capability, no cooperative launch), IO (the driver fails), each with what is wrong. */
cot_status cot_cuda_device_open(cot_cuda_device *device, const cot_cuda_driver *driver,
                                const cot_cuda_image *image, cot_error *error);
void cot_cuda_device_close(cot_cuda_device *device);

/* Writes what people are told of the device, in `bytes` of text: in tiles of how many rows it multiplies, and by what. */
void cot_cuda_device_describe(const cot_cuda_device *device, char *text, size_t bytes);

/* The device's context is this thread's until the end of a scope, and then the one that was. */
struct cot_cuda_current {
    const cot_cuda_driver *driver;
    int failed; // 0, or an error of the driver

    explicit cot_cuda_current(const cot_cuda_device *device)
        : driver(device->driver), failed(driver->context_push(device->context))
    {
    }
    ~cot_cuda_current()
    {
        void *context;
        if (!failed) driver->context_pop(&context);
    }
    cot_cuda_current(const cot_cuda_current &) = delete;
    cot_status check(cot_error *error) const; // IO where it failed
};

/* Pins host memory, all pages of [at, at + bytes): the device copies from it and to it by itself, and no other pages need be known
 * to it. Pages are pinned once. Thread-safe. Errors: OUT_OF_MEMORY (with the size), IO. */
cot_status cot_cuda_pin(const cot_cuda_device *device, void *at, size_t bytes, cot_error *error);
void cot_cuda_unpin(const cot_cuda_device *device, void *at, size_t bytes);

/* An error of the driver in words: IO. COT_OK where `result` is 0. */
cot_status cot_cuda_check(const cot_cuda_driver *driver, int result, const char *what, cot_error *error);

#endif
