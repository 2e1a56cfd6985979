/* The memory behind a cot_trace. */
#ifndef COT_ROUTING_STORE_H
#define COT_ROUTING_STORE_H
#include "coterie/trace.h"
#include "base/safetensors.h"

typedef struct cot_trace_owner {
    cot_safetensors file;
    void **blocks;
    size_t n_blocks;
} cot_trace_owner;

/* Gives a zeroed trace its (empty) owner. */
cot_status cot_trace_own(cot_trace *trace, cot_error *error);
/* Zeroed memory of `count` elements of `bytes` each (never NULL for a count of 0) that lives as long as the
 * trace; NULL when out of memory or when count < 0 or the product overflows. The owner must exist. */
void *cot_trace_alloc(cot_trace *trace, int64_t count, size_t bytes);
/* Hands malloc'd `block` to the trace; false, and the block is freed, when out of memory. NULL is fine. */
bool cot_trace_adopt(cot_trace *trace, void *block);
/* Copies of `model`, `layers` [L] and, of `like` (which may be NULL), the model's hash and token strings, where there are any. */
cot_status cot_trace_set_names(cot_trace *trace, const char *model, int32_t n_layers, const int32_t *layers,
                               const cot_trace *like, cot_error *error);
/* a * b * c, or -1 when it overflows or a factor is negative. */
int64_t cot_product(int64_t a, int64_t b, int64_t c);

/* Checks all that trace.h says of a trace; `subject` names it in messages. Errors: MALFORMED, OUT_OF_MEMORY.
 */
cot_status cot_trace_validate(const cot_trace *trace, const char *subject, cot_error *error);

#endif
