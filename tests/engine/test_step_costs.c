/* What an engine learns from each of its steps and asks of the next, against a copy of its cost model that is taught by hand. */
#include "harness/cmocka.h"
#include "harness/engine/random_model.h"
#include "harness/engine/requests.h"
#include "harness/engine/steps.h"
#include "harness/seed.h"

#include "engine/engine_state.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, EXPERTS = 7, TOP_K = 2, ROUTED = LAYERS * TOP_K, REQUESTS = 4 };

/* A request, and what was told of the step that has just been run. */
struct fed {
    int64_t position, tokens; // of its span; no tokens: it had none
    uint16_t experts[CONTEXT][ROUTED];
};

static void on_routing(void *context, uint64_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights)
{
    struct fed *f = context;
    (void)request, (void)token, (void)weights;
    if (!f->tokens) f->position = position;
    assert_int_equal(position, f->position + f->tokens);
    memcpy(f->experts[f->tokens++], experts, sizeof f->experts[0]);
}

/* What each rank's experts had to do, over layers. Tokens are at home where their request is, or all are one request's and every rank
 * has a share of them. */
static void count_served(cot_cost_load *served, const cot_engine *e, const struct fed *fed, int requests,
                         bool shared)
{
    const int ranks = e->info.ranks;
    memset(served, 0, (size_t)ranks * sizeof *served);
    for (int l = 0; l < LAYERS; l++) {
        const cot_expert_replicas replicas =
            cot_expert_layout_layer(&e->placing.epoch[e->placing.second].layout, l);
        bool touched[EXPERTS] = {false};
        for (int r = 0; r < requests; r++)
            for (int64_t t = 0; t < fed[r].tokens; t++) {
                bool sent[COT_MAX_RANKS] = {false};
                int home = shared ? 0 : r % ranks;
                while (shared && t >= (home + 1) * fed[r].tokens / ranks) home++;
                sent[home] = true;
                for (int k = 0; k < TOP_K; k++) {
                    const int expert = fed[r].experts[t][l * TOP_K + k],
                              rank = replicas.rank[replicas.begin[expert]];
                    served[rank].rows++;
                    served[rank].sends += !sent[rank];
                    served[rank].experts += !touched[expert];
                    sent[rank] = touched[expert] = true;
                }
            }
    }
}

/* What the cost model is to be after the step: taught what the step held, how long it took, and which experts the tokens chose
 * that rank 0 routed. Where others routed some, these experts are not all that were touched, and ranks say what they had to do. */
static cot_cost taught(const cot_engine *e, cot_cost cost, const struct fed fed[2], bool *partly)
{
    static uint16_t own[LAYERS * CONTEXT * TOP_K];
    uint64_t touched[EXPERTS];
    cot_cost_step held = {0};
    int64_t rows = 0;
    for (int home = 0; home < 2; home++) {
        cot_cost_add_span(&held, fed[home].position, fed[home].tokens);
        for (int64_t t = 0; t < fed[home].tokens && (!home || e->info.ranks == 1); t++, rows++)
            for (int l = 0; l < LAYERS; l++)
                memcpy(own + (l * CONTEXT + rows) * TOP_K, fed[home].experts[t] + l * TOP_K,
                       TOP_K * sizeof *own);
    }
    const cot_expert_layout *layout = &e->placing.epoch[e->placing.second].layout;
    cot_cost_expect(&cost, &held);
    if (!cost.steps) cot_cost_place(&cost, layout);
    cot_cost_load load = cot_cost_learn_routing(&cost, own, LAYERS, CONTEXT, rows, layout, touched);
    *partly = rows < held.tokens && cot_cost_distinct(&cost, held.tokens) != load.experts;
    if (rows < held.tokens) {
        cot_cost_load served[COT_MAX_RANKS];
        count_served(served, e, fed, 2, false);
        load = cot_cost_learn_served(&cost, &held, served, e->info.ranks, LAYERS);
    }
    cot_cost_learn(&cost, &held, &load, (double)e->loop.last_step_ns);
    return cost;
}

/* Sequences at home on rank 0, on rank 1, and on both: experts that rank 0's tokens touch are not taken for all that a step
 * touched unless all were its own. */
static void each_step_teaches_what_it_held(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int ranks = 1; ranks <= 2; ranks++) {
        cot_engine *engine =
            open_random("null", &(struct setting){.ranks = ranks, .attention = "dp", .sequences = 2});
        int64_t steps = 0, partly_own = 0;
        for (int way = 1; way <= 3; way++) { // which homes have a sequence
            struct fed fed[2] = {0};
            int32_t *ids[2];
            for (int home = 0; home < 2; home++) {
                ids[home] = drawn_ids(CONTEXT, VOCAB, &seed);
                const cot_events events = {.context = &fed[home], .on_routing = on_routing};
                const int64_t prompt = 1 + (int64_t)(draw(&seed) % 40);
                const cot_request r = forced_request(ids[home], prompt + 12 + 9 * home, prompt);
                if (way >> home & 1) must_submit(engine, &r, home % ranks, &events);
            }
            for (size_t left = 1; left; steps++) {
                bool partly;
                const cot_cost before = engine->loop.scheduler.cost;
                for (int home = 0; home < 2; home++) fed[home].tokens = 0;
                left = must_step(engine);
                const cot_cost after = taught(engine, before, fed, &partly);
                assert_memory_equal(&after, &engine->loop.scheduler.cost, sizeof after);
                partly_own += partly;
            }
            for (int home = 0; home < 2; home++) free(ids[home]);
        }
        assert_int_equal(engine->loop.scheduler.cost.steps, steps);
        assert_true(ranks == 1 ? partly_own == 0 : partly_own > 10);
        cot_engine_close(engine);
    }
}

