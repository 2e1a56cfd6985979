/* What an engine counts of experts, against the routing that another engine of the same model tells token by token: popularity of
 * homes and of all, and signatures of prompts and answers, also of a text that begins with another's blocks. */
#include "harness/cmocka.h"
#include "harness/engine/random_model.h"
#include "harness/engine/requests.h"
#include "harness/engine/steps.h"
#include "harness/seed.h"

#include "engine/engine_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 2,
    EXPERTS = 7,
    TOP_K = 2,
    CELLS = LAYERS * EXPERTS,
    BLOCK = 16,
    MOST_RANKS = 3,
    MOST_TEXTS = 4,
    HALF_LIFE = 50
};

/* A text, and of each of its tokens what it called; `counted`: it is one that the other engine asks for. */
struct text {
    int32_t *ids;
    int64_t tokens, prompt, cached, told;
    int home;
    uint16_t experts[CONTEXT][LAYERS][TOP_K];
    bool counted[CONTEXT];
    int profiles; // that were told
};

/* All texts, in the order in which tokens were told. */
struct world {
    struct text text[MOST_TEXTS];
    struct text *now; // whose profile is awaited
    double count[MOST_RANKS][LAYERS][EXPERTS], tokens[MOST_RANKS];
    int64_t in_step;
    cot_step step; // which of its tokens are wanted
    int homes;
    cot_engine *shown, *counts; // one tells routing, the other counts
};

static struct world *world;

static void on_routing(void *context, uint64_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights)
{
    struct text *t = context;
    (void)request, (void)token, (void)weights;
    memcpy(t->experts[position], experts, sizeof t->experts[position]);
    t->counted[position] = cot_step_wants_routing(&world->step, world->in_step++);
    if (!t->counted[position]) return;
    const double later = pow(0.5, fmin(1, (double)world->step.routed_every / HALF_LIFE));
    for (int h = 0; h < MOST_RANKS; h++) {
        world->tokens[h] *= later;
        for (int c = 0; c < CELLS; c++) (&world->count[h][0][0])[c] *= later;
    }
    const int home = t->home % world->homes;
    world->tokens[home]++;
    for (int l = 0; l < LAYERS; l++)
        for (int k = 0; k < TOP_K; k++) world->count[home][l][experts[l * TOP_K + k]]++;
}

/* What the tokens [begin, end) of a text add to a signature. */
static void add_tokens(int *cells, const struct text *t, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        bool full = false;
        if (!t->counted[i]) continue;
        for (int l = 0; l < LAYERS; l++)
            for (int k = 0; k < TOP_K; k++) full |= ++cells[l * EXPERTS + t->experts[i][l][k]] == 127;
        for (int c = 0; full && c < CELLS; c++) cells[c] /= 2;
    }
}

static void on_profile(void *context, const cot_profile_told *p)
{
    struct world *w = context;
    struct text *t = w->now;
    int prompt[CELLS] = {0}, answer[CELLS] = {0};
    add_tokens(prompt, t, 0, t->prompt);
    add_tokens(answer, t, t->prompt, t->tokens);
    assert_int_equal(p->cells, CELLS);
    for (int c = 0; c < CELLS; c++) {
        assert_int_equal(p->prompt[c], prompt[c]);
        assert_int_equal(p->answer[c], answer[c]);
    }
    assert_int_equal(p->home, t->home % w->homes);
    assert_int_equal(p->epoch, 0);
    assert_int_equal(p->has_block, t->prompt >= BLOCK);
    uint64_t hash = 0;
    for (int64_t b = 0; b < t->prompt / BLOCK; b++) {
        const uint64_t local = cot_cache_local_hash(t->ids + b * BLOCK, BLOCK);
        hash = b ? cot_cache_sequence_hash(hash, local) : local;
    }
    assert_true(p->block_hash == hash);
    t->profiles++;
}

static void assert_popularity(const struct world *w)
{
    for (int home = COT_HOME_ANY; home < w->homes; home++) {
        double got[CELLS], wanted[CELLS] = {0}, tokens = 0;
        for (int h = 0; h < w->homes; h++) {
            if (home != COT_HOME_ANY && h != home) continue;
            tokens += w->tokens[h];
            for (int c = 0; c < CELLS; c++) wanted[c] += (&w->count[h][0][0])[c];
        }
        assert_true(fabs(cot_engine_popularity(got, w->counts, home) - tokens) < 1e-9 * (1 + tokens));
        for (int c = 0; c < CELLS; c++) assert_true(fabs(got[c] - wanted[c]) < 1e-9 * (1 + wanted[c]));
    }
}

