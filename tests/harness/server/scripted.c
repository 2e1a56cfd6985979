#include "harness/server/scripted.h"

#include "harness/cmocka.h"
#include "harness/memory.h"

#include "net/http_server.h"
#include "server/answer.h"
#include "server/routes.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the backend ---- */

static scripted_server *of(cot_backend *backend)
{
    return (scripted_server *)((char *)backend - offsetof(scripted_server, backend));
}

static void submit(cot_backend *backend, cot_job *const *jobs, size_t count)
{
    scripted_server *f = of(backend);
    for (size_t i = 0; i < count; i++) {
        assert_true(f->submitted < SCRIPTED_JOBS);
        f->jobs[f->submitted++] = jobs[i];
    }
}

static void cancel(cot_backend *backend, cot_job *job)
{
    scripted_server *f = of(backend);
    assert_false(job->is_cancelled);
    job->is_cancelled = true;
    f->cancelled++;
}

static void get_state(cot_backend *backend, cot_backend_state *state)
{
    (void)backend;
    *state = (cot_backend_state){0};
}

static const cot_backend_metrics *metrics(cot_backend *backend)
{
    (void)backend;
    return NULL;
}

static const cot_backend_info *describe(const cot_backend *backend)
{
    (void)backend;
    static const cot_backend_info info = {.architecture = "scripted",
                                          .vocab = 4096,
                                          .context_tokens = SCRIPTED_CONTEXT,
                                          .ranks = SCRIPTED_RANKS,
                                          .homes = 1,
                                          .fingerprint = "fp_0123456789abcdef"};
    return &info;
}

static void tell(scripted_server *f, size_t job, const cot_job_event *event)
{
    cot_job *told = f->jobs[job];
    assert_non_null(told);
    if (event->last) f->jobs[job] = NULL; // its owner may free it now
    cot_answer_on_event(f->server, told->number, event);
}

static void end_all(cot_backend *backend)
{
    scripted_server *f = of(backend);
    for (size_t i = 0; i < f->submitted; i++)
        if (f->jobs[i]) scripted_over(f, i, COT_FINISH_CANCELLED, NULL, 0);
}

static const cot_backend_table table = {.submit = submit,
                                        .cancel = cancel,
                                        .state = get_state,
                                        .describe = describe,
                                        .metrics = metrics,
                                        .close = end_all};

cot_choice *scripted_choice(scripted_server *f, size_t job)
{
    assert_true(job < f->submitted);
    assert_non_null(f->jobs[job]);
    return (cot_choice *)f->jobs[job];
}

void scripted_admit(scripted_server *f, size_t job, int64_t cached_tokens, int64_t ns)
{
    tell(f, job,
         &(cot_job_event){.kind = COT_JOB_ADMITTED,
                          .at_ns = scripted_choice(f, job)->began_ns + ns,
                          .cached_tokens = cached_tokens,
                          .stopped_by = -1});
}

void scripted_prompt_token(scripted_server *f, size_t job, int32_t token, float logprob)
{
    tell(f, job,
         &(cot_job_event){.kind = COT_JOB_PROMPT_TOKEN,
                          .at_ns = scripted_choice(f, job)->began_ns,
                          .sampled = {.token = token, .logprob = logprob},
                          .text = "",
                          .stopped_by = -1});
}

void scripted_token(scripted_server *f, size_t job, int32_t token, int finish, int64_t ns)
{
    cot_job *const told = f->jobs[job];
    cot_error error;
    char text[4096];
    const char *piece;
    size_t bytes, count = 0;
    bool stopped = false;
    const bool ends = finish == COT_FINISH_EOS || finish == COT_FINISH_STOP;
    if (!ends || told->show_ending) {
        assert_int_equal(cot_text_stream_push(told->text, token, &piece, &bytes, &stopped, &error), COT_OK);
        assert_true(bytes < sizeof text);
        memcpy(text, piece, bytes);
        count = bytes;
    }
    const bool last = stopped || finish != SCRIPTED_GOES_ON;
    if (last && !stopped) {
        assert_int_equal(cot_text_stream_finish(told->text, &piece, &bytes, &error), COT_OK);
        assert_true(bytes < sizeof text - count);
        memcpy(text + count, piece, bytes);
        count += bytes;
    }
    tell(f, job,
         &(cot_job_event){.kind = COT_JOB_TOKEN,
                          .at_ns = scripted_choice(f, job)->began_ns + ns,
                          .sampled = {.token = token, .logprob = -0.5f, .ends = ends},
                          .text = text,
                          .bytes = count,
                          .last = last,
                          .finish = stopped ? COT_FINISH_STOP : (cot_finish)(last ? finish : 0),
                          .stopped_by = cot_text_stream_stopped_by(told->text)});
}

void scripted_over(scripted_server *f, size_t job, cot_finish finish, const cot_error *error, int64_t ns)
{
    tell(f, job,
         &(cot_job_event){.kind = COT_JOB_OVER,
                          .at_ns = scripted_choice(f, job)->began_ns + ns,
                          .text = "",
                          .last = true,
                          .finish = finish,
                          .stopped_by = -1,
                          .error = error});
}

/* ---- the server ---- */

