/* Answers to the last field, over a backend that computes what the test says: what is counted, and that nothing of a request
 * stays. */
#include "harness/cmocka.h"
#include "harness/server/scripted.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPLETE "/v1/completions"

/* Tokens of model tiny, with one, one, three and one characters: of one, two, four and three bytes. */
enum { X = 88, E_ACUTE = 341, ION = 685, OF = 412 };

static void open_default(scripted_server *f)
{
    cot_server_options options;
    cot_server_options_init(&options);
    scripted_open(f, &options);
}

static int64_t integer_at(const json_t *json, const char *name, const char *inner)
{
    json_t *value = json_object_get(json, name);
    if (inner) value = json_object_get(value, inner);
    if (!json_is_integer(value)) fail_msg("no integer '%s'", name);
    return json_integer_value(value);
}

static const char *text_at(const json_t *json, const char *name)
{
    const char *text = json_string_value(json_object_get(json, name));
    return text ? text : "(none)";
}

static const json_t *choice_of(const json_t *answer, size_t index)
{
    const json_t *choice = json_array_get(json_object_get(answer, "choices"), index);
    assert_non_null(choice);
    assert_int_equal(integer_at(choice, "index", NULL), index);
    return choice;
}

static void assert_nothing_is_left(scripted_server *f)
{
    scripted_await_rest(f);
    assert_int_equal(f->server->reserved_bytes, 0);
    assert_int_equal(f->server->preparing, 0);
    assert_int_equal(f->server->waiting_jobs, 0);
    assert_int_equal(f->server->running_jobs, 0);
}

/* ---- what a request holds ---- */

/* A way for a request to end. */
typedef struct ending {
    const char *path, *body;
    int status;
    size_t jobs;
    void (*go_on)(scripted_server *f, size_t first); // from the submit on; NULL: it is answered without one
} ending;

static void serve(scripted_server *f, size_t first)
{
    for (size_t job = first; job < f->submitted; job++) {
        scripted_admit(f, job, 0, 1);
        scripted_token(f, job, X, SCRIPTED_GOES_ON, 2);
        scripted_token(f, job, X, COT_FINISH_LENGTH, 3);
    }
}

static void overflow(scripted_server *f, size_t first)
{
    cot_error error;
    cot_fail(&error, COT_INVALID_ARGUMENT, "overflowed");
    scripted_admit(f, first, 0, 1);
    scripted_over(f, first, COT_FINISH_OVERFLOW, &error, 2);
    for (size_t job = first + 1; job < f->submitted; job++) // the others are cancelled with it
        scripted_over(f, job, COT_FINISH_CANCELLED, NULL, 3);
}

static void leave(scripted_server *f, size_t first)
{
    const size_t cancelled = f->cancelled;
    scripted_admit(f, first, 0, 1);
    scripted_token(f, first, X, SCRIPTED_GOES_ON, 2);
    const size_t count = f->submitted - first;
    test_peer peer = f->peer;
    test_peer_reset(&f->peer);
    peer.fd = -1;
    while (f->cancelled < cancelled + count)
        test_peer_turn(&(test_peer){.base = peer.base, .fd = -1, .over = true});
    for (size_t job = first; job < f->submitted; job++) scripted_over(f, job, COT_FINISH_CANCELLED, NULL, 3);
}

