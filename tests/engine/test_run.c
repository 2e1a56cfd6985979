/* How sequences begin and end, what is refused, who waits for whom, and in which order things are told. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/random_model.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/tiny_copy.h"
#include "harness/engine/steps.h"
#include "harness/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int32_t prompt[CONTEXT + 1] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};

static cot_request generating(int64_t prompt_tokens, int64_t max_tokens)
{
    return generating_from(prompt, prompt_tokens, max_tokens);
}

/* Runs one request and checks how many tokens it gave and how it ended. */
static void expect(cot_engine *engine, cot_request r, int64_t tokens, cot_finish finish)
{
    struct records all = must_run(engine, &r, 1);
    assert_int_equal(all.record[0].sampled_tokens, tokens);
    assert_int_equal(all.record[0].finish, finish);
    records_free(&all);
}

static bool nothing_said(void *context, uint64_t request, int32_t token)
{
    (void)context;
    fail_msg("request %zu said %d", request, token);
    return false;
}

static void nothing_finished(void *context, uint64_t request, cot_finish finish)
{
    (void)context, (void)finish;
    fail_msg("request %zu ran", request);
}

/* Requests of which one cannot be: it is named, and nothing runs. */
static void refuse(cot_engine *engine, const cot_request *requests, size_t count, size_t bad,
                   cot_status status, const char *what)
{
    cot_events events = {.on_token = nothing_said, .on_finish = nothing_finished};
    cot_error error = {0};
    size_t failed = SIZE_MAX;
    assert_int_equal(cot_engine_run(engine, requests, count, &events, &failed, &error), status);
    assert_int_equal(error.status, status);
    assert_int_equal(failed, bad);
    if (!strstr(error.message, what)) fail_msg("'%s' does not say '%s'", error.message, what);
    uint64_t id = 7;
    assert_int_equal(cot_engine_submit(engine, &id, &requests[bad], 0, &events, NULL), status);
    assert_int_equal(id, 0);
}

/* ---- ends ---- */

static void lengths(void **state)
{
    (void)state;
    struct setting s = {.ranks = 3, .attention = "tp"};
    cot_engine *engine = open_random("null", &s);
    assert_int_equal(cot_engine_describe(engine)->context_tokens, CONTEXT);
    expect(engine, generating(5, 0), 0, COT_FINISH_LENGTH);
    expect(engine, generating(5, 1), 1, COT_FINISH_LENGTH);
    expect(engine, generating(1, 37), 37, COT_FINISH_LENGTH);
    expect(engine, generating(5, CONTEXT - 5), CONTEXT - 5, COT_FINISH_LENGTH);
    expect(engine, generating(5, CONTEXT - 4), CONTEXT - 5, COT_FINISH_CONTEXT);
    expect(engine, generating(5, INT64_MAX), CONTEXT - 5, COT_FINISH_CONTEXT);
    expect(engine, generating(CONTEXT - 1, 9), 1, COT_FINISH_CONTEXT);
    expect(engine, generating(CONTEXT, 9), 0, COT_FINISH_CONTEXT);
    expect(engine, generating(CONTEXT, 0), 0, COT_FINISH_LENGTH);
    expect(engine, forced_request(prompt, 8, 8), 0, COT_FINISH_LENGTH);
    expect(engine, forced_request(prompt, CONTEXT, 7), 0, COT_FINISH_LENGTH);
    assert_int_equal(cot_engine_run(engine, NULL, 0, &(cot_events){0}, NULL, NULL), COT_OK);
    cot_request quiet = generating(4, 4); // nobody listens
    assert_int_equal(cot_engine_run(engine, &quiet, 1, &(cot_events){0}, NULL, NULL), COT_OK);
    cot_engine_close(engine);
}

