/* What a request may ask for beyond a text: chances of tokens, ends of its own, going on where a text stopped, coming
 * after another. */
#include "harness/cmocka.h"
#include "harness/engine/random_model.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/steps.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "engine/engine_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 9, LONGEST = 40 };

/* What is told of one request. */
struct told {
    uint64_t id;
    cot_engine *engine;
    uint64_t *order, began; // began: how many were admitted before it, from 1
    int64_t tokens, sampled, cached;
    int32_t token[LONGEST];
    cot_sampled sample[LONGEST];
    cot_logprob top[LONGEST][COT_MAX_LOGPROBS];
    float logits[LONGEST][VOCAB]; // what was told last before each sample
    float last[VOCAB];
    int finishes;
    cot_finish finish;
    bool cancel_when_sampled;
};

static void take_admit(void *context, uint64_t request, int64_t cached)
{
    struct told *t = context;
    assert_int_equal(request, t->id);
    assert_int_equal(t->began, 0);
    t->began = t->order ? ++*t->order : 1;
    t->cached = cached;
}

static void take_sampled(void *context, uint64_t request, const cot_sampled *sampled)
{
    struct told *t = context;
    assert_int_equal(request, t->id);
    assert_true(t->began && t->sampled == t->tokens && t->sampled < LONGEST);
    memcpy(t->logits[t->sampled], t->last, sizeof t->last);
    if (sampled->top_count)
        memcpy(t->top[t->sampled], sampled->top, sampled->top_count * sizeof *sampled->top);
    t->sample[t->sampled++] = *sampled;
    if (t->cancel_when_sampled) assert_int_equal(cot_engine_cancel(t->engine, t->id, NULL), COT_OK);
}

static bool take_token(void *context, uint64_t request, int32_t token)
{
    struct told *t = context;
    assert_int_equal(request, t->id);
    assert_int_equal(t->finishes, 0);
    assert_int_equal(t->tokens + 1, t->sampled); // told before
    assert_int_equal(token, t->sample[t->tokens].token);
    assert_false(t->sample[t->tokens].ends);
    t->token[t->tokens++] = token;
    return true;
}

static void take_logits(void *context, uint64_t request, int64_t position, const float *logits)
{
    struct told *t = context;
    (void)request;
    (void)position;
    memcpy(t->last, logits, sizeof t->last);
}

static void take_finish(void *context, uint64_t request, cot_finish finish)
{
    struct told *t = context;
    assert_int_equal(request, t->id);
    assert_int_equal(t->finishes++, 0);
    t->finish = finish;
}

static void submit(cot_engine *engine, struct told *t, const cot_request *request)
{
    const cot_events events = {.context = t,
                               .on_admit = take_admit,
                               .on_sampled = take_sampled,
                               .on_token = take_token,
                               .on_logits = take_logits,
                               .on_finish = take_finish};
    t->engine = engine;
    t->id = must_submit(engine, request, 0, &events);
}

static struct told run(cot_engine *engine, const cot_request *request)
{
    static struct told t; // large
    t = (struct told){0};
    submit(engine, &t, request);
    must_finish(engine);
    assert_int_equal(t.finishes, 1);
    return t;
}

static cot_request drawn(const int32_t *ids, uint64_t *seed)
{
    cot_request r = generating_from(ids, PROMPT, 20);
    r.sampling.temperature = 1.5;
    r.sampling.seed = draw(seed);
    r.sampling.presence_penalty = 0.7;
    r.sampling.frequency_penalty = -0.3;
    r.sampling.repetition_penalty = 1.2;
    return r;
}

/* ---- tests ---- */

