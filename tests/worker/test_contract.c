/* What every backend keeps to (worker/backend.h): the same checks of the engine's worker and of a mock. Times do not matter,
 * tokens do only as far as a text that is continued goes on as it would have. */
#include "harness/cmocka.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "base/buffer.h"
#include "base/rng.h"
#include "coterie/engine.h"
#include "coterie/worker.h"
#include "worker/backend.h"

#include <arpa/inet.h>
#include <event2/event.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TOKENS = 512, BLOCK = 16, SEQUENCES = 3 };

/* A job and all that was told of it. */
typedef struct told_job {
    cot_job job;
    int32_t prompt[256];
    int32_t tokens[MOST_TOKENS];
    size_t count, admitted, prompt_tokens, lasts, after_last;
    int64_t cached_tokens, last_ns;
    cot_finish finish;
    int stopped_by;
    cot_error error;
    cot_buffer text;
} told_job;

typedef struct fixture {
    cot_tokenizer *tokenizer;
    cot_engine *engine;
    cot_mock *mock;
    cot_backend *backend;
    const cot_backend_info *info;
    struct event_base *base;
    told_job *jobs[256]; // by number - 1
    size_t job_count;
    size_t views, snapshots, moves;
    uint64_t moves_id;
    cot_error moves_error;
    cot_backend_view view;
    cot_buffer snapshot;
    uint64_t seed;
} fixture;

/* ---- the owner ---- */

static void on_event(void *context, uint64_t number, const cot_job_event *e)
{
    const fixture *f = context;
    assert_in_range(number, 1, f->job_count);
    told_job *t = f->jobs[number - 1];
    assert_true(e->at_ns >= t->last_ns);
    t->last_ns = e->at_ns;
    t->after_last += t->lasts > 0;
    if (e->kind != COT_JOB_ADMITTED && e->kind != COT_JOB_OVER) assert_int_equal(t->admitted, 1);
    t->admitted += e->kind == COT_JOB_ADMITTED;
    if (e->kind == COT_JOB_ADMITTED) t->cached_tokens = e->cached_tokens;
    if (e->kind == COT_JOB_PROMPT_TOKEN) {
        assert_int_equal(t->count, 0);
        assert_int_equal(e->sampled.token, t->prompt[++t->prompt_tokens]);
    }
    if (e->kind == COT_JOB_TOKEN) {
        assert_true(t->count < MOST_TOKENS);
        assert_in_range(e->sampled.token, 0, f->info->vocab - 1);
        if (t->job.request.logprobs >= 0) {
            assert_int_equal(e->sampled.top_count, t->job.request.logprobs);
            assert_true(e->sampled.logprob <= 0 && e->sampled.rank >= 1);
        }
        t->tokens[t->count++] = e->sampled.token;
    }
    if (e->kind == COT_JOB_TOKEN || e->kind == COT_JOB_OVER)
        assert_true(cot_buffer_append(&t->text, e->text, e->bytes));
    if (e->kind == COT_JOB_OVER) assert_true(e->last);
    if (!e->last) return;
    t->lasts++;
    t->finish = e->finish;
    t->stopped_by = e->stopped_by;
    if (e->error) t->error = *e->error;
}

static void on_failure(void *context)
{
    (void)context;
    fail_msg("the backend failed");
}

static void on_view(void *context, const cot_backend_view *view)
{
    fixture *f = context;
    f->views++;
    if (view) f->view = *view;
}

static void on_snapshot(void *context, const void *bytes, size_t count)
{
    fixture *f = context;
    f->snapshots++;
    f->snapshot.bytes = 0;
    assert_non_null(bytes);
    assert_true(cot_buffer_append(&f->snapshot, bytes, count));
}

static void on_moves(void *context, uint64_t id, const cot_error *error)
{
    fixture *f = context;
    f->moves++;
    f->moves_id = id;
    f->moves_error = error ? *error : (cot_error){0};
    assert_true((id == 0) == (error != NULL));
}

/* ---- opening ---- */

static bool is_free(int port)
{
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    const bool free = bind(descriptor, (const struct sockaddr *)&at, sizeof at) == 0;
    close(descriptor);
    return free;
}

