/* `coterie router`: many workers behind one address. */
#include "cli/commands.h"
#include "cli/serve/access_settings.h"

#include "coterie/gateway.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct router_settings {
    cli_access_settings access;
    cli_list workers, peers;
    int policy;
    bool peers_no_auth;
    const char *peer_endpoint;
    const char *model, *signature_tables, *chat_template, *admin_key_file, *worker_key_file, *worker_ca_certs;
    int64_t block_size, seed, batch_us;
    double stall_timeout, shutdown_timeout, kv, experts, load;
};

static cot_gateway *routing; // of the signal handler

static void stop_routing(void)
{
    cot_gateway_stop(routing);
}

static void reload_routing(void)
{
    cot_gateway_reload(routing);
}

static void say(void *context, const char *line)
{
    (void)context;
    cli_complain("%s", line);
}

/* What the library is told, and what this points to. */
typedef struct router_setup {
    cot_gateway_options o;
    cli_access_setup access;
    const char *peers[CLI_MOST_LISTED + 1];
    char *peers_text[CLI_MOST_LISTED]; // that they point into
    const char *urls[CLI_MOST_LISTED + 1], *admin_keys[CLI_MOST_LISTED + 1], *worker_key[2];
    char *admin_text, *worker_text;
    cot_tokenizer *tokenizer;
    cot_chat_template *chat;
} router_setup;

/* URLs and a file, told apart by how they begin. */
static bool set_workers(router_setup *setup, const cli_list *list)
{
    size_t count = 0;
    if (!cli_check_list(list)) return false;
    for (size_t i = 0; i < list->count; i++) {
        const char *text = list->items[i].text;
        if (strstr(text, "://") || !strncmp(text, "dns:", 4))
            setup->urls[count++] = text;
        else if (setup->o.file) {
            cli_complain("--workers names two files, '%s' and '%s'; one file and any URLs may be given",
                         setup->o.file, text);
            return false;
        } else
            setup->o.file = text;
    }
    setup->o.urls = setup->urls;
    return true;
}

/* Lists with commas. */
static bool set_peers(router_setup *setup, const cli_list *list)
{
    size_t count = 0;
    if (!cli_check_list(list)) return false;
    for (size_t i = 0; i < list->count; i++) {
        char *rest = NULL, *text = setup->peers_text[i] = strdup(list->items[i].text);
        if (!text) return false;
        char *one = strtok_r(text, ",", &rest);
        if (!one) one = text; // commas alone, or nothing: it is refused as no address of a router
        for (; one; one = strtok_r(NULL, ",", &rest)) {
            if (count == CLI_MOST_LISTED) {
                cli_complain("--peers: at most %d are taken", CLI_MOST_LISTED);
                return false;
            }
            setup->peers[count++] = one;
        }
    }
    setup->o.peers = setup->peers;
    return true;
}

static bool set_up(router_setup *setup, const struct router_settings *s)
{
    cot_gateway_options *o = &setup->o;
    cot_gateway_options_init(o);
    if (!set_workers(setup, &s->workers) || !set_peers(setup, &s->peers) ||
        !cli_access_setup_make(&setup->access, &s->access))
        return false;
    if (s->admin_key_file) {
        if (!cli_read_keys(&setup->admin_text, setup->admin_keys, CLI_MOST_LISTED, s->admin_key_file))
            return false;
        o->admin_keys = setup->admin_keys;
    }
    if (s->worker_key_file) {
        if (!cli_read_keys(&setup->worker_text, setup->worker_key, 1, s->worker_key_file)) return false;
        o->worker_key = setup->worker_key[0];
    }
    o->worker_ca_certs = s->worker_ca_certs;
    o->access = setup->access.options;
    o->access.log = say;
    o->policy = (cot_route_policy)s->policy;
    o->scales = (cot_route_scales){.kv = s->kv, .experts = s->experts, .load = s->load};
    o->peer_endpoint = s->peer_endpoint;
    o->peers_no_auth = s->peers_no_auth;
    o->batch_us = s->batch_us;
    o->signature_tables = s->signature_tables;
    o->block_tokens = s->block_size;
    o->seed = (uint64_t)s->seed;
    o->stall_ms = (int64_t)(s->stall_timeout * 1000);
    o->shutdown_ms = (int64_t)(s->shutdown_timeout * 1000);
    return true;
}

static cot_status open_tokenizer(router_setup *setup, const struct router_settings *s, cot_error *error)
{
    if (!s->model) return COT_OK;
    cot_status status = cot_tokenizer_open(&setup->tokenizer, s->model, error);
    if (status != COT_OK) return status;
    status = cot_chat_template_open(&setup->chat, s->model, s->chat_template, error);
    if (status == COT_NOT_FOUND && !s->chat_template) status = COT_OK; // workers tokenise conversations
    setup->o.tokenizer = setup->tokenizer;
    setup->o.chat = setup->chat;
    return status;
}

static cot_status route(const router_setup *setup, const struct router_settings *s, cot_error *error)
{
    const char *host = s->access.host;
    const bool six = strchr(host, ':') != NULL;
    cot_status status = cot_gateway_open(&routing, &setup->o, error);
    if (status != COT_OK) return status;
    cli_serve_signals(&s->access, s->shutdown_timeout, stop_routing, reload_routing);
    cli_allow_descriptors();
    fprintf(stderr, "routing at http%s://%s%s%s:%d/v1\n  %zu worker%s, policy %s\n",
            s->access.ssl_certfile ? "s" : "", six ? "[" : "", host, six ? "]" : "",
            cot_gateway_port(routing), cot_gateway_workers(routing),
            cot_gateway_workers(routing) == 1 ? "" : "s", cot_route_policy_names[s->policy]);
    status = cot_gateway_run(routing, error);
    cli_serve_signals_end();
    cot_gateway_close(routing);
    alarm(0);
    return status;
}

