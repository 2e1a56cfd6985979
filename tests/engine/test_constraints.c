/* Texts with constraints of our own: what comes is what they let come, with the model's chances, whatever the company, after a
 * preemption and continued; one that cannot be met ends its own request alone. */
#include "harness/cmocka.h"
#include "harness/engine/random_model.h"
#include "harness/engine/requests.h"
#include "harness/engine/steps.h"
#include "harness/seed.h"

#include "base/error.h"
#include "base/rng.h"
#include "constrain/constraint.h"

#include <stdlib.h>
#include <string.h>

enum { TEXTS = 8, PROMPT = 70, MORE = 90, EOS = 3, WORDS = (VOCAB + 31) / 32 };

/* ---- a constraint: of token number n most are out, by a hash, not all; a text may end behind `least` tokens ---- */

typedef struct hashed {
    cot_constraint base;
    uint64_t key;
    int64_t told, least, empty_at; // empty_at: no token may come there; -1: nowhere
} hashed;

static bool lets_come(const hashed *h, int64_t n, int32_t token)
{
    if (token == EOS || n == h->empty_at) return false;
    return token == 4 + n % 50 || cot_mix64(h->key + (uint64_t)(n * VOCAB + token)) % 8 == 0;
}

static cot_status hashed_mask(cot_constraint *c, uint32_t *words, cot_error *error)
{
    const hashed *h = (hashed *)c;
    (void)error;
    memset(words, 0, WORDS * sizeof *words);
    for (int32_t t = 0; t < VOCAB; t++) words[t / 32] |= (uint32_t)lets_come(h, h->told, t) << t % 32;
    return COT_OK;
}

static cot_status hashed_commit(cot_constraint *c, int32_t token, cot_error *error)
{
    hashed *h = (hashed *)c;
    if (!lets_come(h, h->told, token)) return cot_fail(error, COT_INVALID_ARGUMENT, "it may not come");
    h->told++;
    return COT_OK;
}

static bool hashed_may_end(const cot_constraint *c)
{
    return ((const hashed *)c)->told >= ((const hashed *)c)->least;
}

static void hashed_close(cot_constraint *c)
{
    (void)c; // the test's own
}

static const cot_constraint_table table = {
    .mask = hashed_mask, .commit = hashed_commit, .may_end = hashed_may_end, .close = hashed_close};
static const int32_t eos[] = {EOS};

static hashed hashed_of(uint64_t key, int64_t least)
{
    return (hashed){.base = {.table = &table, .words = WORDS, .eos = eos, .eos_count = 1},
                    .key = key,
                    .least = least,
                    .empty_at = -1};
}

/* ---- texts ---- */

struct text {
    hashed constraint;
    bool is_constrained;
    int32_t tokens[MORE + 1]; // that which ends it, too
    float chances[MORE + 1];
    cot_logprob top[MORE + 1][3];
    int64_t count;
    bool over;
    cot_finish finish;
};

static void on_sampled(void *context, uint64_t request, const cot_sampled *sampled)
{
    struct text *t = &((struct text *)context)[request];
    t->tokens[t->count] = sampled->token;
    t->chances[t->count] = sampled->logprob;
    for (size_t i = 0; i < sampled->top_count; i++) t->top[t->count][i] = sampled->top[i];
    t->count++;
}

static void on_finish(void *context, uint64_t request, cot_finish finish)
{
    struct text *t = &((struct text *)context)[request];
    assert_false(t->over);
    t->over = true;
    t->finish = finish;
}

static cot_request request_of(struct text *t, const int32_t *ids, uint64_t seed)
{
    cot_request q = generating_from(ids, PROMPT, MORE);
    q.sampling.temperature = 1;
    q.sampling.seed = seed;
    q.logprobs = 3;
    q.constraint = t->is_constrained ? &t->constraint.base : NULL;
    return q;
}

static cot_status run(cot_engine *engine, struct text *texts, const cot_request *requests, size_t count,
                      size_t *failed, cot_error *error)
{
    const cot_events events = {.context = texts, .on_sampled = on_sampled, .on_finish = on_finish};
    const cot_status status = cot_engine_run(engine, requests, count, &events, failed, error);
    for (size_t i = 0; i < count; i++) {
        assert_true(texts[i].over);
        cot_constraint *c = &texts[i].constraint.base;
        if (texts[i].is_constrained) free(c->mask);
        c->mask = NULL;
    }
    return status;
}