static const ending endings[] = {
    {COMPLETE, "{\"prompt\":[5,6],\"max_tokens\":2}", 200, 1, serve},
    {COMPLETE, "{\"prompt\":[5,6],\"max_tokens\":2,\"stream\":true}", 200, 1, serve},
    {COMPLETE, "{\"prompt\":[5,6],\"max_tokens\":2,\"n\":2}", 200, 2, serve},
    {COMPLETE, "{\"prompt\":[5,6],\"max_tokens\":0,\"echo\":true}", 200, 0, NULL},
    {COMPLETE, "{\"prompt\":[5,6],\"max_tokens\":2,\"stop\":5}", 400, 0, NULL},
    {COMPLETE, "{\"prompt\":[5,6],\"max_tokens\":2,\"continue_token_ids\":[[7,7,7]]}", 400, 0, NULL},
    {COMPLETE, "{\"prompt\":[5,6],\"max_tokens\":2,\"n\":100}", 400, 0, NULL}, // takes more than there is
    {COMPLETE, "{\"prompt\":[5,6],\"max_tokens\":2,\"n\":2}", 500, 2, overflow},
    {COMPLETE, "{\"prompt\":[5,6],\"max_tokens\":9}", 0, 1, leave},
    {COMPLETE, "{\"prompt\":[5,6],\"max_tokens\":9,\"n\":2,\"stream\":true}", 0, 2, leave},
    {"/tokenize", "{\"prompt\":\"x\"}", 200, 0, NULL},
    {"/detokenize", "{\"tokens\":[5]}", 200, 0, NULL},
    {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 400, 0,
     NULL}, // no template
};

/* However a request ends, what it held is given back: there is room for ten of a kind in turn where there is for one. */
static void test_memory_is_given_back(void **state)
{
    scripted_server *f = *state;
    cot_server_options options;
    cot_server_options_init(&options);
    options.request_bytes = 9000; // two choices, 4 KiB each, and some of theirs
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const ending *e = &endings[i];
        f->submitted = 0;
        scripted_open(f, &options);
        for (int round = 0; round < 10; round++) {
            const size_t first = f->submitted;
            scripted_post_jobs(f, e->path, "", e->body, e->jobs);
            if (e->jobs) assert_in_range(f->server->reserved_bytes, 4096 * e->jobs, 9000);
            if (e->go_on) e->go_on(f, first);
            if (e->status) json_decref(scripted_answer(f));
            if (e->status && f->answer.status != e->status)
                fail_msg("%s, round %d: %d, not %d: %s", e->body, round, f->answer.status, e->status,
                         f->answer.body);
            assert_nothing_is_left(f);
        }
    }
}

/* What runs has its room until it ends: another is refused meanwhile, and served afterwards. */
static void test_memory_is_held(void **state)
{
    scripted_server *f = *state;
    cot_server_options options;
    cot_server_options_init(&options);
    options.request_bytes = 6000;
    scripted_open(f, &options);
    const char *const body = "{\"prompt\":[5,6],\"max_tokens\":2}";
    scripted_post_jobs(f, COMPLETE, "", body, 1);
    test_peer first = f->peer;
    f->peer = (test_peer){.fd = -1};
    json_t *json;
    assert_int_equal(scripted_refused(f, COMPLETE, "", body, &json), 429);
    assert_string_equal(text_at(json_object_get(json, "error"), "code"), "overloaded");
    json_decref(json);
    serve(f, 0);
    test_peer_close(&first);
    scripted_await_rest(f);
    scripted_post_jobs(f, COMPLETE, "", body, 1);
    serve(f, 1);
    json_decref(scripted_answer(f));
    assert_int_equal(f->answer.status, 200);
}

/* The queue takes as many sequences as it is told, and counts those that wait alone. */
static void test_queue(void **state)
{
    scripted_server *f = *state;
    cot_server_options options;
    cot_server_options_init(&options);
    options.max_queue = 3;
    scripted_open(f, &options);
    json_t *json;
    assert_int_equal(scripted_refused(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":2,\"n\":4}", &json),
                     400);
    assert_string_equal(text_at(json_object_get(json, "error"), "code"), "request_too_large");
    json_decref(json);
    scripted_post_jobs(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":2,\"n\":3}", 3);
    test_peer first = f->peer;
    f->peer = (test_peer){.fd = -1};
    assert_int_equal(scripted_refused(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":2}", &json), 429);
    assert_string_equal(text_at(json_object_get(json, "error"), "code"), "queue_full");
    assert_string_equal(test_answer_field(&f->answer, "Retry-After") ? "some" : "none", "some");
    json_decref(json);
    scripted_admit(f, 0, 0, 1); // one of the three runs: there is a place
    scripted_post_jobs(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":2}", 1);
    assert_int_equal(f->server->waiting_jobs, 3);
    assert_int_equal(f->server->running_jobs, 1);
    scripted_token(f, 0, X, COT_FINISH_LENGTH, 2);
    serve(f, 1);
    json_decref(scripted_answer(f));
    test_peer_close(&first);
    assert_nothing_is_left(f);
}

