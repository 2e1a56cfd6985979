/* Any bytes are a safetensors file or a refusal; what is taken lies within the bytes. */
#include "base/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cot_safetensors file;
    cot_error error;
    if (cot_safetensors_parse(&file, data, bytes, "f", &error) != COT_OK) return 0;
    size_t claimed = 0;
    for (size_t t = 0; t < file.count; t++) {
        const cot_tensor *tensor = &file.tensors[t];
        if (cot_safetensors_find(&file, tensor->name) != tensor) abort();
        if ((size_t)cot_tensor_elements(tensor) * cot_dtype_bytes(tensor->dtype) != tensor->bytes) abort();
        const uint8_t *begin = tensor->data;
        if (tensor->bytes && (begin < data || begin + tensor->bytes > data + bytes)) abort();
        claimed += tensor->bytes;
    }
    if (claimed > bytes) abort();
    (void)cot_safetensors_meta(&file, "model");
    cot_safetensors_close(&file);
    return 0;
}