/* The first of two that nobody has. */
static int free_ports(void)
{
    static uint64_t drawn;
    for (;;) {
        const int port = 20000 + (int)(cot_random_bits((uint64_t)getpid(), 1, drawn++) % 12000);
        if (is_free(port) && is_free(port + 1)) return port;
    }
}

static void start(fixture *f)
{
    cot_error error;
    f->base = event_base_new();
    f->seed = test_seed();
    f->info = f->backend->table->describe(f->backend);
    cot_backend_start s = {.base = f->base,
                           .owner = {.context = f,
                                     .on_event = on_event,
                                     .on_failure = on_failure,
                                     .on_gone = on_failure,
                                     .on_view = on_view,
                                     .on_snapshot = on_snapshot,
                                     .on_moves = on_moves}};
    char json[128];
    snprintf(json, sizeof json, "{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://127.0.0.1:%d\"}",
             free_ports());
    assert_int_equal(cot_kv_config_read(&s.kv, json, &error), COT_OK);
    if (f->backend->table->start(f->backend, &s, &error) != COT_OK) fail_msg("%s", error.message);
}

static int open_engine(void **state)
{
    fixture *f = *state = must_allocate(1, sizeof *f);
    cot_engine_options o;
    cot_error error;
    cot_engine_options_init(&o);
    o.group.ranks = 2;
    o.group.threads = 1;
    o.attention.mode = "dp";
    o.batch.sequences = SEQUENCES;
    o.memory.block_tokens = BLOCK;
    o.memory.kv_tokens = 512;
    o.experts.movable = true;
    if (cot_tokenizer_open(&f->tokenizer, COT_SOURCE "/models/tiny", &error) != COT_OK ||
        cot_engine_open(&f->engine, COT_SOURCE "/models/tiny", &o, NULL, &error) != COT_OK ||
        cot_worker_of_engine(&f->backend, f->engine, COT_SOURCE "/models/tiny", &error) != COT_OK)
        fail_msg("%s", error.message);
    start(f);
    return 0;
}

static int open_mock(void **state)
{
    static const char spec[] = "{\"ranks\": 2, \"max_num_seqs\": 3, \"ttft_ms\": 2, \"tpot_ms\": 0.5, "
                               "\"cached_blocks\": 64, \"max_model_len\": 512, \"seed\": 7}";
    fixture *f = *state = must_allocate(1, sizeof *f);
    cot_error error;
    if (cot_mock_tokenizer_open(&f->tokenizer, &error) != COT_OK ||
        cot_mock_open(&f->mock, spec, strlen(spec), "spec", f->tokenizer, &error) != COT_OK ||
        cot_worker_of_mock(&f->backend, f->mock, 0, &error) != COT_OK)
        fail_msg("%s", error.message);
    start(f);
    return 0;
}

static int close_all(void **state)
{
    fixture *f = *state;
    if (f->backend) f->backend->table->close(f->backend);
    for (size_t i = 0; i < f->job_count; i++) {
        assert_int_equal(f->jobs[i]->lasts, 1); // every job has one end, and nothing behind it
        assert_int_equal(f->jobs[i]->after_last, 0);
        cot_text_stream_close(f->jobs[i]->job.text);
        cot_buffer_free(&f->jobs[i]->text);
        free(f->jobs[i]);
    }
    cot_engine_close(f->engine);
    cot_mock_close(f->mock);
    cot_tokenizer_close(f->tokenizer);
    cot_buffer_free(&f->snapshot);
    event_base_free(f->base);
    free(f);
    return 0;
}

/* ---- jobs ---- */

/* A job over a drawn prompt, the same for the same `which`; not submitted yet. */
static told_job *new_job(fixture *f, uint64_t which, int64_t prompt_tokens, int64_t max_tokens,
                         const char *stop)
{
    told_job *t = f->jobs[f->job_count++] = must_allocate(1, sizeof *t);
    cot_text_options options;
    cot_text_options_init(&options);
    options.stops = &stop;
    options.stop_count = stop ? 1 : 0;
    cot_request_init(&t->job.request);
    t->job.number = f->job_count;
    t->job.home = COT_HOME_ANY;
    t->job.request.prompt = t->prompt;
    t->job.request.prompt_tokens = prompt_tokens;
    t->job.request.sampling.max_tokens = max_tokens;
    t->job.request.sampling.ignore_eos = true;
    for (int64_t i = 0; i < prompt_tokens; i++)
        t->prompt[i] = 32 + (int32_t)(cot_random_bits(f->seed, which, (uint64_t)i) % 64);
    assert_int_equal(cot_text_stream_open(&t->job.text, f->tokenizer, &options, NULL), COT_OK);
    return t;
}

