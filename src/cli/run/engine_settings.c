#include "cli/run/engine_settings.h"

#include "cli/frame/command.h"
#include "cli/frame/progress.h"

#include "coterie/started.h"
#include "coterie/topology.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COT_WORD(text, value) text,
#define COT_NO_WORD COT_WORD
#define COT_REPLAYED_WORD COT_WORD
#define COT_CHOICE(group, field, said, words, ...)                                                           \
    const char *const cli_##group##_##field##_words[] = {words NULL};
#include "coterie/engine_options.def"
#undef COT_WORD
#undef COT_NO_WORD
#undef COT_REPLAYED_WORD

// clang-format off
#define COT_IN_RANKS COT_ROW
#define COT_IN_SCHEDULING COT_NO_ROW
#define COT_REPLAYED_WORD(text, value)
#define COT_REPLAYING(replaying, others) others
#define COT_SERVING(serving, others) others
const cli_option cli_engine_option_rows[] = {
#include "cli/run/engine_rows.def"
    {0}};
#undef COT_SERVING
#define COT_SERVING(serving, others) serving
const cli_option cli_serving_option_rows[] = {
#include "cli/run/engine_rows.def"
    {0}};
#undef COT_IN_RANKS
#undef COT_IN_SCHEDULING
#define COT_IN_RANKS COT_NO_ROW
#define COT_IN_SCHEDULING COT_ROW
const cli_option cli_scheduling_option_rows[] = {
#include "cli/run/engine_rows.def"
    {0}};
#undef COT_IN_RANKS
#undef COT_IN_SCHEDULING
#undef COT_SERVING
#undef COT_REPLAYING
#undef COT_REPLAYED_WORD
#define COT_IN_RANKS COT_ROW
#define COT_IN_SCHEDULING COT_NO_ROW
#define COT_REPLAYED_WORD(text, value) text,
#define COT_REPLAYING(replaying, others) replaying
#define COT_SERVING(serving, others) others
const cli_option cli_replaying_option_rows[] = {
#include "cli/run/engine_rows.def"
    {0}};
// clang-format on

const cli_option cli_routing_option_rows[] = {{"save-routing", 0, CLI_OPTION_TEXT, "FILE", NULL,
                                               "write the routing of every token as a trace",
                                               offsetof(cli_engine_settings, save_routing)},
                                              {0}};

/* Of an element of experts' weights. */
static int64_t element_bytes(const cli_engine_settings *s)
{
    const char *precision = s->options.weights.precision;
    return !strcmp(precision, "fp32") ? 4 : !strcmp(precision, "int8") ? 1 : 2;
}

cot_engine_options cli_engine_options_of(const cli_engine_settings *s, const cli_engine_needs *needs)
{
    enum { MOST_AT_ONCE = 64 };
    cot_engine_options o = s->options;
    o.size = sizeof o;
    o.version = COT_ENGINE_OPTIONS_VERSION;
    o.group.ranks = (int)cli_engine_ranks(s);
    o.watch.capture_routing = needs->capture_routing || s->save_routing;
    o.memory.kv_tokens = needs->kv_tokens;
    o.experts.routing = needs->routing;
    if (needs->block_tokens) o.memory.block_tokens = needs->block_tokens;
    if (s->no_prefix_caching) o.memory.block_tokens = 0;
    if (needs->step_tokens) o.batch.step_tokens = needs->step_tokens;
    if (needs->shape) o.experts.layers = cli_model_shape_expert_layers(needs->shape, element_bytes(s));
    if (!o.batch.sequences)
        o.batch.sequences = needs->sequences < 1              ? 1
                            : needs->sequences > MOST_AT_ONCE ? MOST_AT_ONCE
                                                              : (int)needs->sequences;
    return o;
}

bool cli_attention_is_split(const cli_engine_settings *settings)
{
    return !settings->options.attention.mode || strcmp(settings->options.attention.mode, "dp") != 0;
}

int64_t cli_engine_ranks(const cli_engine_settings *s)
{
    return s->options.group.ranks ? s->options.group.ranks : cli_is_rank() ? cot_launch_started().ranks : 1;
}

static void show(void *context, size_t done, size_t total)
{
    cli_progress_show(context, done, total);
}

static void say(void *context, const char *line)
{
    (void)context;
    cli_complain("note: %s", line);
}