/* A model's own text tells which tokens it will say; then one of them is named as an end. */
static void end_of_sequence(void **state)
{
    (void)state;
    struct setting s = {.ranks = 2};
    cot_engine *engine = open_random("null", &s);
    cot_request r = generating(6, 30);
    r.sampling.temperature = 1.5; // random weights repeat themselves otherwise
    struct records free_text = must_run(engine, &r, 1);
    const int32_t *said = free_text.record[0].sampled;
    assert_int_equal(free_text.record[0].sampled_tokens, 30);
    cot_engine_close(engine);
    int64_t at = 9, first = 0; // where the token that comes at 9 came first
    while (said[first] != said[at]) first++;
    int32_t never = 0; // a token that does not come
    for (int64_t i = 0; i < 30; i++)
        if (said[i] == never) never++, i = -1;
    char eos[2][64];
    snprintf(eos[0], sizeof eos[0], "%d", said[at]);
    snprintf(eos[1], sizeof eos[1], "[%d, %d]", never, said[at]);
    for (int i = 0; i < 2; i++) {
        engine = open_random(eos[i], &s);
        r.sampling.ignore_eos = false;
        struct records text = must_run(engine, &r, 1);
        assert_int_equal(text.record[0].finish, COT_FINISH_EOS);
        assert_int_equal(text.record[0].sampled_tokens, first); // the end itself is not told
        assert_memory_equal(text.record[0].sampled, said, (size_t)first * sizeof *said);
        records_free(&text);
        r.sampling.ignore_eos = true;
        text = must_run(engine, &r, 1);
        assert_int_equal(text.record[0].finish, COT_FINISH_LENGTH);
        assert_memory_equal(text.record[0].sampled, said, 30 * sizeof *said);
        records_free(&text);
        cot_engine_close(engine);
    }
    records_free(&free_text);
}

/* generation_config.json adds ends to config.json's. */
static void ends_of_generation_config(void **state)
{
    (void)state;
    struct setting s = {.folder = TINY};
    cot_request r = generating(6, 12);
    cot_engine_info info;
    struct records text = run_once(&s, &r, 1, &info);
    assert_int_equal(text.record[0].sampled_tokens, 12);
    int64_t first = 0;
    while (text.record[0].sampled[first] != text.record[0].sampled[4]) first++;
    char folder[] = TINY_COPY, path[64];
    tiny_copy_make(folder, NULL, NULL);
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"eos_token_id\": [0, %d]}\n", text.record[0].sampled[4]);
    assert_int_equal(fclose(file), 0);
    s.folder = folder;
    struct records cut = run_once(&s, &r, 1, &info);
    assert_int_equal(cut.record[0].finish, COT_FINISH_EOS);
    assert_int_equal(cut.record[0].sampled_tokens, first);
    tiny_copy_remove(folder);
    records_free(&cut);
    records_free(&text);
}

static void the_listener_ends_a_sequence(void **state)
{
    (void)state;
    cot_engine *engine = open_random("null", &(struct setting){.ranks = 2, .attention = "dp"});
    cot_request requests[] = {generating(5, 20), generating(3, 4), generating(9, 20)};
    for (int64_t stop = 1; stop < 8; stop += 3) {
        struct records all = records_new(engine, requests, 3);
        all.stop_after = stop;
        cot_events events = events_of(&all);
        assert_int_equal(cot_engine_run(engine, requests, 3, &events, NULL, NULL), COT_OK);
        for (int i = 0; i < 3; i++) {
            bool full = i == 1 && stop > 4;
            assert_int_equal(all.record[i].finishes, 1);
            assert_int_equal(all.record[i].sampled_tokens, full ? 4 : stop);
            assert_int_equal(all.record[i].finish, full ? COT_FINISH_LENGTH : COT_FINISH_STOP);
        }
        records_free(&all);
    }
    expect(engine, generating(5, 20), 20, COT_FINISH_LENGTH); // rows and pages came back
    cot_engine_close(engine);
}

/* ---- requests while it runs ---- */

/* Says what it is told of, and may cancel a request at the third token. */
struct listener {
    cot_engine *engine;
    uint64_t cancels, told;
    int64_t tokens;
    int finishes;
    cot_finish finish;
};

static bool count_token(void *context, uint64_t request, int32_t token)
{
    struct listener *l = context;
    (void)token;
    l->told = request;
    if (++l->tokens == 3 && l->cancels)
        assert_int_equal(cot_engine_cancel(l->engine, l->cancels, NULL), COT_OK);
    return true;
}

static void count_finish(void *context, uint64_t request, cot_finish finish)
{
    struct listener *l = context;
    l->told = request;
    l->finishes++;
    l->finish = finish;
}

