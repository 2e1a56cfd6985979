/* `coterie serve`: an engine behind the OpenAI API. */
#include "cli/commands.h"
#include "cli/run/engine_settings.h"
#include "cli/frame/paths.h"
#include "cli/serve/access_settings.h"
#include "cli/serve/serve_mock.h"
#include "cli/frame/whole_file.h"

#include "coterie/server.h"
#include "coterie/started.h"
#include "coterie/worker.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct serve_settings {
    cli_engine_settings engine;
    const char *model, *mock, *tokenizer, *chat_template;
    int load_format;
    int64_t seed;
    cli_access_settings access;
    cli_list given, served_names;
    const char *kv_events_config, *step_reports_endpoint, *popularity_endpoint;
    const char *tool_call_parser, *reasoning_parser;
    bool kv_events_no_auth;
    double shutdown_timeout, answer_timeout;
};

static cot_server *serving; // of the signal handler

static void stop_serving(void)
{
    cot_server_stop(serving);
}

static void reload_serving(void)
{
    cot_server_reload(serving);
}

static bool said_why; // the engine failed

static void say(void *context, const char *line)
{
    static const char failure[] = "the engine failed: "; // as the server's log has it
    (void)context;
    said_why |= !strncmp(line, failure, sizeof failure - 1);
    cli_complain("%s", line);
}

/* ---- what is served ---- */

static cot_status open_chat(cot_chat_template **chat, const struct serve_settings *s, cot_error *error)
{
    const char *folder = s->tokenizer ? s->tokenizer : s->model;
    const cot_status status = cot_chat_template_open(chat, folder, s->chat_template, error);
    return status == COT_NOT_FOUND && !s->chat_template ? COT_OK : status; // conversations are refused then
}

static cot_status open_engine(cot_engine **engine, const struct serve_settings *s, cot_error *error)
{
    cli_engine_needs needs = {.seed = (uint64_t)s->seed, .kv_of_free = true};
    char *notes, *config = NULL;
    size_t bytes;
    if (s->load_format) {
        char path[4096];
        snprintf(path, sizeof path, "%s/config.json", s->model);
        needs.config = config = cli_read_whole(path, &bytes);
        *error = (cot_error){COT_IO, "there is no configuration to make weights for"};
        if (!config) return COT_IO;
    }
    const cot_status status = cli_engine_open_with(engine, s->model, &s->engine, &needs, &notes, error);
    if (status == COT_OK) cli_note_carriers();
    cli_tell_notes(notes);
    free(notes);
    free(config);
    return status;
}

/* ---- the command ---- */

static void announce(const struct serve_settings *s, const cot_engine *engine, const cot_chat_template *chat)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    const char *host = s->access.host;
    const bool six = strchr(host, ':') != NULL;
    fprintf(stderr,
            "serving %s at http%s://%s%s%s:%d/v1\n"
            "  %d rank%s, %d thread%s, %s, attention %s, combine %s, context %lld tokens%s\n",
            s->model, s->access.ssl_certfile ? "s" : "", six ? "[" : "", host, six ? "]" : "",
            cot_server_port(serving), info->ranks, info->ranks == 1 ? "" : "s", info->threads,
            info->threads == 1 ? "" : "s", info->precision, info->attention, info->combine,
            (long long)cot_server_max_model_len(serving),
            chat ? "" : "; no chat template: /v1/completions alone");
}

/* What a server is told, and the lists that this points to. */
struct server_setup {
    cot_server_options o;
    cot_model_files files;
    const char *names[CLI_MOST_LISTED + 1];
};

/* A GGUF file may say what the model is called: the name that is served, before the file's own. */
static bool name_of_file(struct server_setup *setup, const char *model)
{
    if (!model || cot_model_describe_files(&setup->files, model, NULL) != COT_OK || !*setup->files.name)
        return false;
    setup->names[0] = setup->files.name;
    setup->names[1] = model;
    setup->names[2] = NULL;
    return true;
}

static void set_up(struct server_setup *setup, const struct serve_settings *s, const cli_access_setup *access)
{
    cot_server_options *o = &setup->o;
    cot_server_options_init(o);
    o->access = access->options;
    o->access.log = say;
    o->served_names = cli_texts_of(&s->served_names, setup->names);
    if (!o->served_names && name_of_file(setup, s->model)) o->served_names = setup->names;
    o->max_queue = s->engine.max_queue;
    o->shutdown_ms = (int64_t)(s->shutdown_timeout * 1000);
    o->answer_timeout_ms = (int64_t)(s->answer_timeout * 1000);
    o->kv_events_config = s->kv_events_config;
    o->step_reports_endpoint = s->step_reports_endpoint;
    o->popularity_endpoint = s->popularity_endpoint;
    o->tool_call_parser = s->tool_call_parser;
    o->reasoning_parser = s->reasoning_parser;
    o->kv_events_no_auth = s->kv_events_no_auth;
}