/* ---- what is counted ---- */

/* Two prompts of three choices, each of which finds as much in the cache as its number says. */
static void tell_choices(scripted_server *f)
{
    static const int64_t cached[6] = {2, 4, 4, 1, 3, 3};
    for (size_t job = 0; job < 6; job++) scripted_admit(f, job, cached[job], 1);
    for (size_t job = 0; job < 6; job++) {
        for (size_t i = 0; i < job; i++) scripted_token(f, job, X, SCRIPTED_GOES_ON, (int64_t)i + 2);
        scripted_token(f, job, X, COT_FINISH_LENGTH, 20);
    }
}

static void assert_usage(const json_t *usage)
{
    assert_int_equal(integer_at(usage, "prompt_tokens", NULL), 5 + 3);
    assert_int_equal(integer_at(usage, "prompt_tokens_details", "cached_tokens"), 2 + 1);
    assert_int_equal(integer_at(usage, "completion_tokens", NULL), 1 + 2 + 3 + 4 + 5 + 6);
    assert_int_equal(integer_at(usage, "total_tokens", NULL), 8 + 21);
}

/* A prompt counts once, and what the cache had of it: not for each of its choices. */
static void test_usage(void **state)
{
    scripted_server *f = *state;
    open_default(f);
    const char *const body = "{\"prompt\":[[1,2,3,4,5],[6,7,8]],\"n\":3,\"max_tokens\":9%s}";
    char text[256];
    snprintf(text, sizeof text, body, "");
    scripted_post_jobs(f, COMPLETE, "", text, 6);
    tell_choices(f);
    json_t *json = scripted_answer(f);
    assert_usage(json_object_get(json, "usage"));
    for (size_t i = 0; i < 6; i++) assert_int_equal(strlen(text_at(choice_of(json, i), "text")), i + 1);
    json_decref(json);

    f->submitted = 0;
    snprintf(text, sizeof text, body, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    scripted_post_jobs(f, COMPLETE, "", text, 6);
    tell_choices(f);
    assert_null(scripted_answer(f));
    const char *last = NULL;
    for (const char *at = f->answer.body; (at = strstr(at, "\"usage\":{")); at++) last = at + 8;
    assert_non_null(last);
    json = json_loads(last, JSON_DISABLE_EOF_CHECK, NULL);
    assert_usage(json);
    json_decref(json);
    assert_nothing_is_left(f);
}

static void assert_sum(const cot_metrics_histogram *h, uint64_t count, double sum)
{
    uint64_t counted = 0;
    for (size_t i = 0; i <= COT_METRICS_BUCKETS; i++) counted += h->counts[i];
    assert_int_equal(counted, count);
    if (!(fabs(h->sum - sum) < 1e-9)) fail_msg("%.9g, not %.9g", h->sum, sum);
}

/* Every time of a sequence, in seconds: admitted at 1, tokens at 3, 4, 6 and 10. */
static void test_times(void **state)
{
    scripted_server *f = *state;
    const int64_t s = 1000000000;
    open_default(f);
    scripted_post_jobs(f, COMPLETE, "", "{\"prompt\":[5,6,7],\"max_tokens\":4}", 1);
    scripted_admit(f, 0, 0, s);
    scripted_token(f, 0, X, SCRIPTED_GOES_ON, 3 * s);
    scripted_token(f, 0, X, SCRIPTED_GOES_ON, 4 * s);
    scripted_token(f, 0, X, SCRIPTED_GOES_ON, 6 * s);
    scripted_token(f, 0, X, COT_FINISH_LENGTH, 10 * s);
    const cot_metrics *m = &f->server->metrics;
    assert_sum(&m->times[COT_TIME_QUEUE], 1, 1);
    assert_sum(&m->times[COT_TIME_TO_FIRST_TOKEN], 1, 3);
    assert_sum(&m->times[COT_TIME_PREFILL], 1, 2);
    assert_sum(&m->times[COT_TIME_BETWEEN_TOKENS], 3, 7);
    assert_sum(&m->times[COT_TIME_PER_OUTPUT_TOKEN], 1, 7 / 3.0);
    assert_sum(&m->times[COT_TIME_DECODE], 1, 7);
    assert_sum(&m->times[COT_TIME_INFERENCE], 1, 9);
    assert_sum(&m->prompt_tokens, 1, 3);
    assert_sum(&m->output_tokens, 1, 4);
    assert_sum(&m->longest_output, 1, 4);
    assert_int_equal(m->generation_tokens_total, 4);
    json_decref(scripted_answer(f));

    // what was delivered before is another request's time, and one token has none between
    scripted_post_jobs(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":5,\"continue_token_ids\":[[8,9]]}",
                       1);
    scripted_admit(f, 1, 0, s);
    scripted_token(f, 1, X, SCRIPTED_GOES_ON, 2 * s);
    scripted_token(f, 1, X, SCRIPTED_GOES_ON, 4 * s);
    scripted_token(f, 1, X, COT_FINISH_LENGTH, 8 * s);
    assert_sum(&m->times[COT_TIME_PER_OUTPUT_TOKEN], 2, 7 / 3.0 + 3);
    assert_sum(&m->output_tokens, 2, 4 + 5);
    json_decref(scripted_answer(f));
    scripted_post_jobs(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":1}", 1);
    scripted_admit(f, 2, 0, s);
    scripted_token(f, 2, X, COT_FINISH_LENGTH, 2 * s);
    json_decref(scripted_answer(f));
    assert_sum(&m->times[COT_TIME_PER_OUTPUT_TOKEN], 2, 7 / 3.0 + 3);
    assert_sum(&m->times[COT_TIME_DECODE], 3, 7 + 6);
}

/* How sequences ended: by the model's end or a stop, by length, by the client or a failure; and of a prompt's choices the
 * longest, once. */
static void test_ends(void **state)
{
    scripted_server *f = *state;
    open_default(f);
    const cot_metrics *m = &f->server->metrics;
    scripted_post_jobs(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":9,\"n\":3,\"stop\":\"x\"}", 3);
    for (size_t job = 0; job < 3; job++) scripted_admit(f, job, 0, 1);
    for (int i = 0; i < 4; i++) scripted_token(f, 0, OF, i < 3 ? SCRIPTED_GOES_ON : COT_FINISH_EOS, i + 2);
    scripted_token(f, 1, X, SCRIPTED_GOES_ON, 2); // the stop string
    assert_sum(&m->longest_output, 0, 0);
    for (int i = 0; i < 2; i++)
        scripted_token(f, 2, OF, i < 1 ? SCRIPTED_GOES_ON : COT_FINISH_CONTEXT, i + 2);
    assert_sum(&m->longest_output, 1, 4);
    json_t *json = scripted_answer(f);
    const struct {
        const char *text, *finish, *stop;
    } expected[] = {{"的的的", "stop", "(none)"}, {"", "stop", "x"}, {"的的", "length", "(none)"}};
    for (size_t i = 0; i < 3; i++) {
        const json_t *choice = choice_of(json, i);
        assert_string_equal(text_at(choice, "text"), expected[i].text);
        assert_string_equal(text_at(choice, "finish_reason"), expected[i].finish);
        assert_string_equal(text_at(choice, "stop_reason"), expected[i].stop);
    }
    json_decref(json);
    assert_int_equal(m->stopped, 2);
    assert_int_equal(m->ended_by_length, 1);
    assert_int_equal(m->aborted, 0);
    scripted_post_jobs(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":9}", 1);
    leave(f, 3);
    scripted_post_jobs(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":9}", 1);
    overflow(f, 4);
    json = scripted_answer(f);
    assert_int_equal(f->answer.status, 500);
    assert_string_equal(test_answer_field(&f->answer, "X-Should-Retry"), "false");
    json_decref(json);
    assert_int_equal(m->aborted, 2);
    assert_int_equal(m->stopped + m->ended_by_length, 3);
}

/* ---- what is asked of the backend ---- */

static void test_home(void **state)
{
    scripted_server *f = *state;
    open_default(f);
    static const struct {
        const char *field;
        int home;                                                              // -2: refused
    } rows[] = {{"", COT_HOME_ANY}, {"0", 0},    {"1", 1},           {"2", 2}, // the last of three
                {"3", -2},          {"4", -2},   {"-1", -2},         {"x", -2},
                {"1x", -2},         {"1 2", -2}, {"4294967296", -2}, {"99999999999999999999", -2}};
    const char *const body = "{\"prompt\":[5,6],\"max_tokens\":2,\"n\":2}";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char field[128] = "";
        if (*rows[i].field) snprintf(field, sizeof field, "X-data-parallel-rank: %s\r\n", rows[i].field);
        if (rows[i].home == -2) {
            json_t *json;
            assert_int_equal(scripted_refused(f, COMPLETE, field, body, &json), 400);
            assert_string_equal(text_at(json_object_get(json, "error"), "param"), "X-data-parallel-rank");
            assert_non_null(strstr(text_at(json_object_get(json, "error"), "message"), "[0, 2]"));
            json_decref(json);
            continue;
        }
        const size_t first = f->submitted;
        scripted_post_jobs(f, COMPLETE, field, body, 2);
        for (size_t job = first; job < first + 2; job++) assert_int_equal(f->jobs[job]->home, rows[i].home);
        assert_null(f->jobs[first]->leader);
        assert_ptr_equal(f->jobs[first + 1]->leader, f->jobs[first]);
        serve(f, first);
        json_decref(scripted_answer(f));
        assert_int_equal(f->answer.status, 200);
    }
    assert_nothing_is_left(f);
}

