#include "cli/serve/serve_mock.h"

#include "cli/frame/command.h"
#include "cli/frame/whole_file.h"

#include "coterie/worker.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A worker, and the thread that its server runs on. */
typedef struct mock_worker {
    int index;
    cot_server *server;
    struct mock_group *group;
    pthread_t thread;
    cot_server_options options;
    cot_mock_published published;
} mock_worker;

static void say(void *context, const char *line)
{
    const mock_worker *w = context;
    cli_complain("worker %d: %s", w->index, line);
}

/* ---- workers ---- */

static cot_status open_worker(mock_worker *w, const cli_mock_settings *s, const cot_mock *mock,
                              int first_port, const cot_tokenizer *tokenizer, const cot_chat_template *chat,
                              cot_error *error)
{
    static const char *const names[] = {"mock", NULL};
    cot_backend *backend;
    cot_server_options *o = &w->options;
    *o = *s->server;
    o->access.port = first_port ? first_port + w->index : 0;
    if (!o->served_names) o->served_names = names;
    o->access.log = say;
    o->access.log_context = w;
    cot_status status = cot_mock_ports(&w->published, mock, w->index, o->kv_events_config,
                                       o->step_reports_endpoint, o->access.port, o->kv_events_no_auth, error);
    if (status != COT_OK) return status;
    o->kv_events_config = w->published.kv_events_config;
    o->step_reports_endpoint = w->published.step_reports_endpoint;
    status = cot_worker_of_mock(&backend, mock, w->index, error);
    return status == COT_OK ? cot_server_open(&w->server, NULL, backend, tokenizer, chat, o, error) : status;
}

/* Those that run: closed by their threads, stopped by the one that hears signals. */
typedef struct mock_group {
    mock_worker *workers; // [count]
    int count, left;      // left: threads that are not over
    pthread_mutex_t lock; // of left and of each worker's server
    pthread_t hearer;
} mock_group;

/* The signal by which the last thread tells the hearer that there is nothing left to stop. */
enum { ALL_OVER = SIGUSR1 };

static void *run(void *argument)
{
    mock_worker *w = argument;
    mock_group *group = w->group;
    cot_error error;
    const bool failed = cot_server_run(w->server, &error) != COT_OK;
    if (failed) say(w, error.message);
    pthread_mutex_lock(&group->lock);
    if (failed) { // its connections end now, whatever others do
        cot_server_close(w->server);
        w->server = NULL;
    }
    if (!--group->left) pthread_kill(group->hearer, ALL_OVER);
    pthread_mutex_unlock(&group->lock);
    return NULL;
}

static void stop_all(mock_group *group)
{
    pthread_mutex_lock(&group->lock);
    for (int i = 0; i < group->count; i++)
        if (group->workers[i].server) cot_server_stop(group->workers[i].server);
    pthread_mutex_unlock(&group->lock);
}

static void reload_all(mock_group *group)
{
    pthread_mutex_lock(&group->lock);
    for (int i = 0; i < group->count; i++)
        if (group->workers[i].server) cot_server_reload(group->workers[i].server);
    pthread_mutex_unlock(&group->lock);
}

/* Whether SIGHUP means anything: it does not where it is ignored, as under nohup, and there is nothing to read again. */
static bool hears_hang_up(bool reloads)
{
    struct sigaction before;
    sigaction(SIGHUP, NULL, &before);
    return reloads || before.sa_handler != SIG_IGN;
}

