/* A backend that breaks its word: it answers late, twice, out of turn or never. The operator is told, the request ends, and the
 * server stays. */
#include "harness/cmocka.h"
#include "harness/server/scripted.h"

#include "server/answer.h"

#include <string.h>
#include <time.h>

enum { X = 88, TIMEOUT_MS = 20 };

static void open_impatient(scripted_server *f)
{
    cot_server_options options;
    cot_server_options_init(&options);
    options.answer_timeout_ms = TIMEOUT_MS;
    scripted_open(f, &options);
}

static void wait_out(void)
{
    nanosleep(&(struct timespec){.tv_nsec = (TIMEOUT_MS + 5) * 1000000}, NULL);
}

static size_t lines_with(const scripted_server *f, const char *words)
{
    size_t count = 0;
    for (const char *at = f->log; (at = strstr(at, words)); at++) count++;
    return count;
}

/* One request of one sequence is answered, and nothing is left of any. */
static void assert_serves(scripted_server *f)
{
    const size_t job = f->submitted;
    scripted_post_jobs(f, "/v1/completions", "", "{\"prompt\": \"x\", \"max_tokens\": 1}", 1);
    scripted_admit(f, job, 0, 1);
    scripted_token(f, job, X, COT_FINISH_LENGTH, 2);
    json_decref(scripted_answer(f));
    assert_int_equal(f->answer.status, 200);
    scripted_await_rest(f);
    assert_int_equal(f->server->reserved_bytes, 0);
    assert_int_equal(f->server->waiting_jobs, 0);
    assert_int_equal(f->server->running_jobs, 0);
}

static void post_one(scripted_server *f)
{
    scripted_post_jobs(f, "/v1/completions", "", "{\"prompt\": \"x\", \"max_tokens\": 4}", 1);
}

static void test_twice(void **state)
{
    scripted_server *f = *state;
    cot_error error = {COT_IO, "once more"};
    cot_job_event again[] = {
        {.kind = COT_JOB_ADMITTED, .stopped_by = -1},
        {.kind = COT_JOB_TOKEN, .sampled = {.token = X}, .text = "x", .bytes = 1, .stopped_by = -1},
        {.kind = COT_JOB_TOKEN, .text = "", .last = true, .finish = COT_FINISH_LENGTH, .stopped_by = -1},
        {.kind = COT_JOB_OVER, .text = "", .last = true, .finish = COT_FINISH_CANCELLED, .error = &error}};
    open_impatient(f);
    post_one(f);
    const uint64_t number = f->jobs[0]->number;
    scripted_admit(f, 0, 0, 1);
    cot_answer_on_event(f->server, number, &again[0]); // admitted twice
    assert_int_equal(f->server->running_jobs, 1);
    assert_int_equal(f->server->waiting_jobs, 0);
    scripted_token(f, 0, X, COT_FINISH_LENGTH, 2);
    json_decref(scripted_answer(f));
    assert_int_equal(f->answer.status, 200);
    scripted_await_rest(f);
    const uint64_t tokens = f->server->metrics.generation_tokens_total;
    for (size_t i = 0; i < sizeof again / sizeof *again; i++)
        cot_answer_on_event(f->server, number, &again[i]);
    // of a number that was never given, and of one whose place another sequence has by now
    cot_answer_on_event(f->server, 0, &again[3]);
    cot_answer_on_event(f->server, UINT64_MAX, &again[3]);
    post_one(f);
    assert_int_not_equal(f->jobs[1]->number, number);
    cot_answer_on_event(f->server, number, &again[3]);
    assert_non_null(f->server->answers);
    scripted_over(f, 1, COT_FINISH_CANCELLED, NULL, 1);
    json_decref(scripted_answer(f));
    assert_int_equal(f->server->metrics.generation_tokens_total, tokens);
    assert_int_equal(f->server->strays, 8);
    assert_int_equal(lines_with(f, "told it twice"), 4); // the first, second, fourth and eighth time
    assert_serves(f);
}

static void test_never(void **state)
{
    scripted_server *f = *state;
    open_impatient(f);
    for (int admitted = 0; admitted < 2; admitted++) {
        const size_t job = f->submitted, cancelled = f->cancelled;
        post_one(f);
        if (admitted) scripted_admit(f, job, 0, 1);
        cot_answer_watch(f->server);
        assert_int_equal(f->cancelled, cancelled); // it has time
        wait_out();
        cot_answer_watch(f->server);
        assert_int_equal(f->cancelled, cancelled + 1);
        json_t *answer = scripted_answer(f);
        assert_int_equal(f->answer.status, 504);
        assert_string_equal(json_string_value(json_object_get(json_object_get(answer, "error"), "code")),
                            "timeout");
        json_decref(answer);
        assert_non_null(f->server->answers); // its end may still come
        wait_out();
        cot_answer_watch(f->server);
        assert_null(f->server->answers);
        assert_non_null(f->server->lost);
        assert_int_equal(f->cancelled, cancelled + 1);
        assert_serves(f);
        if (admitted) continue;
        scripted_token(f, job, X, SCRIPTED_GOES_ON, 1); // too late, and so is its end
        assert_non_null(f->server->lost);
        scripted_over(f, job, COT_FINISH_CANCELLED, NULL, 1);
        assert_null(f->server->lost);
        assert_serves(f);
    }
    assert_int_equal(lines_with(f, "told nothing of a request"), 2);
    assert_int_equal(lines_with(f, "given up"), 2);
    f->jobs[3] = NULL; // nor does it tell the end when it is closed: the server frees what is left
    cot_server_close(f->server);
    f->server = NULL;
}