static void submit(fixture *f, told_job *t)
{
    cot_job *job = &t->job;
    f->backend->table->submit(f->backend, &job, 1);
    assert_int_equal(t->admitted + t->lasts, 0); // nothing is told from within
}

static void turn(fixture *f)
{
    event_base_loop(f->base, EVLOOP_NONBLOCK);
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static void await(fixture *f, const told_job *t)
{
    const time_t begin = time(NULL);
    while (!t->lasts) {
        turn(f);
        if (time(NULL) - begin > 60) fail_msg("a job has no end");
    }
}

static told_job *run(fixture *f, uint64_t which, int64_t prompt_tokens, int64_t max_tokens)
{
    told_job *t = new_job(f, which, prompt_tokens, max_tokens, NULL);
    submit(f, t);
    await(f, t);
    return t;
}

static void assert_text(const fixture *f, const told_job *t)
{
    char *text;
    size_t bytes;
    assert_int_equal(cot_tokenizer_decode(f->tokenizer, &text, &bytes, t->tokens, t->count, true, NULL),
                     COT_OK);
    assert_int_equal(t->text.bytes, bytes);
    if (bytes) assert_memory_equal(t->text.data, text, bytes);
    free(text);
}

/* ---- what holds ---- */

static void test_description(void **state)
{
    const fixture *f = *state;
    const char *const words[] = {f->info->architecture, f->info->precision, f->info->payload, f->info->op,
                                 f->info->combine,      f->info->attention, f->info->isa};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) assert_true(words[i] && *words[i]);
    assert_int_equal(f->info->ranks, 2);
    assert_int_equal(f->info->homes, 2);
    assert_int_equal(f->info->block_tokens, BLOCK);
    assert_true(f->info->vocab > 0 && f->info->context_tokens > 0 && f->info->threads > 0);
    assert_int_equal(strlen(f->info->fingerprint), 19);
    for (size_t i = 0; i < f->info->eos_count; i++) assert_in_range(f->info->eos[i], 0, f->info->vocab - 1);
    cot_backend_state s;
    f->backend->table->state(f->backend, &s);
    assert_true(s.lives && !s.failed && s.publishes_cache);
    assert_int_equal(s.load.running + s.load.waiting, 0);
    assert_true(s.load.kv_pages > 0 && s.load.kv_pages_free == s.load.kv_pages);
    assert_null(f->backend->table->metrics(f->backend)); // nothing was counted yet
}

static void test_lengths(void **state)
{
    fixture *f = *state;
    for (int64_t n = 1; n < 40; n = 2 * n + 1) {
        const told_job *t = run(f, (uint64_t)n, n, n);
        assert_int_equal(t->admitted, 1);
        assert_int_equal(t->count, n);
        assert_int_equal(t->finish, COT_FINISH_LENGTH);
        assert_int_equal(t->stopped_by, -1);
        assert_int_equal(t->error.status, COT_OK);
        assert_text(f, t);
    }
    const told_job *nothing = run(f, 1, 5, 0);
    assert_int_equal(nothing->admitted + nothing->count, 0);
    assert_int_equal(nothing->finish, COT_FINISH_LENGTH);
}

/* The context ends a text. */
static void test_context(void **state)
{
    fixture *f = *state;
    const told_job *t = run(f, 1, 200, 100000);
    assert_int_equal(t->finish, COT_FINISH_CONTEXT);
    assert_in_range(200 + t->count, f->info->context_tokens,
                    f->info->context_tokens + 1); // the last token is not fed
}