static uint64_t listen_to(cot_engine *engine, struct listener *l, const cot_request *request, int home)
{
    const cot_events events = {.context = l, .on_token = count_token, .on_finish = count_finish};
    return must_submit(engine, request, home, &events);
}

static void assert_ended(const struct listener *l, uint64_t id, int64_t tokens, cot_finish finish)
{
    assert_int_equal(l->finishes, 1);
    assert_int_equal(l->told, id);
    assert_int_equal(l->tokens, tokens);
    assert_int_equal(l->finish, finish);
}

static void requests_are_cancelled(void **state)
{
    (void)state;
    cot_engine *engine = open_random("null", &(struct setting){.ranks = 2, .sequences = 2});
    struct listener l[4] = {0};
    cot_request ten = generating(5, 10);
    uint64_t id[4];
    for (int i = 0; i < 4; i++) {
        l[i].engine = engine;
        id[i] = listen_to(engine, &l[i], &ten, i % 2);
        assert_int_equal(id[i], i + 1);
    }
    assert_int_equal(must_step(engine), 4); // two run, two wait, and each has said a token
    assert_int_equal(l[1].tokens + l[2].tokens, 1);
    assert_int_equal(cot_engine_cancel(engine, id[0], NULL), COT_OK); // runs
    assert_ended(&l[0], id[0], 1, COT_FINISH_CANCELLED);
    assert_int_equal(cot_engine_cancel(engine, id[3], NULL), COT_OK); // waits
    assert_ended(&l[3], id[3], 0, COT_FINISH_CANCELLED);
    static const uint64_t gone[] = {0, 1, 4, 5, UINT64_MAX};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        cot_error error = {0};
        assert_int_equal(cot_engine_cancel(engine, gone[i], &error), COT_NOT_FOUND);
        assert_non_null(strstr(error.message, "there is no request"));
    }
    assert_int_equal(must_step(engine), 2); // there is a row for the third
    assert_int_equal(l[2].tokens, 1);
    l[1].cancels = id[1]; // itself, though it says to go on
    assert_int_equal(must_step(engine), 1);
    assert_ended(&l[1], id[1], 3, COT_FINISH_CANCELLED);
    expect(engine, generating(5, 7), 7, COT_FINISH_LENGTH); // runs what else there is, too
    assert_int_equal(l[2].told, id[2]);
    for (int i = 0; i < 2; i++) assert_int_equal(must_step(engine), 0);
    assert_ended(&l[2], id[2], 10, COT_FINISH_LENGTH);
    assert_true(listen_to(engine, &l[0], &ten, 0) > id[3] + 1); // no number twice, those of a run included
    cot_engine_close(engine);                                   // while one waits
}

static void homes_out_of_range(void **state)
{
    (void)state;
    cot_engine *engine = open_random("null", &(struct setting){.ranks = 3, .attention = "dp"});
    cot_request request = generating(5, 4);
    for (int home = -2; home <= 3; home += 5) { // -1 is COT_HOME_ANY
        uint64_t id = 7;
        cot_error error = {0};
        assert_int_equal(cot_engine_submit(engine, &id, &request, home, &(cot_events){0}, &error),
                         COT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "is not in [0, 2]"));
        assert_int_equal(id, 0);
    }
    struct listener l = {0};
    uint64_t id = listen_to(engine, &l, &request, 2);
    must_finish(engine);
    assert_ended(&l, id, 4, COT_FINISH_LENGTH);
    cot_engine_close(engine);
}

/* kv_tokens is in tokens: sequences that end anywhere in a page run side by side when their sum is given. */
static void kv_of_the_sum_of_lengths(void **state)
{
    (void)state;
    enum { SEQUENCES = 5, LENGTH = 65 }; // two pages each, one of them nearly empty
    cot_engine *engine = open_random(
        "null", &(struct setting){.sequences = SEQUENCES, .kv_tokens = SEQUENCES * LENGTH, .ranks = 1});
    cot_request requests[SEQUENCES];
    for (int i = 0; i < SEQUENCES; i++) requests[i] = generating(LENGTH - 4, 4);
    struct records all = must_run(engine, requests, SEQUENCES);
    cot_stats stats;
    assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
    assert_int_equal(stats.steps, 4); // the prompts, then a token of each
    cot_stats_clear(&stats);
    records_free(&all);
    cot_engine_close(engine);
}

