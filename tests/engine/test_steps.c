/* Steps of a group: a page that two sequences share, and what is learnt from steps. */
#include "harness/cmocka.h"
#include "harness/engine/random_model.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/seed.h"

#include "engine/engine_state.h"

#include <math.h>
#include <stdlib.h>

enum { SHARED_TOKENS = 110 };

/* One step of the group, with a plan by hand: a span of a row, on pages 0 or 0 and `last`. */
static const float *run_span(cot_engine *e, const int32_t *ids, cot_span span, int32_t last, bool keep)
{
    cot_page_map maps[] = {
        {.sequence = span.sequence, .home = (int16_t)span.home, .keep = keep ? COT_KV_PAGE : 0},
        {.sequence = span.sequence, .index = 1, .page = last, .home = (int16_t)span.home}};
    cot_step step = {.tokens = span.tokens,
                     .spans = 1,
                     .maps = last >= 0 ? 2 : 0,
                     .logits = span.logits,
                     .ids = ids + span.position,
                     .span = &span,
                     .map = maps};
    cot_step_result result;
    cot_error error = {0};
    if (cot_engine_group_step(e->group, &step, &result, &error) != COT_OK) fail_msg("%s", error.message);
    return result.logits;
}

/* A second sequence that begins like the first needs only the rest, and leaves the first as it was. On two ranks at
 * most: every logit is then the same bits in any step. */
static void a_kept_page_is_shared(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int way = 0; way < 3; way++) {
        struct setting s = {.ranks = way ? 2 : 1, .attention = way == 2 ? "dp" : "tp", .sequences = 2};
        cot_engine *engine = open_random("null", &s);
        int32_t *ids = drawn_ids(SHARED_TOKENS, VOCAB, &seed), home = way == 2;
        cot_request request = forced_request(ids, SHARED_TOKENS, SHARED_TOKENS);
        struct records alone = must_run(engine, &request, 1);
        const float *plain = alone.record[0].logits;
        size_t row = VOCAB * sizeof *plain;
        run_span(engine, ids, (cot_span){0, home, 0, 100, 1, 0}, 1, false);
        const float *logits = run_span(engine, ids, (cot_span){1, home, COT_KV_PAGE, 46, 46, 0}, 2, true);
        assert_memory_equal(logits, plain + COT_KV_PAGE * VOCAB, 46 * row);
        logits = run_span(engine, ids, (cot_span){0, home, 100, 10, 10, 0}, -1, false);
        assert_memory_equal(logits, plain + 100 * VOCAB, 10 * row);
        records_free(&alone);
        free(ids);
        cot_engine_close(engine);
    }
}

/* An engine learns from what its steps took and how their tokens, rank 0's at least, were routed. */
static void an_engine_learns(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    enum { TOKENS = 8, TOP_K = 2, MOE_LAYERS = 2, MODEL_EXPERTS = 7 };
    for (int way = 0; way < 4; way++) {
        struct setting s = {.ranks = way % 2 ? 3 : 1, .attention = way / 2 ? "dp" : "tp"};
        cot_engine *engine = open_random("null", &s);
        int32_t *ids = drawn_ids(TOKENS + 20, VOCAB, &seed);
        const cot_request request = forced_request(ids, TOKENS + 20, TOKENS);
        struct records told = must_run(engine, &request, 1);
        const cot_cost *cost = &engine->loop.scheduler.cost;
        const cot_expert_layout *layout = &engine->placing.epoch[engine->placing.second].layout;
        double distinct = 0; // of the busiest rank, summed over layers
        for (int l = 0; l < MOE_LAYERS; l++) {
            const cot_expert_replicas at = cot_expert_layout_layer(layout, l);
            int all = 0, most = 0, of[3] = {0};
            for (int e = 0; e < MODEL_EXPERTS; e++) {
                bool is_there = false;
                for (int t = 0; t < TOKENS; t++)
                    for (int k = 0; k < TOP_K; k++)
                        is_there |= told.record[0].experts[(t * MOE_LAYERS + l) * TOP_K + k] == e;
                all += is_there;
                of[at.rank[at.begin[e]]] += is_there;
            }
            for (int r = 0; r < s.ranks; r++) most = of[r] > most ? of[r] : most;
            distinct += fmax(most, all / cost->at_once);
        }
        assert_int_equal(cost->steps, engine->loop.steps);
        assert_int_equal(cost->steps, 21);
        assert_true(cost->at_once >= 1 && cost->at_once <= s.ranks);
        if (cost->routed[0])
            assert_true(cost->distinct[0] <= TOP_K && cost->distinct[0] >= (s.ranks == 1 ? TOP_K : 1));
        if (s.ranks == 1 || way / 2) { // all of them are rank 0's
            assert_int_equal(cost->routed[3], 1);
            assert_true(fabs(cost->distinct[3] - distinct / MOE_LAYERS) < 1e-9);
        }
        for (int t = 0; t < COT_COST_TERMS; t++) assert_true(cost->prior[t] > 0 && cost->weight[t] >= 0);
        cot_engine_load load;
        cot_engine_get_load(engine, &load);
        assert_true(load.observed_ns == (double)engine->loop.last_step_ns && load.predicted_ns > 0);
        records_free(&told);
        free(ids);
        cot_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kept_page_is_shared),
        cmocka_unit_test(an_engine_learns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
