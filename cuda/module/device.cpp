#include "cuda/module/device.h"

#include <stdio.h>
#include <unistd.h>

cot_status cot_cuda_check(const cot_cuda_driver *driver, int result, const char *what, cot_error *error)
{
    const char *name = nullptr;
    if (!result) return COT_OK;
    if (driver->error_name(result, &name) || !name) name = "an error without a name";
    return cot_fail(error, COT_IO, "the device failed to %s: %s (%d)", what, name, result);
}

cot_status cot_cuda_current::check(cot_error *error) const
{
    return cot_cuda_check(driver, failed, "take a context", error);
}

/* The first driver of each CUDA; 0 where that is not known. */
static int first_driver(int cuda_major)
{
    return cuda_major == 12 ? 525 : cuda_major == 13 ? 580 : 0;
}

static cot_status check_driver(const cot_cuda_driver *driver, const cot_cuda_image *image, cot_error *error)
{
    int version = 0, count = 0;
    const int began = driver->init(0);
    if (began && began != COT_CUDA_NO_DEVICE) return cot_cuda_check(driver, began, "begin", error);
    cot_status status =
        cot_cuda_check(driver, driver->driver_version(&version), "tell its driver's version", error);
    if (status != COT_OK) return status;
    const int wanted = image->cuda_version / 1000;
    if (version / 1000 < wanted)
        return cot_fail(
            error, COT_UNSUPPORTED,
            "the kernels need an NVIDIA driver for CUDA %d (version %d or later), this machine's is "
            "for %d.%d",
            wanted, first_driver(wanted), version / 1000, version % 1000 / 10);
    if (began || driver->device_count(&count) || !count)
        return cot_fail(error, COT_NOT_FOUND, "the NVIDIA driver shows no GPU");
    return COT_OK;
}

/* Why a device does not multiply tiles of 128 rows by wgmma, or NULL. */
static const char *find_no_wgmma(const cot_cuda_device *d, int major)
{
    if (major != 9) return "wgmma needs compute capability 9.x";
    if (!d->driver->map_tiles) return "wgmma needs a driver with cuTensorMapEncodeTiled";
    if (d->shared_bytes_most < cot::BULK_WGMMA_BYTES)
        return "wgmma needs more shared memory than a block has here";
    return nullptr;
}

static cot_status check_device(cot_cuda_device *d, const cot_cuda_image *image, int handle, cot_error *error)
{
    const cot_cuda_driver *const driver = d->driver;
    int major = 0, minor = 0, cooperative = 0, shared = 0;
    int failed = driver->device_name(d->name, sizeof d->name, handle);
    const auto ask = [&](int *value, cot_cuda_attribute attribute) {
        if (!failed) failed = driver->device_attribute(value, attribute, handle);
    };
    ask(&major, COT_CUDA_CAPABILITY_MAJOR);
    ask(&minor, COT_CUDA_CAPABILITY_MINOR);
    ask(&cooperative, COT_CUDA_COOPERATIVE_LAUNCH);
    ask(&shared, COT_CUDA_SHARED_BYTES_MOST);
    ask(&d->multiprocessors, COT_CUDA_MULTIPROCESSORS);
    cot_status status = cot_cuda_check(driver, failed, "say what it is", error);
    if (status != COT_OK) return status;
    d->shared_bytes_most = static_cast<size_t>(shared);
    bool known = false;
    for (const int *m = image->majors; *m; m++) known = known || *m == major;
    if (!known)
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s' has compute capability %d.%d, and there are kernels for %s", d->name, major,
                        minor, image->made_for);
    d->no_wgmma = find_no_wgmma(d, major);
    d->many_threads = static_cast<unsigned>(d->no_wgmma ? cot::FUSED_TEAM : cot::BULK_WGMMA_THREADS);
    d->many_bytes = static_cast<size_t>(d->no_wgmma ? cot::FUSED_BF16_STAGES : cot::BULK_WGMMA_BYTES);
    if (!cooperative)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' cannot launch cooperative kernels", d->name);
    return COT_OK;
}

/* A kernel of a module that is loaded, which may have as much shared memory as a block can. */
static cot_status find_kernel(const cot_cuda_device *d, void **kernel, void *module, const char *name,
                              cot_error *error)
{
    const cot_cuda_driver *const driver = d->driver;
    const cot_status status =
        cot_cuda_check(driver, driver->module_function(kernel, module, name), "find a kernel", error);
    if (status != COT_OK) return status;
    // the most, since a kernel is every group's: one with few experts must not take it from others
    return cot_cuda_check(driver,
                          driver->function_attribute(*kernel, COT_CUDA_FUNCTION_SHARED_BYTES,
                                                     static_cast<int>(d->shared_bytes_most)),
                          "give shared memory", error);
}

