#include "engine/replay.h"

#include "base/error.h"
#include "predict/window.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static cot_status check_trace(const cot_engine_routing *routing, const cot_config *c,
                              const int32_t *moe_layer, cot_error *error)
{
    const cot_trace *t = routing->trace;
    const int64_t last = (int64_t)routing->first_layer + c->moe_layers;
    if (t->kind != COT_TRACE_TOKENS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' has counts, no token's routing", routing->name);
    if (t->n_experts != c->gate.experts || t->top_k != c->gate.top_k)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' has routing to %d of %d experts a token, the model has %" PRId64 " of %" PRId64,
                        routing->name, (int)t->top_k, (int)t->n_experts, c->gate.top_k, c->gate.experts);
    for (int64_t i = 0; i < t->n_tokens; i++)
        if (t->token_ids[i] >= c->vocab)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "'%s' has token id %d at token %" PRId64 ", the model knows %" PRId64 " ids",
                            routing->name, (int)t->token_ids[i], i, c->vocab);
    if (routing->first_layer < 0 || last > t->n_layers)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' has %d layers, not %" PRId64 " from its layer number %d on", routing->name,
                        (int)t->n_layers, c->moe_layers, (int)routing->first_layer);
    if (!routing->cut && (t->n_layers != c->moe_layers ||
                          memcmp(t->layers, moe_layer, (size_t)t->n_layers * sizeof *moe_layer) != 0))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' has routing of %d layers from %d to %d, the model's MoE layers are %" PRId64
                        " from %d to %d",
                        routing->name, (int)t->n_layers, (int)t->layers[0], (int)t->layers[t->n_layers - 1],
                        c->moe_layers, (int)moe_layer[0], (int)moe_layer[c->moe_layers - 1]);
    return COT_OK;
}

/* A gate never calls an expert twice for one token. */
static cot_status check_rows(const cot_replay *replay, const char *name, int32_t layers, cot_error *error)
{
    const cot_trace *t = replay->trace;
    uint16_t experts[COT_MAX_TOP_K];
    float weights[COT_MAX_TOP_K];
    for (int32_t l = 0; l < layers; l++)
        for (int32_t s = 0; s < t->n_sequences; s++)
            for (int64_t token = t->sequence_offsets[s]; token < t->sequence_offsets[s + 1]; token++) {
                const int64_t position = token - t->sequence_offsets[s];
                replay->choose(
                    experts, weights, replay,
                    &(cot_replay_token){.moe_layer = l, .position = (int32_t)position, .recorded = s});
                for (int32_t k = 1; k < t->top_k; k++)
                    if (experts[k] == experts[k - 1])
                        return cot_fail(error, COT_INVALID_ARGUMENT,
                                        "'%s' has expert %d twice for token %" PRId64 " in layer %d", name,
                                        (int)experts[k], token, (int)t->layers[replay->first_layer + l]);
            }
    return COT_OK;
}

cot_status cot_engine_replay_of(cot_replay *replay, const cot_engine_routing *routing, const cot_config *c,
                                const int32_t *moe_layer, cot_error *error)
{
    *replay =
        cot_replay_of(routing->trace, routing->first_layer, routing->lar, c->gate.experts, c->gate.top_k);
    if (!c->moe_layers)
        return cot_fail(error, COT_INVALID_ARGUMENT, "routing is given, but the model has no MoE layers");
    if (!routing->trace)
        return routing->lar >= 0 && routing->lar <= 1
                   ? COT_OK
                   : cot_fail(error, COT_INVALID_ARGUMENT, "a local activation rate of %g is not in [0, 1]",
                              routing->lar);
    cot_status status = check_trace(routing, c, moe_layer, error);
    return status == COT_OK ? check_rows(replay, routing->name, (int32_t)c->moe_layers, error) : status;
}

cot_status cot_engine_replay_check_layout(const cot_replay *replay, const cot_expert_layout *layout,
                                          int32_t top_k, cot_error *error)
{
    if (replay->trace) return COT_OK;
    for (int32_t l = 0; l < layout->n_layers; l++) {
        const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
        int64_t own[COT_TRACE_MAX_RANKS] = {0};
        if (r.begin[layout->n_experts] != layout->n_experts)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "drawn routing takes no replicas, which layer %d has", (int)layout->layers[l]);
        for (int32_t e = 0; e < layout->n_experts; e++) own[r.rank[r.begin[e]]]++;
        for (int32_t p = 0; p < layout->n_ranks; p++)
            if (!cot_replay_can_draw(replay->lar, top_k, own[p], layout->n_experts))
                return cot_fail(error, COT_INVALID_ARGUMENT,
                                "a local activation rate of %g cannot be drawn: rank %d has %" PRId64
                                " of %d experts in layer %d, a token calls %d",
                                replay->lar, (int)p, own[p], (int)layout->n_experts, (int)layout->layers[l],
                                (int)top_k);
    }
    return COT_OK;
}

int32_t cot_engine_replay_first_layer(const cot_engine_routing *routing)
{
    return routing && routing->cut ? routing->first_layer : 0;
}

cot_status cot_engine_replay_rows(int32_t **row, const cot_engine_routing *routing,
                                  const cot_predictor *tables, cot_error *error)
{
    *row = NULL;
    const cot_trace *t = routing ? routing->trace : NULL;
    if (!t || !tables) return COT_OK;
    cot_predictor_info info;
    cot_predictor_describe(&info, tables);
    if (!info.has[COT_PREDICT_TOKEN_TABLE] || !info.token_strings != !t->n_strings)
        return !info.has[COT_PREDICT_TOKEN_TABLE]
                   ? COT_OK
                   : cot_fail(error, COT_INVALID_ARGUMENT, "'%s' knows tokens by %s, the tables by %s",
                              routing->name, t->n_strings ? "their strings" : "ids of a vocabulary",
                              t->n_strings ? "ids of a vocabulary" : "their strings");
    if (!t->n_strings) return COT_OK;
    const size_t n = (size_t)t->n_strings;
    int32_t *ids = malloc(n * sizeof *ids);
    *row = malloc(n * sizeof **row);
    cot_status status =
        ids && *row ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for token strings");
    for (size_t i = 0; status == COT_OK && i < n; i++) ids[i] = (int32_t)i;
    if (status == COT_OK) status = cot_rows_of_tokens(*row, tables, t, ids, t->n_strings, error);
    free(ids);
    return status;
}

cot_status cot_engine_replay_check_request(const cot_replay *replay, const cot_request *request,
                                           int64_t limit, cot_error *error)
{
    const cot_trace *t = replay->trace;
    if (!t) return COT_OK;
    if (request->recorded < 0 || request->recorded >= t->n_sequences)
        return cot_fail(error, COT_INVALID_ARGUMENT, "there is no recorded sequence %d, there are %" PRId64,
                        (int)request->recorded, t->n_sequences);
    const int64_t tokens =
        t->sequence_offsets[request->recorded + 1] - t->sequence_offsets[request->recorded];
    if (limit > tokens)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "up to %" PRId64 " tokens, of recorded sequence %d there are %" PRId64, limit,
                        (int)request->recorded, tokens);
    return COT_OK;
}