/* A text on both engines, step by step. The first `same` of its ids are another's. */
static void run_text(struct world *w, struct text *t, const struct text *other, int64_t same, uint64_t *seed)
{
    const cot_events shown = {.context = t, .on_routing = on_routing}, none = {0};
    t->ids = drawn_ids(CONTEXT, VOCAB, seed);
    t->prompt = 40 + (int64_t)(draw(seed) % 80);
    if (other) { // as much as blocks are cached of is known, with what the other called
        t->prompt = same + 1 + (int64_t)(draw(seed) % 30);
        memcpy(t->ids, other->ids, (size_t)same * sizeof *t->ids);
        t->ids[same] = (other->ids[same] + 1) % VOCAB; // no more than that is the same
        memcpy(t->experts, other->experts, (size_t)(same / BLOCK * BLOCK) * sizeof *t->experts);
        memcpy(t->counted, other->counted, (size_t)(same / BLOCK * BLOCK) * sizeof *t->counted);
        t->home = other->home;
    } else
        t->home = (int)(draw(seed) % (uint64_t)w->shown->info.ranks);
    t->tokens = t->prompt + 1 + (int64_t)(draw(seed) % 40);
    if (t->tokens >= CONTEXT) t->tokens = CONTEXT - 1; // prompts are of 189 tokens at most
    w->now = t;
    cot_request r = forced_request(t->ids, t->tokens, t->prompt);
    r.all_logits = false; // such requests find nothing in the cache
    must_submit(w->shown, &r, t->home, &shown);
    must_submit(w->counts, &r, t->home, &none);
    for (size_t left = 1; left;) {
        w->in_step = 0;
        cot_profiles_want(&w->counts->loop.profiles, &w->step, w->counts->loop.steps);
        left = must_step(w->shown);
        assert_int_equal(must_step(w->counts), left);
        assert_popularity(w);
    }
    assert_int_equal(t->profiles, 1);
}

static void experts_are_counted(void **state)
{
    (void)state;
    uint64_t seed = test_seed(), hits = 0;
    for (int way = 0; way < 9; way++) {
        static struct world w;
        struct setting s = {.ranks = 1 + way % MOST_RANKS,
                            .attention = way < MOST_RANKS ? "dp" : "tp",
                            .pipeline = way < 2 * MOST_RANKS ? NULL : "s-moe",
                            .predict = way < 2 * MOST_RANKS ? NULL : "none",
                            .combine = "exact",
                            .processes = draw(&seed) % 2 && CAN_FORK,
                            .step_tokens = 30,
                            .block_tokens = BLOCK,
                            .sequences = 2};
        memset(&w, 0, sizeof w);
        world = &w;
        w.shown = open_random("null", &s);
        s.quiet = true;
        s.half_life = HALF_LIFE;
        w.counts = open_random("null", &s);
        cot_engine_popularity_info info;
        cot_engine_describe_popularity(&info, w.shown);
        assert_int_equal(info.n_layers, 0);
        cot_engine_describe_popularity(&info, w.counts);
        assert_int_equal(info.n_layers, LAYERS);
        assert_int_equal(info.cells, CELLS);
        assert_true(info.half_life_tokens == HALF_LIFE && info.half_life_seconds == 0);
        w.homes = info.n_homes;
        assert_int_equal(info.every, w.counts->loop.profiles.options.every);
        assert_int_equal(w.homes, w.counts->info.kv_homes);
        cot_engine_watch_profiles(w.counts, &(cot_profile_events){&w, on_profile});
        run_text(&w, &w.text[0], NULL, 0, &seed);
        const int64_t same = (int64_t)(draw(&seed) % (uint64_t)(w.text[0].tokens + 1));
        run_text(&w, &w.text[1], &w.text[0], same, &seed);
        run_text(&w, &w.text[2], NULL, 0, &seed);
        // a request that is cancelled before its prompt was fed has no profile
        const cot_request r = forced_request(w.text[2].ids, 100, 90);
        const uint64_t id = must_submit(w.counts, &r, 0, &(cot_events){0});
        must_step(w.counts);
        assert_int_equal(cot_engine_cancel(w.counts, id, NULL), COT_OK);
        assert_int_equal(w.text[2].profiles, 1);
        const uint16_t *experts;
        const int16_t *homes;
        assert_true(cot_engine_popular_tokens(&experts, &homes, w.counts) > 0);
        for (int i = 0; i < 3; i++) free(w.text[i].ids);
        cot_engine_load load;
        cot_engine_get_load(w.counts, &load);
        hits += load.hit_tokens;
        cot_engine_close(w.shown);
        cot_engine_close(w.counts);
    }
    assert_true(hits > 0);
}

/* Which tokens are counted depends on nothing that a token can be: each is as often as any other, whatever its place in steps. The
 * bound of 7 deviations is missed once in 10^11. */