static cot_status load(cot_cuda_device *d, const cot_cuda_image *image, cot_error *error)
{
    static const char *const fused[2] = {"cot_cuda_fused_bf16", "cot_cuda_fused_f32"};
    static const char *const bulk[2][COT_CUDA_PHASES] = {
        {"cot_cuda_bulk_gate_bf16", "cot_cuda_bulk_route", "cot_cuda_bulk_dispatch", "cot_cuda_bulk_count",
         "cot_cuda_bulk_receive", "cot_cuda_bulk_enter", "cot_cuda_bulk_up_bf16", "cot_cuda_bulk_down_bf16",
         "cot_cuda_bulk_combine"},
        {"cot_cuda_bulk_gate_f32", "cot_cuda_bulk_route", "cot_cuda_bulk_dispatch", "cot_cuda_bulk_count",
         "cot_cuda_bulk_receive", "cot_cuda_bulk_enter", "cot_cuda_bulk_up_f32", "cot_cuda_bulk_down_f32",
         "cot_cuda_bulk_combine"}};
    static const char *const many[2] = {"cot_cuda_bulk_many_up_bf16", "cot_cuda_bulk_many_down_bf16"},
                             *const by_wgmma[2] = {"cot_cuda_bulk_many_256_up",
                                                   "cot_cuda_bulk_many_256_down"};
    const cot_cuda_driver *const driver = d->driver;
    void *modules[2] = {};
    const void *const images[2] = {image->fused, image->bulk};
    const cot_cuda_current current(d);
    cot_status status = current.check(error);
    for (int i = 0; i < 2 && status == COT_OK; i++)
        status = cot_cuda_check(driver, driver->module_load(&modules[i], images[i]), "load kernels", error);
    const auto find = [&](void **kernel, void *module, const char *name) {
        if (status == COT_OK) status = find_kernel(d, kernel, module, name, error);
    };
    for (int i = 0; i < 2; i++) {
        find(&d->fused[i], modules[0], fused[i]);
        for (int phase = 0; phase < COT_CUDA_PHASES; phase++)
            find(&d->bulk[i][phase], modules[1], bulk[i][phase]);
        find(&d->many[i], modules[1], d->no_wgmma ? many[i] : by_wgmma[i]);
    }
    if (!d->no_wgmma) find(&d->fused_many, modules[0], "cot_cuda_fused_many_256_bf16");
    return status;
}

void cot_cuda_device_describe(const cot_cuda_device *d, char *text, size_t bytes)
{
    snprintf(text, bytes, "'%s' multiplies in tiles of 64 rows, %smany tokens in tiles of 128 by %s%s",
             d->name, d->no_wgmma ? "'cuda-bulk' " : "", d->no_wgmma ? "mma.sync: " : "wgmma",
             d->no_wgmma ? d->no_wgmma : "");
}

cot_status cot_cuda_device_open(cot_cuda_device *d, const cot_cuda_driver *driver,
                                const cot_cuda_image *image, cot_error *error)
{
    *d = {};
    d->driver = driver;
    cot_status status = check_driver(driver, image, error);
    if (status == COT_OK)
        status = cot_cuda_check(driver, driver->device_get(&d->ordinal, 0), "be found", error);
    if (status == COT_OK) status = check_device(d, image, d->ordinal, error);
    if (status == COT_OK)
        status =
            cot_cuda_check(driver, driver->context_retain(&d->context, d->ordinal), "make a context", error);
    if (status == COT_OK) status = load(d, image, error);
    if (status != COT_OK) cot_cuda_device_close(d);
    return status;
}

void cot_cuda_device_close(cot_cuda_device *d)
{
    if (d->context) d->driver->context_release(d->ordinal); // modules go with their context
    *d = {};
}

/* ---- host memory ---- */

static void *page_of(void *at, size_t *bytes)
{
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)),
                    begin = reinterpret_cast<uintptr_t>(at) / page * page,
                    end = (reinterpret_cast<uintptr_t>(at) + *bytes + page - 1) / page * page;
    *bytes = end - begin;
    return reinterpret_cast<void *>(begin);
}

cot_status cot_cuda_pin(const cot_cuda_device *d, void *at, size_t bytes, cot_error *error)
{
    void *const page = page_of(at, &bytes);
    const cot_cuda_current current(d);
    const cot_status status = current.check(error);
    if (status != COT_OK) return status;
    const int result = d->driver->host_register(page, bytes, 0);
    if (result != COT_CUDA_NO_MEMORY) return cot_cuda_check(d->driver, result, "pin host memory", error);
    return cot_fail(error, COT_OUT_OF_MEMORY, "'%s' cannot pin %.3f GB of host memory for rows", d->name,
                    static_cast<double>(bytes) / 1e9);
}

void cot_cuda_unpin(const cot_cuda_device *d, void *at, size_t bytes)
{
    const cot_cuda_current current(d);
    d->driver->host_unregister(page_of(at, &bytes));
}
