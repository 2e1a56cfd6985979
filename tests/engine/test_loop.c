/* The loop over an executor that answers by a formula: no checkpoint, no ranks. What listeners are told is what the formula says,
 * and steps are counted by the second. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "base/error.h"
#include "base/rng.h"
#include "engine/loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SEQUENCES = 64, CONTEXT = 400, VOCAB = 5000 };

/* ---- the executor ---- */

enum end { GOES_ON, ENDS, OVERFLOWS };

struct formula {
    cot_executor_span span[SEQUENCES];
    uint64_t seed;
    uint64_t steps_of[COT_STEP_CLASSES];
    int64_t steps, spans, tokens, idle, fails_at; // fails_at: the step that does; 0: none
};

static int32_t token_of(const struct formula *f, uint64_t request, int64_t position)
{
    return (int32_t)(cot_mix64(f->seed + request * 1000003 + (uint64_t)position) % VOCAB);
}

/* Once in some hundred tokens. */
static enum end end_of(const struct formula *f, uint64_t request, int64_t position)
{
    const uint64_t x = cot_mix64(~f->seed + request * 1000003 + (uint64_t)position) % 1000;
    return x < 4 ? ENDS : x < 6 ? OVERFLOWS : GOES_ON;
}

static cot_status accepts(void *context, const cot_request *r, int64_t limit, cot_error *error)
{
    (void)context;
    (void)limit;
    return r->prompt[0] < VOCAB ? COT_OK : cot_fail(error, COT_INVALID_ARGUMENT, "no such token");
}

static cot_status step(void *context, const cot_step *s, cot_request_state *const *by_row,
                       cot_executor_answer *answer, cot_error *error)
{
    struct formula *f = context;
    if (++f->steps == f->fails_at) return cot_fail(error, COT_PEER_FAILED, "as it was told to");
    for (int32_t i = 0; i < s->spans; i++) {
        const cot_request_state *r = by_row[s->span[i].sequence];
        const enum end end = end_of(f, r->id, r->known);
        f->span[i] = (cot_executor_span){.finish = COT_FINISH_EOS};
        if (!cot_request_draws(r, &s->span[i])) continue;
        f->span[i].unsound = end == OVERFLOWS;
        f->span[i].sampled = (cot_sampled){.token = token_of(f, r->id, r->known), .ends = end == ENDS};
    }
    f->spans += s->spans;
    f->tokens += s->tokens;
    f->steps_of[s->tokens > 1 << 14 ? COT_STEP_CLASSES - 1 : (int)ceil(log2(s->tokens))]++;
    *answer = (cot_executor_answer){.ns = 1000 + 10 * s->tokens, .span = f->span};
    return COT_OK;
}

static cot_status idle(void *context, cot_error *error)
{
    (void)error;
    ((struct formula *)context)->idle++;
    return COT_OK;
}

static cot_executor executor_of(struct formula *f)
{
    return (cot_executor){.context = f, .accepts = accepts, .step = step, .idle = idle};
}

/* ---- who listens ---- */

struct asked {
    const struct formula *formula;
    uint64_t id;
    int64_t position, limit; // where the next token will stand; where the text ends
    bool cut, over;          // cut: by the context
};

static bool on_token(void *context, uint64_t request, int32_t token)
{
    struct asked *a = context;
    assert_int_equal(request, a->id);
    assert_false(a->over);
    assert_int_equal(end_of(a->formula, a->id, a->position), GOES_ON);
    assert_int_equal(token, token_of(a->formula, a->id, a->position));
    a->position++;
    return true;
}

static void on_finish(void *context, uint64_t request, cot_finish finish)
{
    struct asked *a = context;
    assert_int_equal(request, a->id);
    assert_false(a->over);
    a->over = true;
    if (a->position == a->limit) {
        assert_int_equal(finish, a->cut ? COT_FINISH_CONTEXT : COT_FINISH_LENGTH);
        return;
    }
    const enum end end = end_of(a->formula, a->id, a->position);
    assert_int_equal(finish, end == ENDS ? COT_FINISH_EOS : COT_FINISH_OVERFLOW);
    assert_true(end != GOES_ON);
}

