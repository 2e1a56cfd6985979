/* `coterie serve`: an engine behind the OpenAI API. */
#include "cli/commands.h"
#include "cli/run/engine_settings.h"
#include "cli/frame/paths.h"
#include "cli/serve/serve_mock.h"
#include "cli/frame/whole_file.h"

#include "coterie/server.h"
#include "coterie/started.h"
#include "coterie/worker.h"

#include <errno.h>
#include <malloc.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

struct serve_settings {
    cli_engine_settings engine;
    const char *model, *mock, *tokenizer, *chat_template;
    int load_format;
    int64_t seed;
    /* listening */
    const char *host, *api_key_file;
    int64_t port, max_connections;
    cli_list given, served_names, api_keys, allowed_hosts, allowed_origins;
    bool no_auth, kv_events_no_auth;
    const char *kv_events_config, *step_reports_endpoint, *ssl_certfile, *ssl_keyfile, *ssl_ca_certs,
        *access_log;
    int64_t ssl_cert_reqs;
    int log_level;
    int64_t max_model_len;
    double shutdown_timeout, answer_timeout;
};

static cot_server *serving; // of the signal handler

enum { ABORT_SECONDS = 5 };               // that an end may take beside what is given to answers
static unsigned patience = ABORT_SECONDS; // seconds after the first signal, of the signal handler

static void on_signal(int number)
{
    (void)number;
    cot_server_stop(serving);
    alarm(patience);
    patience = ABORT_SECONDS;
}

/* Something cannot be interrupted, such as the tokenising of a giant text: nobody waits for it any more. */
static void on_alarm(int number)
{
    static const char line[] = "coterie: shut down without waiting for what cannot be interrupted\n";
    (void)number;
    if (write(STDERR_FILENO, line, sizeof line - 1) < 0) _exit(CLI_EXIT_FAILURE);
    _exit(CLI_EXIT_FAILURE);
}

static void on_hang_up(int number)
{
    (void)number;
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

/* ---- keys ---- */

/* The lines of --api-key-file, one key each. `*text` is the caller's to free. */
static size_t read_keys(char **text, const char **keys, size_t room, const char *path)
{
    size_t bytes, count = 0;
    *text = cli_read_whole(path, &bytes);
    char *rest = NULL;
    for (char *line = *text ? strtok_r(*text, "\r\n", &rest) : NULL; line && count < room;
         line = strtok_r(NULL, "\r\n", &rest))
        keys[count++] = line;
    return count;
}

/* Keys of all sources. Returns false after a line on stderr. */
static bool gather_keys(const char **keys, size_t room, char **file_text, const struct serve_settings *s)
{
    size_t count = 0;
    const char *named = getenv("COTERIE_API_KEY");
    if (s->api_keys.count)
        cli_complain("note: --api-key can be read by every user of this machine (ps); --api-key-file and "
                     "COTERIE_API_KEY cannot");
    for (size_t i = 0; i < s->api_keys.count && count < room; i++) keys[count++] = s->api_keys.items[i].text;
    if (named && *named && count < room) keys[count++] = named;
    if (!s->api_key_file) return true;
    const size_t read = read_keys(file_text, keys + count, room - count, s->api_key_file);
    if (*file_text && !read) cli_complain("'%s' has no key in it", s->api_key_file);
    return *file_text && read;
}

/* ---- what is served ---- */

/* Whether the port can be had, asked before a model is loaded for it. */
static bool check_port(const struct serve_settings *s)
{
    char port[8];
    snprintf(port, sizeof port, "%d", (int)s->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    const int failed = getaddrinfo(s->host, port, &hints, &list);
    if (failed) {
        cli_complain("--host '%s': %s", s->host, gai_strerror(failed));
        return false;
    }
    const int one = 1, descriptor = socket(list->ai_family, list->ai_socktype, list->ai_protocol);
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    const bool good = descriptor >= 0 && bind(descriptor, list->ai_addr, list->ai_addrlen) == 0 &&
                      listen(descriptor, 1) == 0;
    if (!good) cli_complain("cannot listen on %s, port %s: %s", s->host, port, strerror(errno));
    if (descriptor >= 0) close(descriptor);
    freeaddrinfo(list);
    return good;
}

/* A connection takes a descriptor, and shells give 1,024 where as many as are allowed cost nothing. */
static void allow_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

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
    cli_tell_notes(notes);
    free(notes);
    free(config);
    return status;
}

/* ---- the command ---- */

static const char **texts_of(const cli_list *list, const char **texts)
{
    for (size_t i = 0; i < list->count; i++) texts[i] = list->items[i].text;
    texts[list->count] = NULL;
    return list->count ? texts : NULL;
}

static void announce(const struct serve_settings *s, const cot_engine *engine, const cot_chat_template *chat)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    const bool six = strchr(s->host, ':') != NULL;
    fprintf(stderr,
            "serving %s at http%s://%s%s%s:%d/v1\n"
            "  %d rank%s, %d thread%s, %s, attention %s, combine %s, context %lld tokens%s\n",
            s->model, s->ssl_certfile ? "s" : "", six ? "[" : "", s->host, six ? "]" : "",
            cot_server_port(serving), info->ranks, info->ranks == 1 ? "" : "s", info->threads,
            info->threads == 1 ? "" : "s", info->precision, info->attention, info->combine,
            (long long)cot_server_max_model_len(serving),
            chat ? "" : "; no chat template: /v1/completions alone");
}

