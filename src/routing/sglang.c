#include "routing/sglang.h"

#include "base/error.h"
#include "coterie/load.h"

#include <inttypes.h>
#include <stdlib.h>

cot_status cot_sglang_map(int32_t **map, int64_t *experts, const cot_torch_tensor *tensor, const char *path,
                          cot_error *error)
{
    *map = NULL;
    *experts = 0;
    if (!tensor || tensor->dims != 2 || tensor->shape[0] < 1 || tensor->shape[0] > COT_TRACE_MAX_LAYERS ||
        tensor->shape[1] < 1 || tensor->shape[1] > COT_LOAD_MAX_SOURCES * 16)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': 'last_physical_to_logical_map' is no matrix of layers and slots", path);
    const int64_t L = tensor->shape[0], slots = tensor->shape[1];
    if (!(*map = malloc((size_t)(L * slots) * sizeof **map)))
        return cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", path);
    for (int64_t l = 0; l < L; l++)
        for (int64_t p = 0; p < slots; p++) {
            int64_t e = 0;
            if (!cot_torch_whole(&e, tensor, l * tensor->stride[0] + p * tensor->stride[1], 0,
                                 COT_TRACE_MAX_EXPERTS - 1))
                return cot_fail(error, COT_MALFORMED,
                                "'%s': an element of 'last_physical_to_logical_map' is no whole number from "
                                "0 to %d",
                                path, COT_TRACE_MAX_EXPERTS - 1);
            (*map)[l * slots + p] = (int32_t)e;
            if (e >= *experts) *experts = e + 1;
        }
    return COT_OK;
}
