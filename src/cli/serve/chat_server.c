#include "cli/serve/chat_server.h"

#include "cli/frame/command.h"

#include "coterie/worker.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/random.h>

static void *run(void *argument)
{
    cot_error error;
    if (cot_server_run(((cli_chat_server *)argument)->server, &error) != COT_OK) cli_complain_of(&error);
    return NULL;
}

static bool start(cli_chat_server *s, const char *model, cot_error *error)
{
    uint64_t bits[2];
    if (getrandom(bits, sizeof bits, 0) != sizeof bits) {
        *error = (cot_error){COT_IO, "the system has no random numbers"};
        return false;
    }
    snprintf(s->key, sizeof s->key, "%016" PRIx64 "%016" PRIx64, bits[0], bits[1]);
    const char *const keys[] = {s->key, NULL};
    cot_server_options options;
    cot_server_options_init(&options);
    options.access.port = 0;
    options.access.api_keys = keys;
    options.shutdown_ms = 0;
    cot_backend *worker;
    if (cot_worker_of_engine(&worker, s->engine, model, error) != COT_OK ||
        cot_server_open(&s->server, model, worker, s->tokenizer, s->chat, &options, error) != COT_OK)
        return false;
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d", cot_server_port(s->server));
    sigset_t all, before; // Ctrl-C is for the thread that talks
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&s->thread, NULL, run, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) return true;
    cot_server_close(s->server);
    s->server = NULL;
    *error = (cot_error){COT_IO, "cannot start a thread"};
    return false;
}

bool cli_chat_server_open(cli_chat_server *s, const char *model, const char *chat_template,
                          const cli_engine_settings *settings)
{
    cot_error error = {0};
    const cli_engine_needs needs = {.sequences = 1, .block_tokens = 16};
    *s = (cli_chat_server){0};
    if (cot_tokenizer_open(&s->tokenizer, model, &error) != COT_OK ||
        cot_chat_template_open(&s->chat, model, chat_template, &error) != COT_OK) {
        cli_complain_of(&error);
        return false;
    }
    if (!cli_engine_open(&s->engine, model, settings, &needs)) return false;
    if (!start(s, model, &error)) cli_complain_of(&error);
    return s->server != NULL;
}

void cli_chat_server_close(cli_chat_server *s)
{
    if (s->server) {
        cot_server_stop(s->server);
        pthread_join(s->thread, NULL);
        cot_server_close(s->server);
    }
    cot_engine_close(s->engine);
    cot_chat_template_close(s->chat);
    cot_tokenizer_close(s->tokenizer);
}