/* What a server is told, and the lists that this points to. */
struct server_setup {
    cot_server_options o;
    cot_model_files files;
    const char *names[65], *hosts[65], *origins[65];
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

static void set_up(struct server_setup *setup, const struct serve_settings *s, const char *const *keys)
{
    cot_server_options *o = &setup->o;
    cot_server_options_init(o);
    o->host = s->host;
    o->port = (int)s->port;
    o->served_names = texts_of(&s->served_names, setup->names);
    if (!o->served_names && name_of_file(setup, s->model)) o->served_names = setup->names;
    o->api_keys = *keys ? keys : NULL;
    o->no_auth = s->no_auth;
    o->allowed_hosts = texts_of(&s->allowed_hosts, setup->hosts);
    o->allowed_origins = texts_of(&s->allowed_origins, setup->origins);
    o->max_model_len = s->max_model_len;
    o->max_queue = s->engine.max_queue;
    o->max_connections = s->max_connections;
    o->shutdown_ms = (int64_t)(s->shutdown_timeout * 1000);
    o->answer_timeout_ms = (int64_t)(s->answer_timeout * 1000);
    o->kv_events_config = s->kv_events_config;
    o->step_reports_endpoint = s->step_reports_endpoint;
    o->kv_events_no_auth = s->kv_events_no_auth;
    o->ssl_certfile = s->ssl_certfile;
    o->ssl_keyfile = s->ssl_keyfile;
    o->ssl_ca_certs = s->ssl_ca_certs;
    o->ssl_cert_reqs = (int)s->ssl_cert_reqs;
    o->access_log = s->access_log;
    o->log_level = (cot_log_level)s->log_level;
    o->log = say;
}

static cot_status serve(const struct serve_settings *s, const cot_tokenizer *tokenizer,
                        const cot_chat_template *chat, cot_engine *engine, const cot_server_options *o,
                        cot_error *error)
{
    cot_backend *worker;
    cot_status status = cot_worker_of_engine(&worker, engine, s->model, error);
    if (status == COT_OK) status = cot_server_open(&serving, s->model, worker, tokenizer, chat, o, error);
    if (status != COT_OK) return status;
    struct sigaction action = {.sa_handler = on_signal}, last = {.sa_handler = on_alarm};
    patience = (unsigned)s->shutdown_timeout + ABORT_SECONDS;
    sigaction(SIGALRM, &last, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    const struct sigaction reload = {.sa_handler = on_hang_up, .sa_flags = SA_RESTART};
    const bool reloads = s->ssl_certfile || s->access_log; // else a terminal that goes ends the server
    struct sigaction before;
    sigaction(SIGHUP, NULL, &before); // ignored, under nohup
    if (reloads || before.sa_handler != SIG_IGN) sigaction(SIGHUP, reloads ? &reload : &action, NULL);
    cot_launch_tell("serves", (int)patience);
    signal(SIGPIPE, SIG_IGN);
    allow_descriptors();
    announce(s, engine, chat);
    status = cot_server_run(serving, error);
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    cot_server_close(serving);
    alarm(0);
    return status;
}

static int run_command(const void *settings)
{
    const struct serve_settings *s = settings;
    const cli_list *const lists[] = {&s->served_names, &s->api_keys, &s->allowed_hosts, &s->allowed_origins};
    const char *keys[65] = {NULL};
    char *key_text = NULL;
    struct server_setup setup;
    cot_tokenizer *tokenizer = NULL;
    cot_chat_template *chat = NULL;
    cot_engine *engine = NULL;
    cot_error error;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i]->count > 64)
            return cli_complain("--%s is given more than 64 times", lists[i]->items->option->name);
    if ((s->model && !cli_check_model(s->model)) || !check_port(s) || !gather_keys(keys, 64, &key_text, s)) {
        free(key_text);
        return CLI_EXIT_FAILURE;
    }
    set_up(&setup, s, keys);
    if (s->mock) {
        allow_descriptors();
        const cli_mock_settings mock = {.spec = s->mock,
                                        .tokenizer = s->tokenizer ? s->tokenizer : s->model,
                                        .chat_template = s->chat_template,
                                        .server = &setup.o};
        const int result = cli_serve_mock(&mock);
        free(key_text);
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
    free(key_text);
    return status == COT_OK                 ? CLI_EXIT_OK
           : status == COT_INVALID_ARGUMENT ? CLI_EXIT_USAGE
                                            : CLI_EXIT_FAILURE;
}

#define AT(field) offsetof(struct serve_settings, field)
static const char *const log_levels[] = {"error", "warning", "info", NULL};
static const char *const load_formats[] = {"auto", "dummy", NULL};
static const cli_option listening_options[] = {
    {"host", 0, CLI_OPTION_TEXT, "ADDRESS", "127.0.0.1",
     "address to listen on; one that other machines reach needs a key or --no-auth", AT(host)},
    {"port", 'p', CLI_OPTION_INTEGER, "N", "8000", "port to listen on (0: any that is free)", AT(port),
     .least = 0, .most = 65535},
    {"served-model-name", 0, CLI_OPTION_LIST, "NAME", NULL,
     "what clients call the model; may be given several times, answers say the first (default: MODEL as "
     "given)",
     AT(served_names)},
    {"api-key-file", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "keys that clients may bear, one a line; COTERIE_API_KEY in the environment is one, too",
     AT(api_key_file)},
    {"api-key", 0, CLI_OPTION_LIST, "KEY", NULL,
     "the same on the command line, where other users can read it", AT(api_keys)},
    {"no-auth", 0, CLI_OPTION_FLAG, NULL, NULL, "listen on any address without a key", AT(no_auth)},
    {"allowed-hosts", 0, CLI_OPTION_LIST, "NAME", NULL,
     "a name by which clients may call a server without keys, beside localhost", AT(allowed_hosts)},
    {"allowed-origins", 0, CLI_OPTION_LIST, "ORIGIN", NULL, "an origin whose web pages may call (CORS), or *",
     AT(allowed_origins)},
    {"ssl-certfile", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "speak TLS 1.2 and 1.3 alone, with this certificate and those that lead to its root (PEM); SIGHUP reads "
     "it again",
     AT(ssl_certfile)},
    {"ssl-keyfile", 0, CLI_OPTION_TEXT, "FILE", NULL, "its key (PEM; default: in the same file)",
     AT(ssl_keyfile)},
    {"ssl-ca-certs", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "certificates that clients' must come from (PEM; default: the system's)", AT(ssl_ca_certs)},
    {"ssl-cert-reqs", 0, CLI_OPTION_INTEGER, "N", "0",
     "certificates of clients: 0 none, 1 checked where one is shown, 2 all must show one", AT(ssl_cert_reqs),
     .least = 0, .most = 2},
    {"access-log", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "append a line of JSON for each request (-: to standard output); SIGHUP goes on in a new file of that "
     "name",
     AT(access_log)},
    {"log-level", 0, CLI_OPTION_CHOICE, "LEVEL", "info",
     "the least urgent lines that are written, for the operator and of requests (from 400 on warnings, from "
     "500 on "
     "errors)",
     AT(log_level), .choices = log_levels},
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
    {"max-connections", 0, CLI_OPTION_INTEGER, "N", "4096",
     "most connections at once; for one more the one that has waited longest for its client goes",
     AT(max_connections), .least = 1, .most = 65536},
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
    {"max-model-len", 0, CLI_OPTION_INTEGER, "N", "0",
     "most tokens of a prompt and its answer (0: what the model and the KV cache hold)", AT(max_model_len),
     .least = 0, .most = 1 << 30},
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
            row->offset != offsetof(cli_engine_settings, max_queue)); // the server's own
}

static bool check(const void *settings)
{
    const struct serve_settings *s = settings;
    if (!s->model && !s->mock) cli_complain("MODEL is missing: a model folder");
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
    .options = {.groups = (const cli_option_group[]){{"Listening", listening_options, 0},
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