/* A prompt that is cut keeps its end. */
static void test_truncation(void **state)
{
    scripted_server *f = *state;
    open_default(f);
    char ids[512] = "";
    for (int i = 0; i < 100; i++) sprintf(ids + strlen(ids), "%s%d", i ? "," : "", 100 + i);
    static const struct {
        int most, output, kept;
    } rows[] = {{3, 2, 3}, {1, 2, 1}, {-1, 2, SCRIPTED_CONTEXT - 2}, {-1, 10, SCRIPTED_CONTEXT - 10}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[1024];
        snprintf(body, sizeof body, "{\"prompt\":[%s],\"truncate_prompt_tokens\":%d,\"max_tokens\":%d}", ids,
                 rows[i].most, rows[i].output);
        scripted_post_jobs(f, COMPLETE, "", body, 1);
        const cot_request *r = &f->jobs[i]->request;
        assert_int_equal(r->prompt_tokens, rows[i].kept);
        for (int t = 0; t < rows[i].kept; t++) assert_int_equal(r->prompt[t], 200 - rows[i].kept + t);
        serve(f, i);
        json_t *json = scripted_answer(f);
        assert_int_equal(integer_at(json_object_get(json, "usage"), "prompt_tokens", NULL), rows[i].kept);
        json_decref(json);
    }
}

