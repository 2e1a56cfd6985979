#include "routing/store.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct cot_trace_builder {
    char *model;
    int32_t *layers, n_layers, n_experts, top_k; // layers [L]
    int64_t n_tokens, room;                      // tokens held, tokens that fit
    int32_t *token_ids, *sequences, n_sequences; // [room]
    uint16_t *experts, *weights;                 // [room][L][K]
    bool weightless;                             // a token came without
};

cot_status cot_trace_builder_open(cot_trace_builder **builder, const char *model, int32_t n_layers,
                                  const int32_t *layers, int32_t n_experts, int32_t top_k, cot_error *error)
{
    *builder = NULL;
    if (n_layers < 1 || n_layers > COT_TRACE_MAX_LAYERS || n_experts < 1 ||
        n_experts > COT_TRACE_MAX_EXPERTS || top_k < 1 || top_k > n_experts)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no trace can have %" PRId32 " layers and %" PRId32 " of %" PRId32 " experts a token",
                        n_layers, top_k, n_experts);
    for (int32_t l = 0; layers && l < n_layers; l++)
        if (layers[l] < 0 || (l && layers[l] <= layers[l - 1]))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "layer numbers of a trace are not ascending at '%" PRId32 "'", layers[l]);
    cot_trace_builder *b = calloc(1, sizeof *b);
    if (b) {
        *b = (cot_trace_builder){.n_layers = n_layers, .n_experts = n_experts, .top_k = top_k};
        b->model = strdup(model);
        b->layers = malloc((size_t)n_layers * sizeof *b->layers);
    }
    if (!b || !b->model || !b->layers) {
        cot_trace_builder_close(b);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a routing trace");
    }
    for (int32_t l = 0; l < n_layers; l++) b->layers[l] = layers ? layers[l] : l;
    *builder = b;
    return COT_OK;
}

static bool grow(void *array, size_t count, size_t bytes)
{
    void *old, *larger;
    size_t total;
    memcpy(&old, array, sizeof old);
    if (__builtin_mul_overflow(count, bytes, &total) || !(larger = realloc(old, total))) return false;
    memcpy(array, &larger, sizeof larger);
    return true;
}

cot_status cot_trace_builder_append(cot_trace_builder *b, int32_t sequence, int32_t token_id,
                                    const uint16_t *experts, const float *weights, cot_error *error)
{
    size_t row = (size_t)b->n_layers * (size_t)b->top_k;
    if (sequence < 0 || sequence == INT32_MAX || token_id < -1)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no trace can hold token id %" PRId32 " in sequence %" PRId32, token_id, sequence);
    for (size_t i = 0; i < row; i++) {
        if (experts[i] >= b->n_experts)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "a token in layer %" PRId32 " goes to expert %d of %" PRId32,
                            b->layers[i / (size_t)b->top_k], experts[i], b->n_experts);
        if (weights && (cot_f32_to_f16(weights[i]) & 0x7c00) == 0x7c00)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "a token's weight in layer %" PRId32 " is %g, no finite float16",
                            b->layers[i / (size_t)b->top_k], (double)weights[i]);
    }
    if (b->n_tokens == b->room) {
        int64_t room = b->room ? b->room * 2 : 64;
        if (!grow(&b->token_ids, (size_t)room, sizeof *b->token_ids) ||
            !grow(&b->sequences, (size_t)room, sizeof *b->sequences) ||
            !grow(&b->experts, (size_t)room, row * sizeof *b->experts) ||
            !grow(&b->weights, (size_t)room, row * sizeof *b->weights))
            return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the routing of %" PRId64 " tokens",
                            room);
        b->room = room;
    }
    size_t t = (size_t)b->n_tokens++;
    b->token_ids[t] = token_id;
    b->sequences[t] = sequence;
    if (sequence >= b->n_sequences) b->n_sequences = sequence + 1;
    memcpy(b->experts + t * row, experts, row * sizeof *experts);
    for (size_t i = 0; i < row; i++) b->weights[t * row + i] = weights ? cot_f32_to_f16(weights[i]) : 0;
    b->weightless |= !weights;
    return COT_OK;
}