static void every_place_is_counted_alike(void **state)
{
    (void)state;
    enum { STEPS = 20000, MOST = 12 };
    const int64_t begin = (int64_t)(test_seed() % 1000000000);
    for (int32_t every = 1; every <= MOST; every++) {
        const cot_profiles p = {.options = {.every = every}};
        int counted[2 * MOST] = {0};
        for (int64_t number = begin; number < begin + STEPS; number++) {
            cot_step step = {0};
            cot_profiles_want(&p, &step, number);
            int in_step = 0;
            for (int t = 0; t < 2 * every; t++) {
                counted[t] += cot_step_wants_routing(&step, t);
                in_step += cot_step_wants_routing(&step, t);
            }
            assert_int_equal(in_step, 2);
        }
        const double mean = (double)STEPS / every, deviation = sqrt(mean * (1 - 1. / every));
        for (int t = 0; t < 2 * every; t++)
            if (fabs(counted[t] - mean) > 7 * deviation)
                fail_msg("token %d of every %d was counted %d times, not %.0f", t, (int)every, counted[t],
                         mean);
    }
}

/* All that one engine calls, by place in the step modulo `every`. */
struct exact {
    int64_t in_step;
    int every;
    double step[8][CELLS], sum[CELLS], variance[CELLS];
};

static void count_exactly(void *context, uint64_t request, int64_t position, int32_t token,
                          const uint16_t *experts, const float *weights)
{
    struct exact *x = context;
    (void)request, (void)position, (void)token, (void)weights;
    double *cells = x->step[x->in_step++ % x->every];
    for (int i = 0; i < LAYERS * TOP_K; i++) cells[i / TOP_K * EXPERTS + experts[i]]++;
}

/* A step is over: what n times one of its n parts, drawn, may differ from all of it. */
static void end_exact_step(struct exact *x)
{
    for (int c = 0; c < CELLS; c++) {
        double all = 0, squares = 0;
        for (int j = 0; j < x->every; j++) {
            all += x->step[j][c];
            squares += x->step[j][c] * x->step[j][c];
        }
        x->sum[c] += all;
        x->variance[c] += x->every * squares - all * all;
    }
    memset(x->step, 0, sizeof x->step);
    x->in_step = 0;
}

/* Of sequences that keep their places in steps, of which every n-th token is counted, n times that is what all call, as nearly as
 * chance lets it: within 7 deviations. */
static void samples_count_what_all_call(void **state)
{
    (void)state;
    enum { SEQUENCES = 4, EVERY = 4, PROMPT = 3 };
    uint64_t seed = test_seed();
    struct setting s = {.ranks = 2,
                        .attention = "dp",
                        .step_tokens = 30,
                        .sequences = SEQUENCES,
                        .kv_tokens = 2 * SEQUENCES * CONTEXT}; // nobody is fed twice
    cot_engine *shown = open_random("null", &s);
    s.quiet = true;
    s.half_life = 1 << 30; // what came is worth what it was
    cot_engine *counts = open_random("null", &s);
    counts->loop.profiles.options.every = EVERY;
    counts->loop.steps = (int64_t)(draw(&seed) % 1000000); // so that others are drawn
    struct exact x = {.every = EVERY};
    for (int i = 0; i < SEQUENCES; i++) {
        const cot_events events = {.context = &x, .on_routing = count_exactly};
        int32_t *ids = drawn_ids(CONTEXT, VOCAB, &seed);
        const cot_request r = forced_request(ids, CONTEXT - 1, PROMPT);
        must_submit(shown, &r, i % 2, &events);
        must_submit(counts, &r, i % 2, &(cot_events){0});
        free(ids);
    }
    for (size_t left = 1; left;) {
        left = must_step(shown);
        assert_int_equal(must_step(counts), left);
        end_exact_step(&x);
    }
    cot_engine_load load;
    cot_engine_get_load(counts, &load);
    assert_int_equal(load.preemptions, 0);
    double got[CELLS];
    cot_engine_popularity(got, counts, COT_HOME_ANY);
    for (int c = 0; c < CELLS; c++)
        if (fabs(EVERY * got[c] - x.sum[c]) > 7 * sqrt(x.variance[c]) + 1e-3 * x.sum[c])
            fail_msg("cell %d: %.1f is said of %.0f calls, which chance makes differ by %.1f", c,
                     EVERY * got[c], x.sum[c], sqrt(x.variance[c]));
    cot_engine_close(shown);
    cot_engine_close(counts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_are_counted),
                                       cmocka_unit_test(every_place_is_counted_alike),
                                       cmocka_unit_test(samples_count_what_all_call)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