static void submit(cot_loop *loop, struct asked *a, const struct formula *f, const int32_t *ids,
                   uint64_t *seed)
{
    const int64_t prompt = 1 + (int64_t)(draw(seed) % 100), more = 1 + (int64_t)(draw(seed) % CONTEXT);
    const cot_request request = generating_from(ids + draw(seed) % 100, prompt, more);
    const cot_events events = {.context = a, .on_token = on_token, .on_finish = on_finish};
    cot_error error = {0};
    *a = (struct asked){
        .formula = f, .position = prompt, .limit = prompt + more, .cut = prompt + more > CONTEXT};
    if (a->cut) a->limit = CONTEXT;
    if (cot_loop_submit(loop, &a->id, &request, COT_HOME_ANY, &events, &error) != COT_OK)
        fail_msg("%s", error.message);
}

static cot_loop_options options_of(int64_t block)
{
    const int64_t step_tokens = 256;
    return (cot_loop_options){
        .limits = {.sequences = SEQUENCES,
                   .pages = SEQUENCES * CONTEXT / COT_KV_PAGE + SEQUENCES,
                   .step_tokens = step_tokens,
                   .step_logits = step_tokens,
                   .step_maps = cot_scheduler_step_maps(step_tokens, SEQUENCES, CONTEXT, block),
                   .homes = 1,
                   .block = block,
                   .max_wait_steps = 8},
        .context_tokens = CONTEXT,
        .ranks = 1,
        .prior = {1, 1, 1, 1, 1, 1, 1},
        .at_once = 1,
        .experts = 8,
        .chosen = 2};
}

/* A million steps of 64 spans, where there is time. */
static void steps_by_the_second(void **state)
{
    (void)state;
    enum { ALL = SEQUENCES + 8 }; // some wait
    uint64_t seed = test_seed();
    struct formula f = {.seed = draw(&seed)};
    const int64_t steps = getenv("COT_LONG") ? 1000000 : 20000;
    const cot_executor executor = executor_of(&f);
    const cot_loop_options options = options_of(16);
    static struct asked asked[ALL];
    cot_loop loop;
    cot_error error = {0};
    size_t left;
    int32_t *ids = drawn_ids(200, VOCAB, &seed);
    memset(asked, 0, sizeof asked);
    if (cot_loop_open(&loop, &options, &executor, &error) != COT_OK) fail_msg("%s", error.message);
    for (int i = 0; i < ALL; i++) asked[i].over = true;
    const clock_t began = clock();
    while (loop.steps < steps) {
        for (int i = 0; i < ALL; i++)
            if (asked[i].over) submit(&loop, &asked[i], &f, ids, &seed);
        if (cot_loop_step(&loop, &left, &error) != COT_OK) fail_msg("%s", error.message);
    }
    const double seconds =
        (double)(clock() - began) / CLOCKS_PER_SEC; // of this processor, whoever else has it
    printf("%lld steps of %.1f spans: %.0f a second\n", (long long)f.steps, (double)f.spans / (double)f.steps,
           (double)f.steps / seconds);
    assert_true(f.spans > f.steps * (SEQUENCES - 1));
    assert_int_equal(loop.steps, f.steps);
    assert_int_equal(loop.prefill_tokens + loop.decode_tokens, f.tokens);
    assert_memory_equal(loop.steps_of, f.steps_of, sizeof f.steps_of);
    cot_loop_close(&loop);
    free(ids);
}

/* A step of more tokens than the classes tell apart counts in the last one. */
static void a_step_of_any_size(void **state)
{
    (void)state;
    enum { TOKENS = 1 << 17 };
    uint64_t seed = test_seed();
    struct formula f = {.seed = draw(&seed)};
    const cot_executor executor = executor_of(&f);
    cot_loop_options options = options_of(0);
    options.context_tokens = TOKENS + 1;
    options.limits.pages = TOKENS / COT_KV_PAGE + 1;
    options.limits.step_tokens = options.limits.step_logits = TOKENS;
    options.limits.step_maps = cot_scheduler_step_maps(TOKENS, SEQUENCES, TOKENS + 1, 0);
    int32_t *ids = drawn_ids(TOKENS, VOCAB, &seed);
    cot_error error = {0};
    for (int64_t tokens = 1; tokens <= TOKENS; tokens *= 2) {
        cot_loop loop;
        uint64_t id;
        size_t left;
        if (cot_loop_open(&loop, &options, &executor, &error) != COT_OK) fail_msg("%s", error.message);
        const cot_request request = generating_from(ids, tokens, 1);
        assert_int_equal(cot_loop_submit(&loop, &id, &request, 0, &(cot_events){0}, &error), COT_OK);
        assert_int_equal(cot_loop_step(&loop, &left, &error), COT_OK);
        assert_int_equal(loop.prefill_tokens, tokens);
        const int class = tokens > 1 << 14 ? COT_STEP_CLASSES - 1 : (int)log2((double)tokens);
        assert_int_equal(loop.steps_of[class], 1);
        cot_loop_close(&loop);
    }
    free(ids);
}