static void must_keep_to(const struct text *t)
{
    for (int64_t i = 0; i < t->count; i++) {
        if (t->tokens[i] == EOS)
            assert_true(i >= t->constraint.least && i == t->count - 1);
        else
            assert_true(lets_come(&t->constraint, i, t->tokens[i]));
    }
}

static void must_be_the_same(const struct text *a, const struct text *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->count * sizeof *a->tokens);
    assert_memory_equal(a->chances, b->chances, (size_t)a->count * sizeof *a->chances);
    assert_int_equal(a->finish, b->finish);
}

static uint64_t seed;

/* Each text alone, then all at once, on ranks that are threads and such that are processes, where pages are scarce too. */
static void constraints_hold_and_touch_nobody_else(void **state)
{
    (void)state;
    int32_t *ids = drawn_ids(PROMPT * TEXTS, VOCAB, &seed);
    struct text *alone = calloc(TEXTS, sizeof *alone), *all = calloc(TEXTS, sizeof *all);
    cot_request requests[TEXTS];
    cot_error error = {0};
    size_t failed;
    int ended = 0;
    const struct setting one = {.ranks = 1, .attention = "dp", .sequences = TEXTS, .kv_tokens = 4096};
    cot_engine *engine = open_random("3", &one);
    for (int i = 0; i < TEXTS; i++) {
        alone[i].is_constrained = i % 4 != 1;
        alone[i].constraint = hashed_of(draw(&seed), 60 + i);
        all[i] = alone[i];
        const cot_request q = request_of(&alone[i], ids + i * PROMPT, 77 + (uint64_t)i);
        if (run(engine, &alone[i], &q, 1, &failed, &error) != COT_OK) fail_msg("%s", error.message);
        if (alone[i].is_constrained) must_keep_to(&alone[i]);
        ended += alone[i].finish == COT_FINISH_EOS;
    }
    cot_engine_close(engine);
    assert_true(ended > 0);
    for (int way = 0; way < 3; way++) {
        const struct setting s = {.ranks = way == 1 ? 2 : 1,
                                  .processes = way == 1,
                                  .attention = "dp",
                                  .sequences = TEXTS,
                                  .step_tokens = 64,
                                  .kv_tokens = way == 2 ? 320 : 4096};
        engine = open_random("3", &s);
        struct text *now = calloc(TEXTS, sizeof *now);
        memcpy(now, all, TEXTS * sizeof *now);
        for (int i = 0; i < TEXTS; i++) requests[i] = request_of(&now[i], ids + i * PROMPT, 77 + (uint64_t)i);
        if (run(engine, now, requests, TEXTS, &failed, &error) != COT_OK) fail_msg("%s", error.message);
        for (int i = 0; i < TEXTS; i++) must_be_the_same(&now[i], &alone[i]);
        cot_engine_load load;
        cot_engine_get_load(engine, &load);
        if (way == 2) assert_true(load.preemptions > 0);
        cot_engine_close(engine);
        free(now);
    }
    free(alone);
    free(all);
    free(ids);
}

/* A text that is cut anywhere and continued goes on as it would have. */
static void a_continued_text_goes_on(void **state)
{
    (void)state;
    struct text *whole = calloc(1, sizeof *whole);
    int32_t *ids = drawn_ids(PROMPT + MORE, VOCAB, &seed);
    const uint64_t key = draw(&seed);
    const struct setting s = {.ranks = 1, .attention = "dp", .sequences = 2, .kv_tokens = 1024};
    cot_engine *engine = open_random("3", &s);
    cot_error error = {0};
    size_t failed;
    whole->is_constrained = true;
    whole->constraint = hashed_of(key, 20);
    const cot_request first = request_of(whole, ids, 5);
    if (run(engine, whole, &first, 1, &failed, &error) != COT_OK) fail_msg("%s", error.message);
    assert_true(whole->count >= 20);
    for (int64_t cut = 1; cut < whole->count; cut += 1 + whole->count / 4) {
        struct text *rest = calloc(1, sizeof *rest);
        memcpy(ids + PROMPT, whole->tokens, (size_t)cut * sizeof *ids);
        rest->is_constrained = true;
        rest->constraint = hashed_of(key, 20);
        cot_request q = request_of(rest, ids, 5);
        q.prompt_tokens = PROMPT + cut;
        q.output_tokens = cut;
        if (run(engine, rest, &q, 1, &failed, &error) != COT_OK) fail_msg("%s", error.message);
        assert_int_equal(rest->count, whole->count - cut);
        assert_memory_equal(rest->tokens, whole->tokens + cut, (size_t)rest->count * sizeof *rest->tokens);
        free(rest);
    }
    // output that the constraint would not have let come is that request's error
    for (int32_t t = 0; t < VOCAB; t++)
        if (!lets_come(&whole->constraint, 0, t) && t != EOS) ids[PROMPT] = t;
    struct text *wrong = calloc(1, sizeof *wrong);
    wrong->is_constrained = true;
    wrong->constraint = hashed_of(key, 20);
    cot_request q = request_of(wrong, ids, 5);
    q.prompt_tokens = PROMPT + 1;
    q.output_tokens = 1;
    assert_int_equal(run(engine, wrong, &q, 1, &failed, &error), COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "it may not come");
    assert_true(wrong->finish == COT_FINISH_CONSTRAINT && !wrong->count);
    cot_engine_close(engine);
    free(wrong);
    free(whole);
    free(ids);
}

