/* The module as the program finds it: this machine's driver, the kernels that nvcc made. */
#include "cuda/module/operator.h"

extern "C" {
#include "cuda/module/module.h"
}

/* COT_CUDA_FUSED and COT_CUDA_BULK are the fat binaries' files, COT_CUDA_MADE_FOR and COT_CUDA_MAJORS what they have kernels for. */
__asm__(".section .rodata\n"
        ".balign 64\n"
        "cot_cuda_fused_image:\n"
        ".incbin \"" COT_CUDA_FUSED "\"\n"
        ".balign 64\n"
        "cot_cuda_bulk_image:\n"
        ".incbin \"" COT_CUDA_BULK "\"\n"
        ".balign 64\n"
        ".previous\n");
extern "C" {
extern const unsigned char cot_cuda_fused_image[] __attribute__((visibility("hidden")));
extern const unsigned char cot_cuda_bulk_image[] __attribute__((visibility("hidden")));
}

static cot_status find_device(cot_error *error)
{
    static const int majors[] = {COT_CUDA_MAJORS, 0};
    static cot_cuda_driver driver;
    static cot_cuda_device device;
    static bool found;
    const cot_cuda_image image = {cot_cuda_fused_image, cot_cuda_bulk_image, COT_CUDA_VERSION, majors,
                                  COT_CUDA_MADE_FOR};
    if (found) return COT_OK;
    cot_status status = cot_cuda_driver_open(&driver, "libcuda.so.1", error);
    if (status == COT_OK) status = cot_cuda_device_open(&device, &driver, &image, error);
    found = status == COT_OK;
    if (found) cot_cuda_operator_use(&device);
    return status;
}

static const cot_moe_operator *const operators[] = {&cot_cuda_operator, &cot_cuda_bulk_operator, nullptr};

extern "C" __attribute__((visibility("default"))) const cot_cuda_module_calls cot_cuda_module = {
    COT_VERSION, COT_CUDA_MADE_FOR, operators, find_device, cot_cuda_forward_device};