/* Requests are refused by the executor's word; without any it is asked whether it lives; when a step fails, all is over. */
static void an_executor_refuses_and_fails(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct formula f = {.seed = draw(&seed), .fails_at = 3};
    const cot_executor executor = executor_of(&f);
    const cot_loop_options options = options_of(0);
    cot_loop loop;
    cot_error error = {0};
    size_t left = 1;
    uint64_t id;
    int32_t *ids = drawn_ids(200, VOCAB, &seed), stranger = VOCAB;
    assert_int_equal(cot_loop_open(&loop, &options, &executor, &error), COT_OK);
    const cot_request refused = generating_from(&stranger, 1, 5), forced = forced_request(ids, 20, 10);
    const cot_events nobody = {0};
    assert_int_equal(cot_loop_submit(&loop, &id, &refused, 0, &nobody, &error), COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "no such token");
    assert_int_equal(cot_loop_step(&loop, &left, &error), COT_OK);
    assert_int_equal(left, 0);
    assert_int_equal(f.idle, 1);
    assert_int_equal(cot_loop_place(&loop, NULL, 0, &error), COT_UNSUPPORTED); // it has no experts
    assert_int_equal(f.steps, 0);
    assert_int_equal(cot_loop_submit(&loop, &id, &forced, 1, &nobody, &error), COT_INVALID_ARGUMENT); // home
    assert_int_equal(cot_loop_submit(&loop, &id, &forced, 0, &nobody, &error), COT_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(cot_loop_step(&loop, &left, &error), COT_OK);
    assert_int_equal(left, 1);
    assert_int_equal(cot_loop_step(&loop, &left, &error), COT_PEER_FAILED);
    assert_string_equal(error.message, "as it was told to");
    assert_int_equal(cot_loop_step(&loop, &left, &error), COT_PEER_FAILED);
    assert_int_equal(cot_loop_place(&loop, NULL, 0, &error), COT_PEER_FAILED);
    assert_int_equal(cot_loop_submit(&loop, &id, &forced, 0, &nobody, &error), COT_PEER_FAILED);
    assert_int_equal(f.steps, 3);
    cot_loop_close(&loop);
    free(ids);
}

struct overflows {
    cot_loop *loop;
    uint64_t id[2], told[4];
    cot_finish finish[4];
    int count;
};

static void cancel_the_other(void *context, uint64_t request, cot_finish finish)
{
    struct overflows *o = context;
    o->told[o->count] = request;
    o->finish[o->count++] = finish;
    if (finish == COT_FINISH_OVERFLOW) cot_loop_cancel(o->loop, o->id[request == o->id[0]], NULL);
}

/* Of two that overflow in one step the first one's end is told, and its listener cancels the second: that ends once. */
static void one_that_overflowed_is_cancelled(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct formula f = {0};
    do f.seed = draw(&seed);
    while (end_of(&f, 1, 10) != OVERFLOWS || end_of(&f, 2, 10) != OVERFLOWS);
    const cot_executor executor = executor_of(&f);
    const cot_loop_options options = options_of(16);
    cot_loop loop;
    cot_error error = {0};
    size_t left;
    int32_t *ids = drawn_ids(200, VOCAB, &seed);
    assert_int_equal(cot_loop_open(&loop, &options, &executor, &error), COT_OK);
    struct overflows o = {.loop = &loop};
    const cot_request request = generating_from(ids, 10, 5);
    const cot_events events = {.context = &o, .on_finish = cancel_the_other};
    for (int i = 0; i < 2; i++)
        assert_int_equal(cot_loop_submit(&loop, &o.id[i], &request, 0, &events, &error), COT_OK);
    assert_int_equal(cot_loop_step(&loop, &left, &error), COT_OK);
    assert_int_equal(left, 0);
    assert_int_equal(o.count, 2);
    assert_int_equal(o.told[0], o.id[0]);
    assert_int_equal(o.told[1], o.id[1]);
    assert_int_equal(o.finish[0], COT_FINISH_OVERFLOW);
    assert_int_equal(o.finish[1], COT_FINISH_CANCELLED);
    cot_loop_close(&loop);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_by_the_second), cmocka_unit_test(a_step_of_any_size),
        cmocka_unit_test(an_executor_refuses_and_fails), cmocka_unit_test(one_that_overflowed_is_cancelled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