/* A stream in which something has come already ends in an error; a stream that goes on is left alone. */
static void test_stalls(void **state)
{
    scripted_server *f = *state;
    open_impatient(f);
    scripted_post_jobs(f, "/v1/completions", "", "{\"prompt\": \"x\", \"max_tokens\": 4, \"stream\": true}",
                       1);
    scripted_admit(f, 0, 0, 1);
    for (int i = 0; i < 2; i++) {
        wait_out();
        scripted_token(f, 0, X, SCRIPTED_GOES_ON, 2 + i);
        cot_answer_watch(f->server);
        assert_int_equal(f->cancelled, 0);
    }
    wait_out();
    cot_answer_watch(f->server);
    assert_int_equal(f->cancelled, 1);
    scripted_answer(f);
    assert_int_equal(f->answer.status, 200);
    assert_non_null(memmem(f->answer.body, f->answer.bytes, "\"timeout\"", 9));
    assert_null(memmem(f->answer.body, f->answer.bytes, "[DONE]", 6));
    scripted_token(f, 0, X, SCRIPTED_GOES_ON, 3); // was on its way
    assert_int_equal(f->server->metrics.generation_tokens_total, 2);
    scripted_over(f, 0, COT_FINISH_CANCELLED, NULL, 4);
    assert_serves(f);
}

/* One of several sequences may be silent as long as anything comes of the others. */
static void test_several(void **state)
{
    scripted_server *f = *state;
    open_impatient(f);
    scripted_post_jobs(f, "/v1/completions", "", "{\"prompt\": \"x\", \"max_tokens\": 4, \"n\": 2}", 2);
    for (int i = 0; i < 3; i++) {
        wait_out();
        if (i)
            scripted_token(f, 0, X, SCRIPTED_GOES_ON, 1 + i);
        else
            scripted_admit(f, 0, 0, 1);
        cot_answer_watch(f->server);
        assert_int_equal(f->cancelled, 0);
    }
    scripted_over(f, 0, COT_FINISH_LENGTH, NULL, 5);
    wait_out();
    cot_answer_watch(f->server);
    assert_int_equal(f->cancelled, 1); // the other alone
    json_decref(scripted_answer(f));
    assert_int_equal(f->answer.status, 504);
    scripted_over(f, 1, COT_FINISH_CANCELLED, NULL, 6);
    assert_serves(f);
}

/* A backend without room says so: others may be asked, or the same later. */
static void test_busy(void **state)
{
    scripted_server *f = *state;
    const cot_error error = {COT_OUT_OF_MEMORY, "no room"};
    open_impatient(f);
    post_one(f);
    const cot_job_event over = {.kind = COT_JOB_OVER,
                                .text = "",
                                .last = true,
                                .finish = COT_FINISH_CANCELLED,
                                .stopped_by = -1,
                                .error = &error,
                                .busy = true};
    cot_answer_on_event(f->server, f->jobs[0]->number, &over);
    f->jobs[0] = NULL;
    json_decref(scripted_answer(f));
    assert_int_equal(f->answer.status, 429);
    assert_serves(f);
}

static cot_server *looked_after; // just before a request is read; NULL: none

void __real_cot_preparer_start(cot_preparer *preparer, cot_preparation *preparation);
void __wrap_cot_preparer_start(cot_preparer *preparer, cot_preparation *preparation);

void __wrap_cot_preparer_start(cot_preparer *preparer, cot_preparation *preparation)
{
    if (looked_after) cot_answer_watch(looked_after);
    __real_cot_preparer_start(preparer, preparation);
}

/* Of a request that is still to be read the worker can tell nothing: it is not cancelled for that. */
static void test_reading(void **state)
{
    scripted_server *f = *state;
    open_impatient(f);
    looked_after = f->server;
    post_one(f);
    looked_after = NULL;
    scripted_admit(f, 0, 0, 1);
    scripted_token(f, 0, X, COT_FINISH_LENGTH, 2);
    json_decref(scripted_answer(f));
    assert_int_equal(f->answer.status, 200);
    assert_serves(f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scripted_set_up, scripted_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_twice),   TEST(test_never), TEST(test_stalls),
                                       TEST(test_several), TEST(test_busy),  TEST(test_reading)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
