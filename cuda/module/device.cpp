#include "cuda/module/device.h"

#include <stdio.h>

cot_status cot_cuda_check(const cot_cuda_driver *driver, int result, const char *what, cot_error *error)
{
    const char *name = nullptr;
    if (!result) return COT_OK;
    if (driver->error_name(result, &name) || !name) name = "an error without a name";
    return cot_fail(error, COT_IO, "the device failed to %s: %s (%d)", what, name, result);
}

static cot_status check_driver(const cot_cuda_driver *driver, const cot_cuda_image *image, cot_error *error)
{
    int version = 0, count = 0;
    const int began = driver->init(0);
    const int no_device = 100;
    if (began && began != no_device) return cot_cuda_check(driver, began, "begin", error);
    cot_status status =
        cot_cuda_check(driver, driver->driver_version(&version), "tell its driver's version", error);
    if (status != COT_OK) return status;
    if (version / 1000 < image->cuda_version / 1000)
        return cot_fail(error, COT_UNSUPPORTED,
                        "operator 'cuda' needs a driver for CUDA %d, this machine's is for %d.%d",
                        image->cuda_version / 1000, version / 1000, version % 1000 / 10);
    if (began || driver->device_count(&count) || !count)
        return cot_fail(error, COT_NOT_FOUND,
                        "operator 'cuda' needs a GPU, and the NVIDIA driver shows none");
    return COT_OK;
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
                        "'%s' has compute capability %d.%d: operator 'cuda' has kernels for %s", d->name,
                        major, minor, image->made_for);
    if (!cooperative)
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s' cannot launch cooperative kernels, which operator 'cuda' is", d->name);
    return COT_OK;
}

static cot_status load(cot_cuda_device *d, const cot_cuda_image *image, cot_error *error)
{
    static const char *const fused[2] = {"cot_cuda_fused_bf16", "cot_cuda_fused_f32"};
    static const char *const bulk[2][COT_CUDA_PHASES] = {
        {"cot_cuda_bulk_gate_bf16", "cot_cuda_bulk_dispatch", "cot_cuda_bulk_receive",
         "cot_cuda_bulk_up_bf16", "cot_cuda_bulk_down_bf16", "cot_cuda_bulk_combine"},
        {"cot_cuda_bulk_gate_f32", "cot_cuda_bulk_dispatch", "cot_cuda_bulk_receive", "cot_cuda_bulk_up_f32",
         "cot_cuda_bulk_down_f32", "cot_cuda_bulk_combine"}};
    const cot_cuda_driver *const driver = d->driver;
    void *modules[2] = {};
    const void *const images[2] = {image->fused, image->bulk};
    cot_status status = cot_cuda_check(driver, driver->context_set(d->context), "take a context", error);
    for (int i = 0; i < 2 && status == COT_OK; i++)
        status = cot_cuda_check(driver, driver->module_load(&modules[i], images[i]), "load kernels", error);
    const auto find = [&](void **kernel, void *module, const char *name) {
        if (status == COT_OK)
            status =
                cot_cuda_check(driver, driver->module_function(kernel, module, name), "find a kernel", error);
        // the most, since a kernel is every group's: one with few experts must not take it from others
        if (status == COT_OK)
            status = cot_cuda_check(driver,
                                    driver->function_attribute(*kernel, COT_CUDA_FUNCTION_SHARED_BYTES,
                                                               static_cast<int>(d->shared_bytes_most)),
                                    "give shared memory", error);
    };
    for (int i = 0; i < 2; i++) {
        find(&d->fused[i], modules[0], fused[i]);
        for (int phase = 0; phase < COT_CUDA_PHASES; phase++)
            find(&d->bulk[i][phase], modules[1], bulk[i][phase]);
    }
    return status;
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
