/* What an engine does by the experts that its KV cache foretells of requests, with popularity that is planted there: requests of two
 * domains find the ranks that hold their experts, whatever placement is in force, and say what they say elsewhere. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/random_model.h"
#include "harness/engine/requests.h"
#include "harness/engine/steps.h"
#include "harness/seed.h"

#include "engine/engine_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 2,
    EXPERTS = 7,
    TOP_K = 2,
    BLOCK = 16,
    PREFIX = 2 * BLOCK,
    TAIL = 9,
    ANSWER = 6,
    REQUESTS = 40
};

/* Both domains' experts sit on one rank of two, where expert 3 is on the second. */
static const int first_of_domain[2] = {0, 4};

struct text {
    int domain, home;
    uint64_t id;
    int32_t prompt[PREFIX + TAIL], answer[ANSWER];
    int64_t prompt_tokens, told;
    int admitted; // its number among those that were
};

static int admissions;

static void on_admit(void *context, uint64_t request, int64_t cached)
{
    struct text *t = context;
    (void)request, (void)cached;
    t->admitted = ++admissions;
}

static bool on_token(void *context, uint64_t request, int32_t token)
{
    struct text *t = context;
    (void)request;
    t->answer[t->told++] = token;
    return true;
}

static void draw_texts(struct text *texts, int count, uint64_t *seed)
{
    int32_t prefix[2][PREFIX];
    for (int i = 0; i < PREFIX; i++) {
        prefix[0][i] = (int32_t)(draw(seed) % VOCAB);
        prefix[1][i] = (prefix[0][i] + 1) % VOCAB;
    }
    memset(texts, 0, (size_t)count * sizeof *texts);
    for (int i = 0; i < count; i++) {
        struct text *t = &texts[i];
        t->domain = i < 2 ? i : (int)(draw(seed) % 2);
        t->prompt_tokens = PREFIX + 1 + (int64_t)(draw(seed) % TAIL);
        memcpy(t->prompt, prefix[t->domain], sizeof prefix[0]);
        for (int j = PREFIX; j < PREFIX + TAIL; j++) t->prompt[j] = (int32_t)(draw(seed) % VOCAB);
    }
}

/* A signature becomes one of two experts of each layer, those of the domain. */
static void write_signature(const cot_profiles *p, uint8_t *cells, int domain)
{
    assert_int_equal(p->shape.cells, LAYERS * EXPERTS);
    memset(cells, 0, (size_t)p->shape.cells);
    for (int l = 0; l < LAYERS; l++)
        for (int k = 0; k < TOP_K; k++) cells[l * EXPERTS + first_of_domain[domain] + k] = 40;
}

/* That of the domain's prefix at a home. */
static void plant(cot_engine *e, const struct text *of, int home)
{
    const cot_profiles *p = &e->loop.profiles;
    const cot_prefix_root root = {.home = home};
    int64_t blocks;
    const int32_t node = cot_prefix_match(&e->loop.scheduler.prefix, &root, of->prompt, PREFIX, &blocks);
    assert_int_equal(blocks, PREFIX / BLOCK);
    write_signature(p, p->of_node + node * p->shape.cells, of->domain);
}

/* The same of the text that runs, and of what the schedule expects of it. */
static void plant_running(cot_engine *e, uint64_t id, int domain)
{
    cot_scheduler *s = &e->loop.scheduler;
    for (int64_t i = 0; i < s->active_count; i++) {
        cot_request_state *r = s->active[i];
        if (r->id != id) continue;
        write_signature(&e->loop.profiles, cot_loop_request_of(r)->profile.text, domain);
        uint8_t *share = cot_scheduler_retell(s, r);
        if (!share) continue;
        memset(share, 0, LAYERS * EXPERTS);
        for (int l = 0; l < LAYERS; l++)
            for (int k = 0; k < TOP_K; k++) share[l * EXPERTS + first_of_domain[domain] + k] = UINT8_MAX;
    }
}