static void chances_are_of_the_models_logits(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_engine *engine = open_random("2", &(struct setting){.ranks = 1});
    int32_t *ids = drawn_ids(PROMPT, VOCAB, &seed);
    for (int32_t k = -1; k <= COT_MAX_LOGPROBS; k += 7) {
        cot_request r = drawn(ids, &seed);
        const int32_t biased[] = {4, 9};
        const float bias[] = {5, -5};
        r.sampling.bias_tokens = biased;
        r.sampling.bias = bias;
        r.sampling.bias_count = 2;
        r.all_logits = true;
        r.logprobs = k;
        const struct told t = run(engine, &r);
        assert_int_equal(t.cached, 0);
        assert_true(t.sampled >= t.tokens && t.sampled <= t.tokens + 1);
        assert_int_equal(t.sampled > t.tokens, t.finish == COT_FINISH_EOS);
        for (int64_t i = 0; i < t.sampled; i++) {
            cot_sampled wanted = {0};
            cot_logprob top[COT_MAX_LOGPROBS];
            if (k >= 0) cot_logprobs_of(t.logits[i], VOCAB, t.sample[i].token, NULL, (size_t)k, &wanted, top);
            assert_true(t.sample[i].logprob == wanted.logprob);
            assert_int_equal(t.sample[i].rank, wanted.rank);
            assert_int_equal(t.sample[i].top_count, wanted.top_count);
            if (k > 0) assert_memory_equal(t.top[i], top, wanted.top_count * sizeof *top);
        }
    }
    free(ids);
    cot_engine_close(engine);
}

/* Chances of given tokens, which the engine keeps a copy of; logits and the draw are the same as without. */
static void chances_of_given_tokens(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_engine *engine = open_random("2", &(struct setting){.ranks = 1});
    int32_t *ids = drawn_ids(PROMPT, VOCAB, &seed), of[] = {VOCAB - 1, 0, 7, 7};
    enum { OF = sizeof of / sizeof *of };
    cot_request r = drawn(ids, &seed);
    r.all_logits = true;
    r.logprobs = 3;
    cot_request fed =
        forced_request(ids, PROMPT, 2); // nothing is drawn: what chances are asked of is not read
    fed.logprobs = 0;
    fed.logprob_count = SIZE_MAX / 8;
    struct records records = must_run(engine, &fed, 1);
    records_free(&records);
    const struct told plain = run(engine, &r);
    static struct told t;
    t = (struct told){0};
    r.logprobs = 0; // however many of the likeliest
    r.logprob_tokens = of;
    r.logprob_count = OF;
    submit(engine, &t, &r);
    memset(of, 0xff, sizeof of);
    must_finish(engine);
    const int32_t wanted[OF] = {VOCAB - 1, 0, 7, 7};
    assert_int_equal(t.tokens, plain.tokens);
    assert_true(t.sampled > 0);
    assert_memory_equal(t.token, plain.token, (size_t)t.tokens * sizeof *t.token);
    for (int64_t i = 0; i < t.sampled; i++) {
        assert_int_equal(t.sample[i].top_count, OF);
        assert_true(t.sample[i].logprob == plain.sample[i].logprob);
        for (int k = 0; k < OF; k++) {
            const double apart = (double)t.logits[i][wanted[k]] - (double)t.logits[i][t.sample[i].token];
            assert_int_equal(t.top[i][k].token, wanted[k]);
            assert_true(fabs((double)t.top[i][k].logprob - (double)t.sample[i].logprob - apart) < 1e-4);
        }
    }
    free(ids);
    cot_engine_close(engine);
}

/* Cut anywhere, a text goes on with the same tokens to the same end. */
static void a_text_goes_on(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_engine *engine = open_random("2", &(struct setting){.ranks = 1, .step_tokens = 7});
    for (int round = 0; round < 8; round++) {
        int32_t *ids = drawn_ids(PROMPT, VOCAB, &seed), both[PROMPT + LONGEST];
        cot_request r = drawn(ids, &seed);
        r.sampling.min_tokens = round % 3 * 5;
        const struct told whole = run(engine, &r);
        assert_true(whole.sampled >= r.sampling.min_tokens);
        memcpy(both, ids, PROMPT * sizeof *ids);
        memcpy(both + PROMPT, whole.token, (size_t)whole.tokens * sizeof *ids);
        for (int64_t cut = 0; cut <= whole.tokens; cut++) {
            cot_request rest = r;
            rest.prompt = both;
            rest.prompt_tokens = PROMPT + cut;
            rest.output_tokens = cut;
            const struct told t = run(engine, &rest);
            assert_int_equal(t.finish, whole.finish);
            assert_int_equal(t.tokens, whole.tokens - cut);
            assert_memory_equal(t.token, whole.token + cut, (size_t)t.tokens * sizeof *t.token);
            assert_int_equal(t.began > 0, cut < r.sampling.max_tokens); // nothing is computed of a whole one
        }
        free(ids);
    }
    cot_engine_close(engine);
}

