/* Options of the commands that listen: where, who may call, certificates and logs. */
#ifndef COT_CLI_SERVE_ACCESS_SETTINGS_H
#define COT_CLI_SERVE_ACCESS_SETTINGS_H
#include "cli/frame/options.h"

#include "coterie/access.h"

typedef struct cli_access_settings {
    const char *host, *api_key_file, *ssl_certfile, *ssl_keyfile, *ssl_ca_certs, *access_log;
    int64_t port, max_connections, ssl_cert_reqs;
    cli_list api_keys, allowed_hosts, allowed_origins;
    bool no_auth;
    int log_level;
} cli_access_settings;

/* The rows, whose offsets count from an cli_access_settings. */
extern const cli_option cli_access_option_rows[];

enum { CLI_MOST_LISTED = 64 }; // of an option that may be given several times

/* What the library is told, with the lists that this points to; they stay as long as the settings. */
typedef struct cli_access_setup {
    cot_access_options options;
    const char *keys[CLI_MOST_LISTED + 1], *hosts[CLI_MOST_LISTED + 1], *origins[CLI_MOST_LISTED + 1];
    char *key_text; // of --api-key-file
} cli_access_setup;

/* Reads keys. False after a line on stderr; cli_access_setup_free is called either way. */
bool cli_access_setup_make(cli_access_setup *setup, const cli_access_settings *settings);
void cli_access_setup_free(cli_access_setup *setup);

/* The lines of a file of keys, at most `room` of them, with a NULL behind them; `*text` is the caller's to free. False after a
 * line on stderr. */
bool cli_read_keys(char **text, const char **keys, size_t room, const char *path);
/* The texts of a list, [count] and NULL; NULL where it is empty. */
const char **cli_texts_of(const cli_list *list, const char **texts);
/* Whether a list has no more than CLI_MOST_LISTED; false after a line on stderr. */
bool cli_check_list(const cli_list *list);
/* Whether the port can be had, asked before anything is loaded for it; false after a line on stderr. */
bool cli_check_port(const cli_access_settings *settings);
/* A connection takes a descriptor, and shells give 1,024 where as many as are allowed cost nothing. */
void cli_allow_descriptors(void);

enum { CLI_ABORT_SECONDS = 5 }; // that an end may take beside what is given to answers
/* From now on SIGTERM and Ctrl-C call `stop`, and SIGHUP calls `reload` where there is something to be read again. So many seconds
 * and CLI_ABORT_SECONDS after the first one, or CLI_ABORT_SECONDS after a second, the process ends whatever is under way. */
void cli_serve_signals(const cli_access_settings *settings, double seconds, void (*stop)(void),
                       void (*reload)(void));
/* What was to be stopped has: signals are ignored; the alarm that they have set is the caller's to end. */
void cli_serve_signals_end(void);

#endif
