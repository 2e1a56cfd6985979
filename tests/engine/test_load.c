/* What an engine tells of what there is to do, and the home that it chooses for a request, against a plain model: every text that a
 * home has been fed, searched from end to end. No rank computes anything here. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "engine/engine_state.h"

#include <string.h>

enum { HOMES = 3, BLOCK = 4, LONGEST = 40, REQUESTS = 60, TEXTS = 2, SALTS = 3, PAGES = 400 };
static const char *const salts[SALTS] = {"", "a", "b"};

struct entry {
    uint64_t id;
    int64_t prompt, limit, known, fed;
    int home, salt;
    bool all_logits, over;
    int32_t tokens[LONGEST];
};

static struct {
    cot_engine engine;
    struct entry each[REQUESTS];
    size_t count;
    int32_t text[TEXTS][LONGEST];
} world;

static void open_world(uint64_t *seed, int homes)
{
    memset(&world, 0, sizeof world);
    cot_scheduler_limits limits = {.sequences = 4,
                                   .pages = PAGES,
                                   .step_tokens = 25,
                                   .step_logits = 25,
                                   .homes = homes,
                                   .block = BLOCK,
                                   .max_wait_steps = 4};
    limits.step_maps = cot_scheduler_step_maps(25, 4, LONGEST, BLOCK);
    assert_int_equal(cot_scheduler_open(&world.engine.loop.scheduler, &limits, NULL), COT_OK);
    world.engine.info.ranks = HOMES;
    for (int t = 0; t < TEXTS; t++)
        for (int i = 0; i < LONGEST; i++)
            world.text[t][i] = t && i < 10 ? world.text[0][i] : (int32_t)(draw(seed) % 2);
}

/* A request like some other as far as a drawn place, and what it would be in the model. */
static cot_request draw_request(struct entry *e, uint64_t *seed)
{
    const int32_t *text = world.text[draw(seed) % TEXTS];
    const int64_t alike = (int64_t)(draw(seed) % LONGEST);
    *e = (struct entry){.limit = 2 + (int64_t)(draw(seed) % (LONGEST - 1)),
                        .home = (int)(draw(seed) % HOMES),
                        .salt = (int)(draw(seed) % SALTS),
                        .all_logits = draw(seed) % 8 == 0};
    e->prompt = e->known = 1 + (int64_t)(draw(seed) % (uint64_t)(e->limit - 1));
    for (int i = 0; i < LONGEST; i++) e->tokens[i] = i < alike ? text[i] : (int32_t)(draw(seed) % 2);
    cot_request r;
    cot_request_init(&r);
    r.prompt = e->tokens;
    r.prompt_tokens = e->prompt;
    r.forced = e->tokens + e->prompt;
    r.forced_tokens = e->limit - e->prompt;
    r.all_logits = e->all_logits;
    r.cache_salt = salts[e->salt];
    r.cache_salt_bytes = strlen(salts[e->salt]);
    return r;
}

/* Blocks that a text of `tokens` tokens and the request's prompt, but for its last token, begin with. */
static int64_t blocks_in_common(const struct entry *text, int64_t tokens, const struct entry *e)
{
    int64_t n = 0;
    while (n < tokens && n < e->prompt - 1 && text->tokens[n] == e->tokens[n]) n++;
    return n / BLOCK;
}

static int model_chooses(const struct entry *e, uint64_t after, int homes)
{
    int64_t blocks[HOMES] = {0}, tokens[HOMES] = {0};
    for (size_t i = 0; i < world.count; i++) {
        const struct entry *p = &world.each[i];
        if (!p->over) tokens[p->home] += p->known;
        if (p->salt != e->salt || e->all_logits) continue;
        const int64_t fed = homes > 1 ? blocks_in_common(p, p->fed, e) : 0,
                      to_come = p->id == after && !p->over && !p->all_logits
                                    ? blocks_in_common(p, p->prompt, e)
                                    : 0,
                      most = fed > to_come ? fed : to_come;
        if (most > blocks[p->home]) blocks[p->home] = most;
    }
    int best = 0;
    for (int h = 1; h < HOMES; h++)
        if (blocks[h] > blocks[best] || (blocks[h] == blocks[best] && tokens[h] < tokens[best])) best = h;
    return best;
}

static struct entry *entry_of(uint64_t id)
{
    for (size_t i = 0; i < world.count; i++)
        if (world.each[i].id == id) return &world.each[i];
    return NULL;
}