static void tokens_that_end_a_text(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_engine *engine = open_random("2", &(struct setting){.ranks = 1});
    int32_t *ids = drawn_ids(PROMPT, VOCAB, &seed), stops[3];
    for (int round = 0; round < 20; round++) {
        cot_request r = drawn(ids, &seed);
        r.sampling.ignore_eos = true;
        const struct told all = run(engine, &r);
        assert_int_equal(all.finish, COT_FINISH_LENGTH);
        assert_int_equal(all.tokens, 20);
        const int32_t last = all.token[round % 20];
        int64_t first = 0;
        while (all.token[first] != last) first++;
        stops[0] = round % 2 ? VOCAB + round : INT32_MAX; // of no model's vocabulary: it never comes
        stops[1] = last;
        stops[2] = 60 - last;
        r.sampling.stop_tokens = stops;
        r.sampling.stop_count = 2;
        struct told t = run(engine, &r);
        assert_int_equal(t.finish, COT_FINISH_STOP);
        assert_int_equal(t.tokens, first);
        assert_int_equal(t.sampled, first + 1);
        assert_true(t.sample[first].ends && t.sample[first].token == last);
        r.sampling.min_tokens = 12;
        r.sampling.stop_count = 3;
        t = run(engine, &r);
        assert_true(t.sampled >= 12);
        for (int64_t i = 0; i < t.sampled; i++) {
            const int32_t token = t.sample[i].token;
            assert_int_equal(t.sample[i].ends, token == stops[1] || token == stops[2]);
            assert_true(i >= 12 || (!t.sample[i].ends && token != 2)); // the model's own end neither
        }
        memset(stops, 0xff, sizeof stops);
    }
    cot_request r = drawn(ids, &seed); // gone between its two callbacks
    static struct told t;
    t = (struct told){.cancel_when_sampled = true};
    submit(engine, &t, &r);
    must_finish(engine);
    assert_int_equal(t.finish, COT_FINISH_CANCELLED);
    assert_true(t.sampled == 1 && t.tokens == 0 && t.finishes == 1);
    free(ids);
    cot_engine_close(engine);
}

/* Lists that a request points to may go as soon as it was taken. */
static void lists_are_copied(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_engine *engine = open_random("2", &(struct setting){.ranks = 1});
    int32_t *ids = drawn_ids(PROMPT, VOCAB, &seed);
    int32_t biased[] = {7, 11}, stops[] = {11};
    float bias[] = {100, -100};
    cot_request r = generating_from(ids, PROMPT, 5);
    r.sampling.bias_tokens = biased;
    r.sampling.bias = bias;
    r.sampling.bias_count = 2;
    r.sampling.stop_tokens = stops;
    r.sampling.stop_count = 1;
    static struct told t;
    t = (struct told){0};
    submit(engine, &t, &r);
    memset(biased, 0, sizeof biased);
    memset(bias, 0xff, sizeof bias);
    stops[0] = 7;
    must_finish(engine);
    assert_int_equal(t.finish, COT_FINISH_LENGTH);
    for (int i = 0; i < 5; i++) assert_int_equal(t.token[i], 7);
    free(ids);
    cot_engine_close(engine);
}

