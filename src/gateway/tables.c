#include "base/error.h"
#include "base/hash.h"
#include "gateway/gateway_state.h"
#include "route/calls.h"

#include <stdlib.h>
#include <string.h>

void cot_gateway_close_tables(cot_gateway *g)
{
    cot_gateway_tables *t = &g->tables;
    cot_predictor_close(t->predictor);
    free(t->share);
    free(t->scratch);
    *t = (cot_gateway_tables){0};
}

cot_status cot_gateway_open_tables(cot_gateway *g, cot_error *error)
{
    cot_gateway_tables *t = &g->tables;
    const char *path = g->options.signature_tables;
    cot_predictor_info info;
    if (!path) return COT_OK;
    cot_status status = cot_predictor_open(&t->predictor, path, error);
    if (status != COT_OK) return status;
    cot_predictor_describe(&info, t->predictor);
    if (!info.has[COT_PREDICT_TOKEN_TABLE])
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' has no token table", path);
    status = cot_signature_shape_of(&t->shape, info.n_layers, info.n_experts, info.top_k, error);
    if (status != COT_OK) return status;
    if (info.model_hash) cot_hash_print(t->model_hash, info.model_hash);
    t->share = calloc((size_t)t->shape.cells, sizeof *t->share);
    t->scratch = calloc(COT_PREDICT_TEXT_TOKENS * (size_t)info.n_experts, sizeof *t->scratch);
    return t->share && t->scratch ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for tables");
}

void cot_gateway_check_tables(cot_gateway_worker *w, const json_t *document)
{
    cot_gateway *g = w->gateway;
    const cot_gateway_tables *t = &g->tables;
    const json_t *said = json_object_get(document, "popularity");
    const char *hash = json_string_value(json_object_get(document, "model_hash"));
    if (!t->predictor) return;
    const bool is_other = (hash && *t->model_hash && strcmp(hash, t->model_hash) != 0) ||
                          (json_is_object(said) &&
                           (json_integer_value(json_object_get(said, "cells")) != t->shape.cells ||
                            json_integer_value(json_object_get(said, "layers_every")) != t->shape.every));
    if (!is_other) return;
    cot_access_tell(&g->access, COT_LOG_WARNING,
                    "'%s' has tables of another model than worker '%s' serves: they are ignored",
                    g->options.signature_tables, w->entry.name);
    cot_gateway_close_tables(g);
    if (g->cells_are_told) return;
    cot_gateway_forget_experts(g);
    for (cot_gateway_worker *other = g->workers; other; other = other->next)
        other->layers_every = cot_gateway_layers_every(g); // the tables' layers, as it told none
}

double cot_gateway_layers_every(const cot_gateway *g)
{
    return g->tables.predictor ? g->tables.shape.every : 1;
}

cot_route_calls *cot_gateway_foretell(cot_gateway *g, const int32_t *ids, size_t count)
{
    const cot_gateway_tables *t = &g->tables;
    int32_t rows[COT_PREDICT_TEXT_TOKENS];
    if (!t->predictor || !count || !cot_gateway_begin_experts(g, (size_t)t->shape.cells, t->model_hash))
        return NULL;
    const int64_t known = cot_predict_text_rows(rows, t->predictor, ids, (int64_t)count);
    cot_route_calls *calls = known ? malloc(sizeof *calls) : NULL;
    if (!calls) return NULL;
    for (int32_t k = 0; k < t->shape.kept; k++)
        cot_predict_text_shares(t->share + (int64_t)k * t->shape.n_experts, t->scratch, t->predictor,
                                k * t->shape.every, rows, known);
    cot_route_calls_of(calls, t->share, (size_t)t->shape.cells);
    cot_route_signatures_foretell(g->signatures, calls);
    g->figures.foretold++;
    return calls;
}
