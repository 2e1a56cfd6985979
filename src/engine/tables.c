#include "engine/tables.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool is_another(uint64_t hash, const cot_engine_known *known)
{
    return hash && known->hash && hash != known->hash;
}

static cot_status check(const cot_predictor_info *t, const char *path, const cot_config *c,
                        const cot_expert_layout_shape *shape, const cot_engine_routing *routing,
                        const cot_engine_known *known, cot_error *error)
{
    const bool cut = routing && routing->cut && routing->trace;
    const int32_t n_layers = cut ? routing->trace->n_layers : shape->n_layers,
                  *layers = cut ? routing->trace->layers : shape->layers;
    if (t->n_experts != shape->n_experts || t->top_k != c->gate.top_k)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' has tables of %d of %d experts a token, the model has %lld of %d", path,
                        (int)t->top_k, (int)t->n_experts, (long long)c->gate.top_k, (int)shape->n_experts);
    if (t->n_layers != n_layers || memcmp(t->layers, layers, (size_t)n_layers * sizeof *layers) != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' has tables of %d layers from %d to %d, the %s are %d from %d to %d", path,
                        (int)t->n_layers, (int)t->layers[0], (int)t->layers[t->n_layers - 1],
                        cut ? "trace's layers" : "model's MoE layers", (int)n_layers, (int)layers[0],
                        (int)layers[n_layers - 1]);
    if (shape->n_ranks && t->n_ranks != shape->n_ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' has tables for %d ranks, not for %d", path,
                        (int)t->n_ranks, (int)shape->n_ranks);
    const bool of_trace = routing && routing->trace; // whose ids need not be the model's
    const int32_t last = t->n_tokens && !t->token_strings && !of_trace ? t->token_ids[t->n_tokens - 1] : -1;
    if (last >= c->vocab)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' has tables of token id %d, the model knows %lld ids", path, (int)last,
                        (long long)c->vocab);
    if (is_another(t->model_hash, known))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "'%s' has tables of model '%.40s' (gates %016" PRIx64 "), not of '%s' (%016" PRIx64
                        ")",
                        path, t->model, t->model_hash, known->name, known->hash);
    return COT_OK;
}

cot_status cot_engine_tables_open(cot_predictor **tables, const char *path, const cot_config *config,
                                  const cot_expert_layout_shape *shape, const cot_engine_routing *routing,
                                  const cot_engine_known *known, cot_error *error)
{
    cot_predictor_info info;
    if (!shape->n_layers)
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' has tables, but the model has no MoE layers",
                        path);
    cot_status status = cot_predictor_open(tables, path, error);
    if (status != COT_OK) return status;
    cot_predictor_describe(&info, *tables);
    status = check(&info, path, config, shape, routing, known, error);
    if (status == COT_OK) return COT_OK;
    cot_predictor_close(*tables);
    *tables = NULL;
    return status;
}

cot_status cot_engine_placement_check(const cot_expert_map *map, const char *name,
                                      const cot_engine_known *known, cot_error *error)
{
    if (!is_another(map->model_hash, known)) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "'%s' places experts of another model (gates %016" PRIx64 "), not of '%s' (%016" PRIx64
                    ")",
                    name, map->model_hash, known->name, known->hash);
}

const int32_t *cot_engine_tables_groups(const cot_predictor *tables, int32_t first)
{
    cot_predictor_info info;
    if (!tables) return NULL;
    cot_predictor_describe(&info, tables);
    return info.expert_rank + (int64_t)first * info.n_experts;
}

cot_status cot_engine_tables_agree(const int32_t *group, const char *path, const cot_expert_layout *layout,
                                   const char *name, cot_error *error)
{
    for (int32_t l = 0; l < layout->n_layers; l++) {
        const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
        for (int32_t e = 0; e < layout->n_experts; e++) {
            const int wanted = group[l * layout->n_experts + e];
            if (r.begin[e + 1] - r.begin[e] > 1)
                return cot_fail(error, COT_INVALID_ARGUMENT,
                                "'%s' has expert %d of layer %d more than once, the tables '%s' once", name,
                                (int)e, (int)layout->layers[l], path);
            if (r.rank[r.begin[e]] != wanted)
                return cot_fail(error, COT_INVALID_ARGUMENT,
                                "'%s' has expert %d of layer %d on rank %d, the tables '%s' on rank %d", name,
                                (int)e, (int)layout->layers[l], (int)r.rank[r.begin[e]], path, wanted);
        }
    }
    return COT_OK;
}

/* ---- signatures ---- */

cot_status cot_engine_signatures_open(cot_engine_signatures *s, const char *path, const cot_config *config,
                                      const int32_t *moe_layer, const cot_engine_known *known,
                                      cot_error *error)
{
    const cot_expert_layout_shape shape = {.n_layers = (int32_t)config->moe_layers,
                                           .n_experts = (int32_t)config->gate.experts,
                                           .layers = moe_layer};
    cot_predictor_info info;
    cot_status status = cot_engine_tables_open(&s->tables, path, config, &shape, NULL, known, error);
    if (status != COT_OK) return status;
    cot_predictor_describe(&info, s->tables);
    if (!info.has[COT_PREDICT_TOKEN_TABLE])
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' has no token table", path);
    s->n_layers = shape.n_layers;
    s->n_experts = shape.n_experts;
    s->scores = calloc((COT_PREDICT_TEXT_TOKENS + 1) * (size_t)shape.n_experts, sizeof *s->scores);
    return s->scores ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for signatures");
}

void cot_engine_signatures_close(cot_engine_signatures *s)
{
    cot_predictor_close(s->tables);
    free(s->scores);
    *s = (cot_engine_signatures){0};
}

bool cot_engine_signature(const cot_engine_signatures *s, uint8_t *share, const int32_t *tokens, int64_t n)
{
    int32_t rows[COT_PREDICT_TEXT_TOKENS];
    const int64_t known = s->tables ? cot_predict_text_rows(rows, s->tables, tokens, n) : 0;
    float *mean = s->scores, *scratch = s->scores + s->n_experts;
    if (!known) return false;
    for (int32_t l = 0; l < s->n_layers; l++) {
        cot_predict_text_shares(mean, scratch, s->tables, l, rows, known);
        for (int32_t e = 0; e < s->n_experts; e++)
            share[(int64_t)l * s->n_experts + e] = (uint8_t)(mean[e] * UINT8_MAX + 0.5f);
    }
    return true;
}