static void hear(void *context, const char *line)
{
    scripted_server *f = context;
    const size_t used = strlen(f->log);
    assert_true(used + strlen(line) + 2 < sizeof f->log);
    sprintf(f->log + used, "%s\n", line);
}

/* A copy that cot_server_close frees. */
static const char *const *copied(const char *const *list)
{
    size_t count = 0;
    while (list && list[count]) count++;
    if (!list) return NULL;
    char **copy = must_allocate(count + 1, sizeof *copy);
    for (size_t i = 0; i < count; i++) copy[i] = strdup(list[i]);
    return (const char *const *)copy;
}

static void no_more_to_do(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor, (void)what, (void)context;
}

void scripted_open(scripted_server *f, const cot_server_options *options)
{
    static const char *const names[] = {"tiny", "small", NULL};
    cot_error error;
    cot_server_close(f->server);
    cot_server *s = f->server = must_allocate(1, sizeof *s);
    *s = (cot_server){.base = event_base_new(), .stop.fd = -1, .reload.fd = -1, .options = *options};
    assert_non_null(s->base);
    cot_server_options *o = &s->options;
    o->access = (cot_access_options){0};
    o->served_names = copied(options->served_names ? options->served_names : names);
    cot_access_options access = options->access;
    access.log = hear;
    access.log_context = f;
    if (cot_access_open(&s->access, &access, &error) != COT_OK) fail_msg("%s", error.message);
    s->on_rest = event_new(s->base, -1, 0, no_more_to_do, NULL);
    s->on_watch = event_new(s->base, -1, 0, no_more_to_do, NULL);
    f->backend.table = &table;
    s->backend = &f->backend;
    s->info = describe(s->backend);
    s->model =
        (cot_served_model){.names = o->served_names,
                           .name_count = 2,
                           .tokenizer = f->tokenizer,
                           .chat = f->chat,
                           .dialects = {.begin = -1, .end = -1},
                           .defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .top_k = -1},
                           .vocab = 4096,
                           .max_model_len = SCRIPTED_CONTEXT,
                           .fingerprint = s->info->fingerprint,
                           .created = 1,
                           .request_bytes = 1 << 20};
    assert_true(!o->tool_call_parser ||
                cot_served_dialects_name(&s->model.dialects.calls, o->tool_call_parser, false));
    assert_true(!o->reasoning_parser ||
                cot_served_dialects_name(&s->model.dialects.reasoning, o->reasoning_parser, true));
    if (cot_preparer_open(&s->preparer, &s->model, s->base, &error) != COT_OK ||
        cot_http_server_open(&s->http, s->base, &(cot_http_server_options){0}, &cot_routes, s, &error) !=
            COT_OK)
        fail_msg("%s", error.message);
}

int scripted_set_up(void **state)
{
    cot_error error;
    scripted_server *f = must_allocate(1, sizeof *f);
    *f = (scripted_server){.peer.fd = -1};
    *state = f;
    return cot_tokenizer_open(&f->tokenizer, COT_SOURCE "/models/tiny", &error) != COT_OK;
}

int scripted_tear_down(void **state)
{
    scripted_server *f = *state;
    test_peer_close(&f->peer);
    cot_server_close(f->server);
    cot_tokenizer_close(f->tokenizer);
    free(f->answer.body);
    free(f);
    return 0;
}

/* ---- a client ---- */

void scripted_post(scripted_server *f, const char *path, const char *fields, const char *body)
{
    char head[1024];
    test_peer_close(&f->peer);
    f->peer = test_peer_connect(f->server->base, cot_http_server_port(f->server->http));
    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%sContent-Length: "
             "%zu\r\n\r\n",
             path, fields, strlen(body));
    assert_true(test_peer_tell(&f->peer, head));
    assert_true(test_peer_tell(&f->peer, body));
}

void scripted_post_jobs(scripted_server *f, const char *path, const char *fields, const char *body,
                        size_t jobs)
{
    const size_t expected = f->submitted + jobs;
    const time_t begin = time(NULL);
    scripted_post(f, path, fields, body);
    while (f->submitted < expected) {
        test_peer_turn(&f->peer);
        if (time(NULL) - begin > 30) fail_msg("%zu jobs, not %zu: %s", f->submitted, expected, f->peer.got);
    }
    assert_int_equal(f->submitted, expected);
}

json_t *scripted_answer(scripted_server *f)
{
    assert_true(test_peer_answer(&f->peer, &f->answer, false));
    return json_loadb(f->answer.body, f->answer.bytes, 0, NULL);
}

int scripted_refused(scripted_server *f, const char *path, const char *fields, const char *body,
                     json_t **json)
{
    const size_t before = f->submitted;
    scripted_post(f, path, fields, body);
    *json = scripted_answer(f);
    assert_non_null(*json);
    assert_non_null(json_object_get(*json, "error"));
    assert_int_equal(f->submitted, before);
    return f->answer.status;
}

void scripted_await_rest(scripted_server *f)
{
    const time_t begin = time(NULL);
    while (f->server->answers) {
        event_base_loop(f->server->base, EVLOOP_NONBLOCK);
        if (time(NULL) - begin > 30) fail_msg("an answer stays");
    }
}
