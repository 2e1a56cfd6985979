#include "engine/pipeline.h"

#include "base/error.h"
#include "engine/replay.h"

/* The predictions that a running engine can make, the best first. */
static const cot_predict_method methods[] = {COT_PREDICT_ALGORITHM_2, COT_PREDICT_TOKEN_TABLE,
                                             COT_PREDICT_DEVICE_SEQUENCE};
enum { METHODS = sizeof methods / sizeof *methods };

/* Ids that stand for strings mean something to a trace alone. */
static bool foretells(const cot_predictor_info *tables, cot_predict_method method,
                      const cot_engine_options *o)
{
    const bool traced = o->experts.routing && o->experts.routing->trace;
    return tables->has[method] && !(tables->token_strings && cot_homes_read_ids(method) && !traced);
}

/* The method that the options name, or the best that the tables have. */
static cot_status choose_method(cot_pipeline *p, const cot_engine_resolved *r, const cot_predictor *tables,
                                cot_error *error)
{
    cot_predictor_info info;
    const cot_engine_routing *routing = r->given.experts.routing;
    const char *word = r->given.attention.predict;
    const int predict = r->choice.attention_predict;
    const bool said = predict != COT_UNSAID;
    p->foresight = !said                      ? COT_FORESIGHT_NONE
                   : predict < COT_FORESIGHTS ? (cot_foresight)predict
                                              : COT_FORESIGHT_TABLES;
    if (p->foresight == COT_FORESIGHT_GATE && routing)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "prediction 'gate' asks gates, which replayed routing does not");
    if ((p->foresight == COT_FORESIGHT_ORACLE || p->foresight == COT_FORESIGHT_WORST) &&
        !(routing && routing->trace))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "prediction '%s' needs recorded routing: a trace to replay (--routing trace:FILE)",
                        word);
    if (said ? p->foresight != COT_FORESIGHT_TABLES : !tables) return COT_OK;
    if (!tables)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "prediction '%s' needs tables (of coterie group --tables)", word);
    cot_predictor_describe(&info, tables);
    for (int m = 0; m < METHODS; m++) {
        if (said && predict != (int)COT_FORETOLD_BY(methods[m])) continue;
        if (foretells(&info, methods[m], &r->given)) {
            p->foresight = COT_FORESIGHT_TABLES;
            p->first_layer = cot_engine_replay_first_layer(routing);
            p->tables = tables;
            p->method = methods[m];
            return COT_OK;
        }
        if (said)
            return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' has no tables for '%s'%s",
                            r->given.experts.tables, word,
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

cot_status cot_engine_pipeline_of(cot_pipeline *p, const cot_engine_resolved *r, const cot_predictor *tables,
                                  const cot_expert_layout *layout, cot_error *error)
{
    const int pipeline = r->choice.attention_pipeline, predict = r->choice.attention_predict,
              collective = r->choice.attention_collective;
    *p = (cot_pipeline){0};
    if (r->choice.attention_mode &&
        (pipeline != COT_UNSAID || predict != COT_UNSAID || collective != COT_UNSAID))
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "pipeline, prediction and collective are of attention tp: with dp tokens stay at home");
    if (r->choice.attention_mode) return COT_OK;
    p->s_moe = pipeline == COT_UNSAID ? tables != NULL : pipeline;
    p->direct = collective == COT_UNSAID ? p->s_moe : collective;
    if (!p->s_moe && predict != COT_UNSAID && predict != COT_FORESIGHT_NONE)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "pipeline ds-moe foretells nothing: prediction '%s' is of s-moe",
                        r->given.attention.predict);
    if (!p->s_moe) return COT_OK;
    const char *name = r->given.experts.placement_name ? r->given.experts.placement_name : "the placement";
    const cot_status status = cot_engine_pipeline_check_layout(layout, name, error);
    return status == COT_OK ? choose_method(p, r, tables, error) : status;
}

const char *cot_engine_pipeline_name(const cot_pipeline *p)
{
    return p->s_moe ? "s-moe" : "ds-moe";
}

static const char *const foresights[] = {
#define COT_FORESIGHT_TEXT(name, text) text,
    COT_FORESIGHT_LIST(COT_FORESIGHT_TEXT)
#undef COT_FORESIGHT_TEXT
};

const char *cot_engine_predict_name(const cot_pipeline *p)
{
    return p->foresight == COT_FORESIGHT_TABLES ? cot_predict_method_names[p->method]
                                                : foresights[p->foresight];
}

const char *cot_engine_collective_name(const cot_pipeline *p)
{
    return p->direct ? "direct" : "ring";
}
