/* The input is a file of torch.save, and also a pickle within an archive that is sound: random bytes hardly ever make
 * one. What is taken lies within the file. */
#include "harness/routing/torch_archive.h"
#include "routing/torch/file.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void touch(const cot_torch_tensor *t)
{
    int64_t last = 0, elements = 1;
    double n;
    for (int d = 0; d < t->dims; d++) {
        elements *= t->shape[d];
        last += (t->shape[d] - 1) * t->stride[d];
    }
    if (!elements) return;
    if (!cot_torch_number(&n, t->dtype, t->data) ||
        !cot_torch_number(&n, t->dtype, t->data + (size_t)last * cot_dtype_bytes(t->dtype)))
        abort();
}

/* The first levels; values may hold themselves. */
static size_t walk(const cot_torch_value *value, int depth)
{
    size_t sum = 0;
    if (value->kind == COT_TORCH_TENSOR) touch(value->tensor);
    if (value->kind == COT_TORCH_TEXT)
        for (size_t i = 0; i < value->text.bytes; i++) sum += (uint8_t)value->text.at[i];
    if (depth && value->kind >= COT_TORCH_TUPLE && value->kind <= COT_TORCH_DICT)
        for (uint32_t i = 0; i < value->list.count && i < 8; i++)
            sum += walk(value->list.items[i], depth - 1);
    return sum;
}

static void parse(const void *data, size_t bytes)
{
    cot_torch_file file;
    cot_error error = {0};
    if (cot_torch_parse(&file, data, bytes, "f", &error) != COT_OK) {
        if (!error.message[0]) abort();
        return;
    }
    (void)cot_torch_get(file.value, "logical_count");
    (void)walk(file.value, 4);
    cot_torch_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static archive a;
    parse(data, bytes);
    if (bytes > sizeof a.bytes / 2) return 0;
    archive_pickle(&a, data, bytes, 0);
    parse(a.bytes, a.used);
    return 0;
}