/* ---- refusals ---- */

static void refusals_leave_the_engine_usable(void **state)
{
    (void)state;
    struct setting s = {.ranks = 2, .sequences = 1, .kv_tokens = 64, .step_tokens = 16};
    cot_engine *engine = open_random("null", &s); // 2 pages of 64 positions
    cot_request good = generating(5, 20);
    struct records before = must_run(engine, &good, 1);
    static const int32_t negative[] = {1, 2, -1}, beyond[] = {1, VOCAB};
    struct {
        cot_request request;
        cot_status status;
        const char *what;
    } bad[] = {
        {generating(0, 9), COT_INVALID_ARGUMENT, "prompt is empty"},
        {generating(-1, 9), COT_INVALID_ARGUMENT, "prompt is empty"},
        {generating(CONTEXT + 1, 9), COT_TOO_LONG, "201 tokens, the context is 200"},
        {forced_request(prompt, CONTEXT + 1, 5), COT_TOO_LONG, "201 tokens, the context is 200"},
        {forced_request(prompt, INT64_MAX, 5), COT_TOO_LONG, "9223372036854775807 tokens"},
        {forced_request(prompt, 4, 5), COT_INVALID_ARGUMENT, "-1 forced tokens"},
        {generating(5, 124), COT_OUT_OF_MEMORY, "up to 129 tokens, the KV cache holds 128"},
        {{.prompt = negative, .prompt_tokens = 3}, COT_INVALID_ARGUMENT, "token 2 is -1"},
        {{.prompt = beyond, .prompt_tokens = 2}, COT_INVALID_ARGUMENT, "token 1 is 61"},
        {{.prompt = prompt, .prompt_tokens = 2, .forced = negative, .forced_tokens = 3, .all_logits = true},
         COT_INVALID_ARGUMENT,
         "token 2 is -1"},
        {{.prompt = prompt, .prompt_tokens = 2, .forced = beyond, .forced_tokens = 2, .all_logits = true},
         COT_INVALID_ARGUMENT,
         "token 1 is 61"},
        {generating(5, -1), COT_INVALID_ARGUMENT, "max tokens -1"},
        {generating(5, 5), COT_INVALID_ARGUMENT, "top-p"},
    };
    enum { BAD = sizeof bad / sizeof *bad };
    for (size_t i = 0; i < BAD; i++)
        if (!bad[i].request.sampling.size) bad[i].request.sampling = good.sampling;
    bad[BAD - 1].request.sampling.top_p = 2;
    for (size_t i = 0; i < BAD; i++) {
        cot_request requests[] = {good, good, bad[i].request};
        refuse(engine, requests, 3, 2, bad[i].status, bad[i].what);
        struct records after = must_run(engine, &good, 1);
        assert_memory_equal(after.record[0].sampled, before.record[0].sampled, 20 * sizeof(int32_t));
        records_free(&after);
    }
    expect(engine, generating(5, 123), 123, COT_FINISH_LENGTH); // the whole cache
    records_free(&before);
    cot_engine_close(engine);
}