/* Chances are the model's, which know no constraint and no bias; a bias lifts nothing that is out. */
static void chances_are_the_models(void **state)
{
    (void)state;
    struct text *t = calloc(2, sizeof *t);
    int32_t *ids = drawn_ids(PROMPT, VOCAB, &seed);
    const struct setting s = {.ranks = 1, .attention = "dp", .sequences = 2, .kv_tokens = 1024};
    cot_engine *engine = open_random("3", &s);
    cot_error error = {0};
    size_t failed;
    t[0].is_constrained = true;
    t[0].constraint = hashed_of(draw(&seed), 20);
    cot_request requests[] = {request_of(&t[0], ids, 5), request_of(&t[1], ids, 5)};
    int32_t out = 0;
    while (out == EOS || lets_come(&t[0].constraint, 0, out)) out++;
    const float bias = 100;
    requests[0].sampling.bias_tokens = &out;
    requests[0].sampling.bias = &bias;
    requests[0].sampling.bias_count = 1;
    requests[0].sampling.max_tokens = requests[1].sampling.max_tokens = 1;
    if (run(engine, t, requests, 2, &failed, &error) != COT_OK) fail_msg("%s", error.message);
    assert_true(lets_come(&t[0].constraint, 0, t[0].tokens[0]));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t[0].top[0][i].token, t[1].top[0][i].token);
        assert_true(t[0].top[0][i].logprob == t[1].top[0][i].logprob);
    }
    cot_engine_close(engine);
    free(t);
    free(ids);
}

static void stops_come_where_a_text_may_end(void **state)
{
    (void)state;
    int32_t *ids = drawn_ids(PROMPT, VOCAB, &seed), stops[VOCAB];
    const struct setting s = {.ranks = 1, .attention = "dp", .sequences = 2, .kv_tokens = 1024};
    cot_engine *engine = open_random("3", &s);
    size_t failed;
    for (int how = 0; how < 4; how++) {
        struct text *t = calloc(1, sizeof *t);
        cot_error error = {0};
        t->is_constrained = true;
        t->constraint = hashed_of(draw(&seed), 6);
        cot_request q = request_of(t, ids, draw(&seed));
        size_t count = 0;
        for (int32_t i = 0; i < VOCAB; i++) {
            const bool first = lets_come(&t->constraint, 0, i);
            const bool needed = i >= 4 && i < 54; // each of them alone may come somewhere
            if (how == 3 ? first : !first && !needed && i != EOS) stops[count++] = i;
        }
        q.sampling.stop_tokens = stops;
        q.sampling.stop_count = count;
        if (how == 1) q.sampling.min_tokens = 30;
        if (how == 2) q.sampling.ignore_eos = true;
        const cot_status status = run(engine, t, &q, 1, &failed, &error);
        if (how == 3) { // nothing else may begin the text, and it may not end
            assert_int_equal(status, COT_INVALID_ARGUMENT);
            assert_int_equal(t->finish, COT_FINISH_CONSTRAINT);
        } else {
            assert_int_equal(status, COT_OK);
            bool ended = false, stopped = false;
            for (int64_t i = 0; i < t->count; i++) {
                bool stop = false;
                for (size_t k = 0; k < count; k++) stop |= stops[k] == t->tokens[i];
                if (ended) assert_true(t->tokens[i] == EOS || stop);
                if (t->tokens[i] == EOS || stop) assert_true(i >= (how == 1 ? 30 : 6));
                ended |= t->tokens[i] == EOS;
                stopped = stop;
            }
            assert_true(t->finish == (stopped             ? COT_FINISH_STOP
                                      : ended && how != 2 ? COT_FINISH_EOS
                                                          : COT_FINISH_LENGTH));
        }
        free(t);
    }
    cot_engine_close(engine);
    free(ids);
}