static void step_once(void)
{
    cot_scheduler *s = &world.engine.loop.scheduler;
    while (cot_scheduler_admit(s)) {}
    const cot_step step = cot_scheduler_plan(s);
    for (int32_t i = 0; i < step.spans; i++) {
        cot_request_state *r = s->by_row[step.span[i].sequence];
        struct entry *e = entry_of(r->id);
        cot_scheduler_fed(s, r, step.span[i].tokens);
        e->fed = r->fed;
        if (r->fed < r->known) continue;
        e->over = r->known == r->limit;
        if (e->over)
            cot_scheduler_release(s, r);
        else
            e->known = ++r->known;
    }
    cot_scheduler_sweep(s);
}

static void homes_are_those_of_the_model(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    int chosen[HOMES] = {0}, other_than_least = 0, followed = 0;
    for (int history = 0; history < 60; history++) {
        const int homes = history % 3 ? HOMES : 1;
        open_world(&seed, homes);
        while (world.count < REQUESTS) {
            struct entry e, without = {.prompt = 1};
            cot_request r = draw_request(&e, &seed);
            if (world.count && draw(&seed) % 2) r.after = world.each[draw(&seed) % world.count].id;
            const int home = cot_engine_choose_home(&world.engine, &r),
                      wanted = model_chooses(&e, r.after, homes);
            assert_int_equal(home, wanted);
            chosen[home]++;
            other_than_least += home != model_chooses(&without, 0, homes);
            followed += home != model_chooses(&e, 0, homes);
            if (draw(&seed) % 3 == 0) {
                r.after = 0; // all get on
                cot_request_state *made =
                    cot_scheduler_submit(&world.engine.loop.scheduler, &r, e.limit, e.home, 0);
                assert_non_null(made);
                e.id = made->id;
                world.each[world.count++] = e;
            }
            if (draw(&seed) % 3) step_once();
        }
        cot_scheduler_close(&world.engine.loop.scheduler);
    }
    for (int h = 0; h < HOMES; h++) assert_true(chosen[h] > 100);
    assert_true(other_than_least > 100 && followed > 20);
}

/* Every number of the load is the one that it is called. */
static void loads_are_what_they_are_called(void **state)
{
    (void)state;
    cot_engine *e = &world.engine;
    memset(e, 0, sizeof *e);
    cot_scheduler *s = &e->loop.scheduler;
    s->waiting_count = 2, s->active_count = 3;
    s->pool = (cot_page_pool){.pages = 600, .open = 500, .free_pages = 70, .idle_pages = 11};
    s->prefix.nodes = 13, s->prefix.evicted = 17;
    s->prefix.snapshots.kept = 19, s->prefix.snapshots.evicted = 23;
    s->queried_tokens = 1900, s->hit_tokens = 230, s->preemptions = 29, s->waited_steps = 31;
    s->limits.target_ns = 37;
    s->cost.predicted_ns = 41.5, s->cost.observed_ns = 43.25, s->cost.error = 0.125;
    e->loop.steps = 47, e->loop.prefill_tokens = 53, e->loop.decode_tokens = 590;
    s->ended_restarts = 61;
    for (uint64_t i = 0; i < COT_RESTART_CLASSES; i++) s->ended_after[i] = 6700 + i;
    for (uint64_t i = 0; i < COT_STEP_CLASSES; i++) e->loop.steps_of[i] = 7100 + i;
    cot_engine_load l;
    memset(&l, 0xff, sizeof l);
    cot_engine_get_load(e, &l);
    assert_true(l.waiting == 2 && l.running == 3 && l.kv_pages == 500 && l.kv_pages_free == 81);
    assert_true(l.cached_blocks == 13 && l.evicted_blocks == 17 && l.queried_tokens == 1900 &&
                l.hit_tokens == 230);
    assert_true(l.cached_states == 19 && l.evicted_states == 23);
    assert_true(l.preemptions == 29 && l.waited_steps == 31 && l.tbt_ns == 37 && l.steps == 47);
    assert_true(l.step_tokens == 643 && l.ended_restarts == 61);
    for (uint64_t i = 0; i < COT_RESTART_CLASSES; i++) assert_int_equal(l.ended[i], 6700 + i);
    for (uint64_t i = 0; i < COT_STEP_CLASSES; i++) assert_int_equal(l.steps_of[i], 7100 + i);
    assert_true(l.predicted_ns == 41.5 && l.observed_ns == 43.25 && l.prediction_error == 0.125);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(homes_are_those_of_the_model),
                                       cmocka_unit_test(loads_are_what_they_are_called)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
