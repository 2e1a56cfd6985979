/* The kernels that nvcc made, as tools/compile_cuda tells of them. */
#include "cuda/module/device.h"

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

static const int majors[] = {COT_CUDA_MAJORS, 0};
const cot_cuda_image cot_cuda_kernels = {cot_cuda_fused_image, cot_cuda_bulk_image, COT_CUDA_VERSION, majors,
                                         COT_CUDA_MADE_FOR};