static void test_continued(void **state)
{
    fixture *f = *state;
    enum { WHOLE = 24 };
    for (int warm = 0; warm < 2; warm++) {
        told_job *first = new_job(f, 3, 20, WHOLE, NULL);
        first->job.request.sampling.temperature = warm ? 1 : 0;
        first->job.request.sampling.seed = 5;
        submit(f, first);
        await(f, first);
        assert_int_equal(first->count, WHOLE);
        for (size_t k = 1; k < WHOLE; k += 11) {
            told_job *t = new_job(f, 3, 20, WHOLE, NULL);
            memcpy(t->prompt + 20, first->tokens, k * sizeof *t->prompt);
            t->job.request.prompt_tokens = 20 + (int64_t)k;
            t->job.request.output_tokens = (int64_t)k;
            t->job.request.sampling = first->job.request.sampling;
            submit(f, t);
            await(f, t);
            assert_int_equal(t->count, WHOLE - k);
            assert_memory_equal(t->tokens, first->tokens + k, t->count * sizeof *t->tokens);
        }
    }
}

static void test_stops(void **state)
{
    fixture *f = *state;
    const told_job *whole = run(f, 4, 12, 16);
    told_job *t = new_job(f, 4, 12, 16, NULL);
    t->job.request.sampling.stop_tokens = &whole->tokens[5];
    t->job.request.sampling.stop_count = 1;
    submit(f, t);
    await(f, t);
    assert_in_range(t->count, 1, 6);
    assert_int_equal(t->tokens[t->count - 1], whole->tokens[5]);
    assert_int_equal(t->finish, COT_FINISH_STOP);
    assert_true(t->text.bytes < whole->text.bytes); // what ends a text has none
    const char *stop = strndup(whole->text.data + whole->text.bytes / 2, 2);
    t = new_job(f, 4, 12, 16, stop);
    submit(f, t);
    await(f, t);
    assert_int_equal(t->stopped_by, 0);
    assert_int_equal(t->finish, COT_FINISH_STOP);
    assert_true(t->text.bytes <= whole->text.bytes / 2);
    assert_null(memmem(t->text.data, t->text.bytes, stop, strlen(stop)));
    free((char *)stop);
}

static void test_chances(void **state)
{
    fixture *f = *state;
    told_job *t = new_job(f, 5, 9, 3, NULL);
    t->job.request.logprobs = 4;
    t->job.request.all_logits = true;
    submit(f, t);
    await(f, t);
    assert_int_equal(t->prompt_tokens, 8);
    assert_int_equal(t->count, 3);
}

/* More than run at once; each of its own length, in any order. */
static void test_many(void **state)
{
    fixture *f = *state;
    enum { JOBS = 24 };
    told_job *jobs[JOBS];
    cot_job *list[JOBS];
    for (int64_t i = 0; i < JOBS; i++) {
        jobs[i] = new_job(f, 100 + (uint64_t)i, 1 + i * 3, 1 + i % 7, NULL);
        jobs[i]->job.home = (int)(i % 3) - 1;
        list[i] = &jobs[i]->job;
    }
    f->backend->table->submit(f->backend, list, JOBS);
    cot_backend_state s;
    bool ran = false;
    for (size_t i = 0; i < JOBS; i++)
        while (!jobs[i]->lasts) {
            turn(f);
            f->backend->table->state(f->backend, &s);
            ran |= s.load.running > 0;
            assert_in_range(s.load.running, 0, SEQUENCES);
        }
    for (size_t i = 0; i < JOBS; i++) assert_int_equal(jobs[i]->count, 1 + i % 7);
    assert_true(ran);
}

static void test_cancel(void **state)
{
    fixture *f = *state;
    told_job *jobs[8];
    for (size_t i = 0; i < 8; i++) submit(f, jobs[i] = new_job(f, 200 + i, 8, 400, NULL));
    while (!jobs[0]->count) turn(f);
    for (size_t i = 0; i < 8; i += 2) f->backend->table->cancel(f->backend, &jobs[i]->job);
    for (size_t i = 0; i < 8; i += 2) {
        const size_t told = jobs[i]->count;
        await(f, jobs[i]);
        assert_int_equal(jobs[i]->count, told); // nothing but the end
        assert_int_equal(jobs[i]->finish, COT_FINISH_CANCELLED);
        assert_int_equal(jobs[i]->error.status, COT_OK);
    }
    while (!jobs[1]->count) turn(f);
    // the others end when it is closed: close_all counts
    f->backend->table->close(f->backend);
    f->backend = NULL;
    for (size_t i = 1; i < 8; i += 2) assert_int_equal(jobs[i]->finish, COT_FINISH_CANCELLED);
}