/* No stop string is heard in the first tokens, of which there are to be so many at least. */
static void test_stops_wait(void **state)
{
    scripted_server *f = *state;
    open_default(f);
    for (size_t least = 0; least < 4; least++) {
        char body[256];
        snprintf(body, sizeof body, "{\"prompt\":[5],\"max_tokens\":9,\"min_tokens\":%zu,\"stop\":[\"x\"]}",
                 least);
        scripted_post_jobs(f, COMPLETE, "", body, 1);
        scripted_admit(f, least, 0, 1);
        size_t tokens = 0;
        while (f->jobs[least] && tokens < 9)
            scripted_token(f, least, X, SCRIPTED_GOES_ON, (int64_t)++tokens + 1);
        json_t *json = scripted_answer(f);
        assert_int_equal(tokens, least + 1);
        assert_string_equal(text_at(choice_of(json, 0), "text"), &"xxx"[3 - least]);
        assert_string_equal(text_at(choice_of(json, 0), "stop_reason"), "x");
        assert_int_equal(integer_at(json_object_get(json, "usage"), "completion_tokens", NULL), least + 1);
        json_decref(json);
    }
}

/* ---- what is said ---- */

/* Offsets count characters, not bytes, through the prompt and what follows. */
static void test_text_offsets(void **state)
{
    scripted_server *f = *state;
    open_default(f);
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\":[%d,%d],\"max_tokens\":3,\"logprobs\":0,\"echo\":true}", E_ACUTE,
             ION);
    scripted_post_jobs(f, COMPLETE, "", body, 1);
    scripted_admit(f, 0, 0, 1);
    scripted_prompt_token(f, 0, ION, -1);
    scripted_token(f, 0, OF, SCRIPTED_GOES_ON, 2);
    scripted_token(f, 0, X, SCRIPTED_GOES_ON, 3);
    scripted_token(f, 0, E_ACUTE, COT_FINISH_LENGTH, 4);
    json_t *json = scripted_answer(f);
    const json_t *choice = choice_of(json, 0),
                 *offsets = json_object_get(json_object_get(choice, "logprobs"), "text_offset");
    const int expected[] = {0, 1, 4, 5, 6};
    assert_string_equal(text_at(choice, "text"), "éión的xé");
    assert_int_equal(json_array_size(offsets), 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(json_integer_value(json_array_get(offsets, i)), expected[i]);
    json_decref(json);
}

