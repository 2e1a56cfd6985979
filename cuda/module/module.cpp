/* The module as the program finds it: this machine's driver, the kernels that nvcc made (image.cpp). */
#include "cuda/module/operator.h"

extern "C" {
#include "cuda/module/module.h"
}

static cot_cuda_device device;

static cot_status find_device(cot_error *error)
{
    static cot_cuda_driver driver;
    static bool found;
    if (found) return COT_OK;
    cot_status status = cot_cuda_driver_open(&driver, "libcuda.so.1", error);
    if (status == COT_OK) status = cot_cuda_device_open(&device, &driver, &cot_cuda_kernels, error);
    found = status == COT_OK;
    if (found) cot_cuda_operator_use(&device);
    return status;
}

static void describe_device(char *text, size_t bytes)
{
    cot_cuda_device_describe(&device, text, bytes);
}

static const cot_moe_operator *const operators[] = {&cot_cuda_operator, &cot_cuda_bulk_operator, nullptr};

extern "C" __attribute__((visibility("default"))) const cot_cuda_module_calls cot_cuda_module = {
    COT_VERSION, COT_CUDA_MADE_FOR, operators, find_device, describe_device, cot_cuda_forward_device};