static void test_view(void **state)
{
    fixture *f = *state;
    told_job *long_one = new_job(f, 300, 70, 400, NULL);
    submit(f, long_one);
    while (long_one->count < 2) turn(f);
    const size_t before = f->views;
    f->backend->table->ask_view(f->backend);
    f->backend->table->ask_view(f->backend);
    while (f->views == before) turn(f);
    assert_int_equal(f->view.sequences, 1);
    const cot_engine_sequence *q = &f->view.sequence[0];
    assert_int_equal(q->prompt_tokens, 70);
    assert_true(q->tokens > 70 && q->fed < q->tokens && q->pages >= 2 && !q->waiting);
    const cot_backend_metrics *m = f->backend->table->metrics(f->backend);
    assert_non_null(m);
    assert_true(m->steps >= 2 && m->prefill_tokens >= 70 && m->decode_tokens >= 1);
    assert_int_equal(m->ranks, 2);
    f->backend->table->cancel(f->backend, &long_one->job);
    await(f, long_one);
}

/* ---- experts that move ---- */

/* The placement with each layer's first experts of both ranks exchanged. */
static char *exchanged(const char *text, size_t bytes, size_t *length)
{
    json_t *json = json_loadb(text, bytes, 0, NULL), *row;
    size_t l;
    assert_non_null(json);
    const size_t slots = (size_t)json_integer_value(json_object_get(json, "slots_per_rank"));
    json_array_foreach(json_object_get(json, "physical_to_logical_map"), l, row)
    {
        const json_int_t one = json_integer_value(json_array_get(row, 0)),
                         other = json_integer_value(json_array_get(row, slots));
        json_array_set_new(row, 0, json_integer(other));
        json_array_set_new(row, slots, json_integer(one));
    }
    char *changed = json_dumps(json, 0);
    json_decref(json);
    *length = strlen(changed);
    return changed;
}

