/* `coterie profile`: what a model's router does with a text. */
#include "commands.h"
#include "engine_settings.h"
#include "paths.h"
#include "stats.h"
#include "windows.h"

#include "progress.h"

#include <stdlib.h>

struct profile_settings {
    engine_settings engine;
    const char *model, *output;
    cot_list texts;
    cot_optional_text stats;
};

struct listener {
    routing_recorder *recorder;
    cot_progress progress;
    size_t done, total;
};

static void on_routing(void *context, uint64_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights)
{
    struct listener *l = context;
    routing_recorder_take(l->recorder, request, position, token, experts, weights);
    cot_progress_show(&l->progress, ++l->done, l->total);
}

static bool profile_windows(const struct profile_settings *s, cot_engine *engine, const text_windows *w)
{
    routing_recorder recorder;
    cot_error error;
    cot_request *requests = calloc(w->count + 1, sizeof *requests);
    if (!requests) cot_complain("out of memory");
    bool good = requests && routing_recorder_open(&recorder, cot_output_path(s->output), s->model, engine);
    if (good) {
        struct listener listener = {&recorder, {"profiling", 0}, 0, 0};
        for (size_t i = 0; i < w->count; i++) {
            const cot_eval_sequence *q = &w->sequences[i];
            requests[i] = (cot_request){
                .prompt = q->ids, .prompt_tokens = q->tokens, .forced = q->ids}; // nothing is generated
            listener.total += (size_t)q->tokens;
        }
        cot_events events = {.context = &listener, .on_routing = on_routing};
        size_t failed;
        cot_progress_show(&listener.progress, 0, listener.total);
        good = cot_engine_run(engine, requests, w->count, &events, &failed, &error) == COT_OK;
        cot_progress_end(&listener.progress);
        if (failed < w->count)
            cot_complain("window '%s': %s", w->sequences[failed].name, error.message);
        else if (!good)
            cot_complain_of(&error);
        good = routing_recorder_finish(&recorder, good) && good;
    }
    free(requests);
    return good && cot_show_stats(engine, s->stats);
}

static int profile(const void *settings)
{
    const struct profile_settings *s = settings;
    if (!s->texts.count || !s->output) {
        cot_complain("give --text FILE and -o OUT.safetensors");
        return COT_EXIT_USAGE;
    }
    if (!cot_check_model(s->model) || !cot_check_output(s->output, NULL) ||
        !cot_check_output(s->stats.text, cot_is_standard_output(s->output) ? "the trace" : NULL))
        return COT_EXIT_FAILURE;
    text_windows windows = {0};
    cot_engine *engine = NULL;
    bool good = text_windows_read(&windows, s->model, s->texts, -1);
    engine_needs needs = text_windows_need(&windows, &s->engine);
    needs.capture_routing = true;
    good = good && cot_engine_open_cli(&engine, s->model, &s->engine, &needs) &&
           text_windows_cut(&windows, cot_engine_describe(engine)->context_tokens) &&
           profile_windows(s, engine, &windows);
    text_windows_free(&windows);
    cot_engine_close(engine);
    return good ? COT_EXIT_OK : COT_EXIT_FAILURE;
}

#define AT(field) offsetof(struct profile_settings, field)
static const cot_option profile_options[] = {
    {"text", 0, COT_OPTION_LIST, "FILE", NULL, "text, cut into windows of the context", AT(texts)},
    {"output", 'o', COT_OPTION_TEXT, "OUT.safetensors", NULL,
     "the routing trace to write; - is standard output", AT(output)},
    {"stats", 0, COT_OPTION_OPTIONAL_TEXT, "FILE.json", NULL,
     "show bytes, messages, locality and speed on standard error, or write them to a file", AT(stats)},
    {0}};

const cot_command cot_cmd_profile = {
    .name = "profile",
    .summary = "record which experts a model sends a text's tokens to, as a routing trace",
    .details = "Each window of the context is a sequence of the trace. See coterie trace info for what a "
               "trace tells.",
    .examples =
        (const char *const[]){
            "coterie profile models/tiny --text book.txt -o trace.safetensors",
            "coterie profile MODEL --text a.txt --text b.txt --ranks 4 -o trace.safetensors", NULL},
    .options = {.groups = (const cot_option_group[]){{"Options", profile_options, 0},
                                                     {"Group of ranks", cot_engine_option_rows, AT(engine)},
                                                     {0}},
                .positionals = (const cot_positional[]){{"MODEL", 1, 1, "a model folder", AT(model)}, {0}}},
    .settings_bytes = sizeof(struct profile_settings),
    .run = profile};