/* Nobody between the server and a client may keep a stream, or hand it on late. */
static void test_heads(void **state)
{
    scripted_server *f = *state;
    open_default(f);
    scripted_post_jobs(f, COMPLETE, "X-Request-Id: mine\r\n",
                       "{\"prompt\":[5],\"max_tokens\":2,\"stream\":true}", 1);
    serve(f, 0);
    assert_null(scripted_answer(f));
    assert_string_equal(test_answer_field(&f->answer, "Cache-Control"), "no-cache");
    assert_string_equal(test_answer_field(&f->answer, "Content-Type"), "text/event-stream; charset=utf-8");
    assert_string_equal(test_answer_field(&f->answer, "X-Request-Id"), "mine");
    scripted_post_jobs(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":2}", 1);
    serve(f, 1);
    json_t *json = scripted_answer(f);
    assert_string_equal(test_answer_field(&f->answer, "Content-Type"), "application/json");
    assert_string_equal(test_answer_field(&f->answer, "X-Request-Id"), text_at(json, "id"));
    assert_string_equal(text_at(json, "system_fingerprint"), "fp_0123456789abcdef");
    assert_string_equal(text_at(json, "model"), "tiny"); // the first name, whichever was asked for
    assert_string_equal(text_at(json, "object"), "text_completion");
    json_decref(json);
    char field[256];
    for (int length = 127; length < 131; length++) { // a client's own name has its bounds
        snprintf(field, sizeof field, "X-Request-Id: %0*d\r\n", length, 0);
        scripted_post_jobs(f, COMPLETE, field, "{\"prompt\":[5],\"max_tokens\":2,\"model\":\"small\"}", 1);
        serve(f, f->submitted - 1);
        json_decref(scripted_answer(f));
        const size_t said = strlen(test_answer_field(&f->answer, "X-Request-Id"));
        assert_int_equal(said, length <= 128 ? length : (int)strlen("cmpl-") + 32);
    }
}

