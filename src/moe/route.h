/* The routing of one call's own tokens, as an operator keeps it until it is known that all ranks' is sound. */
#ifndef COT_MOE_ROUTE_H
#define COT_MOE_ROUTE_H
#include "base/arena.h"
#include "moe/moe.h"

typedef struct cot_moe_routing {
    uint16_t *experts; // [T][K]
    float *weights;    // [T][K]
    int32_t *chosen;   // [T][K] the replica that serves each
} cot_moe_routing;

/* Memory for the options' most tokens. */
void cot_moe_routing_lay_out(cot_moe_routing *routing, cot_arena *arena, const cot_moe_options *options);
/* A call begins: asserts that it fits the options, and keeps the routing that is given where the layer has no gate.
 */
void cot_moe_routing_begin(cot_moe_routing *routing, const cot_moe_options *options,
                           const cot_moe_layer *layer, const uint16_t *experts, const float *weights,
                           int64_t tokens);
/* Gates tokens [first, first + count) of x, or checks their given routing, and chooses replicas. `logits` is scratch
 * of count * E floats. Safe on disjoint tokens at once. Errors: INVALID_ARGUMENT, naming the first unsound token. */
cot_status cot_moe_route(cot_moe_routing *routing, const cot_moe_options *options, const cot_moe_layer *layer,
                         const float *x, int64_t first, int64_t count, float *logits, cot_error *error);
/* The call went well: what the gate decided goes to the caller. */
void cot_moe_routing_tell(const cot_moe_routing *routing, const cot_moe_options *options,
                          const cot_moe_layer *layer, uint16_t *experts, float *weights, int64_t tokens);

#endif
