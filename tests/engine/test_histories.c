/* Random histories of a running engine: requests come and are cancelled at any moment, within callbacks too. What is
 * told of each is what it gives alone, as far as it got, and nothing is lost. */
#include "harness/cmocka.h"
#include "harness/engine/random_model.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "engine/engine_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HISTORIES = 1000, KINDS = 24, MOST_REQUESTS = 9, LONGEST = 150 };

/* Requests that histories draw from, and what each gives alone. */
struct kinds {
    int32_t ids[LONGEST];
    cot_request request[KINDS];
    struct records alone[KINDS];
    int64_t logits_alone[KINDS]; // how many were told
    float apart;                 // how far values may be from those alone
};

struct history;
struct told {
    struct history *h;
    size_t kind;
    uint64_t id;
    int64_t tokens, logits, routed; // routed: found in the cache, too
    bool cancelled, stopped;
    int finishes;
};

struct history {
    cot_engine *engine;
    const struct kinds *kinds;
    uint64_t *seed;
    size_t count, most;
    struct told each[MOST_REQUESTS];
};

/* Counted over all histories: what was put to the test. */
static struct {
    int finished, cancelled_waiting, cancelled_running, cancelled_themselves, stopped, inside, preempted;
} seen;

/* ---- what is done ---- */

static const cot_events listeners;

static void submit(struct history *h)
{
    if (h->count == h->most) return;
    struct told *t = &h->each[h->count++];
    *t = (struct told){.h = h, .kind = draw(h->seed) % KINDS};
    cot_request request = h->kinds->request[t->kind];
    int64_t tokens = request.prompt_tokens + (request.forced ? request.forced_tokens : 0);
    int32_t *copy = must_allocate((size_t)tokens, sizeof *copy);
    memcpy(copy, request.prompt, (size_t)tokens * sizeof *copy);
    request.prompt = copy;
    if (request.forced) request.forced = copy + request.prompt_tokens; // may go as soon as it was taken
    cot_events events = listeners;
    events.context = t;
    int home = (int)(draw(h->seed) % (uint64_t)cot_engine_describe(h->engine)->ranks);
    assert_int_equal(cot_engine_submit(h->engine, &t->id, &request, home, &events, NULL), COT_OK);
    assert_true(t->id > (h->count > 1 ? t[-1].id : 0));
    memset(copy, 0xff, (size_t)tokens * sizeof *copy);
    free(copy);
}

static void cancel(struct history *h, size_t i)
{
    struct told *t = &h->each[i];
    int before = t->finishes;
    const cot_request_state *r = cot_scheduler_find(&h->engine->loop.scheduler, t->id);
    assert_int_equal(r != NULL, !before);
    if (r) *(r->row < 0 ? &seen.cancelled_waiting : &seen.cancelled_running) += 1;
    t->cancelled |= !before;
    assert_int_equal(cot_engine_cancel(h->engine, t->id, NULL), before ? COT_NOT_FOUND : COT_OK);
    assert_int_equal(t->finishes, 1);
}

/* Within a callback about `t`, now and then. */
static void meddle(struct told *t)
{
    struct history *h = t->h;
    size_t left = 77;
    uint64_t choice = draw(h->seed) % 64;
    seen.inside += choice < 4;
    if (choice == 0) submit(h);
    if (choice == 1) cancel(h, draw(h->seed) % h->count);
    if (choice == 2 && t->id) {
        seen.cancelled_themselves += !t->finishes;
        cancel(h, (size_t)(t - h->each));
    }
    if (choice == 3) {
        assert_int_equal(cot_engine_step(h->engine, &left, NULL), COT_INVALID_ARGUMENT);
        assert_int_equal(cot_engine_run(h->engine, NULL, 0, &listeners, NULL, NULL), COT_INVALID_ARGUMENT);
    }
}

/* ---- what is told ---- */

static const struct record *alone(const struct told *t)
{
    return &t->h->kinds->alone[t->kind].record[0];
}

static void assert_near(const struct told *t, const float *values, const float *plain, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(values[i] - plain[i]) <= t->h->kinds->apart))
            fail_msg("%.9g, alone %.9g", (double)values[i], (double)plain[i]);
}

static bool take_token(void *context, uint64_t request, int32_t token)
{
    struct told *t = context;
    assert_int_equal(request, t->id);
    assert_int_equal(t->finishes, 0);
    assert_true(t->tokens < alone(t)->sampled_tokens);
    assert_int_equal(token, alone(t)->sampled[t->tokens++]);
    meddle(t);
    t->stopped = draw(t->h->seed) % 64 == 0;
    return !t->stopped;
}