/* --placement, where it is given, as a map that the caller frees. */
static cot_status read_placement(cot_engine_options *options, cot_expert_map *map,
                                 const cli_engine_settings *settings, const char *model, const char *config,
                                 cot_error *error)
{
    if (!settings->placement) return COT_OK;
    cot_model_info info = {0};
    cot_status status = config ? cot_model_describe_config(&info, config, strlen(config), error)
                               : cot_model_describe(&info, model, error);
    cot_expert_map_options reading = {.size = sizeof reading,
                                      .ranks = options->group.ranks,
                                      .n_layers = (int32_t)info.layers,
                                      .moe_layer = info.moe_layer,
                                      .moe_layers = (int32_t)info.moe_layers,
                                      .say = say};
    if (status == COT_OK) status = cot_expert_map_read(map, settings->placement, &reading, error);
    options->experts.placement = map;
    options->experts.placement_name = settings->placement;
    cot_model_info_clear(&info);
    return status;
}

/* --topology, where it is given, as distances [P][P] that the caller frees: microseconds of a small message where the file has measured them, else
 * hops. */
static cot_status read_topology(cot_engine_options *options, double **distance,
                                const cli_engine_settings *settings, cot_error *error)
{
    const char *name = settings->topology;
    const int32_t ranks = options->group.ranks;
    const cot_topology_options reading = {.size = sizeof reading, .say = say};
    cot_topology topology = {0};
    if (!name) return COT_OK;
    const bool is_file = access(name, F_OK) == 0 || strchr(name, '/');
    cot_status status = is_file ? cot_topology_read(&topology, name, &reading, error)
                                : cot_topology_build(&topology, name, ranks, error);
    if (status == COT_OK && topology.n_ranks != ranks) {
        status = error->status = COT_INVALID_ARGUMENT;
        snprintf(error->message, sizeof error->message, "topology '%s' has %d ranks, expected %d", name,
                 (int)topology.n_ranks, (int)ranks);
    }
    if (status == COT_OK) *distance = malloc((size_t)ranks * (size_t)ranks * sizeof **distance);
    if (status == COT_OK && !*distance) {
        *error = (cot_error){COT_OUT_OF_MEMORY, "out of memory for distances of ranks"};
        status = COT_OUT_OF_MEMORY;
    }
    const cot_metric metric = {.cost = topology.measured, .bytes = 4096};
    if (status == COT_OK) status = cot_topology_distances(*distance, &topology, metric, error);
    options->experts.distances = *distance;
    cot_topology_free(&topology);
    return status;
}

/* Half of what is free beside the weights, and beside states unless the memory is theirs, too; of ranks on several hosts, of what the first
 * rank's has free for each of its own. */
static cot_status half_of_free(size_t *bytes, cot_engine_sizes *sizes, const cot_engine_options *o,
                               const char *model, bool has_states, cot_error *error)
{
    const cot_launch_place place = cot_launch_started();
    *bytes = 0;
    const cot_status status = cot_engine_measure(sizes, model, o, 1, error);
    if (status != COT_OK) return status;
    const size_t beside = sizes->here_bytes - (has_states ? sizes->states_bytes : 0);
    if (sizes->available_bytes != SIZE_MAX && beside < sizes->available_bytes)
        *bytes = (sizes->available_bytes - beside) / 2;
    if (!cli_is_rank()) return COT_OK;
    *bytes = *bytes / (size_t)place.here * (size_t)place.ranks;
    return cot_launch_share(bytes, sizeof *bytes, error); // free memory is never twice the same
}

