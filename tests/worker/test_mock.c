/* What a mock says of its steps and of its load, against what its jobs were told; and jobs that it has no memory for. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "coterie/worker.h"
#include "worker/mock.h"
#include "worker/step_reports.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HOMES = 2, RUN = 3, PAGE = 64, BLOCK = 16, MOST_JOBS = 64, MOST_TOKENS = 64, MOST_REPORTS = 4096 };

typedef struct told_job {
    cot_job job;
    int32_t prompt[256], tokens[MOST_TOKENS];
    int64_t count, cached_tokens;
    int admitted, lasts;
    cot_finish finish;
    cot_status status;
} told_job;

typedef struct fixture {
    cot_tokenizer *tokenizer;
    cot_mock *mock;
    cot_backend *backend;
    struct event_base *base;
    told_job jobs[MOST_JOBS];
    size_t job_count;
    cot_backend_report reports[MOST_REPORTS];
    cot_home_load homes[MOST_REPORTS][HOMES];
    size_t report_count;
    uint64_t seed;
} fixture;

static fixture now; // of the wrapped functions too

/* ---- what the linker sends here ---- */

static int fails_in; // the so many-th allocation from now on finds no memory; 0: all find some

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails_in && !--fails_in ? NULL : __real_calloc(n, bytes);
}

cot_status __wrap_cot_step_reports_open(cot_step_reports **reports, const cot_endpoint *endpoint, int ranks,
                                        struct event_base *base, cot_error *error);
cot_status __wrap_cot_step_reports_open(cot_step_reports **reports, const cot_endpoint *endpoint, int ranks,
                                        struct event_base *base, cot_error *error)
{
    (void)endpoint, (void)base, (void)error;
    assert_int_equal(ranks, HOMES);
    *reports = (cot_step_reports *)&now;
    return COT_OK;
}

void __wrap_cot_step_reports_close(cot_step_reports *reports);
void __wrap_cot_step_reports_close(cot_step_reports *reports)
{
    (void)reports;
}

static int64_t pages_of(const told_job *t)
{
    return (t->job.request.prompt_tokens + t->count + PAGE - 1) / PAGE;
}

/* What a home holds, by what its jobs were told. */
static void check_home(const cot_home_load *home, int number, int64_t pages)
{
    cot_home_load expected = {.free_pages = pages};
    for (size_t i = 0; i < now.job_count; i++) {
        const told_job *t = &now.jobs[i];
        if (t->job.home != number || t->lasts) continue;
        if (t->admitted) {
            expected.running++;
            expected.free_pages -= pages_of(t);
        } else {
            expected.waiting++;
            expected.waiting_prompt_tokens += t->job.request.prompt_tokens;
        }
    }
    assert_int_equal(home->running, expected.running);
    assert_int_equal(home->waiting, expected.waiting);
    assert_int_equal(home->waiting_prompt_tokens, expected.waiting_prompt_tokens);
    assert_int_equal(home->free_pages, expected.free_pages);
}

static bool checks_homes; // every job says its home

void __wrap_cot_step_reports_put(cot_step_reports *reports, const cot_backend_report *report);
void __wrap_cot_step_reports_put(cot_step_reports *reports, const cot_backend_report *report)
{
    cot_backend_state s;
    assert_ptr_equal(reports, &now);
    assert_int_equal(report->homes, HOMES);
    assert_int_equal(report->ranks, HOMES);
    assert_true(now.report_count < MOST_REPORTS);
    assert_int_equal(report->step, now.report_count + 1);
    now.backend->table->state(now.backend, &s);
    for (int home = 0; home < HOMES && checks_homes; home++)
        check_home(&report->home[home], home, s.load.kv_pages / HOMES);
    for (int home = 0; home < HOMES; home++) { // together they are the worker's
        s.load.running -= report->home[home].running;
        s.load.waiting -= report->home[home].waiting;
    }
    assert_int_equal(s.load.running, 0);
    assert_int_equal(s.load.waiting, 0);
    memcpy(now.homes[now.report_count], report->home, sizeof now.homes[0]);
    now.reports[now.report_count++] = *report;
}

/* ---- the owner ---- */

static void on_event(void *context, uint64_t number, const cot_job_event *e)
{
    (void)context;
    told_job *t = &now.jobs[number - 1];
    assert_int_equal(t->lasts, 0);
    if (e->kind == COT_JOB_ADMITTED) {
        t->admitted++;
        t->cached_tokens = e->cached_tokens;
    }
    if (e->kind == COT_JOB_TOKEN) t->tokens[t->count++] = e->sampled.token;
    t->lasts += e->last;
    t->finish = e->finish;
    t->status = e->error ? e->error->status : COT_OK;
}

