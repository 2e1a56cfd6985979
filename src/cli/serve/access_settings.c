#include "cli/serve/access_settings.h"

#include "cli/frame/command.h"
#include "cli/frame/whole_file.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- keys ---- */

bool cli_read_keys(char **text, const char **keys, size_t room, const char *path)
{
    size_t bytes, count = 0;
    *text = cli_read_whole(path, &bytes);
    char *rest = NULL;
    for (char *line = *text ? strtok_r(*text, "\r\n", &rest) : NULL; line && count < room;
         line = strtok_r(NULL, "\r\n", &rest))
        keys[count++] = line;
    keys[count] = NULL;
    if (*text && !count) cli_complain("'%s' has no key in it", path);
    return count;
}

/* Keys of all sources. */
static bool gather_keys(cli_access_setup *setup, const cli_access_settings *s)
{
    size_t count = 0;
    const char *named = getenv("COTERIE_API_KEY");
    if (s->api_keys.count)
        cli_complain("note: --api-key can be read by every user of this machine (ps); --api-key-file and "
                     "COTERIE_API_KEY cannot");
    for (size_t i = 0; i < s->api_keys.count; i++) setup->keys[count++] = s->api_keys.items[i].text;
    if (named && *named && count < CLI_MOST_LISTED) setup->keys[count++] = named;
    return !s->api_key_file ||
           cli_read_keys(&setup->key_text, setup->keys + count, CLI_MOST_LISTED - count, s->api_key_file);
}

/* ---- what the library is told ---- */

const char **cli_texts_of(const cli_list *list, const char **texts)
{
    for (size_t i = 0; i < list->count; i++) texts[i] = list->items[i].text;
    texts[list->count] = NULL;
    return list->count ? texts : NULL;
}

bool cli_check_list(const cli_list *list)
{
    if (list->count <= CLI_MOST_LISTED) return true;
    cli_complain("--%s is given more than %d times", list->items->option->name, CLI_MOST_LISTED);
    return false;
}

bool cli_access_setup_make(cli_access_setup *setup, const cli_access_settings *s)
{
    *setup = (cli_access_setup){0};
    cot_access_options *o = &setup->options;
    cot_access_options_init(o);
    if (!cli_check_list(&s->api_keys) || !cli_check_list(&s->allowed_hosts) ||
        !cli_check_list(&s->allowed_origins) || !gather_keys(setup, s))
        return false;
    o->host = s->host;
    o->port = (int)s->port;
    o->api_keys = *setup->keys ? setup->keys : NULL;
    o->no_auth = s->no_auth;
    o->allowed_hosts = cli_texts_of(&s->allowed_hosts, setup->hosts);
    o->allowed_origins = cli_texts_of(&s->allowed_origins, setup->origins);
    o->max_connections = s->max_connections;
    o->ssl_certfile = s->ssl_certfile;
    o->ssl_keyfile = s->ssl_keyfile;
    o->ssl_ca_certs = s->ssl_ca_certs;
    o->ssl_cert_reqs = (int)s->ssl_cert_reqs;
    o->access_log = s->access_log;
    o->log_level = (cot_log_level)s->log_level;
    return true;
}

void cli_access_setup_free(cli_access_setup *setup)
{
    free(setup->key_text);
    setup->key_text = NULL;
}

/* ---- the process ---- */

bool cli_check_port(const cli_access_settings *s)
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

void cli_allow_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Of the signals' handlers. */
static void (*stop_serving)(void), (*reload_serving)(void);
static unsigned patience; // seconds after the first signal

static void on_signal(int number)
{
    (void)number;
    stop_serving();
    alarm(patience);
    patience = CLI_ABORT_SECONDS;
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
    reload_serving();
}

void cli_serve_signals(const cli_access_settings *s, double seconds, void (*stop)(void), void (*reload)(void))
{
    const struct sigaction action = {.sa_handler = on_signal}, last = {.sa_handler = on_alarm},
                           again = {.sa_handler = on_hang_up, .sa_flags = SA_RESTART};
    const bool reloads = s->ssl_certfile || s->access_log; // else a terminal that goes ends the server
    struct sigaction before;
    stop_serving = stop;
    reload_serving = reload;
    patience = (unsigned)seconds + CLI_ABORT_SECONDS;
    sigaction(SIGALRM, &last, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, NULL, &before); // ignored, under nohup
    if (reloads || before.sa_handler != SIG_IGN) sigaction(SIGHUP, reloads ? &again : &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

void cli_serve_signals_end(void)
{
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
}

/* ---- rows ---- */

#define AT(field) offsetof(cli_access_settings, field)
static const char *const log_levels[] = {"error", "warning", "info", NULL};
const cli_option cli_access_option_rows[] = {
    {"host", 0, CLI_OPTION_TEXT, "ADDRESS", "127.0.0.1",
     "address to listen on; one that other machines reach needs a key or --no-auth", AT(host)},
    {"port", 'p', CLI_OPTION_INTEGER, "N", "8000", "port to listen on (0: any that is free)", AT(port),
     .least = 0, .most = 65535},
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
    {"max-connections", 0, CLI_OPTION_INTEGER, "N", "4096",
     "most connections at once; for one more the one that has waited longest for its client goes",
     AT(max_connections), .least = 1, .most = 65536},
    {0}};