static cot_status serve(const struct serve_settings *s, const cot_tokenizer *tokenizer,
                        const cot_chat_template *chat, cot_engine *engine, const cot_server_options *o,
                        cot_error *error)
{
    cot_backend *worker;
    cot_status status = cot_worker_of_engine(&worker, engine, s->model, error);
    if (status == COT_OK) status = cot_server_open(&serving, s->model, worker, tokenizer, chat, o, error);
    if (status != COT_OK) return status;
    cli_serve_signals(&s->access, s->shutdown_timeout, stop_serving, reload_serving);
    cot_launch_tell("serves", (int)s->shutdown_timeout + CLI_ABORT_SECONDS);
    cli_allow_descriptors();
    announce(s, engine, chat);
    status = cot_server_run(serving, error);
    cli_serve_signals_end();
    cot_server_close(serving);
    alarm(0);
    return status;
}

static int run_command(const void *settings)
{
    const struct serve_settings *s = settings;
    cli_access_setup access;
    struct server_setup setup;
    cot_tokenizer *tokenizer = NULL;
    cot_chat_template *chat = NULL;
    cot_engine *engine = NULL;
    cot_error error;
    if (!cli_check_list(&s->served_names) || (s->model && !cli_check_model(s->model)) ||
        !cli_check_port(&s->access))
        return CLI_EXIT_FAILURE;
    if (!cli_access_setup_make(&access, &s->access)) {
        cli_access_setup_free(&access);
        return CLI_EXIT_FAILURE;
    }
    set_up(&setup, s, &access);
    if (s->mock) {
        cli_allow_descriptors();
        setup.o.max_model_len = s->engine.options.memory.sequence_tokens;
        const cli_mock_settings mock = {.spec = s->mock,
                                        .tokenizer = s->tokenizer ? s->tokenizer : s->model,
                                        .chat_template = s->chat_template,
                                        .server = &setup.o};
        const int result = cli_serve_mock(&mock);
        cli_access_setup_free(&access);
        return result;
    }
    const int kv_homes = cli_attention_is_split(&s->engine) ? 1 : (int)cli_engine_ranks(&s->engine);
    cot_status status = cot_server_check(&setup.o, kv_homes, &error);
    // Left alone, the allocator learns from giant bodies that each thread may keep as much as those took, and no malloc_trim
    // gives that back: what a server holds at rest would depend on what it was asked before.
    mallopt(M_TRIM_THRESHOLD, 128 << 10);
    if (status == COT_OK)
        status = cot_tokenizer_open(&tokenizer, s->tokenizer ? s->tokenizer : s->model, &error);
    if (status == COT_OK) status = open_chat(&chat, s, &error);
    if (status == COT_OK) status = open_engine(&engine, s, &error);
    if (status == COT_OK) status = serve(s, tokenizer, chat, engine, &setup.o, &error);
    if (status != COT_OK && !said_why) cli_complain_of(&error);
    cot_engine_close(engine);
    cot_chat_template_close(chat);
    cot_tokenizer_close(tokenizer);
    cli_access_setup_free(&access);
    return status == COT_OK                 ? CLI_EXIT_OK
           : status == COT_INVALID_ARGUMENT ? CLI_EXIT_USAGE
                                            : CLI_EXIT_FAILURE;
}

#define AT(field) offsetof(struct serve_settings, field)
static const char *const load_formats[] = {"auto", "dummy", NULL};
static const cli_option serving_options[] = {
    {"served-model-name", 0, CLI_OPTION_LIST, "NAME", NULL,
     "what clients call the model; may be given several times, answers say the first (default: MODEL as "
     "given)",
     AT(served_names)},
    {"tool-call-parser", 0, CLI_OPTION_TEXT, "NAME", "auto",
     "the format in which the model writes calls of tools: hermes, qwen3-coder, deepseek-v3, ... (auto: what "
     "the chat "
     "template writes; none)",
     AT(tool_call_parser)},
    {"reasoning-parser", 0, CLI_OPTION_TEXT, "NAME", "auto",
     "the same of reasoning, which answers have apart from their content: think, gpt-oss, mistral-args, ...",
     AT(reasoning_parser)},
    {"kv-events-config", 0, CLI_OPTION_TEXT, "JSON", NULL,
     "publish what comes into the prefix cache and goes, as vLLM does: '{\"enable_kv_cache_events\": true}', "
     "with endpoint, replay_endpoint, topic, buffer_steps, hwm, max_queue_size",
     AT(kv_events_config)},
    {"kv-events-no-auth", 0, CLI_OPTION_FLAG, NULL, NULL,
     "publish those events, and reports of steps, at addresses that other machines reach, though events tell "
     "what is in prompts",
     AT(kv_events_no_auth)},
    {"step-reports-endpoint", 0, CLI_OPTION_TEXT, "ENDPOINT", NULL,
     "publish what each step was at tcp://ADDRESS:PORT (ZeroMQ PUB): tokens, experts, bytes, the time "
     "foretold and taken",
     AT(step_reports_endpoint)},
    {"popularity-endpoint", 0, CLI_OPTION_TEXT, "ENDPOINT", NULL,
     "publish which experts requests called, and which are popular, at tcp://ADDRESS:PORT (ZeroMQ PUB): "
     "signatures of requests that are over, counts of home ranks each second",
     AT(popularity_endpoint)},
    {"shutdown-timeout", 0, CLI_OPTION_REAL, "S", "30",
     "seconds that answers under way may take after SIGTERM or Ctrl-C (a second one ends them)",
     AT(shutdown_timeout), .min = 0, .max = 86400},
    {"answer-timeout", 0, CLI_OPTION_REAL, "S", "3600",
     "seconds after which a request of which nothing came is answered 504 and cancelled", AT(answer_timeout),
     .min = 0.1, .max = 1e6},
    {0}};
