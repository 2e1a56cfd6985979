#include "engine/pipeline.h"

#include "base/error.h"
#include "engine/replay.h"

#include <string.h>

/* The predictions that a running engine can make, the best first. */
static const cot_predict_method methods[] = {COT_PREDICT_ALGORITHM_2, COT_PREDICT_TOKEN_TABLE,
                                             COT_PREDICT_DEVICE_SEQUENCE};
enum { METHODS = sizeof methods / sizeof *methods };

static bool is(const char *name, const char *text)
{
    return name && !strcmp(name, text);
}

/* Ids that stand for strings mean something to a trace alone. */
static bool foretells(const cot_predictor_info *tables, cot_predict_method method,
                      const cot_engine_options *o)
{
    const bool traced = o->routing && o->routing->trace;
    return tables->has[method] && !(tables->token_strings && cot_homes_read_ids(method) && !traced);
}

static const char *const foresights[] = {
#define COT_FORESIGHT_TEXT(name, text) text,
    COT_FORESIGHT_LIST(COT_FORESIGHT_TEXT)
#undef COT_FORESIGHT_TEXT
        NULL};

/* What tables foretell has other names: all that are not known here. */
static cot_foresight foresight_named(const char *name)
{
    for (int f = 0; foresights[f]; f++)
        if (f != COT_FORESIGHT_TABLES && is(name, foresights[f])) return (cot_foresight)f;
    return COT_FORESIGHT_TABLES;
}

static cot_status check_names(const cot_engine_options *o, cot_error *error)
{
    bool known = !o->predict || foresight_named(o->predict) != COT_FORESIGHT_TABLES;
    for (int m = 0; m < METHODS; m++) known |= is(o->predict, cot_predict_method_names[methods[m]]);
    if (o->pipeline && !is(o->pipeline, "ds-moe") && !is(o->pipeline, "s-moe"))
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown pipeline '%s' (ds-moe or s-moe)", o->pipeline);
    if (!known)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "unknown prediction '%s' (none, token-table, device-sequence, algorithm-2, gate, oracle or "
            "worst)",
            o->predict);
    if (o->collective && !is(o->collective, "ring") && !is(o->collective, "direct"))
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown collective '%s' (ring or direct)",
                        o->collective);
    if (is(o->attention, "dp") && (o->pipeline || o->predict || o->collective))
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "pipeline, prediction and collective are of attention tp: with dp tokens stay at home");
    return COT_OK;
}

/* The method that the options name, or the best that the tables have. */
static cot_status choose_method(cot_pipeline *p, const cot_engine_options *o, const cot_predictor *tables,
                                cot_error *error)
{
    cot_predictor_info info;
    const bool replays = o->routing != NULL, recorded = replays && o->routing->trace;
    p->foresight = o->predict ? foresight_named(o->predict) : COT_FORESIGHT_NONE;
    if (p->foresight == COT_FORESIGHT_GATE && replays)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "prediction 'gate' asks gates, which replayed routing does not");
    if ((p->foresight == COT_FORESIGHT_ORACLE || p->foresight == COT_FORESIGHT_WORST) && !recorded)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "prediction '%s' needs recorded routing: a trace to replay (--routing trace:FILE)",
                        o->predict);
    if (o->predict ? p->foresight != COT_FORESIGHT_TABLES : !tables) return COT_OK;
    if (!tables)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "prediction '%s' needs tables (of coterie group --tables)", o->predict);
    cot_predictor_describe(&info, tables);
    for (int m = 0; m < METHODS; m++) {
        if (o->predict && !is(o->predict, cot_predict_method_names[methods[m]])) continue;
        if (foretells(&info, methods[m], o)) {
            p->foresight = COT_FORESIGHT_TABLES;
            p->first_layer = cot_engine_replay_first_layer(o->routing);
            p->tables = tables;
            p->method = methods[m];
            return COT_OK;
        }
        if (o->predict)
            return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' has no tables for '%s'%s", o->tables,
                            o->predict,
                            info.has[methods[m]] ? " that go by ids: tokens are known by their strings" : "");
    }
    return COT_OK;
}

cot_status cot_engine_pipeline_check_layout(const cot_expert_layout *layout, const char *name,
                                            cot_error *error)
{
    for (int32_t l = 0; l < layout->n_layers; l++) {
        const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
        for (int32_t e = 0; e < layout->n_experts; e++)
            if (r.begin[e + 1] - r.begin[e] > 1)
                return cot_fail(
                    error, COT_INVALID_ARGUMENT,
                    "pipeline s-moe takes no replicas: '%s' has expert %d of layer %d more than once", name,
                    (int)e, (int)layout->layers[l]);
    }
    return COT_OK;
}

cot_status cot_engine_pipeline_of(cot_pipeline *p, const cot_engine_options *o, const cot_predictor *tables,
                                  const cot_expert_layout *layout, cot_error *error)
{
    *p = (cot_pipeline){0};
    cot_status status = check_names(o, error);
    if (status != COT_OK || is(o->attention, "dp")) return status;
    p->s_moe = o->pipeline ? is(o->pipeline, "s-moe") : tables != NULL;
    p->direct = o->collective ? is(o->collective, "direct") : p->s_moe;
    if (!p->s_moe && o->predict && !is(o->predict, "none"))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "pipeline ds-moe foretells nothing: prediction '%s' is of s-moe", o->predict);
    if (!p->s_moe) return COT_OK;
    const char *name = o->placement_name ? o->placement_name : "the placement";
    status = cot_engine_pipeline_check_layout(layout, name, error);
    return status == COT_OK ? choose_method(p, o, tables, error) : status;
}

const char *cot_engine_pipeline_name(const cot_pipeline *p)
{
    return p->s_moe ? "s-moe" : "ds-moe";
}

const char *cot_engine_predict_name(const cot_pipeline *p)
{
    return p->foresight == COT_FORESIGHT_TABLES ? cot_predict_method_names[p->method]
                                                : foresights[p->foresight];
}

const char *cot_engine_collective_name(const cot_pipeline *p)
{
    return p->direct ? "direct" : "ring";
}
