/* A server of the command's own: `coterie chat MODEL` talks to it as it would to any other. */
#ifndef COT_CLI_SERVE_CHAT_SERVER_H
#define COT_CLI_SERVE_CHAT_SERVER_H
#include "cli/run/engine_settings.h"
#include "coterie/server.h"

#include <pthread.h>

typedef struct cli_chat_server {
    cot_tokenizer *tokenizer;
    cot_chat_template *chat;
    cot_engine *engine;
    cot_server *server;
    pthread_t thread;
    char url[64], key[40]; // for this process alone
} cli_chat_server;

/* Loads the model and serves it on a loopback port, on a thread. Returns false after a line on stderr; close it either way. */
bool cli_chat_server_open(cli_chat_server *server, const char *model, const char *chat_template,
                          const cli_engine_settings *settings);
void cli_chat_server_close(cli_chat_server *server);

#endif
