/* What the program finds in libcoterie-cuda.so, which it opens when operator 'cuda' or 'cuda-bulk' is asked for. */
#ifndef COT_CUDA_MODULE_MODULE_H
#define COT_CUDA_MODULE_MODULE_H
#include "moe/moe.h"

typedef struct cot_cuda_module_calls {
    const char *version;                // of the library that it was built with
    const char *made_for;               // compute capabilities
    const cot_moe_operator *const *ops; // NULL at the end
    /* Looks for a driver and a device, once; the operators can be opened where that is OK. One thread at a time. Errors: as
     * cot_cuda_device_open and cot_cuda_driver_open have them. */
    cot_status (*find_device)(cot_error *error);
    /* Writes what people are told of the device that was found, in `bytes` of text. */
    void (*describe_device)(char *text, size_t bytes);
    /* The operator's second entry: cot_cuda_forward_device. */
    cot_status (*forward_device)(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                 float *weights, const float *x, int64_t tokens, cot_error *error);
} cot_cuda_module_calls;

/* The module's one symbol. */
extern const cot_cuda_module_calls cot_cuda_module;

#endif