static void take_logits(void *context, uint64_t request, int64_t position, const float *logits)
{
    struct told *t = context;
    assert_int_equal(request, t->id);
    assert_int_equal(t->finishes, 0);
    assert_int_equal(position, t->logits++);
    assert_near(t, logits, alone(t)->logits + position * VOCAB, VOCAB);
    meddle(t);
}

static void take_routing(void *context, uint64_t request, int64_t position, int32_t token,
                         const uint16_t *experts, const float *weights)
{
    struct told *t = context;
    size_t n = routed(cot_engine_describe(t->h->engine)), from = (size_t)position * n;
    assert_int_equal(request, t->id);
    assert_int_equal(t->finishes, 0);
    assert_int_equal(position, t->routed++);
    assert_int_equal(token, alone(t)->fed[position]);
    assert_memory_equal(experts, alone(t)->experts + from, n * sizeof *experts);
    assert_near(t, weights, alone(t)->weights + from, n);
    meddle(t);
}

static void take_admit(void *context, uint64_t request, int64_t cached)
{
    struct told *t = context;
    (void)request;
    assert_int_equal(t->routed, 0);
    t->routed = cached;
    meddle(t);
}

static void take_finish(void *context, uint64_t request, cot_finish finish)
{
    struct told *t = context;
    assert_int_equal(request, t->id);
    assert_int_equal(t->finishes++, 0);
    if (t->cancelled) {
        assert_int_equal(finish, COT_FINISH_CANCELLED);
    } else if (t->stopped) {
        assert_int_equal(finish, COT_FINISH_STOP);
        seen.stopped++;
    } else {
        assert_int_equal(finish, alone(t)->finish);
        assert_int_equal(t->tokens, alone(t)->sampled_tokens);
        assert_int_equal(t->logits, t->h->kinds->logits_alone[t->kind]);
        seen.finished++;
    }
    meddle(t);
}

static const cot_events listeners = {.on_admit = take_admit,
                                     .on_token = take_token,
                                     .on_logits = take_logits,
                                     .on_routing = take_routing,
                                     .on_finish = take_finish};

/* ---- what is left ---- */

static void check_pages(const cot_engine *engine)
{
    const cot_scheduler *s = &engine->loop.scheduler;
    int64_t held = 0;
    for (int64_t i = 0; i < s->active_count; i++) held += s->active[i]->pages_held;
    if (!s->limits.block) assert_int_equal(s->pool.free_pages + held, s->pool.pages);
    assert_int_equal(s->free_row_count + s->active_count, s->limits.sequences);
    assert_null(s->ended);
}

static void check_all_free(const cot_engine *engine)
{
    const cot_scheduler *s = &engine->loop.scheduler;
    uint8_t rows[8] = {0};
    check_pages(engine);
    assert_int_equal(s->pool.free_pages + s->pool.idle_pages, s->pool.pages);
    assert_int_equal(s->free_row_count, s->limits.sequences);
    assert_int_equal(s->active_count + s->waiting_count, 0);
    assert_null(s->waiting);
    for (int64_t p = 0; p < s->pool.pages; p++) assert_int_equal(s->pool.references[p], s->pool.idle[p]);
    for (int64_t r = 0; r < s->free_row_count; r++) assert_int_equal(rows[s->free_rows[r]]++, 0);
}

static size_t step(struct history *h)
{
    size_t left = 0, open = 0;
    cot_error error = {0};
    if (cot_engine_step(h->engine, &left, &error) != COT_OK) fail_msg("%s", error.message);
    for (size_t i = 0; i < h->count; i++) open += !h->each[i].finishes;
    assert_int_equal(left, open);
    return left;
}

static void live_through(struct history *h)
{
    size_t left = 1;
    while (h->count < h->most) {
        uint64_t choice = draw(h->seed) % 8;
        if (choice < 3) submit(h);
        if (choice == 3 && h->count) cancel(h, draw(h->seed) % h->count);
        if (choice > 3) step(h);
        check_pages(h->engine);
    }
    while (left) left = step(h);
    for (size_t i = 0; i < h->count; i++) assert_int_equal(h->each[i].finishes, 1);
    check_all_free(h->engine);
}

/* ---- engines ---- */