/* Two homes that have room for so many blocks each. */
static int open_with(int cached_blocks)
{
    char spec[256];
    cot_error error;
    snprintf(
        spec, sizeof spec,
        "{\"ranks\": 2, \"max_num_seqs\": 3, \"ttft_ms\": 0.5, \"ttft_ms_per_token\": 0.001, \"tpot_ms\": "
        "0.25, \"tokens\": 5, \"cached_blocks\": %d, \"max_model_len\": 512}",
        cached_blocks);
    memset(&now, 0, sizeof now);
    checks_homes = false;
    now.seed = test_seed();
    now.base = event_base_new();
    if (cot_mock_tokenizer_open(&now.tokenizer, &error) != COT_OK ||
        cot_mock_open(&now.mock, spec, strlen(spec), "spec", now.tokenizer, &error) != COT_OK ||
        cot_worker_of_mock(&now.backend, now.mock, 0, &error) != COT_OK)
        fail_msg("%s", error.message);
    const cot_backend_start s = {.base = now.base,
                                 .owner = {.context = &now, .on_event = on_event},
                                 .reports = {.address = "127.0.0.1", .port = 1}};
    assert_int_equal(now.backend->table->start(now.backend, &s, &error), COT_OK);
    return 0;
}

static int open_mock(void **state)
{
    (void)state;
    return open_with(64);
}

static int open_small(void **state)
{
    (void)state;
    return open_with(PAGE / BLOCK);
}

static int close_mock(void **state)
{
    (void)state;
    now.backend->table->close(now.backend);
    for (size_t i = 0; i < now.job_count; i++) {
        assert_int_equal(now.jobs[i].lasts, 1);
        cot_text_stream_close(now.jobs[i].job.text);
    }
    cot_mock_close(now.mock);
    cot_tokenizer_close(now.tokenizer);
    event_base_free(now.base);
    return 0;
}

static told_job *new_job(uint64_t which, int home, int64_t prompt_tokens, int64_t max_tokens)
{
    assert_true(now.job_count < MOST_JOBS);
    told_job *t = &now.jobs[now.job_count++];
    cot_text_options options;
    cot_text_options_init(&options);
    cot_request_init(&t->job.request);
    t->job.number = now.job_count;
    t->job.home = home;
    t->job.request.prompt = t->prompt;
    t->job.request.prompt_tokens = prompt_tokens;
    t->job.request.sampling.max_tokens = max_tokens;
    t->job.request.sampling.ignore_eos = true;
    for (int64_t i = 0; i < prompt_tokens; i++)
        t->prompt[i] = 32 + (int32_t)(cot_random_bits(now.seed, which, (uint64_t)i) % 64);
    assert_int_equal(cot_text_stream_open(&t->job.text, now.tokenizer, &options, NULL), COT_OK);
    return t;
}

static void submit(told_job *const *jobs, size_t count)
{
    cot_job *list[MOST_JOBS];
    for (size_t i = 0; i < count; i++) list[i] = &jobs[i]->job;
    now.backend->table->submit(now.backend, list, count);
    for (size_t i = 0; i < count; i++) // nothing is told from within
        assert_int_equal(jobs[i]->admitted + jobs[i]->lasts, 0);
}

