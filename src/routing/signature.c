#include "routing/signature.h"

#include "base/error.h"
#include "base/integers.h"
#include "coterie/trace.h"

#include <inttypes.h>
#include <stdbool.h>

cot_status cot_signature_shape_of(cot_signature_shape *shape, int32_t n_layers, int32_t n_experts,
                                  int32_t top_k, cot_error *error)
{
    *shape = (cot_signature_shape){n_layers, n_experts, top_k, 1, n_layers, 0};
    if (n_layers < 1 || n_layers > COT_TRACE_MAX_LAYERS || n_experts < 1 || top_k < 1 || top_k > n_experts)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no signature can be of %" PRId32 " layers and %" PRId32 " of %" PRId32 " experts",
                        n_layers, top_k, n_experts);
    if (n_experts > COT_SIGNATURE_MOST_CELLS)
        return cot_fail(error, COT_UNSUPPORTED,
                        "a signature has %d cells, a layer of the model %" PRId32 " experts",
                        COT_SIGNATURE_MOST_CELLS, n_experts);
    shape->every = (int32_t)cot_divide_up((int64_t)n_layers * n_experts, COT_SIGNATURE_MOST_CELLS);
    do shape->kept = (int32_t)cot_divide_up(n_layers, shape->every);
    while (shape->kept * n_experts > COT_SIGNATURE_MOST_CELLS && shape->every++);
    shape->cells = shape->kept * n_experts;
    return COT_OK;
}

void cot_signature_add(uint8_t *cells, const cot_signature_shape *shape, const uint16_t *experts,
                       int64_t layer_stride)
{
    bool full = false;
    uint8_t *row = cells;
    for (int32_t l = 0; l < shape->n_layers; l += shape->every, row += shape->n_experts)
        for (int32_t k = 0; k < shape->top_k; k++)
            full |= ++row[experts[l * layer_stride + k]] == COT_SIGNATURE_FULL;
    for (int32_t i = 0; full && i < shape->cells; i++) cells[i] /= 2;
}

int32_t cot_signature_largest(uint16_t number[COT_SIGNATURE_LARGEST], uint8_t count[COT_SIGNATURE_LARGEST],
                              const uint8_t *cells, const cot_signature_shape *shape)
{
    int32_t of[256] = {0}, at[256], room = COT_SIGNATURE_LARGEST, taken = 0; // of: cells of each count
    for (int32_t i = 0; i < shape->cells; i++) of[cells[i]]++;
    for (int c = 255; c > 0; c--) { // at: where the next cell of a count goes
        at[c] = taken;
        of[c] = of[c] < room ? of[c] : room;
        room -= of[c];
        taken += of[c];
    }
    for (int32_t i = 0; i < shape->cells; i++) {
        const uint8_t c = cells[i];
        if (!c || !of[c]) continue;
        of[c]--;
        number[at[c]] = (uint16_t)i;
        count[at[c]++] = c;
    }
    return taken;
}