static void a_request_waits_for_another(void **state)
{
    (void)state;
    uint64_t seed = test_seed(), order = 0;
    static struct told t[5];
    cot_engine *engine = open_random("null", &(struct setting){.ranks = 1, .step_tokens = 4, .sequences = 4});
    int32_t *ids = drawn_ids(PROMPT, VOCAB, &seed);
    cot_request r = generating_from(ids, PROMPT, 3);
    memset(t, 0, sizeof t);
    for (int i = 0; i < 5; i++) t[i].order = &order;
    submit(engine, &t[0], &r);
    r.after = t[0].id;
    submit(engine, &t[1], &r);
    r.after = t[1].id;
    submit(engine, &t[2], &r);
    r.after = 0;
    submit(engine, &t[3], &r);
    must_step(engine);
    assert_true(t[0].began == 1 && t[3].began == 2 && !t[1].began); // who waits for nobody is not held up
    while (!t[0].tokens) {
        assert_int_equal(t[1].began, 0);
        must_step(engine);
    }
    must_step(engine);
    assert_int_equal(t[1].began, 3);
    assert_int_equal(t[2].began, 0);
    assert_int_equal(cot_engine_cancel(engine, t[1].id, NULL), COT_OK); // over before it was fed
    must_step(engine);
    assert_int_equal(t[2].began, 4);
    r.after = t[0].id; // fed long ago, or over
    submit(engine, &t[4], &r);
    must_step(engine);
    assert_int_equal(t[4].began, 5);
    must_finish(engine);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(t[i].finish, i == 1 ? COT_FINISH_CANCELLED : COT_FINISH_LENGTH);
        if (i != 1) assert_memory_equal(t[i].token, t[0].token, 3 * sizeof(int32_t));
    }
    r.after = 12345; // nobody's number
    const struct told late = run(engine, &r);
    assert_int_equal(late.tokens, 3);
    free(ids);
    cot_engine_close(engine);
}

/* Two that grow to more pages than there are: one starts over, and what it is told is told once. */
static void who_starts_over_tells_nothing_twice(void **state)
{
    (void)state;
    enum { TOKENS = 150 };
    uint64_t seed = test_seed();
    int32_t *ids = drawn_ids(TOKENS + 1, VOCAB, &seed);
    for (int64_t block = 0; block <= 16; block += 16)
        for (int way = 0; way < 4; way++) {
            const struct setting s = {.ranks = 1 + way % 2,
                                      .attention = "dp",
                                      .sequences = 2,
                                      .step_tokens = way < 2 ? 20 : 100,
                                      .kv_tokens = 129,
                                      .block_tokens = block};
            cot_engine *engine = open_random("null", &s);
            cot_request requests[] = {forced_request(ids, TOKENS, 60), forced_request(ids + 1, TOKENS, 50)};
            struct records both = must_run(engine, requests, 2);
            cot_engine_load load; // all starts over are of one of the two
            cot_engine_get_load(engine, &load);
            assert_true(load.preemptions > 0 && load.preemptions < COT_RESTART_CLASSES - 1);
            assert_int_equal(load.ended_restarts, load.preemptions);
            assert_int_equal(load.ended[0], 1);
            assert_int_equal(load.ended[load.preemptions], 1);
            for (size_t i = 0; i < 2; i++) {
                struct records alone = must_run(engine, &requests[i], 1);
                assert_told_once(&both, i, &requests[i], true);
                assert_memory_equal(both.record[i].logits, alone.record[0].logits,
                                    TOKENS * VOCAB * sizeof(float));
                records_free(&alone);
            }
            records_free(&both);
            cot_engine_close(engine);
        }
    free(ids);
}

