#include "engine_settings.h"

#include "command.h"
#include "progress.h"

#include "coterie/started.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const cot_precision_names[] = {"bf16", "fp32", "int8", NULL};
const char *const cot_weights_names[] = {"as-stored", "bf16", "fp32", "int8", "fp8", "int4", "mxfp4", NULL};
static const char *const dense_weights[] = {"auto", "as-stored", "bf16",  "fp32", "int8",
                                            "fp8",  "int4",      "mxfp4", NULL};
static const char *const attentions[] = {"tp", "dp", NULL};
const char *const cot_combine_names[] = {"exact", "reduced", NULL};
static const char *const payloads[] = {"as-precision", "bf16", "fp32", NULL};

static const char *const pipelines[] = {"auto", "ds-moe", "s-moe", NULL};
#define PREDICTIONS "auto", "none", "token-table", "device-sequence", "algorithm-2", "gate"
static const char *const predictions[] = {PREDICTIONS, "oracle", "worst", NULL};
static const char *const predictions_of_gates[] = {PREDICTIONS, NULL}; // where nothing is replayed
#define PREDICT_HELP                                                                                         \
    "what s-moe goes by; none: tokens' indices; token-table, device-sequence, algorithm-2: --tables; gate: " \
    "the next layer's gate, asked a layer early; auto: algorithm-2, or what of it the tables have"
#define PREDICT_OTHERWISE                                                                                    \
    "oracle and worst look at recorded routing, which eval, profile and bench pipeline replay (--routing "   \
    "trace:FILE)"
const char *const cot_a2a_names[] = {"auto", "padded", "two-phase", "one-shot", NULL};
const char *const cot_dedup_names[] = {"auto", "off", "on", NULL};
static const char *const collectives[] = {"auto", "ring", "direct", NULL};

// clang-format off
#define ENGINE_ROWS(attention_default, predict_help, predict_choices, predict_otherwise)  \
    {"ranks", 'r', COT_OPTION_INTEGER, "P", NULL, \
     "ranks of the expert-parallel group; default: 1, or as many as oshrun has started", \
     offsetof(engine_settings, ranks), .least = 1, .most = 64}, \
    {"threads", 't', COT_OPTION_INTEGER, "N", "0", \
     "threads in all (0: as many as cores); beyond P they help, below P they limit", \
     offsetof(engine_settings, threads), .least = 0, .most = 1024}, \
    {"precision", 0, COT_OPTION_CHOICE, "TYPE", "bf16", \
     "arithmetic and payload; int8: bf16, but rows are rounded where weights are int8, int4 or mxfp4, as experts' are", \
     offsetof(engine_settings, precision), .choices = cot_precision_names}, \
    {"weights", 0, COT_OPTION_CHOICE, "TYPE", "as-stored", \
     "what weights of experts and dense networks are kept as, rounded where the files have more; as-stored: what the files " \
     "have in 8 or 4 bits stays, all else is as the precision says", \
     offsetof(engine_settings, weights), .choices = cot_weights_names}, \
    {"weights-attention", 0, COT_OPTION_CHOICE, "TYPE", "auto", \
     "the same of attention's projections; auto: as --weights, but not rounded to less than int8", \
     offsetof(engine_settings, weights_attention), .choices = dense_weights}, \
    {"weights-head", 0, COT_OPTION_CHOICE, "TYPE", "auto", "the same of the head", \
     offsetof(engine_settings, weights_head), .choices = dense_weights}, \
    {"attention", 0, COT_OPTION_CHOICE, "HOW", attention_default, \
     "tp: heads split over ranks; dp: a sequence's tokens and KV stay on its home rank", \
     offsetof(engine_settings, attention), .choices = attentions}, \
    {"op", 0, COT_OPTION_TEXT, "NAME", NULL, "MoE operator (see coterie info)", \
     offsetof(engine_settings, op)}, \
    {"sms-reserve", 0, COT_OPTION_INTEGER, "N", "0", \
     "multiprocessors of the GPU that --op cuda leaves to others; refused by operators that run on none", \
     offsetof(engine_settings, sms_reserve), .least = 0, .most = 4096}, \
    {"fabric", 0, COT_OPTION_TEXT, "NAME", NULL, "what ranks are (see coterie info)", \
     offsetof(engine_settings, fabric)}, \
    COT_TIMEOUT_ROW(offsetof(engine_settings, timeout)), \
    {"hostfile", 0, COT_OPTION_TEXT, "FILE", NULL, \
     "with --fabric shmem: where oshrun starts the ranks, one address a line, slots=N for several ranks there", \
     offsetof(engine_settings, hostfile)}, \
    {"combine", 0, COT_OPTION_CHOICE, "HOW", "exact", \
     "exact: each expert's row travels back, so that what experts add is the same to the bit for every P; " \
     "reduced: a rank adds its experts' rows first, fewer bytes", \
     offsetof(engine_settings, combine), .choices = cot_combine_names}, \
    {"a2a", 0, COT_OPTION_CHOICE, "HOW", "auto", \
     "how bulk sends rows: padded: all blocks as long as the longest; two-phase: after counts; one-shot: in one " \
     "message with all there is to know of them; auto: one-shot with s-moe and --tables, else two-phase", \
     offsetof(engine_settings, a2a), .choices = cot_a2a_names}, \
    {"dedup", 0, COT_OPTION_CHOICE, "HOW", "auto", \
     "on: a token goes once to a rank (as always with fused); off: once for each expert there; auto: on with " \
     "s-moe and --tables, else off", \
     offsetof(engine_settings, dedup), .choices = cot_dedup_names}, \
    {"payload", 0, COT_OPTION_CHOICE, "TYPE", "as-precision", "what travels back from experts", \
     offsetof(engine_settings, payload), .choices = payloads}, \
    {"placement", 0, COT_OPTION_TEXT, "FILE", NULL, \
     "where experts sit, replicas too, in any format that coterie place convert reads; default: consecutive " \
     "experts", \
     offsetof(engine_settings, placement)}, \
    {"tables", 0, COT_OPTION_TEXT, "FILE", NULL, \
     "tables of coterie group for this model and P: their groups of experts are the placement (a --placement " \
     "too must agree)", \
     offsetof(engine_settings, tables)}, \
    {"pipeline", 0, COT_OPTION_CHOICE, "HOW", "auto", \
     "of attention tp: ds-moe: allreduce, experts, allgather; s-moe: tokens meet their experts in a reduce-scatter, " \
     "where tables foretell it; auto: s-moe with --tables", \
     offsetof(engine_settings, pipeline), .choices = pipelines}, \
    {"predict", 0, COT_OPTION_CHOICE, "METHOD", "auto", \
     predict_help, offsetof(engine_settings, predict), .choices = predict_choices, \
     .otherwise = predict_otherwise}, \
    {"collective", 0, COT_OPTION_CHOICE, "HOW", "auto", \
     "ring, or direct: in one hop; auto: direct with s-moe", \
     offsetof(engine_settings, collective), .choices = collectives}, \
    {"expert-slots", 0, COT_OPTION_INTEGER, "N", "0", \
     "experts that a rank has room for in each layer, at most 65535 / P (0: all slots up to the highest that " \
     "the placement uses)", \
     offsetof(engine_settings, expert_slots), .least = 0, .most = 65535}, \
    {"isa", 0, COT_OPTION_TEXT, "NAME", NULL, "caps the instruction set (see coterie info)", \
     offsetof(engine_settings, isa)}, \
    {0}
