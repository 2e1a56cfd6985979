/* Any bytes are a safetensors file or a refusal; what is taken lies within the bytes. The input is the
 * header's text, a NUL, the payload; the length before them is added here, or else few inputs would get past
 * it. */
#include "base/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void parse(const uint8_t *data, size_t bytes)
{
    cot_safetensors file;
    cot_error error;
    if (cot_safetensors_parse(&file, data, bytes, "f", &error) != COT_OK) return;
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
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *end = bytes ? memchr(data, 0, bytes) : NULL;
    size_t header = end ? (size_t)(end - data) : bytes, payload = end ? bytes - header - 1 : 0;
    uint8_t *file = malloc(8 + header + payload);
    if (!file) return 0;
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)header >> 8 * i);
    if (header) memcpy(file + 8, data, header);
    if (payload) memcpy(file + 8 + header, end + 1, payload);
    parse(file, 8 + header + payload);
    free(file);
    parse(data, bytes);
    return 0;
}