static int run_command(const void *settings)
{
    const struct router_settings *s = settings;
    router_setup setup = {0};
    cot_error error;
    if (!s->workers.count) {
        cli_complain("--workers is missing: URLs of workers, or a file with a list of them");
        return CLI_EXIT_USAGE;
    }
    const bool good = cli_check_port(&s->access) && set_up(&setup, s);
    cot_status status = COT_OK;
    if (good) status = open_tokenizer(&setup, s, &error);
    if (good && status == COT_OK) status = route(&setup, s, &error);
    if (status != COT_OK) cli_complain_of(&error);
    cot_chat_template_close(setup.chat);
    cot_tokenizer_close(setup.tokenizer);
    cli_access_setup_free(&setup.access);
    for (size_t i = 0; i < CLI_MOST_LISTED; i++) free(setup.peers_text[i]);
    free(setup.admin_text);
    free(setup.worker_text);
    return !good                            ? CLI_EXIT_FAILURE
           : status == COT_OK               ? CLI_EXIT_OK
           : status == COT_INVALID_ARGUMENT ? CLI_EXIT_USAGE
                                            : CLI_EXIT_FAILURE;
}

#define AT(field) offsetof(struct router_settings, field)
static const cli_option router_options[] = {
    {"workers", 'w', CLI_OPTION_LIST, "URL|NAME|FILE", NULL,
     "a worker, http://HOST[:PORT][/PREFIX] or https://; dns:NAME:PORT for one at each address of a name, "
     "which is looked up every 30 s; or a JSON file with a list of them, which is read "
     "again when it "
     "changes; "
     "may "
     "be given several times",
     AT(workers)},
    {"policy", 0, CLI_OPTION_CHOICE, "POLICY", "joint", "which worker gets a request (docs/ROUTER.md)",
     AT(policy), .choices = cot_route_policy_names},
    {"kv", 0, CLI_OPTION_REAL, "R", "1", "what of a prompt is not cached counts so many times, for studies",
     AT(kv), .min = 0, .max = 1e6},
    {"experts", 0, CLI_OPTION_REAL, "R", "1",
     "likewise experts that a request adds to those that run; of the policy joint", AT(experts), .min = 0,
     .max = 1e6},
    {"load", 0, CLI_OPTION_REAL, "R", "1", "likewise queues, decoding and pages", AT(load), .min = 0,
     .max = 1e6},
    {"peers", 0, CLI_OPTION_LIST, "URL,...", NULL,
     "where other routers before the same workers tell what they send, tcp://HOST:PORT each; may be given "
     "several times",
     AT(peers)},
    {"peer-endpoint", 0, CLI_OPTION_TEXT, "URL", NULL,
     "where this one tells them what it sends, tcp://ADDRESS:PORT", AT(peer_endpoint)},
    {"peers-no-auth", 0, CLI_OPTION_FLAG, NULL, NULL,
     "everybody may read what --peer-endpoint tells, on an address that others can reach", AT(peers_no_auth)},
    {"batch-window", 0, CLI_OPTION_REAL, "MS", "0",
     "milliseconds that a request waits for others, to be assigned together with them", AT(batch_us),
     .min = 0, .max = 10, .scale = 1000},
    {"signature-tables", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "tables of coterie group for the workers' model, which foretell what a prompt calls where no worker has "
     "told of its blocks",
     AT(signature_tables)},
    {"model", 0, CLI_OPTION_TEXT, "DIR", NULL,
     "tokenise here, by this model's tokenizer and chat template (default: workers are asked)", AT(model)},
    {"chat-template", 0, CLI_OPTION_TEXT, "FILE", NULL, "a chat template (Jinja) in place of that model's",
     AT(chat_template)},
    {"block-size", 0, CLI_OPTION_INTEGER, "N", "0",
     "tokens of a block of prefix caches (0: as the first worker says, else 16)", AT(block_size), .least = 0,
     .most = 65536},
    {"stall-timeout", 0, CLI_OPTION_REAL, "S", "10",
     "seconds after which a stream goes on elsewhere when its worker stands still", AT(stall_timeout),
     .min = 0.1, .max = 86400},
    {"worker-key-file", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "the key that workers want, where the list names no other", AT(worker_key_file)},
    {"worker-ca-certs", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "certificates that those of workers with https:// must come from (PEM; default: the system's)",
     AT(worker_ca_certs)},
    {"admin-key-file", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "keys, one a line, with which workers are added and drained (POST /workers)", AT(admin_key_file)},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "0", "of the policy random", AT(seed), .least = 0,
     .most = INT64_MAX},
    {"shutdown-timeout", 0, CLI_OPTION_REAL, "S", "30",
     "seconds that answers under way may take after SIGTERM or Ctrl-C (a second one ends them)",
     AT(shutdown_timeout), .min = 0, .max = 86400},
    {0}};

const cli_command cli_cmd_router = {
    .name = "router",
    .summary = "put many workers behind one address",
    .details =
        "Each request goes to the worker where it is expected to cost least: where most of its prompt is in "
        "the "
        "KV cache, and little waits. Streams of a Coterie worker that dies go on at another one, token for "
        "token. Workers are servers with the OpenAI API; of Coterie's, it is found out what they publish.",
    .examples =
        (const char *const[]){
            "coterie router --workers http://127.0.0.1:8001 --workers http://127.0.0.1:8002",
            "coterie router --workers workers.json --policy kv --port 9000", NULL},
    .options = {.groups = (const cli_option_group[]){{"Routing", router_options, 0},
                                                     {"Listening", cli_access_option_rows, AT(access)},
                                                     {0}}},
    .settings_bytes = sizeof(struct router_settings),
    .run = run_command};