// clang-format on

const cot_option cot_engine_option_rows[] = {
    ENGINE_ROWS("tp", PREDICT_HELP, predictions_of_gates, PREDICT_OTHERWISE)};
const cot_option cot_serving_option_rows[] = {
    ENGINE_ROWS("dp", PREDICT_HELP, predictions_of_gates, PREDICT_OTHERWISE)};
const cot_option cot_replaying_option_rows[] = {
    ENGINE_ROWS("tp", PREDICT_HELP "; oracle, worst: with, against the experts of --routing trace:FILE",
                predictions, NULL)};

const cot_option cot_routing_option_rows[] = {{"save-routing", 0, COT_OPTION_TEXT, "FILE", NULL,
                                               "write the routing of every token as a trace",
                                               offsetof(engine_settings, save_routing)},
                                              {0}};

/* Of an element of experts' weights. */
static int64_t settings_bytes(const engine_settings *s)
{
    return (const int64_t[]){2, 4, 1}[s->precision]; // as cot_precision_names
}

cot_engine_options cot_engine_options_of(const engine_settings *s, const engine_needs *needs)
{
    enum { MOST_AT_ONCE = 64 };
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.ranks = (int)cot_engine_ranks(s);
    o.threads = (int)s->threads;
    o.precision = cot_precision_names[s->precision];
    o.weights = cot_weights_names[s->weights];
    o.weights_attention = s->weights_attention ? dense_weights[s->weights_attention] : NULL;
    o.weights_head = s->weights_head ? dense_weights[s->weights_head] : NULL;
    o.attention = attentions[s->attention];
    o.op = s->op;
    o.sms_reserve = (int)s->sms_reserve;
    o.fabric = s->fabric;
    o.timeout_ns = (int64_t)(s->timeout * 1e9);
    o.combine = cot_combine_names[s->combine];
    o.payload = s->payload ? payloads[s->payload] : NULL;
    o.isa = s->isa;
    o.tables = s->tables;
    o.pipeline = s->pipeline ? pipelines[s->pipeline] : NULL;
    o.predict = s->predict ? predictions[s->predict] : NULL;
    o.a2a = s->a2a ? cot_a2a_names[s->a2a] : NULL;
    o.dedup = s->dedup ? cot_dedup_names[s->dedup] : NULL;
    o.collective = s->collective ? collectives[s->collective] : NULL;
    o.expert_slots = (int32_t)s->expert_slots;
    o.capture_routing = needs->capture_routing || s->save_routing;
    o.kv_tokens = needs->kv_tokens;
    o.block_tokens = needs->block_tokens;
    o.routing = needs->routing;
    if (needs->step_tokens) o.step_tokens = needs->step_tokens;
    if (needs->shape) o.expert_layers = model_shape_expert_layers(needs->shape, settings_bytes(s));
    o.sequences = needs->sequences < 1              ? 1
                  : needs->sequences > MOST_AT_ONCE ? MOST_AT_ONCE
                                                    : (int)needs->sequences;
    return o;
}