static uint64_t submit(cot_engine *e, struct text *t, int home, int64_t tokens)
{
    cot_request r = generating_from(t->prompt, t->prompt_tokens, tokens);
    r.sampling.ignore_eos = true;
    t->id = must_submit(e, &r, home, &(cot_events){.context = t, .on_token = on_token, .on_admit = on_admit});
    return t->id;
}

/* The home of request `id`, and how many others each has. */
static int home_of(const cot_engine *e, uint64_t id, int others[2])
{
    cot_engine_sequence sequences[REQUESTS];
    const size_t count = cot_engine_sequences(e, sequences, REQUESTS);
    int home = -1;
    assert_true(count <= REQUESTS);
    others[0] = others[1] = 0;
    for (size_t i = 0; i < count; i++)
        if (sequences[i].id == id)
            home = sequences[i].home;
        else
            others[sequences[i].home]++;
    return home;
}

static cot_engine *open_two_ranks(const char *home_by, bool processes)
{
    return open_random("null", &(struct setting){.ranks = 2,
                                                 .attention = "dp",
                                                 .combine = "exact",
                                                 .processes = processes && CAN_FORK,
                                                 .step_tokens = 64,
                                                 .block_tokens = BLOCK,
                                                 .kv_tokens = 20 * CONTEXT,
                                                 .sequences = 6,
                                                 .quiet = true,
                                                 .half_life = 1000,
                                                 .home_by = home_by});
}

/* Texts of both domains are fed on both homes, then all are submitted to any, beside drawn steps. */
static void run_texts(cot_engine *e, struct text *texts, uint64_t seed)
{
    struct text first[2] = {texts[0], texts[1]};
    for (int domain = 0; domain < 2; domain++)
        for (int home = 0; home < 2; home++) {
            submit(e, &first[domain], home, 1);
            must_finish(e);
            first[domain].told = 0;
            if (e->homes_by_experts) plant(e, &first[domain], home);
        }
    for (int i = 0; i < REQUESTS; i++) {
        struct text *t = &texts[i];
        int others[2];
        t->home = home_of(e, submit(e, t, COT_HOME_ANY, ANSWER), others);
        if (e->homes_by_experts) // the domain's own, unless that has two requests more than the other
            assert_int_equal(t->home, others[t->domain] > others[!t->domain] + 1 ? !t->domain : t->domain);
        for (uint64_t steps = draw(&seed) % 4; steps; steps--) must_step(e);
    }
    must_finish(e);
}

static int home_chosen(const cot_engine *e, const struct text *t)
{
    const cot_request r = generating_from(t->prompt, t->prompt_tokens, ANSWER);
    return cot_engine_choose_home(e, &r);
}

static void requests_find_their_experts(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static struct text by_load[REQUESTS], by_experts[REQUESTS];
    int elsewhere = 0, own = 0;
    for (int way = 0; way < 4; way++) {
        draw_texts(by_load, REQUESTS, &seed);
        memcpy(by_experts, by_load, sizeof by_load);
        const uint64_t steps = draw(&seed);
        cot_engine *e = open_two_ranks(way % 2 ? "load" : NULL, way / 2);
        run_texts(e, by_load, steps);
        cot_engine_close(e);
        e = open_two_ranks("experts", way / 2);
        run_texts(e, by_experts, steps);
        for (int i = 0; i < REQUESTS; i++) {
            assert_int_equal(by_experts[i].told, ANSWER);
            assert_memory_equal(by_experts[i].answer, by_load[i].answer, sizeof by_load[i].answer);
            elsewhere += by_experts[i].home != by_load[i].home;
            own += by_experts[i].home == by_experts[i].domain;
        }
        for (int domain = 0; domain < 2; domain++)
            assert_int_equal(home_chosen(e, &by_experts[domain]), domain);
        cot_placing *placing = &e->placing; // experts change sides
        cot_expert_layout *next = &placing->epoch[!placing->second].layout;
        for (int64_t i = 0; i < next->first[LAYERS]; i++) next->rank[i] = 1 - next->rank[i];
        placing->second = !placing->second;
        for (int domain = 0; domain < 2; domain++)
            assert_int_equal(home_chosen(e, &by_experts[domain]), !domain);
        placing->second = !placing->second;
        cot_engine_close(e);
    }
    assert_true(elsewhere > 0 && own > 4 * REQUESTS / 2);
}