static void draw_kinds(struct kinds *k, cot_engine *engine, uint64_t *seed)
{
    for (size_t i = 0; i < LONGEST; i++) k->ids[i] = (int32_t)(draw(seed) % VOCAB);
    for (size_t i = 0; i < KINDS; i++) {
        bool is_long = draw(seed) % 2;
        int64_t begin = (int64_t)(draw(seed) % 8), prompt = 1 + (int64_t)(draw(seed) % (is_long ? 70 : 12)),
                more = (int64_t)(draw(seed) % (is_long ? 70 : 14));
        cot_request *r = &k->request[i];
        *r = draw(seed) % 3 ? generating_from(k->ids + begin, prompt, more)
                            : forced_request(k->ids + begin, prompt + more, prompt);
        r->all_logits = draw(seed) % 2;
        r->sampling.temperature = draw(seed) % 3 ? 1.2 : 0;
        r->sampling.repetition_penalty = draw(seed) % 2 ? 1.1 : 1;
        r->sampling.seed = draw(seed);
        k->alone[i] = must_run(engine, r, 1);
        k->logits_alone[i] = 0;
        for (int64_t t = 0; t < k->alone[i].record[0].capacity; t++)
            k->logits_alone[i] += k->alone[i].record[0].logits_told[t];
    }
}

static void live_with(const struct setting *s, int histories, uint64_t *seed)
{
    static struct kinds kinds;
    cot_engine *engine = open_random("2", s);
    // Where heads are split over three ranks, three addends are added in an order that depends on the place of a row
    // in its step. The same requests in every run, so that this is not once in a while a different token.
    bool rounds = s->ranks > 2 && s->attention[0] == 't';
    uint64_t same = 1;
    kinds.apart = rounds ? 1e-4F : 0;
    struct setting plain = *s;
    plain.block_tokens = 0; // what is found in the cache is told nothing of
    cot_engine *other = open_random("2", &plain);
    draw_kinds(&kinds, other, rounds ? &same : seed);
    check_all_free(other);
    struct history h = {.engine = engine, .kinds = &kinds, .seed = seed};
    const uint64_t preempted = engine->loop.scheduler.preemptions;
    for (int i = 0; i < histories; i++) {
        h.count = 0;
        h.most = 1 + draw(seed) % MOST_REQUESTS;
        live_through(&h);
    }
    seen.preempted += (int)(engine->loop.scheduler.preemptions - preempted);
    h.count = 0;
    h.most = 3;
    while (h.count < h.most) submit(&h);
    step(&h);
    cot_engine_close(engine); // with requests that run and wait
    for (size_t i = 0; i < KINDS; i++) records_free(&kinds.alone[i]);
    cot_engine_close(other); // whose description the records have
}

static void histories(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const struct setting settings[] = {
        {.ranks = 1, .sequences = 3, .kv_tokens = 64, .step_tokens = 24},
        {.ranks = 1, .sequences = 3, .kv_tokens = 1, .step_tokens = 24, .block_tokens = 4},
        {.ranks = 2, .attention = "dp", .sequences = 2, .kv_tokens = 1, .step_tokens = 90},
        {.ranks = 1, .sequences = 2, .kv_tokens = 128, .step_tokens = 5, .quiet = true},
        {.ranks = 2, .attention = "tp", .sequences = 4, .kv_tokens = 64, .step_tokens = 40},
        {.ranks = 2, .attention = "dp", .sequences = 3, .kv_tokens = 64, .step_tokens = 30},
        {.ranks = 2, .attention = "dp", .sequences = 1, .kv_tokens = 150, .step_tokens = 16, .op = "bulk"},
        {.ranks = 3, .attention = "tp", .sequences = 3, .kv_tokens = 64, .step_tokens = 60, .quiet = true},
        {.ranks = 3, .attention = "dp", .sequences = 5, .kv_tokens = 200, .step_tokens = 33},
        {.ranks = 3, .attention = "dp", .sequences = 4, .kv_tokens = 64, .step_tokens = 200, .threads = 3},
    };
    enum { SETTINGS = sizeof settings / sizeof *settings };
    for (int i = 0; i < SETTINGS; i++) live_with(&settings[i], HISTORIES / SETTINGS, &seed);
    printf("%d finished, cancelled: %d waiting, %d running, %d by themselves; %d stopped; %d calls within "
           "callbacks; %d preempted\n",
           seen.finished, seen.cancelled_waiting, seen.cancelled_running, seen.cancelled_themselves,
           seen.stopped, seen.inside, seen.preempted);
    assert_true(seen.finished > HISTORIES && seen.stopped > 100 && seen.inside > HISTORIES);
    assert_true(seen.cancelled_waiting > 100 && seen.cancelled_running > 100 &&
                seen.cancelled_themselves > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(histories)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