static void bad_requests_are_named(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_engine *engine = open_random("2", &(struct setting){.ranks = 1});
    int32_t *ids = drawn_ids(PROMPT, VOCAB, &seed);
    const int32_t beyond[] = {3, VOCAB}, below[] = {-1};
    const float bias[] = {1, 1};
    const struct {
        const char *says;
        cot_request request;
    } bad[] = {
        {"logprobs 21", {.logprobs = 21}},
        {"logprobs -2", {.logprobs = -2}},
        {"9 of the prompt's 9", {.output_tokens = PROMPT}},
        {"-1 of the prompt's 9", {.output_tokens = -1}},
        {"biased token 1 is 61", {.sampling = {.bias_tokens = beyond, .bias = bias, .bias_count = 2}}},
        {"biased token 0 is -1", {.sampling = {.bias_tokens = below, .bias = bias, .bias_count = 1}}},
        {"token of chances 1 is 61", {.logprob_tokens = beyond, .logprob_count = 2}},
        {"chances of 129 tokens", {.logprob_tokens = beyond, .logprob_count = 129}},
        {"stop token 0 is -1", {.sampling = {.stop_tokens = below, .stop_count = 1}}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_request r = generating_from(ids, PROMPT, 5);
        const cot_request *b = &bad[i].request;
        r.logprobs = b->logprobs;
        r.logprob_tokens = b->logprob_tokens;
        r.logprob_count = b->logprob_count;
        r.output_tokens = b->output_tokens;
        r.sampling.bias_tokens = b->sampling.bias_tokens;
        r.sampling.bias = b->sampling.bias;
        r.sampling.bias_count = b->sampling.bias_count;
        r.sampling.stop_tokens = b->sampling.stop_tokens;
        r.sampling.stop_count = b->sampling.stop_count;
        uint64_t id = 77;
        cot_error error = {0};
        assert_int_equal(cot_engine_submit(engine, &id, &r, 0, &(cot_events){0}, &error),
                         COT_INVALID_ARGUMENT);
        assert_int_equal(id, 0);
        if (!strstr(error.message, bad[i].says)) fail_msg("'%s' lacks '%s'", error.message, bad[i].says);
    }
    assert_int_equal(must_step(engine), 0);
    free(ids);
    cot_engine_close(engine);
}

/* ---- ends ---- */

struct stage {
    cot_engine *engine;
    uint64_t id;
    int64_t tokens, cancel_at; // cancel_at: it cancels itself at so many tokens; 0: it does not
    int admits, finishes;
    cot_finish finish;
};

static void stage_admits(void *context, uint64_t request, int64_t cached)
{
    (void)request, (void)cached;
    ((struct stage *)context)->admits++;
}

static bool stage_takes(void *context, uint64_t request, int32_t token)
{
    struct stage *s = context;
    (void)token;
    if (++s->tokens == s->cancel_at) assert_int_equal(cot_engine_cancel(s->engine, request, NULL), COT_OK);
    return true;
}

static void stage_finishes(void *context, uint64_t request, cot_finish finish)
{
    struct stage *s = context;
    assert_int_equal(request, s->id);
    s->finishes++;
    s->finish = finish;
}

/* Pages that requests which are under way hold: their own, no more than they need, and those of the blocks that they begin
 * with. */
static int64_t pages_of(const cot_engine *engine)
{
    const cot_scheduler *s = &engine->loop.scheduler;
    uint8_t *held = must_allocate((size_t)s->pool.pages, 1);
    int64_t pages = 0;
    for (int64_t i = 0; i < s->active_count; i++) {
        const cot_request_state *r = s->active[i];
        assert_true(r->pages_held <= cot_page_count(r->known));
        for (int64_t p = 0; p < r->pages_held; p++) held[r->pages[p]] = 1;
        for (int32_t n = r->node; n >= 0; n = s->prefix.node[n].parent) held[s->prefix.node[n].page] = 1;
    }
    for (int64_t p = 0; p < s->pool.pages; p++) pages += held[p];
    free(held);
    return pages;
}

/* Requests are cancelled at any stage: in the queue, in a prompt, in a text, preempted, from a callback. One step later,
 * and at once, rows and pages are what the others need; without others, all are free. */
static void what_is_cancelled_holds_nothing(void **state)
{
    (void)state;
    enum { MOST = 6 };
    uint64_t seed = test_seed();
    int64_t queued = 0, in_prompt = 0, in_text = 0, preempted = 0, from_callbacks = 0;
    for (int round = 0; round < 80; round++) {
        struct setting set = {.ranks = round % 3 ? 1 : 2,
                              .attention = round % 2 ? "dp" : "tp",
                              .sequences = round % 4 ? MOST : 2,
                              .step_tokens = 8 + (int64_t)(draw(&seed) % 60),
                              .kv_tokens = 200,
                              .block_tokens = draw(&seed) % 2 ? 16 : 0,
                              .quiet = true};
        cot_engine *engine = open_random("null", &set);
        struct stage stages[MOST] = {0};
        cot_engine_load load;
        const int count = round % 5 ? MOST : 1;
        for (int i = 0; i < count; i++) {
            int32_t *ids = drawn_ids(CONTEXT, VOCAB, &seed);
            cot_request r = generating_from(ids, 1 + (int64_t)(draw(&seed) % 120), 80);
            const cot_events events = {.context = &stages[i],
                                       .on_admit = stage_admits,
                                       .on_token = stage_takes,
                                       .on_finish = stage_finishes};
            stages[i].engine = engine;
            if (draw(&seed) % 4 == 0) stages[i].cancel_at = 1 + (int64_t)(draw(&seed) % 30);
            assert_int_equal(cot_engine_submit(engine, &stages[i].id, &r, COT_HOME_ANY, &events, NULL),
                             COT_OK);
            free(ids);
        }
        size_t left = (size_t)count;
        for (int64_t steps = (int64_t)(draw(&seed) % 90); steps > 0; steps--)
            assert_int_equal(cot_engine_step(engine, &left, NULL), COT_OK);
        for (int i = 0; i < count; i++) { // with a step between them, in either order
            struct stage *s = &stages[round / 2 % 2 ? i : count - 1 - i];
            if (s->finishes) {
                from_callbacks += s->finish == COT_FINISH_CANCELLED;
                assert_int_equal(cot_engine_cancel(engine, s->id, NULL), COT_NOT_FOUND);
                continue;
            }
            const cot_request_state *r = cot_scheduler_find(&engine->loop.scheduler, s->id);
            queued += !s->admits;
            preempted += s->admits && r->row < 0;
            in_prompt += r->row >= 0 && r->fed < r->prompt_tokens;
            in_text += r->row >= 0 && r->fed >= r->prompt_tokens;
            assert_int_equal(cot_engine_cancel(engine, s->id, NULL), COT_OK);
            cot_engine_get_load(engine, &load);
            assert_int_equal(s->finishes, 1);
            assert_int_equal(s->finish, COT_FINISH_CANCELLED);
            assert_int_equal(load.kv_pages - load.kv_pages_free, pages_of(engine));
            assert_int_equal(cot_engine_step(engine, &left, NULL), COT_OK);
            cot_engine_get_load(engine, &load);
            assert_int_equal(load.running + load.waiting, left);
            assert_int_equal(load.kv_pages - load.kv_pages_free, pages_of(engine));
            assert_int_equal(s->finishes, 1); // and nothing more is told
        }
        assert_int_equal(left, 0);
        cot_engine_get_load(engine, &load);
        assert_int_equal(load.running + load.waiting, 0);
        assert_int_equal(load.kv_pages_free, load.kv_pages);
        assert_int_equal(engine->loop.scheduler.free_row_count, engine->loop.scheduler.limits.sequences);
        cot_engine_close(engine);
    }
    if (!queued || !in_prompt || !in_text || !preempted || !from_callbacks)
        fail_msg("%lld %lld %lld %lld %lld", (long long)queued, (long long)in_prompt, (long long)in_text,
                 (long long)preempted, (long long)from_callbacks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_cancelled_holds_nothing),
        cmocka_unit_test(chances_are_of_the_models_logits),
        cmocka_unit_test(a_text_goes_on),
        cmocka_unit_test(tokens_that_end_a_text),
        cmocka_unit_test(lists_are_copied),
        cmocka_unit_test(a_request_waits_for_another),
        cmocka_unit_test(who_starts_over_tells_nothing_twice),
        cmocka_unit_test(bad_requests_are_named),
        cmocka_unit_test(chances_of_given_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