/* Runs all until a signal asks them to end and they have, or all have failed. False after a line on stderr. */
static bool run_all(mock_worker *workers, int count, const cot_server_options *o)
{
    mock_group group = {.workers = workers, .count = count, .left = count, .hearer = pthread_self()};
    sigset_t heard;
    int number = 0, started = 0;
    bool was_asked = false;
    const bool reloads = o->access.ssl_certfile || o->access.access_log;
    sigemptyset(&heard);
    sigaddset(&heard, SIGTERM);
    sigaddset(&heard, SIGINT);
    if (hears_hang_up(reloads)) sigaddset(&heard, SIGHUP);
    sigaddset(&heard, ALL_OVER);
    pthread_sigmask(SIG_BLOCK, &heard, NULL); // of the threads too
    signal(SIGPIPE, SIG_IGN);
    pthread_mutex_init(&group.lock, NULL);
    for (; started < count; started++) {
        workers[started].group = &group;
        if (pthread_create(&workers[started].thread, NULL, run, &workers[started]) != 0) break;
    }
    if (started < count) {
        cli_complain("cannot start a thread for each of %d workers", count);
        pthread_mutex_lock(&group.lock);
        if (!(group.left -= count - started)) pthread_kill(group.hearer, ALL_OVER);
        pthread_mutex_unlock(&group.lock);
        stop_all(&group);
    }
    while (started && !sigwait(&heard, &number) && number != ALL_OVER) {
        if (number == SIGHUP && reloads) {
            reload_all(&group);
            continue;
        }
        was_asked = true;
        alarm((unsigned)(o->shutdown_ms / 1000) + 5); // whoever cannot be interrupted is not waited for
        stop_all(&group);
    }
    alarm(0);
    for (int i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    pthread_mutex_destroy(&group.lock);
    return started == count && (was_asked || cli_complain("no worker is left") == CLI_EXIT_OK);
}

static void announce(const mock_worker *workers, int count, const char *host)
{
    const int first = cot_server_port(workers->server);
    const bool six = strchr(host, ':') != NULL;
    fprintf(stderr, "serving a mock at http://%s%s%s:%d/v1", six ? "[" : "", host, six ? "]" : "", first);
    if (count > 1) fprintf(stderr, " and on each port up to %d", first + count - 1);
    fprintf(stderr, "\n  %d worker%s without a model, context %lld tokens\n", count, count == 1 ? "" : "s",
            (long long)cot_server_max_model_len(workers->server));
}

static int serve(const cli_mock_settings *s, const cot_mock *mock, const cot_tokenizer *tokenizer,
                 const cot_chat_template *chat)
{
    const int count = cot_mock_workers(mock);
    mock_worker *workers = calloc((size_t)count, sizeof *workers);
    cot_error error = {COT_OUT_OF_MEMORY, "out of memory for workers"};
    cot_status status = workers ? COT_OK : COT_OUT_OF_MEMORY;
    int port = s->server->access.port, opened = 0;
    for (; opened < count && status == COT_OK; opened += status == COT_OK) {
        workers[opened].index = opened;
        status = open_worker(&workers[opened], s, mock, port, tokenizer, chat, &error);
        if (status == COT_OK && !port) port = cot_server_port(workers->server);
    }
    bool good = status == COT_OK;
    if (good) {
        announce(workers, count, s->server->access.host);
        good = run_all(workers, count, s->server);
    } else
        cli_complain_of(&error);
    for (int i = 0; i < count && workers; i++) {
        cot_server_close(workers[i].server);
        cot_mock_published_free(&workers[i].published);
    }
    free(workers);
    return good ? CLI_EXIT_OK : status == COT_INVALID_ARGUMENT ? CLI_EXIT_USAGE : CLI_EXIT_FAILURE;
}

/* A template for those who bring none: roles and what they say. */
static cot_status open_chat(cot_chat_template **chat, const cli_mock_settings *s, cot_error *error)
{
    static const char plain[] =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt "
        "%}assistant: {% endif %}";
    if (!s->tokenizer && !s->chat_template)
        return cot_chat_template_parse(chat, plain, sizeof plain - 1, "the mock's template", error);
    const cot_status status =
        cot_chat_template_open(chat, s->tokenizer ? s->tokenizer : ".", s->chat_template, error);
    return status == COT_NOT_FOUND && !s->chat_template ? COT_OK : status; // conversations are refused then
}

int cli_serve_mock(const cli_mock_settings *s)
{
    size_t bytes;
    cot_tokenizer *tokenizer = NULL;
    cot_chat_template *chat = NULL;
    cot_mock *mock = NULL;
    cot_error error;
    char *spec = cli_read_whole(s->spec, &bytes);
    if (!spec) return CLI_EXIT_FAILURE;
    cot_status status = s->tokenizer ? cot_tokenizer_open(&tokenizer, s->tokenizer, &error)
                                     : cot_mock_tokenizer_open(&tokenizer, &error);
    if (status == COT_OK) status = open_chat(&chat, s, &error);
    if (status == COT_OK) status = cot_mock_open(&mock, spec, bytes, s->spec, tokenizer, &error);
    const int result = status == COT_OK ? serve(s, mock, tokenizer, chat) : cli_complain_of(&error);
    cot_mock_close(mock);
    cot_chat_template_close(chat);
    cot_tokenizer_close(tokenizer);
    free(spec);
    return result;
}