/* The end of reasoning, as a stop token: it comes where reasoning has to end, or may, and ends the text. */
static void the_end_of_reasoning_may_be_a_stop(void **state)
{
    (void)state;
    enum { END = 60, BUDGET = 5 };
    int32_t *ids = drawn_ids(PROMPT, VOCAB, &seed);
    const int32_t stops[] = {END};
    const float likely = 50;
    const struct setting s = {.ranks = 1, .attention = "dp", .sequences = 2, .kv_tokens = 1024};
    cot_engine *engine = open_random("3", &s);
    for (int bounded = 0; bounded < 2; bounded++) {
        struct text *t = calloc(1, sizeof *t);
        const cot_constraint_reasoning how = {
            .vocab = VOCAB, .begin = -1, .end = END, .is_opened = true, .budget = bounded ? BUDGET : -1};
        cot_error error = {0};
        size_t failed;
        cot_request q = request_of(t, ids, draw(&seed));
        t->constraint = hashed_of(draw(&seed), MORE + 1);
        assert_int_equal(cot_constraint_behind_reasoning(&q.constraint, &how,
                                                         bounded ? NULL : &t->constraint.base, &error),
                         COT_OK);
        q.sampling.stop_tokens = stops;
        q.sampling.stop_count = 1;
        q.sampling.ignore_eos = true; // which may come where nothing has to
        if (!bounded) {               // nothing forces it
            q.sampling.bias_tokens = stops;
            q.sampling.bias = &likely;
            q.sampling.bias_count = 1;
        }
        if (run(engine, t, &q, 1, &failed, &error) != COT_OK) fail_msg("%s", error.message);
        assert_int_equal(t->finish, COT_FINISH_STOP);
        assert_int_equal(t->tokens[t->count - 1], END);
        if (bounded) assert_true(t->count <= BUDGET + 1);
        cot_constraint_close(q.constraint);
        free(t);
    }
    cot_engine_close(engine);
    free(ids);
}

static void one_that_cannot_be_met_ends_alone(void **state)
{
    (void)state;
    int32_t *ids = drawn_ids(PROMPT * 3, VOCAB, &seed);
    const struct setting s = {.ranks = 1, .attention = "dp", .sequences = 3, .kv_tokens = 1024};
    cot_engine *engine = open_random("3", &s);
    cot_error error = {0};
    size_t failed;
    struct text *t = calloc(3, sizeof *t), *good = calloc(3, sizeof *good);
    cot_request requests[3];
    for (int i = 0; i < 3; i++) {
        t[i].is_constrained = true;
        t[i].constraint = hashed_of(draw(&seed), MORE + 1);
        good[i] = t[i];
        requests[i] = request_of(&good[i], ids + i * PROMPT, 9);
    }
    if (run(engine, good, requests, 3, &failed, &error) != COT_OK) fail_msg("%s", error.message);
    t[1].constraint.empty_at = 7;
    for (int i = 0; i < 3; i++) requests[i] = request_of(&t[i], ids + i * PROMPT, 9);
    assert_int_equal(run(engine, t, requests, 3, &failed, &error), COT_INVALID_ARGUMENT);
    assert_int_equal(failed, 1);
    assert_string_equal(error.message, "the constraint cannot be met: no token may come behind 7 tokens");
    assert_true(t[1].finish == COT_FINISH_CONSTRAINT && t[1].count == 7);
    must_be_the_same(&t[0], &good[0]);
    must_be_the_same(&t[2], &good[2]);

    hashed other = hashed_of(1, 1);
    other.base.words++;
    requests[0].constraint = &other.base;
    assert_int_equal(cot_engine_run(engine, requests, 1, NULL, NULL, &error), COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "the constraint is of another vocabulary than the model's");
    cot_request forced = forced_request(ids, PROMPT, 1);
    forced.constraint = &t[0].constraint.base;
    assert_int_equal(cot_engine_run(engine, &forced, 1, NULL, NULL, &error), COT_INVALID_ARGUMENT);
    cot_engine_close(engine);
    free(t);
    free(good);
    free(ids);
}

int main(void)
{
    seed = test_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(constraints_hold_and_touch_nobody_else),
                                       cmocka_unit_test(a_continued_text_goes_on),
                                       cmocka_unit_test(chances_are_the_models),
                                       cmocka_unit_test(stops_come_where_a_text_may_end),
                                       cmocka_unit_test(the_end_of_reasoning_may_be_a_stop),
                                       cmocka_unit_test(one_that_cannot_be_met_ends_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