/* --memory. */
static cot_status choose_memory(cot_engine_options *o, const char *text, const char *model, cot_error *error)
{
    const bool is_auto = !strcmp(text, "auto"), digits = *text && strspn(text, "0123456789") == strlen(text);
    char *end;
    errno = 0;
    const unsigned long long bytes = digits ? strtoull(text, &end, 10) : 0;
    *error = (cot_error){0};
    if (is_auto && cli_is_rank()) {
        error->status = COT_UNSUPPORTED;
        snprintf(error->message, sizeof error->message,
                 "--memory auto: ranks over OpenSHMEM give no memory back; say how many bytes");
    } else if (is_auto && o->memory.kv_bytes) {
        error->status = COT_INVALID_ARGUMENT;
        snprintf(error->message, sizeof error->message,
                 "%zu bytes of KV cache, and --memory auto: one of them says how much there is",
                 o->memory.kv_bytes);
    } else if (!is_auto && (errno || !bytes || bytes > INT64_MAX)) {
        error->status = COT_INVALID_ARGUMENT;
        snprintf(error->message, sizeof error->message, "--memory takes bytes or auto, not '%s'", text);
    }
    if (error->status != COT_OK) return error->status;
    o->memory.total_bytes = (size_t)bytes;
    if (!is_auto) return COT_OK;
    cot_engine_options without = *o; // slots that share it
    cot_engine_sizes sizes;
    without.experts.spare_slots = 0;
    const cot_status status = half_of_free(&o->memory.total_bytes, &sizes, &without, model, true, error);
    if (status != COT_OK || o->memory.total_bytes) return status;
    error->status = COT_OUT_OF_MEMORY;
    if (sizes.available_bytes == SIZE_MAX)
        snprintf(error->message, sizeof error->message,
                 "--memory auto: the system does not tell how much is free; say how many bytes");
    else
        snprintf(error->message, sizeof error->message,
                 "--memory auto: the model needs %.2f GB beside it, %.2f GB are available",
                 (double)(sizes.here_bytes - sizes.states_bytes) / 1e9, (double)sizes.available_bytes / 1e9);
    return error->status;
}

/* What the KV cache may take, where the command leaves that to what is free. */
static cot_status choose_cache(cot_engine_options *o, const cli_engine_settings *settings, const char *model,
                               cot_error *error)
{
    cot_engine_sizes sizes;
    if (settings->memory) return choose_memory(o, settings->memory, model, error);
    return o->memory.kv_bytes ? COT_OK : half_of_free(&o->memory.kv_bytes, &sizes, o, model, false, error);
}

void cli_engine_tell_remarks(const cli_engine_needs *needs)
{
    for (const char *line = needs->remarks; line && *line;) {
        const size_t length = strcspn(line, "\n");
        cli_complain("%.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

cot_status cli_engine_open_with(cot_engine **engine, const char *model, const cli_engine_settings *settings,
                                const cli_engine_needs *needs, char **notes, cot_error *error)
{
    cot_engine_options options = cli_engine_options_of(settings, needs);
    cli_progress progress = {needs->loading ? needs->loading : "loading", 0};
    const char *config = needs->shape ? needs->shape->config : needs->config;
    cot_expert_map map = {0};
    double *distance = NULL;
    *notes = NULL;
    cot_status status = read_placement(&options, &map, settings, model, config, error);
    if (status == COT_OK) status = read_topology(&options, &distance, settings, error);
    if (status == COT_OK && needs->kv_of_free) status = choose_cache(&options, settings, model, error);
    if (*progress.what) {
        options.watch.progress = show;
        options.watch.progress_context = &progress;
    }
    if (status == COT_OK && config)
        status = cot_engine_open_random(engine, config, strlen(config), needs->seed, &options, error);
    else if (status == COT_OK)
        status = cot_engine_open(engine, model, &options, notes, error);
    cli_progress_end(&progress);
    cot_expert_map_free(&map);
    free(distance);
    return status;
}

bool cli_engine_open(cot_engine **engine, const char *model, const cli_engine_settings *settings,
                     const cli_engine_needs *needs)
{
    cot_error error;
    char *notes;
    const cot_status status = cli_engine_open_with(engine, model, settings, needs, &notes, &error);
    if (status != COT_OK)
        cli_complain_of(&error);
    else
        cli_note_carriers();
    if (status == COT_OK) cli_tell_notes(notes);
    if (status == COT_OK) cli_engine_tell_remarks(needs);
    free(notes);
    return status == COT_OK;
}

bool cli_routing_recorder_open(cli_routing_recorder *r, const char *path, const char *model,
                               const cot_engine *engine)
{
    *r = (cli_routing_recorder){.path = path};
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
    if (status != COT_OK) cli_complain_of(&r->error);
    return status == COT_OK;
}

void cli_routing_recorder_take(void *context, uint64_t request, int64_t position, int32_t token,
                               const uint16_t *experts, const float *weights)
{
    cli_routing_recorder *r = context;
    (void)position;
    if (r->builder && r->error.status == COT_OK)
        cot_trace_builder_append(r->builder, (int32_t)request, token, experts, weights, &r->error);
}

bool cli_routing_recorder_finish(cli_routing_recorder *r, bool write)
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
        if (!good) cli_complain_of(&r->error);
    }
    cot_trace_builder_close(r->builder);
    return good;
}
