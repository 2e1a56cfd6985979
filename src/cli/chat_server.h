/* A server of the command's own: `coterie chat MODEL` talks to it as it would to any other. */
#ifndef COT_CLI_CHAT_SERVER_H
#define COT_CLI_CHAT_SERVER_H
#include "engine_settings.h"
#include "coterie/server.h"

#include <pthread.h>

typedef struct chat_server {
    cot_tokenizer *tokenizer;
    cot_chat_template *chat;
    cot_engine *engine;
    cot_server *server;
    pthread_t thread;
    char url[64], key[40]; // for this process alone
} chat_server;

/* Loads the model and serves it on a loopback port, on a thread. Returns false after a line on stderr; close it either way. */
bool chat_server_open(chat_server *server, const char *model, const char *chat_template,
                      const engine_settings *settings);
void chat_server_close(chat_server *server);

#endif