static void options_out_of_range_are_named(void **state)
{
    (void)state;
    cot_engine *engine;
#define REFUSED(field, value, what)                                                                          \
    do {                                                                                                     \
        cot_engine_options o;                                                                                \
        cot_error error = {0};                                                                               \
        cot_engine_options_init(&o);                                                                         \
        o.field = (value);                                                                                   \
        assert_int_equal(cot_engine_open(&engine, TINY, &o, NULL, &error), COT_INVALID_ARGUMENT);            \
        assert_null(engine);                                                                                 \
        assert_non_null(strstr(error.message, what));                                                        \
    } while (0)
    REFUSED(size, 1, "options of 1 bytes");
    REFUSED(group.ranks, -1, "ranks -1");
    REFUSED(group.ranks, 65, "ranks 65");
    REFUSED(group.threads, -1, "threads -1");
    REFUSED(weights.precision, "fp16", "precision 'fp16' (bf16, fp32 or int8)");
    REFUSED(attention.mode, "pp", "attention 'pp' (tp or dp)");
    REFUSED(experts.op, "none", "operator 'none'");
    REFUSED(experts.a2a, "x", "a2a 'x' (padded, two-phase or one-shot)");
    REFUSED(batch.step_tokens, -1, "step tokens -1");
    REFUSED(batch.step_tokens, 65537, "step tokens 65537");
    REFUSED(batch.sequences, 1025, "sequences 1025");
    REFUSED(memory.kv_tokens, -1, "kv tokens -1");
    REFUSED(memory.block_tokens, 12, "no power of two");
#undef REFUSED
    cot_engine_options o;
    cot_error error = {0};
    cot_engine_options_init(&o);
    assert_int_equal(cot_engine_open(&engine, TINY "/nowhere", &o, NULL, &error), COT_NOT_FOUND);
    assert_null(engine);
    o.group.isa = "mmx";
    assert_int_equal(cot_engine_open(&engine, TINY, &o, NULL, &error), COT_UNSUPPORTED);
    assert_null(engine);
    assert_non_null(strstr(error.message, "'mmx'"));
    o.group.isa = NULL;
    o.memory.kv_tokens = (int64_t)1 << 40; // no more is taken than the sequences can fill
    assert_int_equal(cot_engine_open(&engine, TINY, &o, NULL, &error), COT_OK);
    cot_engine_close(engine);
    cot_engine_close(NULL);
}

/* ---- many sequences ---- */

enum { MANY = 9 };

static void drawn_requests(cot_request *requests, uint64_t *seed)
{
    for (size_t i = 0; i < MANY; i++) {
        requests[i] = generating(1 + (int64_t)(draw(seed) % 60), 1 + (int64_t)(draw(seed) % 50));
        requests[i].prompt = prompt + draw(seed) % 9;
        requests[i].sampling.temperature = draw(seed) % 3 ? 1.2 : 0;
        requests[i].sampling.top_p = draw(seed) % 2 ? 0.95 : 1;
        requests[i].sampling.repetition_penalty = draw(seed) % 2 ? 1.1 : 1;
        requests[i].sampling.seed = draw(seed);
        requests[i].all_logits = draw(seed) % 2;
    }
}

/* The same tokens alone and in any company, however few rows and pages there are to wait for. */
static void company_and_queues(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const struct setting queues[] = {
        {.ranks = 1, .sequences = MANY, .kv_tokens = 2000},
        {.ranks = 3, .sequences = 2, .kv_tokens = 2000},
        {.ranks = 2, .sequences = 1, .step_tokens = 5},
        {.ranks = 4, .sequences = MANY, .kv_tokens = 64, .step_tokens = 11}, // pages run out first
        {.ranks = 5, .sequences = 4, .kv_tokens = 300, .step_tokens = 2},
    };
    cot_request requests[MANY];
    drawn_requests(requests, &seed);
    struct records alone[MANY];
    cot_engine *engine = open_random("2", &(struct setting){.attention = "dp", .precision = "bf16"});
    cot_engine_info info = *cot_engine_describe(engine);
    for (size_t i = 0; i < MANY; i++) {
        alone[i] = must_run(engine, &requests[i], 1);
        alone[i].info = &info;
    }
    cot_engine_close(engine);
    for (size_t q = 0; q < sizeof queues / sizeof *queues; q++) {
        struct setting s = queues[q];
        s.attention = "dp";
        s.precision = "bf16";
        engine = open_random("2", &s);
        for (int again = 0; again < 2; again++) {
            struct records all = must_run(engine, requests, MANY);
            for (size_t i = 0; i < MANY; i++) {
                const struct record *a = &alone[i].record[0], *b = &all.record[i];
                assert_int_equal(a->sampled_tokens, b->sampled_tokens);
                assert_memory_equal(a->sampled, b->sampled, (size_t)a->sampled_tokens * sizeof *a->sampled);
                assert_int_equal(a->finish, b->finish);
                assert_memory_equal(a->logits, b->logits, (size_t)(a->capacity * VOCAB) * sizeof *a->logits);
            }
            records_free(&all);
        }
        cot_engine_close(engine);
    }
    for (size_t i = 0; i < MANY; i++) records_free(&alone[i]);
}

