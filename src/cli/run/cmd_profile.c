/* `coterie profile`: what a model's router does with a text. */
#include "cli/commands.h"
#include "cli/run/engine_settings.h"
#include "cli/frame/paths.h"
#include "cli/run/replay.h"
#include "cli/run/stats.h"
#include "cli/run/windows.h"

#include "cli/frame/progress.h"

#include <stdlib.h>

struct profile_settings {
    cli_engine_settings engine;
    cli_replay_settings replay;
    const char *model, *output;
    cli_list texts;
    cli_optional_text stats;
};

struct listener {
    cli_routing_recorder *recorder;
    cli_progress progress;
    size_t done, total;
};

static void on_routing(void *context, uint64_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights)
{
    struct listener *l = context;
    cli_routing_recorder_take(l->recorder, request, position, token, experts, weights);
    cli_progress_show(&l->progress, ++l->done, l->total);
}

static bool profile_sequences(const struct profile_settings *s, cot_engine *engine,
                              const cot_eval_sequence *sequences, size_t count)
{
    const char *model = s->model ? s->model : s->replay.shape;
    cli_routing_recorder recorder;
    cot_error error;
    cot_request *requests = calloc(count + 1, sizeof *requests);
    if (!requests) cli_complain("out of memory");
    bool good = requests && cli_routing_recorder_open(&recorder, cli_output_path(s->output), model, engine);
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
        cli_progress_show(&listener.progress, 0, listener.total);
        good = cot_engine_run(engine, requests, count, &events, &failed, &error) == COT_OK;
        cli_progress_end(&listener.progress);
        if (failed < count)
            cli_complain("window '%s': %s", sequences[failed].name, error.message);
        else if (!good)
            cli_complain_of(&error);
        good = cli_routing_recorder_finish(&recorder, good) && good;
        if (good)
            cli_complain("wrote %zu tokens in %zu %s to '%s'", listener.done, count,
                         count == 1 ? "sequence" : "sequences", s->output);
    }
    free(requests);
    return good && cli_show_stats(engine, s->stats);
}

static bool profile_texts(const struct profile_settings *s, const cli_replay *r)
{
    cli_text_windows windows = {0};
    cot_engine *engine = NULL;
    bool good = cli_text_windows_read(&windows, s->model, s->texts, -1);
    cli_engine_needs needs = cli_text_windows_need(&windows, &s->engine);
    needs.capture_routing = true;
    cli_replay_need(&needs, r);
    good = good && cli_engine_open(&engine, s->model, &s->engine, &needs) &&
           cli_text_windows_cut(&windows, cot_engine_describe(engine)->context_tokens) &&
           profile_sequences(s, engine, windows.sequences, windows.count);
    cli_text_windows_free(&windows);
    cot_engine_close(engine);
    return good;
}

static bool profile_recorded(const struct profile_settings *s, const cli_replay *r)
{
    cot_engine *engine = NULL;
    cli_engine_needs needs = {.kv_tokens = cli_kv_tokens_of(r->sequences, r->count),
                              .sequences = r->count,
                              .capture_routing = true};
    cli_replay_need(&needs, r);
    const bool good = cli_engine_open(&engine, s->model, &s->engine, &needs) &&
                      profile_sequences(s, engine, r->sequences, r->count);
    cot_engine_close(engine);
    return good;
}

static int profile(const void *settings)
{
    const struct profile_settings *s = settings;
    const bool traced = cli_replay_is_of_trace(&s->replay);
    if (!s->texts.count == !traced || !s->output) {
        cli_complain("give --text FILE, or --routing trace:FILE, and -o OUT.safetensors");
        return CLI_EXIT_USAGE;
    }
    if (!cli_replay_check(&s->replay, s->model, traced)) return CLI_EXIT_USAGE;
    if ((s->model && !cli_check_model(s->model)) || !cli_check_output(s->output, NULL) ||
        !cli_check_output(s->stats.text, cli_is_standard_output(s->output) ? "the trace" : NULL))
        return CLI_EXIT_FAILURE;
    cli_replay r;
    const bool good = cli_replay_open(&r, &s->replay, &s->engine) &&
                      (traced ? profile_recorded(s, &r) : profile_texts(s, &r));
    cli_replay_close(&r);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

#define AT(field) offsetof(struct profile_settings, field)
static const cli_option profile_options[] = {
    {"text", 0, CLI_OPTION_LIST, "FILE", NULL, "text, cut into windows of the context", AT(texts)},
    {"output", 'o', CLI_OPTION_TEXT, "OUT.safetensors", NULL,
     "the routing trace to write; - is standard output", AT(output)},
    {"stats", 0, CLI_OPTION_OPTIONAL_TEXT, "FILE.json", NULL,
     "show bytes, messages, locality and speed on standard error, or write them to a file", AT(stats)},
    {0}};

const cli_command cli_cmd_profile = {
    .name = "profile",
    .summary = "record which experts a model sends a text's tokens to, as a routing trace",
    .details = "Each window of the context is a sequence of the trace. See coterie trace info for what a "
               "trace tells.",
    .examples =
        (const char *const[]){
            "coterie profile models/tiny --text book.txt -o trace.safetensors",
            "coterie profile MODEL --text a.txt --text b.txt --ranks 4 -o trace.safetensors", NULL},
    .options = {.groups =
                    (const cli_option_group[]){{"Options", profile_options, 0},
                                               {"Replayed routing", cli_replay_option_rows, AT(replay)},
                                               {"Group of ranks", cli_replaying_option_rows, AT(engine)},
                                               {0}},
                .positionals =
                    (const cli_positional[]){{"MODEL", 0, 1, "a model folder, or a GGUF file", AT(model)},
                                             {0}}},
    .settings_bytes = sizeof(struct profile_settings),
    .run = profile};