/* [T][L][K] as appended -> [L][T][K] by sequence; `order` is the place of each appended token. */
static void seat(const cot_trace_builder *b, const int64_t *order, const uint16_t *from, uint16_t *to16,
                 uint8_t *to8)
{
    int64_t T = b->n_tokens, L = b->n_layers, K = b->top_k;
    for (int64_t l = 0; l < L; l++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t k = 0; k < K; k++) {
                uint16_t value = from[(t * L + l) * K + k];
                if (to8)
                    to8[(l * T + order[t]) * K + k] = (uint8_t)value;
                else
                    to16[(l * T + order[t]) * K + k] = value;
            }
}

static void forget(cot_trace_builder *b)
{
    free(b->token_ids);
    free(b->sequences);
    free(b->experts);
    free(b->weights);
    b->token_ids = b->sequences = NULL;
    b->experts = b->weights = NULL;
    b->n_tokens = b->room = b->n_sequences = 0;
}

static cot_status fill(cot_trace *trace, cot_trace_builder *b, int64_t *order, cot_error *error)
{
    cot_status status = cot_trace_set_names(trace, b->model, b->n_layers, b->layers, NULL, error);
    if (status != COT_OK) return status;
    int64_t cells = cot_product(b->n_layers, b->n_tokens, b->top_k);
    bool narrow = b->n_experts <= 256;
    int32_t *ids = cot_trace_alloc(trace, b->n_tokens, sizeof *ids);
    int64_t *offsets = cot_trace_alloc(trace, (int64_t)b->n_sequences + 1, sizeof *offsets);
    void *experts = cot_trace_alloc(trace, cells, narrow ? 1 : 2);
    if (!ids || !offsets || !experts) goto out_of_memory;
    for (int64_t t = 0; t < b->n_tokens; t++) offsets[b->sequences[t] + 1]++;
    for (int32_t s = 0; s < b->n_sequences; s++) offsets[s + 1] += offsets[s];
    for (int64_t t = 0; t < b->n_tokens; t++) { // offsets[s] runs through sequence s, then is set back
        order[t] = offsets[b->sequences[t]]++;
        ids[order[t]] = b->token_ids[t];
    }
    for (int32_t s = b->n_sequences; s > 0; s--) offsets[s] = offsets[s - 1];
    offsets[0] = 0;
    seat(b, order, b->experts, experts, narrow ? experts : NULL);
    free(b->experts); // before the weights need room
    b->experts = NULL;
    uint16_t *weights = cot_trace_alloc(trace, cells, sizeof *weights);
    if (!weights) goto out_of_memory;
    seat(b, order, b->weights, weights, NULL);
    trace->kind = COT_TRACE_TOKENS;
    trace->n_experts = b->n_experts;
    trace->top_k = b->top_k;
    trace->n_tokens = b->n_tokens;
    trace->n_sequences = b->n_sequences;
    trace->token_ids = ids;
    trace->sequence_offsets = offsets;
    if (narrow)
        trace->experts_u8 = experts;
    else
        trace->experts_u16 = experts;
    trace->weights = b->weightless ? NULL : weights;
    return COT_OK;
out_of_memory:
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the routing of %" PRId64 " tokens",
                    b->n_tokens);
}

cot_status cot_trace_builder_finish(cot_trace *trace, cot_trace_builder *b, cot_error *error)
{
    *trace = (cot_trace){0};
    cot_status status = cot_trace_own(trace, error);
    int64_t *order = calloc(b->n_tokens ? (size_t)b->n_tokens : 1, sizeof *order);
    if (status == COT_OK && !order)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the routing of %" PRId64 " tokens",
                          b->n_tokens);
    if (status == COT_OK) status = fill(trace, b, order, error);
    free(order);
    forget(b);
    if (status != COT_OK) cot_trace_close(trace);
    return status;
}

void cot_trace_builder_close(cot_trace_builder *b)
{
    if (!b) return;
    forget(b);
    free(b->model);
    free(b->layers);
    free(b);
}
