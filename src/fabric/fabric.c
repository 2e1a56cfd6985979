#include "fabric/fabric.h"

#include "base/error.h"

#include <assert.h>

const char *cot_phase_name(cot_phase phase)
{
    static const char *const names[] = {
#define COT_PHASE_NAME(name, text) text,
        COT_PHASE_LIST(COT_PHASE_NAME)
#undef COT_PHASE_NAME
    };
    return (unsigned)phase < COT_PHASES ? names[phase] : "?";
}

cot_status cot_alloc_from(cot_fabric *fabric, size_t heap_bytes, size_t *used, cot_sym *where, size_t bytes,
                          cot_error *error)
{
    const size_t align = cot_alloc_align(bytes), at = (*used + align - 1) / align * align;
    assert(bytes > 0);
    if (at > heap_bytes || bytes > heap_bytes - at)
        return cot_fail(error, COT_OUT_OF_MEMORY,
                        "rank %d's symmetric heap of %zu bytes is full: %zu more bytes asked for, %zu in use",
                        fabric->rank, heap_bytes, bytes, *used);
    *used = at + bytes;
    *where = at;
    return COT_OK;
}