/* A name that a client made up is logged once, and never with what a terminal obeys. */
static void test_unknown_fields(void **state)
{
    scripted_server *f = *state;
    open_default(f);
    const char *const body =
        "{\"prompt\":[5],\"max_tokens\":0,\"echo\":true,\"\\u001b[31m\\n\\u007f\\u009b\\t~\":1,\"%s\":2}";
    char text[256];
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, body, i ? "other" : "sweet");
        scripted_post(f, COMPLETE, "", text);
        json_decref(scripted_answer(f));
        assert_int_equal(f->answer.status, 200);
    }
    for (const char *c = f->log; *c; c++) assert_true(*c == '\n' || (*c >= 0x20 && *c < 0x7f));
    static const char *const said[] = {"ignored: ?[31m?????~\n", "ignored: sweet\n", "ignored: other\n"};
    for (size_t i = 0; i < 3; i++) {
        const char *found = strstr(f->log, said[i]);
        if (!found) fail_msg("no '%s' in: %s", said[i], f->log);
        assert_null(strstr(found + 1, said[i]));
    }
}

/* Of all answers those that refuse are counted, and nothing is asked for that has no limit: where a request says no length it
 * is OpenAI's, as far as the context has room. */
static void test_lengths(void **state)
{
    scripted_server *f = *state;
    open_default(f);
    static const struct {
        int prompt, asked, length; // asked -1: nothing is said; length -1: it is refused
    } rows[] = {{1, -1, 16},
                {SCRIPTED_CONTEXT - 16, -1, 16},
                {SCRIPTED_CONTEXT - 15, -1, 15},
                {SCRIPTED_CONTEXT - 1, -1, 1},
                {SCRIPTED_CONTEXT, -1, -1},
                {SCRIPTED_CONTEXT - 5, 5, 5},
                {SCRIPTED_CONTEXT - 5, 6, -1},
                {1, SCRIPTED_CONTEXT - 1, SCRIPTED_CONTEXT - 1}};
    uint64_t refused = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[1024] = "{\"prompt\":[1";
        for (int t = 1; t < rows[i].prompt; t++) strcat(body, ",1");
        strcat(body, "]");
        if (rows[i].asked >= 0) sprintf(body + strlen(body), ",\"max_tokens\":%d", rows[i].asked);
        strcat(body, "}");
        const size_t job = f->submitted;
        json_t *json;
        if (rows[i].length < 0) {
            assert_int_equal(scripted_refused(f, COMPLETE, "", body, &json), 400);
            assert_string_equal(text_at(json_object_get(json, "error"), "code"), "context_length_exceeded");
            refused++;
        } else {
            scripted_post_jobs(f, COMPLETE, "", body, 1);
            assert_int_equal(f->jobs[job]->request.sampling.max_tokens, rows[i].length);
            serve(f, job);
            json = scripted_answer(f);
            assert_int_equal(f->answer.status, 200);
        }
        json_decref(json);
        assert_int_equal(f->server->metrics.refused, refused);
    }
}

/* What was delivered before may end with the text, and not go on behind its end. */
static void test_ends_before(void **state)
{
    scripted_server *f = *state;
    open_default(f);
    const char *const body = "{\"prompt\":[5],\"max_tokens\":4,\"stop\":\"x\",\"continue_token_ids\":[[%s]]}";
    static const struct {
        const char *before, *finish, *refused; // finish NULL: it goes on
        int tokens;
    } rows[] = {{"412,88", "stop", NULL, 2},
                {"412,88,412", NULL, "goes on after token 1", 0},
                {"88,88", NULL, "goes on after token 0", 0},
                {"412,412,412,412", "length", NULL, 4},
                {"412,412,412,88", "stop", NULL, 4},
                {"412,412,412,412,412", NULL, "holds 5 tokens of a choice, 'max_tokens' is 4", 0},
                {"412,412,412", NULL, NULL, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256];
        json_t *json;
        snprintf(text, sizeof text, body, rows[i].before);
        if (rows[i].refused) {
            assert_int_equal(scripted_refused(f, COMPLETE, "", text, &json), 400);
            assert_non_null(strstr(text_at(json_object_get(json, "error"), "message"), rows[i].refused));
        } else {
            scripted_post_jobs(f, COMPLETE, "", text, rows[i].finish ? 0 : 1);
            if (!rows[i].finish) {
                assert_int_equal(f->jobs[f->submitted - 1]->request.prompt_tokens, 4);
                assert_int_equal(f->jobs[f->submitted - 1]->request.output_tokens, 3);
                scripted_admit(f, f->submitted - 1, 0, 1);
                scripted_token(f, f->submitted - 1, OF, COT_FINISH_LENGTH, 2);
            }
            json = scripted_answer(f);
            assert_int_equal(f->answer.status, 200);
            assert_string_equal(text_at(choice_of(json, 0), "finish_reason"),
                                rows[i].finish ? rows[i].finish : "length");
            assert_string_equal(text_at(choice_of(json, 0), "text"), rows[i].finish ? "" : "的");
            assert_int_equal(integer_at(json_object_get(json, "usage"), "completion_tokens", NULL),
                             rows[i].tokens);
        }
        json_decref(json);
    }
    assert_nothing_is_left(f);
}

