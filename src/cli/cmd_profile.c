/* `coterie profile`: what a model's router does with a text. */
#include "commands.h"
#include "engine_settings.h"
#include "paths.h"
#include "replay.h"
#include "stats.h"
#include "windows.h"

#include "progress.h"

#include <stdlib.h>

struct profile_settings {
    engine_settings engine;
    replay_settings replay;
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

static bool profile_sequences(const struct profile_settings *s, cot_engine *engine,
                              const cot_eval_sequence *sequences, size_t count)
{
    const char *model = s->model ? s->model : s->replay.shape;
    routing_recorder recorder;
    cot_error error;
    cot_request *requests = calloc(count + 1, sizeof *requests);
    if (!requests) cot_complain("out of memory");
    bool good = requests && routing_recorder_open(&recorder, cot_output_path(s->output), model, engine);
    if (good) {
        struct listener listener = {&recorder, {"profiling", 0}, 0, 0};
        for (size_t i = 0; i < count; i++) {
            const cot_eval_sequence *q = &sequences[i];
            requests[i] = (cot_request){.prompt = q->ids, // nothing is generated
                                        .prompt_tokens = q->prefill_tokens,
                                        .forced = q->ids + q->prefill_tokens,
                                        .forced_tokens = q->tokens - q->prefill_tokens,
                                        .recorded = q->recorded};
            listener.total += (size_t)q->tokens;
        }
        cot_events events = {.context = &listener, .on_routing = on_routing};
        size_t failed;
        cot_progress_show(&listener.progress, 0, listener.total);
        good = cot_engine_run(engine, requests, count, &events, &failed, &error) == COT_OK;
        cot_progress_end(&listener.progress);
        if (failed < count)
            cot_complain("window '%s': %s", sequences[failed].name, error.message);
        else if (!good)
            cot_complain_of(&error);
        good = routing_recorder_finish(&recorder, good) && good;
    }
    free(requests);
    return good && cot_show_stats(engine, s->stats);
}

static bool profile_texts(const struct profile_settings *s, const replay *r)
{
    text_windows windows = {0};
    cot_engine *engine = NULL;
    bool good = text_windows_read(&windows, s->model, s->texts, -1);
    engine_needs needs = text_windows_need(&windows, &s->engine);
    needs.capture_routing = true;
    replay_need(&needs, r);
    good = good && cot_engine_open_cli(&engine, s->model, &s->engine, &needs) &&
           text_windows_cut(&windows, cot_engine_describe(engine)->context_tokens) &&
           profile_sequences(s, engine, windows.sequences, windows.count);
    text_windows_free(&windows);
    cot_engine_close(engine);
    return good;
}

static bool profile_recorded(const struct profile_settings *s, const replay *r)
{
    cot_engine *engine = NULL;
    engine_needs needs = {
        .kv_tokens = kv_tokens_of(r->sequences, r->count), .sequences = r->count, .capture_routing = true};
    replay_need(&needs, r);
    const bool good = cot_engine_open_cli(&engine, s->model, &s->engine, &needs) &&
                      profile_sequences(s, engine, r->sequences, r->count);
    cot_engine_close(engine);
    return good;
}

static int profile(const void *settings)
{
    const struct profile_settings *s = settings;
    const bool traced = replay_is_of_trace(&s->replay);
    if (!s->texts.count == !traced || !s->output) {
        cot_complain("give --text FILE, or --routing trace:FILE, and -o OUT.safetensors");
        return COT_EXIT_USAGE;
    }
    if (!replay_check(&s->replay, s->model, traced)) return COT_EXIT_USAGE;
    if ((s->model && !cot_check_model(s->model)) || !cot_check_output(s->output, NULL) ||
        !cot_check_output(s->stats.text, cot_is_standard_output(s->output) ? "the trace" : NULL))
        return COT_EXIT_FAILURE;
    replay r;
    const bool good =
        replay_open(&r, &s->replay, &s->engine) && (traced ? profile_recorded(s, &r) : profile_texts(s, &r));
    replay_close(&r);
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
    .options = {.groups =
                    (const cot_option_group[]){{"Options", profile_options, 0},
                                               {"Replayed routing", cot_replay_option_rows, AT(replay)},
                                               {"Group of ranks", cot_replaying_option_rows, AT(engine)},
                                               {0}},
                .positionals =
                    (const cot_positional[]){{"MODEL", 0, 1, "a model folder, or a GGUF file", AT(model)},
                                             {0}}},
    .settings_bytes = sizeof(struct profile_settings),
    .run = profile};