bool cot_attention_is_split(const engine_settings *settings)
{
    return settings->attention == 0;
}

int64_t cot_engine_ranks(const engine_settings *s)
{
    return s->ranks ? s->ranks : cot_is_rank() ? cot_launch_started().ranks : 1;
}

static void show(void *context, size_t done, size_t total)
{
    cot_progress_show(context, done, total);
}

static void say(void *context, const char *line)
{
    (void)context;
    cot_complain("note: %s", line);
}

cot_status cot_engine_placement(cot_engine_options *options, cot_expert_map *map,
                                const engine_settings *settings, const cot_model_info *model,
                                cot_error *error)
{
    cot_expert_map_options reading = {.size = sizeof reading,
                                      .ranks = options->ranks,
                                      .n_layers = (int32_t)model->layers,
                                      .moe_layer = model->moe_layer,
                                      .moe_layers = (int32_t)model->moe_layers,
                                      .say = say};
    const cot_status status = cot_expert_map_read(map, settings->placement, &reading, error);
    options->placement = map;
    options->placement_name = settings->placement;
    return status;
}

void cot_engine_tell_remarks(const engine_needs *needs)
{
    for (const char *line = needs->remarks; line && *line;) {
        const size_t length = strcspn(line, "\n");
        cot_complain("%.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

bool cot_engine_open_cli(cot_engine **engine, const char *model, const engine_settings *settings,
                         const engine_needs *needs)
{
    cot_engine_options options = cot_engine_options_of(settings, needs);
    cot_progress progress = {"loading", 0};
    options.progress = show;
    options.progress_context = &progress;
    cot_error error;
    char *notes = NULL;
    cot_model_info info = {0};
    cot_expert_map map = {0};
    const model_shape *shape = needs->shape;
    cot_status status = COT_OK;
    if (settings->placement)
        status = shape ? cot_model_describe_config(&info, shape->config, strlen(shape->config), &error)
                       : cot_model_describe(&info, model, &error);
    if (status == COT_OK && settings->placement)
        status = cot_engine_placement(&options, &map, settings, &info, &error);
    if (status == COT_OK && shape)
        status = cot_engine_open_random(engine, shape->config, strlen(shape->config), 1, &options, &error);
    else if (status == COT_OK)
        status = cot_engine_open(engine, model, &options, &notes, &error);
    cot_progress_end(&progress);
    cot_expert_map_free(&map);
    cot_model_info_clear(&info);
    if (status != COT_OK)
        cot_complain_of(&error);
    else
        cot_note_carriers();
    if (status == COT_OK) cot_tell_notes(notes);
    if (status == COT_OK) cot_engine_tell_remarks(needs);
    free(notes);
    return status == COT_OK;
}

bool routing_recorder_open(routing_recorder *r, const char *path, const char *model, const cot_engine *engine)
{
    *r = (routing_recorder){.path = path};
    if (!path) return true;
    const cot_engine_info *info = cot_engine_describe(engine);
    r->model_hash = info->model_hash;
    r->hidden = (int32_t)info->hidden;
    size_t length = strlen(model);
    while (length > 1 && model[length - 1] == '/') length--;
    char *name = strndup(model, length), *base = name ? strrchr(name, '/') : NULL;
    cot_status status = cot_trace_builder_open(&r->builder,
                                               base && base[1] ? base + 1
                                               : name          ? name
                                                               : "",
                                               (int32_t)info->moe_layers, info->moe_layer,
                                               (int32_t)info->experts, (int32_t)info->top_k, &r->error);
    free(name);
    if (status != COT_OK) cot_complain_of(&r->error);
    return status == COT_OK;
}

void routing_recorder_take(void *context, uint64_t request, int64_t position, int32_t token,
                           const uint16_t *experts, const float *weights)
{
    routing_recorder *r = context;
    (void)position;
    if (r->builder && r->error.status == COT_OK)
        cot_trace_builder_append(r->builder, (int32_t)request, token, experts, weights, &r->error);
}

bool routing_recorder_finish(routing_recorder *r, bool write)
{
    bool good = true;
    if (r->builder && write) {
        cot_trace trace = {0};
        cot_status status = r->error.status;
        if (status == COT_OK) status = cot_trace_builder_finish(&trace, r->builder, &r->error);
        trace.model_hash = r->model_hash;
        trace.hidden = r->hidden;
        if (status == COT_OK) status = cot_trace_write(&trace, r->path, &r->error);
        cot_trace_close(&trace);
        good = status == COT_OK;
        if (!good) cot_complain_of(&r->error);
    }
    cot_trace_builder_close(r->builder);
    return good;
}