/* ---- what is told, and when ---- */

struct diary {
    const cot_engine_info *info;
    const cot_request *requests;
    int64_t routed[MANY], judged[MANY], said[MANY]; // tokens whose routing, logits and sampling were told
    int32_t best[MANY];                             // of the last logits
    int finished[MANY], finishes;
};

static bool write_token(void *context, uint64_t i, int32_t token)
{
    struct diary *d = context;
    // All of the prompt and what was said before has been fed; greedy is the best of the logits just told.
    assert_int_equal(d->routed[i], d->requests[i].prompt_tokens + d->said[i]);
    assert_int_equal(d->judged[i], d->routed[i]);
    assert_int_equal(token, d->best[i]);
    assert_false(d->finished[i]);
    d->said[i]++;
    return true;
}

static void write_logits(void *context, uint64_t i, int64_t position, const float *logits)
{
    struct diary *d = context;
    assert_int_equal(position, d->judged[i]);
    assert_true(d->judged[i] < d->routed[i]); // routing comes first
    d->judged[i]++;
    d->best[i] = 0;
    for (int32_t t = 1; t < d->info->vocab; t++)
        if (logits[t] > logits[d->best[i]]) d->best[i] = t;
}

static void write_routing(void *context, uint64_t i, int64_t position, int32_t token, const uint16_t *experts,
                          const float *weights)
{
    struct diary *d = context;
    assert_int_equal(position, d->routed[i]);
    if (position < d->requests[i].prompt_tokens)
        assert_int_equal(token, d->requests[i].prompt[position]);
    else
        assert_int_equal(token, d->best[i]);
    for (int64_t l = 0; l < d->info->moe_layers; l++) {
        double sum = 0;
        for (int64_t k = 0; k < d->info->top_k; k++) {
            int64_t at = l * d->info->top_k + k;
            assert_true(experts[at] < d->info->experts && (!k || experts[at] > experts[at - 1]));
            sum += (double)weights[at];
        }
        assert_true(sum > 0.999 && sum < 1.001); // this architecture's are normalised
    }
    d->routed[i]++;
}

static void write_finish(void *context, uint64_t i, cot_finish finish)
{
    struct diary *d = context;
    assert_int_equal(finish, COT_FINISH_LENGTH);
    assert_int_equal(d->said[i], d->requests[i].sampling.max_tokens);
    d->finished[i]++;
    d->finishes++;
}

static void things_are_told_in_order(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_request requests[MANY];
    drawn_requests(requests, &seed);
    for (size_t i = 0; i < MANY; i++) {
        requests[i].sampling.temperature = 0;
        requests[i].sampling.repetition_penalty = 1;
        requests[i].all_logits = true;
    }
    for (int dp = 0; dp < 2; dp++) {
        struct setting s = {
            .ranks = 3, .attention = dp ? "dp" : "tp", .step_tokens = 17, .sequences = 4, .kv_tokens = 500};
        cot_engine *engine = open_random("null", &s);
        struct diary d = {.info = cot_engine_describe(engine), .requests = requests};
        cot_events events = {.context = &d,
                             .on_token = write_token,
                             .on_logits = write_logits,
                             .on_routing = write_routing,
                             .on_finish = write_finish};
        assert_int_equal(cot_engine_run(engine, requests, MANY, &events, NULL, NULL), COT_OK);
        assert_int_equal(d.finishes, MANY);
        for (size_t i = 0; i < MANY; i++) assert_int_equal(d.finished[i], 1);
        cot_engine_close(engine);
    }
}

/* ---- where time goes ---- */

/* A kind of work has a time where there is such work; all that one thread does fits into the steps, and grows with more
 * of them. */