/* One of domain 0 runs; beside it there is room for one of those that wait. Nothing is known of anyone when it comes. */
static void run_in_turn(cot_engine *e, struct text *texts, int count)
{
    struct text first[2] = {texts[0], texts[1]};
    cot_request runs = generating_from(texts[0].prompt, texts[0].prompt_tokens, 100);
    runs.sampling.ignore_eos = true;
    admissions = 0;
    const uint64_t id = must_submit(e, &runs, 0, &(cot_events){0});
    submit(e, &first[1], 0, 1);
    for (int i = 0; i < count; i++) submit(e, &texts[i], 0, 2);
    while (!first[1].told) must_step(e);
    for (int domain = 0; domain < 2; domain++) plant(e, &first[domain], 0);
    do plant_running(e, id, 0);
    while (must_step(e) > 1);
    assert_int_equal(cot_engine_cancel(e, id, NULL), COT_OK);
}

/* Those of its domain go first, in the order in which they came; texts stay what they are. */
static void who_shares_experts_is_admitted_first(void **state)
{
    (void)state;
    enum { COUNT = 12 };
    uint64_t seed = test_seed();
    int passed = 0;
    for (int way = 0; way < 6; way++) {
        struct text texts[2][COUNT];
        draw_texts(texts[0], COUNT, &seed);
        memcpy(texts[1], texts[0], sizeof texts[0]);
        for (int by_experts = 0; by_experts < 2; by_experts++) {
            cot_engine *e = open_random("null", &(struct setting){.step_tokens = 128,
                                                                  .combine = "exact",
                                                                  .block_tokens = BLOCK,
                                                                  .kv_tokens = 20 * CONTEXT,
                                                                  .sequences = 2,
                                                                  .quiet = true,
                                                                  .half_life = 1000,
                                                                  .schedule = by_experts ? "experts" : NULL});
            run_in_turn(e, texts[by_experts], COUNT);
            cot_engine_close(e);
        }
        int wanted = 1; // admitted first of all is the other that the test submits
        for (int domain = 0; domain < 2; domain++)
            for (int i = 0; i < COUNT; i++)
                if (texts[1][i].domain == domain) assert_int_equal(texts[1][i].admitted, ++wanted);
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(texts[0][i].admitted, 2 + i);
            assert_int_equal(texts[0][i].told, 2);
            assert_memory_equal(texts[1][i].answer, texts[0][i].answer, sizeof texts[0][i].answer);
            passed += texts[1][i].admitted < texts[0][i].admitted;
        }
    }
    assert_true(passed > 0);
}

static void must_refuse(const struct setting *s, const char *text)
{
    cot_engine_options o = options_of(s);
    cot_engine *e;
    cot_error error;
    assert_int_equal(cot_engine_open(&e, TINY, &o, NULL, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, text)) fail_msg("'%s', expected '%s'", error.message, text);
}

static void what_foretells_nothing_is_refused(void **state)
{
    (void)state;
    struct setting s = {.home_by = "experts", .half_life = 9, .block_tokens = BLOCK};
    must_refuse(&s, "home-by 'experts' needs attention 'dp'");
    s.attention = "dp";
    s.block_tokens = 0;
    must_refuse(&s, "home-by 'experts' needs signature tables, or a prefix cache and");
    s.block_tokens = BLOCK;
    s.half_life = 0;
    must_refuse(&s, "home-by 'experts' needs signature tables, or a prefix cache and");
    s.home_by = "expert";
    must_refuse(&s, "unknown home-by 'expert' (load or experts)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests_find_their_experts),
                                       cmocka_unit_test(who_shares_experts_is_admitted_first),
                                       cmocka_unit_test(what_foretells_nothing_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
