#include "cuda/module/driver.h"

#include <dlfcn.h>
#include <string.h>

cot_status cot_cuda_driver_open(cot_cuda_driver *driver, const char *library, cot_error *error)
{
    void *const opened = dlopen(library, RTLD_NOW);
    if (!opened) return cot_fail(error, COT_NOT_FOUND, "this machine has no NVIDIA driver (%s)", library);
    const char *missing = nullptr;
#define COT_CUDA_DRIVER_FIND(member, symbol, parameters)                                                     \
    {                                                                                                        \
        void *const found = dlsym(opened, #symbol);                                                          \
        if (!found) missing = #symbol;                                                                       \
        memcpy(&driver->member, &found, sizeof found);                                                       \
    }
    COT_CUDA_DRIVER_LIST(COT_CUDA_DRIVER_FIND)
    const char *const needed = missing;
    COT_CUDA_DRIVER_NEWER_LIST(COT_CUDA_DRIVER_FIND)
#undef COT_CUDA_DRIVER_FIND
    if (!needed) return COT_OK;
    dlclose(opened);
    return cot_fail(error, COT_UNSUPPORTED, "this machine's NVIDIA driver is too old: %s has no %s", library,
                    needed);
}
