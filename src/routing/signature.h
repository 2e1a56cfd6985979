/* Signatures: which experts a text has called, in at most 6 KiB. A cell is a count of an expert in a layer; a token adds 1 to each
 * cell that it chose, and as one comes to 127 all cells of the signature halve, rounded down. So a signature is of the last tokens
 * more than of those long ago, and what two texts have in common shows whatever their lengths are.
 *
 * A model with more cells than that keeps every so manieth layer: cell (l / every) E + e is expert e of the l-th MoE layer. Pure. */
#ifndef COT_ROUTING_SIGNATURE_H
#define COT_ROUTING_SIGNATURE_H
#include "coterie/status.h"
#include <stdint.h>

enum {
    COT_SIGNATURE_MOST_CELLS = 6144,
    COT_SIGNATURE_FULL = 127,   // a cell never holds more
    COT_SIGNATURE_LARGEST = 160 // cells of a signature that is sent, at most
};

typedef struct cot_signature_shape {
    int32_t n_layers, n_experts, top_k; // L, E, K of the model
    int32_t every;                      // layers 0, every, 2 every ... are kept
    int32_t kept;                       // how many these are
    int32_t cells;                      // kept E, at most COT_SIGNATURE_MOST_CELLS
} cot_signature_shape;

/* Every ceil(L E / 6144)-th layer is kept, or fewer where that is needed. Errors: INVALID_ARGUMENT (sizes); UNSUPPORTED (a layer
 * has more experts than a signature cells). */
cot_status cot_signature_shape_of(cot_signature_shape *shape, int32_t n_layers, int32_t n_experts,
                                  int32_t top_k, cot_error *error);

/* A token called, in the l-th layer, experts[l * layer_stride] and the K - 1 behind it. cells [shape->cells]. */
void cot_signature_add(uint8_t *cells, const cot_signature_shape *shape, const uint16_t *experts,
                       int64_t layer_stride);

/* The cells that count most, at most COT_SIGNATURE_LARGEST of them and none that is 0: numbers and counts, largest first, equal
 * ones by their numbers. Returns how many. */
int32_t cot_signature_largest(uint16_t number[COT_SIGNATURE_LARGEST], uint8_t count[COT_SIGNATURE_LARGEST],
                              const uint8_t *cells, const cot_signature_shape *shape);

#endif
