/* What the readers of SGLang's expert distribution recorder share, of loads and of traces. */
#ifndef COT_ROUTING_SGLANG_H
#define COT_ROUTING_SGLANG_H
#include "routing/torch/file.h"

/* last_physical_to_logical_map: `*map` [L][slots], L and slots as the tensor's shape, in malloc'd memory, the caller's, also
 * after a failure; `*experts` is one more than the largest expert. Errors: MALFORMED, OUT_OF_MEMORY. */
cot_status cot_sglang_map(int32_t **map, int64_t *experts, const cot_torch_tensor *tensor, const char *path,
                          cot_error *error);

#endif