static void await(const told_job *t)
{
    const time_t begin = time(NULL);
    while (!t->lasts) {
        event_base_loop(now.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        if (time(NULL) - begin > 60) fail_msg("a job has no end");
    }
}

static told_job *run(told_job *t)
{
    submit(&t, 1);
    await(t);
    return t;
}

/* ---- what holds ---- */

/* Whatever allocation of three jobs fails: one of them is told so, in a later turn, and the others go on. */
static void test_no_memory(void **state)
{
    (void)state;
    for (int k = 1; k <= 6; k++) {
        told_job *jobs[3];
        for (size_t i = 0; i < 3; i++) jobs[i] = new_job((uint64_t)k, COT_HOME_ANY, 40, 4);
        jobs[1]->job.leader = &jobs[0]->job;
        fails_in = k;
        submit(jobs, 3);
        assert_int_equal(fails_in, 0);
        for (int i = 0; i < 3; i++) {
            const bool is_lost = i == (k - 1) / 2;
            await(jobs[i]);
            assert_int_equal(jobs[i]->count, is_lost ? 0 : 4);
            assert_int_equal(jobs[i]->status, is_lost ? COT_OUT_OF_MEMORY : COT_OK);
        }
    }
    told_job *both[] = {new_job(7, 0, 40, 4), new_job(8, 0, 40, 4)};
    fails_in = 1;
    submit(both, 1);
    now.backend->table->cancel(now.backend, &both[0]->job);
    await(both[0]);
    assert_int_equal(both[0]->status, COT_OK);
    assert_int_equal(run(new_job(9, 0, 40, 4))->count, 4);
    fails_in = 2;
    submit(both + 1, 1); // closing tells it
}

/* The sum of what each of `tokens` tokens behind a position sees. */
static int64_t pairs_of(int64_t position, int64_t tokens)
{
    int64_t pairs = 0;
    for (int64_t i = 1; i <= tokens; i++) pairs += position + i;
    return pairs;
}

/* One job's steps: its prompt, but for what was cached, then a token each. */
static void test_steps(void **state)
{
    (void)state;
    for (int again = 0; again < 2; again++) {
        const size_t first = now.report_count;
        const told_job *t = run(new_job(1, 0, 100, 5));
        assert_int_equal(t->cached_tokens, again ? 96 : 0);
        assert_int_equal(now.report_count, first + 5);
        for (int64_t i = 0; i < 5; i++) {
            const cot_backend_report *r = &now.reports[first + (size_t)i];
            const int64_t before = i ? 99 + i : t->cached_tokens, tokens = i ? 1 : 100 - before;
            assert_int_equal(r->sequences, 1);
            assert_int_equal(r->tokens, tokens);
            assert_int_equal(r->prompt_tokens, i ? 0 : tokens);
            assert_int_equal(r->positions, before + tokens);
            assert_int_equal(r->pairs, pairs_of(before, tokens));
            assert_true(r->observed_ns == r->predicted_ns && r->observed_ns > 0);
        }
    }
}

/* What homes hold, of more jobs than run at once: checked at each report; and the whole load. */
static void test_loads(void **state)
{
    (void)state;
    told_job *jobs[10];
    cot_backend_state s;
    checks_homes = true;
    for (int i = 0; i < 10; i++) jobs[i] = new_job(10 + (uint64_t)i, i % HOMES, 20 + 23 * i, 4 + i);
    submit(jobs, 10);
    for (int i = 0; i < 10; i++) await(jobs[i]);
    assert_true(now.report_count > 20);
    told_job *t = new_job(30, COT_HOME_ANY, 130, 60);
    checks_homes = false;
    submit(&t, 1);
    while (!t->count) event_base_loop(now.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    now.backend->table->state(now.backend, &s);
    assert_int_equal(s.load.kv_pages_free, s.load.kv_pages - pages_of(t));
    assert_int_equal(now.homes[now.report_count - 1][0].running, 1); // the first among equals
    told_job *other = new_job(31, COT_HOME_ANY, 130, 60);
    submit(&other, 1);
    while (!other->count) event_base_loop(now.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    assert_int_equal(now.homes[now.report_count - 1][1].running, 1); // where fewer pages are held
}

/* Who runs may hold more pages than there are: none is free then. */
static void test_more_than_there_is(void **state)
{
    (void)state;
    cot_backend_state s;
    told_job *t = new_job(35, 0, 2 * PAGE + 1, 40);
    submit(&t, 1);
    while (!t->count) event_base_loop(now.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    now.backend->table->state(now.backend, &s);
    assert_int_equal(s.load.kv_pages, HOMES);
    assert_int_equal(s.load.kv_pages_free, 0);
    assert_int_equal(now.homes[now.report_count - 1][0].free_pages, 0);
    assert_int_equal(now.homes[now.report_count - 1][1].free_pages, 1);
}

/* A text that is continued has less of a prompt. */
static void test_continued(void **state)
{
    (void)state;
    cot_backend_state s;
    told_job *t = new_job(40, 0, 50, 9);
    t->job.request.output_tokens = 7;
    run(t);
    now.backend->table->state(now.backend, &s);
    assert_int_equal(s.prompt_tokens, 43);
    assert_int_equal(s.load.queried_tokens, 43);
    assert_int_equal(t->count, 2);
}

static void test_min_tokens(void **state)
{
    (void)state;
    for (int64_t least = 0; least < 12; least += 3) {
        told_job *t = new_job(50, 0, 20, 30);
        t->job.request.sampling.ignore_eos = false;
        t->job.request.sampling.min_tokens = least;
        run(t);
        assert_int_equal(t->finish, COT_FINISH_EOS);
        assert_int_equal(t->count, 1 + (least > 5 ? least : 5));
    }
}

/* Ports of a worker are as much higher as workers before it take; what a server would refuse is refused. */
static void test_ports(void **state)
{
    static const char reports[] = "tcp://127.0.0.1:5600";
    cot_mock_published p;
    cot_error error;
    cot_kv_config c;
    (void)state;
    for (int workers = 1; workers <= 3; workers += 2)
        for (int i = 0; i < workers; i++) {
            cot_mock mock = {.workers = workers, .homes = 2};
            static const char *const given[] = {"{\"topic\": \"t\"}",
                                                "{\"endpoint\": null, \"topic\": \"t\"}",
                                                "{\"endpoint\": \"tcp://localhost:5557\", \"topic\": \"t\", "
                                                "\"replay_endpoint\": \"tcp://[::1]:7000\"}"};
            for (size_t g = 0; g < 3; g++) {
                if (cot_mock_ports(&p, &mock, i, given[g], reports, 8000 + i, false, &error) != COT_OK)
                    fail_msg("%s", error.message);
                assert_int_equal(cot_kv_config_read(&c, p.kv_events_config, &error), COT_OK);
                assert_string_equal(c.endpoint.address, "127.0.0.1");
                assert_int_equal(c.endpoint.port, 5557 + 2 * i);
                assert_string_equal(c.replay_endpoint.address, g == 2 ? "[::1]" : "");
                assert_int_equal(c.replay_endpoint.port, g == 2 ? 7000 + 2 * i : 0);
                assert_string_equal(c.topic, "t");
                assert_string_equal(p.step_reports_endpoint, i == 0   ? "tcp://127.0.0.1:5600"
                                                             : i == 1 ? "tcp://127.0.0.1:5601"
                                                                      : "tcp://127.0.0.1:5602");
                cot_mock_published_free(&p);
            }
            assert_int_equal(cot_mock_ports(&p, &mock, i, NULL, NULL, 0, false, &error), COT_OK);
            assert_true(!p.kv_events_config && !p.step_reports_endpoint);
        }
}

/* Three workers of two ranks take six ports from each that is given. */
static void test_ports_collide(void **state)
{
    static const struct {
        const char *members, *reports;
        int http_port;
        bool good;
    } rows[] = {
        {"\"endpoint\": \"tcp://127.0.0.1:7000\", \"replay_endpoint\": \"tcp://127.0.0.1:7006\"", NULL, 0,
         true},
        {"\"endpoint\": \"tcp://127.0.0.1:7000\", \"replay_endpoint\": \"tcp://127.0.0.1:7005\"", NULL, 0,
         false},
        {"\"endpoint\": \"tcp://127.0.0.1:7001\", \"endpoint\": \"tcp://127.0.0.1:7000\"", NULL, 0, false},
        {"\"endpoint\": \"tcp://127.0.0.1: 7000\"", NULL, 0, false},
        {"\"endpoint\": \"tcp://127.0.0.1:65530\"", NULL, 0, true},
        {"\"endpoint\": \"tcp://127.0.0.1:65531\"", NULL, 0, false},
        {"\"endpoint\": \"tcp://127.0.0.1:7000\"", NULL, 7005, false},
        {"\"endpoint\": \"tcp://127.0.0.1:7000\"", NULL, 7006, true},
        {"\"endpoint\": \"tcp://127.0.0.1:7000\"", "tcp://127.0.0.1:7006", 0, true},
        {"\"endpoint\": \"tcp://127.0.0.1:7000\"", "tcp://127.0.0.1:7005", 0, false},
        {"\"endpoint\": \"tcp://127.0.0.1:7002\"", "tcp://127.0.0.1:6999", 0, true},
        {"\"endpoint\": \"tcp://127.0.0.1:7001\"", "tcp://127.0.0.1:6999", 0, false}, // of the third worker
        {"\"endpoint\": \"tcp://127.0.0.1:7000\"", "tcp://127.0.0.1:65533", 0, true},
        {"\"endpoint\": \"tcp://127.0.0.1:7000\"", "tcp://127.0.0.1:65534", 0, false},
        {"\"replay_endpoint\": \"tcp://127.0.0.1:7002\"", "tcp://127.0.0.1:6999", 0, true},
        {"\"replay_endpoint\": \"tcp://127.0.0.1:7001\"", "tcp://127.0.0.1:6999", 0, false},
        {"\"endpoint\": \"tcp://127.0.0.1:7000\"", "tcp://127.0.0.1:+5600", 0, false},
    };
    const cot_mock mock = {.workers = 3, .homes = 2};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char config[256];
        cot_mock_published p;
        cot_error error = {0};
        snprintf(config, sizeof config, "{\"enable_kv_cache_events\": true, %s}", rows[i].members);
        const cot_status status =
            cot_mock_ports(&p, &mock, 0, config, rows[i].reports, rows[i].http_port, false, &error);
        if (status != (rows[i].good ? COT_OK : COT_INVALID_ARGUMENT))
            fail_msg("row %zu: %s", i, error.message);
        assert_true(rows[i].good == (p.kv_events_config != NULL));
        cot_mock_published_free(&p);
    }
}

int main(void)
{
#define EACH(name) cmocka_unit_test_setup_teardown(name, open_mock, close_mock)
    const struct CMUnitTest tests[] = {
        EACH(test_no_memory),
        EACH(test_steps),
        EACH(test_loads),
        cmocka_unit_test_setup_teardown(test_more_than_there_is, open_small, close_mock),
        EACH(test_continued),
        EACH(test_min_tokens),
        cmocka_unit_test(test_ports),
        cmocka_unit_test(test_ports_collide)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