static void times_of_work(void **state)
{
    (void)state;
    static const char *const always[] = {"attention", "gate", "experts", "logits"};
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        cot_engine *engine =
            open_random("null", &(struct setting){.ranks = ranks, .threads = 1, .attention = "tp"});
        const cot_request r = generating(CONTEXT - 40, 40);
        int64_t before[COT_STATS_TIMES] = {0};
        for (int run = 0; run < 2; run++) {
            cot_stats s;
            int64_t sum = 0;
            assert_int_equal(cot_engine_run(engine, &r, 1, &(cot_events){0}, NULL, NULL), COT_OK);
            assert_int_equal(cot_engine_stats(engine, &s, NULL), COT_OK);
            for (int i = 0; i < COT_STATS_TIMES; i++) {
                bool expected = !strcmp(s.times[i].name, "allreduce") && ranks > 1;
                for (size_t a = 0; a < sizeof always / sizeof *always; a++)
                    expected |= !strcmp(s.times[i].name, always[a]);
                assert_true(s.times[i].ns >= before[i] + expected);
                sum += before[i] = s.times[i].ns;
            }
            if (ranks == 1)
                assert_true(sum <= s.prefill_ns + s.decode_ns); // others may end later than rank 0
            assert_true(s.last_step_ns > 0 && s.last_step_ns <= s.prefill_ns + s.decode_ns);
            cot_stats_clear(&s);
        }
        cot_engine_close(engine);
    }
}

/* ---- many logits ---- */

enum { LARGE_VOCAB = 400000, LOGITS_BYTES = 64 << 20 }; // what an engine holds of a step's logits at most

/* The logits of every position, as a sum that depends on each bit and its place: a row is over a megabyte. */
struct digest {
    int told[CONTEXT];
    uint64_t logits[CONTEXT];
};

static void digest_logits(void *context, uint64_t i, int64_t position, const float *logits)
{
    struct digest *d = context;
    uint64_t sum = i;
    for (int32_t t = 0; t < LARGE_VOCAB; t++) {
        uint32_t bits;
        memcpy(&bits, &logits[t], sizeof bits);
        sum = sum * 0x100000001b3u + bits;
    }
    d->logits[position] = sum;
    d->told[position]++;
}

/* All the logits of a prompt that are more than an engine holds come from as many steps as it takes, and are those
 * that short steps give. */
static void more_logits_than_a_step_holds(void **state)
{
    (void)state;
    enum { TOKENS = 100, ROWS = LOGITS_BYTES / (LARGE_VOCAB * (int)sizeof(float)) };
    assert_true(ROWS > 1 && 2 * ROWS < TOKENS);
    const cot_request r = forced_request(prompt, TOKENS, TOKENS);
    static const struct setting settings[] = {
        {.ranks = 1, .step_tokens = 7, .sequences = 1},
        {.ranks = 1, .step_tokens = 512, .sequences = 1},
        {.ranks = 2, .step_tokens = 512, .sequences = 1, .attention = "dp"}};
    struct digest expected;
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
        struct digest d = {0};
        cot_engine *engine = open_random_of(LARGE_VOCAB, "null", &settings[s]);
        cot_events events = {.context = &d, .on_logits = digest_logits};
        assert_int_equal(cot_engine_run(engine, &r, 1, &events, NULL, NULL), COT_OK);
        for (int t = 0; t < TOKENS; t++) assert_int_equal(d.told[t], 1);
        cot_stats stats;
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        const uint64_t rows = settings[s].step_tokens < ROWS ? (uint64_t)settings[s].step_tokens : ROWS;
        assert_int_equal(stats.steps, (TOKENS + rows - 1) / rows);
        cot_stats_clear(&stats);
        cot_engine_close(engine);
        if (!s) expected = d;
        assert_memory_equal(d.logits, expected.logits, sizeof d.logits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths),
        cmocka_unit_test(end_of_sequence),
        cmocka_unit_test(ends_of_generation_config),
        cmocka_unit_test(the_listener_ends_a_sequence),
        cmocka_unit_test(requests_are_cancelled),
        cmocka_unit_test(homes_out_of_range),
        cmocka_unit_test(kv_of_the_sum_of_lengths),
        cmocka_unit_test(refusals_leave_the_engine_usable),
        cmocka_unit_test(options_out_of_range_are_named),
        cmocka_unit_test(company_and_queues),
        cmocka_unit_test(things_are_told_in_order),
        cmocka_unit_test(times_of_work),
        cmocka_unit_test(more_logits_than_a_step_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