static void test_moves(void **state)
{
    fixture *f = *state;
    const cot_backend_table *table = f->backend->table;
    cot_backend_moves last, all;
    cot_error error = {0};
    if (!table->moves) { // then nothing of it is there
        assert_true(!table->move && !table->find_moves && !table->cancel_moves && !table->write_placement &&
                    !table->placement);
        return;
    }
    const told_job *still = run(f, 600, 20, 30);
    assert_false(table->moves(f->backend, &last, &all));
    assert_int_equal(last.id, 0);
    size_t bytes, length;
    char *before, *now;
    assert_int_equal(table->write_placement(f->backend, &before, &bytes, &error), COT_OK);
    char *to = exchanged(before, bytes, &length);
    assert_false(table->find_moves(f->backend, 0, &last)); // none were asked for
    assert_false(table->find_moves(f->backend, 1, &last));
    assert_int_equal(table->move(f->backend, "{}", 2, &error), COT_UNSUPPORTED);
    assert_int_equal(f->moves, 0);
    told_job *runs = new_job(f, 600, 20, 30, NULL);
    submit(f, runs);
    assert_int_equal(table->move(f->backend, to, length, &error), COT_OK);
    assert_int_equal(f->moves, 0); // nothing is told from within
    assert_true(table->moves(f->backend, &last, &all));
    assert_int_not_equal(table->move(f->backend, to, length, &error), COT_OK); // one at a time
    while (!f->moves) turn(f);
    assert_int_equal(f->moves_id, 1);
    await(f, runs);
    while (table->moves(f->backend, &last, &all)) turn(f);
    assert_int_equal(f->moves, 1);
    assert_int_equal(runs->count, still->count);
    assert_memory_equal(runs->tokens, still->tokens, still->count * sizeof *still->tokens);
    assert_true(last.over && last.id == 1 && last.copies > 0);
    assert_int_equal(last.copied, last.copies);
    assert_int_equal(last.dropped, last.copies);
    assert_int_equal(all.bytes, last.bytes);
    assert_int_equal(table->write_placement(f->backend, &now, &bytes, &error), COT_OK);
    assert_int_equal(table->move(f->backend, now, bytes, &error), COT_OK); // there is nothing to do
    while (table->moves(f->backend, &last, &all)) turn(f);
    assert_true(last.over && last.id == 2 && last.copies == 0);
    assert_true(all.copied > 0);        // of all
    table->cancel_moves(f->backend, 2); // which are over
    cot_backend_moves first;
    assert_true(table->find_moves(f->backend, 1, &first));
    assert_true(first.id == 1 && first.over && first.copied == all.copied);
    assert_false(table->find_moves(f->backend, 3, &first));
    assert_false(table->find_moves(f->backend, 1 + COT_BACKEND_MOVES, &first));
    run(f, 600, 20, 3);
    // a placement that is read, and refused by the engine
    json_t *json = json_loads(before, 0, NULL);
    json_object_set_new(json, "model_hash", json_string("0123456789abcdef"));
    char *foreign = json_dumps(json, 0);
    assert_int_equal(table->move(f->backend, foreign, strlen(foreign), &error), COT_OK);
    while (f->moves < 3) turn(f);
    assert_int_equal(f->moves_error.status, COT_INVALID_ARGUMENT);
    assert_false(table->moves(f->backend, &last, &all));
    json_decref(json);
    char *owned[] = {before, to, now, foreign};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

/* ---- the cache ---- */

/* Checks the hashes of all blocks of a snapshot against their ids, and counts blocks. */
static size_t check_snapshot(const fixture *f)
{
    msgpack_unpacked all;
    size_t blocks = 0;
    msgpack_unpacked_init(&all);
    assert_int_equal(msgpack_unpack_next(&all, f->snapshot.data, f->snapshot.bytes, NULL),
                     MSGPACK_UNPACK_SUCCESS);
    const msgpack_object_array ranks = all.data.via.map.ptr[0].val.via.array;
    assert_int_equal(ranks.size, 2);
    for (uint32_t r = 0; r < ranks.size; r++) {
        const msgpack_object_map rank = ranks.ptr[r].via.map;
        const msgpack_object_array events = rank.ptr[2].val.via.array.ptr[1].via.array;
        for (uint32_t e = 0; e < events.size; e++) {
            const msgpack_object_map event = events.ptr[e].via.map;
            const msgpack_object_array hashes = event.ptr[1].val.via.array, ids = event.ptr[3].val.via.array;
            bool first = event.ptr[2].val.type == MSGPACK_OBJECT_NIL;
            uint64_t parent = first ? 0 : event.ptr[2].val.via.u64;
            assert_int_equal(ids.size, hashes.size * BLOCK);
            for (uint32_t b = 0; b < hashes.size; b++, blocks++, first = false) {
                int32_t block[BLOCK];
                for (uint32_t i = 0; i < BLOCK; i++) block[i] = (int32_t)ids.ptr[b * BLOCK + i].via.u64;
                const uint64_t local = cot_cache_local_hash(block, BLOCK);
                parent = first ? local : cot_cache_sequence_hash(parent, local);
                assert_true(parent == hashes.ptr[b].via.u64);
            }
        }
    }
    msgpack_unpacked_destroy(&all);
    return blocks;
}

static void test_cache(void **state)
{
    fixture *f = *state;
    const told_job *first = run(f, 400, 5 * BLOCK + 3, 2);
    assert_int_equal(first->cached_tokens, 0);
    const told_job *again = run(f, 400, 5 * BLOCK + 3, 2);
    assert_int_equal(again->cached_tokens, 5 * BLOCK);
    const told_job *exact = run(f, 400, 5 * BLOCK, 2); // one token at least is computed
    assert_int_equal(exact->cached_tokens, 4 * BLOCK);
    told_job *salted = new_job(f, 400, 5 * BLOCK, 2, NULL);
    salted->job.request.cache_salt = "s";
    salted->job.request.cache_salt_bytes = 1;
    submit(f, salted);
    await(f, salted);
    assert_int_equal(salted->cached_tokens, 0);
    cot_backend_state s;
    f->backend->table->state(f->backend, &s);
    assert_int_equal(s.load.queried_tokens, 4 * 5 * BLOCK + 6);
    assert_int_equal(s.load.hit_tokens, 9 * BLOCK);
    assert_int_equal(s.load.cached_blocks, 10);
    assert_int_equal(s.prompt_tokens, 4 * 5 * BLOCK + 6);
    // the snapshot: without the salted text, whose first block has another parent, hashes are those of ids alone
    told_job *leader = new_job(f, 401, 3 * BLOCK + 1, 30, NULL),
             *follower = new_job(f, 401, 3 * BLOCK + 1, 4, NULL);
    follower->job.leader = &leader->job;
    cot_job *both[] = {&leader->job, &follower->job};
    f->backend->table->submit(f->backend, both, 2);
    await(f, leader);
    await(f, follower);
    assert_int_equal(follower->cached_tokens, 3 * BLOCK); // it waited for the leader's prompt
}

static void test_snapshot(void **state)
{
    fixture *f = *state;
    run(f, 500, 7 * BLOCK + 1, 2);
    run(f, 501, 2 * BLOCK + 1, 2 * BLOCK); // a text's own blocks too
    const size_t before = f->snapshots;
    f->backend->table->ask_snapshot(f->backend);
    while (f->snapshots == before) turn(f);
    const size_t blocks = check_snapshot(f);
    cot_backend_state s;
    f->backend->table->state(f->backend, &s);
    assert_int_equal(blocks, s.load.cached_blocks);
    assert_int_equal(blocks, 7 + 4);
    assert_true(s.cache_batches > 0);
    assert_int_equal(s.cache_losses, 0);
}

/* How many texts of the snapshot begin with this salt. */
static size_t times_told(const fixture *f, const char *salt, size_t bytes)
{
    enum { EXTRA_KEYS = 8 };
    msgpack_unpacked all;
    size_t times = 0;
    msgpack_unpacked_init(&all);
    assert_int_equal(msgpack_unpack_next(&all, f->snapshot.data, f->snapshot.bytes, NULL),
                     MSGPACK_UNPACK_SUCCESS);
    const msgpack_object_array ranks = all.data.via.map.ptr[0].val.via.array;
    for (uint32_t r = 0; r < ranks.size; r++) {
        const msgpack_object_array events = ranks.ptr[r].via.map.ptr[2].val.via.array.ptr[1].via.array;
        for (uint32_t e = 0; e < events.size; e++) {
            const msgpack_object first = events.ptr[e].via.map.ptr[EXTRA_KEYS].val.via.array.ptr[0];
            if (first.type != MSGPACK_OBJECT_ARRAY) continue;
            const msgpack_object_str told = first.via.array.ptr[0].via.str;
            times += told.size == bytes && memcmp(told.ptr, salt, bytes) == 0;
        }
    }
    msgpack_unpacked_destroy(&all);
    return times;
}

/* Of a salt of more than 1024 bytes the characters are told that are within them. */
static void test_salts(void **state)
{
    fixture *f = *state;
    static const struct {
        size_t before; // bytes of one each
        const char *behind;
        size_t told;
    } cases[] = {{1022, "\u00e9", 1024}, // one of two bytes ends there
                 {1022, "\u00e9z", 1024},
                 {1023, "\u00e9", 1023},
                 {1023, "\u20ac", 1023}, // one of three
                 {1022, "\u20acz", 1022}};
    enum { CASES = sizeof cases / sizeof *cases };
    char salts[CASES][1040];
    for (size_t i = 0; i < CASES; i++) {
        memset(salts[i], 'a' + (int)i, cases[i].before);
        strcpy(salts[i] + cases[i].before, cases[i].behind);
        told_job *t = new_job(f, 600 + i, BLOCK + 1, 1, NULL);
        t->job.request.cache_salt = salts[i];
        t->job.request.cache_salt_bytes = strlen(salts[i]);
        submit(f, t);
        await(f, t);
    }
    const size_t before = f->snapshots;
    f->backend->table->ask_snapshot(f->backend);
    while (f->snapshots == before) turn(f);
    for (size_t i = 0; i < CASES; i++) assert_int_equal(times_told(f, salts[i], cases[i].told), 1);
}

#define EACH(name)                                                                                           \
    {#name " of the engine", name, open_engine, close_all, NULL},                                            \
    {                                                                                                        \
#name " of a mock", name, open_mock, close_all, NULL                                                 \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {EACH(test_description), EACH(test_lengths), EACH(test_context),
                                       EACH(test_continued),   EACH(test_stops),   EACH(test_chances),
                                       EACH(test_many),        EACH(test_cancel),  EACH(test_view),
                                       EACH(test_moves),       EACH(test_cache),   EACH(test_snapshot),
                                       EACH(test_salts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