/* Where all ranks have a part of every token's attention, each routes its share of the tokens: steps of so many are learnt of, and
 * what the whole step touched is not known. */
static void shares_of_steps_are_learnt_as_shares(void **state)
{
    (void)state;
    enum { TOKENS = 40 };
    uint64_t seed = test_seed();
    for (int ranks = 2; ranks <= 3; ranks++) {
        cot_engine *engine = open_random("null", &(struct setting){.ranks = ranks, .attention = "tp"});
        int32_t *ids = drawn_ids(TOKENS, VOCAB, &seed);
        struct fed fed = {0};
        const cot_events events = {.context = &fed, .on_routing = on_routing};
        const int64_t prompt = 1 + (int64_t)(draw(&seed) % (TOKENS - 5));
        const cot_request r = forced_request(ids, TOKENS, prompt);
        must_submit(engine, &r, 0, &events);
        for (size_t left = 1; left;) {
            const cot_cost *now = &engine->loop.scheduler.cost, before = *now;
            cot_cost_step held = {0};
            fed.tokens = 0;
            left = must_step(engine);
            cot_cost_add_span(&held, fed.position, fed.tokens);
            cot_cost after = before;
            cot_cost_expect(&after, &held);
            memcpy(after.distinct, now->distinct, sizeof after.distinct);
            memcpy(after.routed, now->routed, sizeof after.routed);
            after.rows = now->rows;
            after.sends = now->sends;
            after.most = now->most;
            cot_cost_load served[COT_MAX_RANKS];
            if (!before.steps) after.told = (cot_cost_load){1, 1, 1};
            count_served(served, engine, &fed, 1, true);
            const cot_cost_load load = cot_cost_learn_served(&after, &held, served, ranks, LAYERS);
            cot_cost_learn(&after, &held, &load, (double)engine->loop.last_step_ns);
            assert_memory_equal(&after, now, sizeof after);
            for (int d = 0; d < COT_COST_DOUBLINGS; d++)
                assert_int_equal(now->routed[d] - before.routed[d], (int64_t)1 << d <= fed.tokens / ranks);
        }
        free(ids);
        cot_engine_close(engine);
    }
}

/* The target that is chosen: twice what a step is expected to take in which as many sequences decode as there may be, each as
 * long as those that run are on average. One that is given stays. */
static void the_target_is_twice_what_all_decoding_takes(void **state)
{
    (void)state;
    enum { ROWS = 5 };
    uint64_t seed = test_seed();
    static const int64_t asked[] = {COT_TBT_AUTO, 0, 123456789};
    for (int way = 0; way < 3; way++) {
        cot_engine *engine = open_random("null", &(struct setting){.ranks = 2, .sequences = ROWS});
        int32_t *ids[REQUESTS];
        int64_t targets = 0;
        const cot_scheduler *s = &engine->loop.scheduler;
        engine->loop.options.tbt_ns = asked[way];
        engine->loop.scheduler.limits.target_ns = asked[way] > 0 ? asked[way] : 0;
        for (int i = 0; i < REQUESTS; i++) {
            ids[i] = drawn_ids(CONTEXT, VOCAB, &seed);
            const int64_t tokens = 20 + (int64_t)(draw(&seed) % (CONTEXT - 40));
            const cot_request r = forced_request(ids[i], tokens + 3 + 4 * i, tokens);
            must_submit(engine, &r, i % 2, &(cot_events){0});
        }
        for (size_t left = 1; left;) {
            const cot_cost cost = s->cost;
            int64_t known = 0, active = s->active_count, expected = s->limits.target_ns;
            for (int64_t i = 0; i < active; i++) known += s->active[i]->known;
            if (asked[way] == COT_TBT_AUTO && active) {
                const int64_t all = known / active * ROWS;
                expected = (int64_t)(2 * cot_cost_predict(&cost, &(cot_cost_step){ROWS, all, all}));
            }
            left = must_step(engine);
            assert_int_equal(s->limits.target_ns, expected);
            cot_engine_load load;
            cot_engine_get_load(engine, &load);
            assert_int_equal(load.tbt_ns, expected);
            targets += asked[way] == COT_TBT_AUTO && expected > 0;
        }
        if (asked[way] == COT_TBT_AUTO) assert_true(targets > 3);
        for (int i = 0; i < REQUESTS; i++) free(ids[i]);
        cot_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_step_teaches_what_it_held),
        cmocka_unit_test(shares_of_steps_are_learnt_as_shares),
        cmocka_unit_test(the_target_is_twice_what_all_decoding_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