static const cli_option model_options[] = {
    {"mock", 0, CLI_OPTION_TEXT, "SPEC", NULL,
     "serve workers that compute nothing and answer as this JSON file says, on ports from --port on; MODEL "
     "then gives "
     "tokenizer and template alone, and without one ids are bytes",
     AT(mock)},
    {"tokenizer", 0, CLI_OPTION_TEXT, "PATH", NULL, "another folder's tokenizer and chat template",
     AT(tokenizer)},
    {"chat-template", 0, CLI_OPTION_TEXT, "FILE", NULL, "a chat template (Jinja) in place of the model's",
     AT(chat_template)},
    {"load-format", 0, CLI_OPTION_CHOICE, "HOW", "auto", "dummy: random weights for the shape of config.json",
     AT(load_format), .choices = load_formats},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "0", "of those random weights", AT(seed), .least = 0,
     .most = INT64_MAX},
    {0}};

static bool is_among(const cli_option *row, const cli_option *rows)
{
    while (rows->name && rows != row) rows++;
    return rows->name;
}

/* Whether the row is of no use to who has no engine. */
static bool is_of_engine(const cli_option *row)
{
    if (is_among(row, model_options)) return row->offset == AT(load_format) || row->offset == AT(seed);
    return is_among(row, cli_serving_option_rows) ||
           (is_among(row, cli_scheduling_option_rows) &&
            row->offset != offsetof(cli_engine_settings, max_queue) && // the server's own
            row->offset !=
                offsetof(cli_engine_settings, options.memory.sequence_tokens)); // a mock's server has it
}

static bool is_given(const struct serve_settings *s, const char *name)
{
    for (size_t i = 0; i < s->given.count; i++)
        if (strcmp(s->given.items[i].option->name, name) == 0) return true;
    return false;
}

static bool check(const void *settings)
{
    const struct serve_settings *s = settings;
    if (!s->model && !s->mock) cli_complain("MODEL is missing: a model folder");
    if (is_given(s, "popularity-half-life") && s->engine.options.watch.popularity_half_life_ns) {
        cli_complain(
            "--popularity-half-life and --popularity-half-life-s exclude one another: tokens or seconds");
        return false;
    }
    for (size_t i = 0; s->mock && i < s->given.count; i++) {
        const cli_option *row = s->given.items[i].option;
        if (!is_of_engine(row)) continue;
        cli_complain("--%s is for an engine, and --mock has none", row->name);
        return false;
    }
    return s->model || s->mock;
}

const cli_command cli_cmd_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP, as the OpenAI API has it",
    .details = "Clients of OpenAI, vLLM or llama.cpp find /v1/completions, /v1/chat/completions, /v1/models, "
               "/tokenize, "
               "/detokenize, /health, /metrics and /version. With the default attention and combine a "
               "request's tokens "
               "depend neither on its company nor on the number of ranks. Ends on SIGTERM or Ctrl-C, once "
               "answers under "
               "way are given.",
    .examples = (const char *const[]){"coterie serve models/tiny --served-model-name tiny",
                                      "coterie serve MODEL --ranks 4 --port 9000 --max-num-seqs 32",
                                      "coterie serve MODEL --host 0.0.0.0 --api-key-file keys.txt", NULL},
    .options = {.groups = (const cli_option_group[]){{"Listening", cli_access_option_rows, AT(access)},
                                                     {"Serving", serving_options, 0},
                                                     {"Model", model_options, 0},
                                                     {"Scheduling and memory", cli_scheduling_option_rows,
                                                      AT(engine)},
                                                     {"Group of ranks", cli_serving_option_rows, AT(engine)},
                                                     {0}},
                .positionals =
                    (const cli_positional[]){{"MODEL", 0, 1, "a model folder, or a GGUF file", AT(model)},
                                             {0}},
                .given = AT(given)},
    .settings_bytes = sizeof(struct serve_settings),
    .check = check,
    .run = run_command};