/* A body waits to be read where there is memory for it, beside what runs and beside few others. */
static void test_bodies(void **state)
{
    enum { ROOM = 6000 };
    scripted_server *f = *state;
    cot_server_options options;
    cot_server_options_init(&options);
    options.request_bytes = ROOM;
    options.max_queue = 1;
    scripted_open(f, &options);
    scripted_post_jobs(f, COMPLETE, "", "{\"prompt\":[5],\"max_tokens\":2}", 1);
    test_peer first = f->peer;
    f->peer = (test_peer){.fd = -1};
    const size_t left = ROOM - f->server->reserved_bytes;
    const struct {
        size_t bytes;
        int status;
        const char *code;
    } rows[] = {{left, 429, "overloaded"}, // it is read, and what it asks for finds no room
                {left + 1, 503, "overloaded"},
                {ROOM, 503, "overloaded"},
                {ROOM + 1, 413, "request_too_large"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[ROOM + 2];
        json_t *json;
        const int begun = sprintf(body, "{\"prompt\":[5],\"max_tokens\":2");
        memset(body + begun, ' ', sizeof body - (size_t)begun);
        body[rows[i].bytes - 1] = '}';
        body[rows[i].bytes] = '\0';
        assert_int_equal(scripted_refused(f, COMPLETE, "", body, &json), rows[i].status);
        assert_string_equal(text_at(json_object_get(json, "error"), "code"), rows[i].code);
        assert_int_equal(test_answer_field(&f->answer, "Retry-After") != NULL, i < 3);
        json_decref(json);
        assert_int_equal(f->server->reserved_bytes, ROOM - left);
    }
    serve(f, 0);
    test_peer_close(&first);
    scripted_await_rest(f);

    // as many are being read as may wait: both of these come before the first is read, by another thread
    scripted_post(f, "/tokenize", "", "{\"prompt\":\"x\"}");
    first = f->peer;
    f->peer = (test_peer){.fd = -1};
    json_t *json;
    assert_int_equal(scripted_refused(f, "/tokenize", "", "{\"prompt\":\"x\"}", &json), 429);
    assert_string_equal(text_at(json_object_get(json, "error"), "code"), "queue_full");
    json_decref(json);
    assert_true(test_peer_answer(&first, &f->answer, false));
    assert_int_equal(f->answer.status, 200);
    test_peer_close(&first);
    assert_nothing_is_left(f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scripted_set_up, scripted_tear_down)
    const struct CMUnitTest tests[] = {TEST(test_memory_is_given_back),
                                       TEST(test_memory_is_held),
                                       TEST(test_queue),
                                       TEST(test_usage),
                                       TEST(test_times),
                                       TEST(test_ends),
                                       TEST(test_home),
                                       TEST(test_truncation),
                                       TEST(test_stops_wait),
                                       TEST(test_text_offsets),
                                       TEST(test_heads),
                                       TEST(test_unknown_fields),
                                       TEST(test_lengths),
                                       TEST(test_ends_before),
                                       TEST(test_bodies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
