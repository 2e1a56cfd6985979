/* Replayed routing: every token calls the experts on record, with the weights on record, on any pipeline, operator, number and
 * kind of ranks; what was recorded replays to the same logits; drawn routing has the local activation rate that it is drawn
 * for; predictions by the record put tokens where the rule in plain words does. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/memory.h"
#include "harness/predict/plain_homes.h"
#include "harness/seed.h"

#include "coterie/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 3, MOST = 100, ATTENTION = 2, METADATA = 3 };

/* A record of drawn routing for the model of an engine, and the requests that replay it. */
struct record_of_routing {
    cot_trace trace;
    cot_engine_routing routing;
    cot_request request[SEQUENCES];
};

static void draw_row(uint16_t *experts, float *weights, const cot_engine_info *info, uint64_t *seed)
{
    for (int64_t k = 0; k < info->top_k; k++) {
        bool again = true;
        while (again) {
            experts[k] = (uint16_t)(draw(seed) % (uint64_t)info->experts);
            again = false;
            for (int64_t j = 0; j < k; j++) again |= experts[j] == experts[k];
        }
        weights[k] = (float)(draw(seed) % 64) / 64;
    }
}

/* Experts in no order, some tokens of no known id; the requests feed a part at once and the rest one by one. */
static void draw_record(struct record_of_routing *r, const cot_engine_info *info, uint64_t *seed)
{
    cot_trace_builder *builder;
    const size_t n = routed(info);
    uint16_t *experts = must_allocate(n, sizeof *experts);
    float *weights = must_allocate(n, sizeof *weights);
    assert_int_equal(cot_trace_builder_open(&builder, "drawn", (int32_t)info->moe_layers, info->moe_layer,
                                            (int32_t)info->experts, (int32_t)info->top_k, NULL),
                     COT_OK);
    for (int32_t s = 0; s < SEQUENCES; s++)
        for (int64_t t = 2 + (int64_t)(draw(seed) % (MOST - 1)); t > 0; t--) {
            const int32_t id = draw(seed) % 4 ? (int32_t)(draw(seed) % 300) : -1;
            for (int64_t l = 0; l < info->moe_layers; l++)
                draw_row(experts + l * info->top_k, weights + l * info->top_k, info, seed);
            assert_int_equal(cot_trace_builder_append(builder, s, id, experts, weights, NULL), COT_OK);
        }
    assert_int_equal(cot_trace_builder_finish(&r->trace, builder, NULL), COT_OK);
    cot_trace_builder_close(builder);
    free(experts);
    free(weights);
    r->routing = (cot_engine_routing){.trace = &r->trace, .name = "drawn"};
    for (int32_t s = 0; s < SEQUENCES; s++) {
        const int64_t begin = r->trace.sequence_offsets[s], tokens = r->trace.sequence_offsets[s + 1] - begin;
        r->request[s] =
            forced_request(r->trace.token_ids + begin, tokens, 1 + (int64_t)(draw(seed) % (uint64_t)tokens));
        r->request[s].recorded = s;
    }
}

/* What was told of every token is what is on record, ascending. */
static void assert_replayed(const struct records *all, const struct record_of_routing *r,
                            const cot_engine_info *info, const char *name)
{
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t p = 0; p < all->record[s].capacity; p++)
            for (int64_t l = 0; l < info->moe_layers; l++) {
                const int64_t at = (p * info->moe_layers + l) * info->top_k,
                              token = r->trace.sequence_offsets[s] + p;
                const uint16_t *experts = all->record[s].experts + at;
                for (int32_t k = 0; k < info->top_k; k++) {
                    int32_t found = 0;
                    while (found < info->top_k &&
                           cot_trace_expert(&r->trace, (int32_t)l, token, found) != experts[k])
                        found++;
                    if (found == info->top_k || (k && experts[k] <= experts[k - 1]) ||
                        all->record[s].weights[at + k] !=
                            cot_trace_weight(&r->trace, (int32_t)l, token, found))
                        fail_msg("sequence %d, position %lld, layer %lld: not as recorded: %s", s,
                                 (long long)p, (long long)l, name);
                }
            }
}

static void draw_setting(struct setting *s, uint64_t *seed)
{
    static const char *const predictions[] = {"none", "oracle", "worst"};
    *s = (struct setting){.folder = TINY,
                          .ranks = 1 + (int)(draw(seed) % 8),
                          .threads = 1 + (int)(draw(seed) % 3),
                          .op = draw(seed) % 2 ? "bulk" : "fused",
                          .processes = draw(seed) % 3 == 0 && CAN_FORK,
                          .step_tokens = draw(seed) % 2 ? 0 : 7,
                          .kv_tokens = 1024};
    switch (draw(seed) % 4) {
    case 0:
        s->attention = "dp";
        break;
    case 1:
        s->pipeline = "ds-moe";
        break;
    default:
        s->pipeline = "s-moe";
        s->predict = predictions[draw(seed) % 3];
    }
}

static void what_is_on_record_is_called(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct setting plain = {.folder = TINY, .kv_tokens = 64};
    cot_engine *engine = must_open(&plain);
    struct record_of_routing r;
    for (int time = 0; time < 12; time++) {
        struct setting s;
        cot_engine_info info;
        char name[128];
        draw_record(&r, cot_engine_describe(engine), &seed);
        draw_setting(&s, &seed);
        if (time == 0) // more rows on a rank than one task gates
            s = (struct setting){.folder = TINY, .op = "fused", .kv_tokens = 1024};
        s.routing = &r.routing;
        snprintf(name, sizeof name, "%d ranks, %s, %s, %s", s.ranks, s.op, s.pipeline ? s.pipeline : "dp",
                 s.predict ? s.predict : "-");
        struct records all = run_once(&s, r.request, SEQUENCES, &info);
        for (size_t i = 0; i < SEQUENCES; i++) assert_told_once(&all, i, &r.request[i], true);
        assert_replayed(&all, &r, cot_engine_describe(engine), name);
        records_free(&all);
        cot_trace_close(&r.trace);
    }
    cot_engine_close(engine);
}

/* A run that is recorded and replayed comes to the logits that it had, as far as its weights are recorded: in 16 bits. */
static void a_recorded_run_replays(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct setting s = {.folder = TINY, .ranks = 3, .kv_tokens = 256};
    cot_engine *engine = must_open(&s);
    const cot_engine_info *info = cot_engine_describe(engine);
    int32_t *ids = drawn_ids(MOST, info->vocab, &seed);
    const cot_request request = forced_request(ids, MOST, MOST / 2);
    struct records want = must_run(engine, &request, 1);
    cot_trace_builder *builder;
    cot_trace trace;
    assert_int_equal(cot_trace_builder_open(&builder, "tiny", (int32_t)info->moe_layers, info->moe_layer,
                                            (int32_t)info->experts, (int32_t)info->top_k, NULL),
                     COT_OK);
    for (int t = 0; t < MOST; t++)
        assert_int_equal(cot_trace_builder_append(builder, 0, ids[t],
                                                  want.record[0].experts + (size_t)t * routed(info),
                                                  want.record[0].weights + (size_t)t * routed(info), NULL),
                         COT_OK);
    assert_int_equal(cot_trace_builder_finish(&trace, builder, NULL), COT_OK);
    cot_trace_builder_close(builder);
    const cot_engine_routing routing = {.trace = &trace, .name = "recorded"};
    struct setting again = s;
    again.routing = &routing;
    cot_engine_info same;
    struct records got = run_once(&again, &request, 1, &same);
    assert_memory_equal(got.record[0].experts, want.record[0].experts,
                        MOST * routed(info) * sizeof *want.record[0].experts);
    for (int64_t i = 0; i < MOST * info->vocab; i++)
        if (fabsf(got.record[0].logits[i] - want.record[0].logits[i]) > 0.05F)
            fail_msg("logit %lld is %g, was %g", (long long)i, (double)got.record[0].logits[i],
                     (double)want.record[0].logits[i]);
    records_free(&got);
    records_free(&want);
    cot_trace_close(&trace);
    free(ids);
    cot_engine_close(engine);
}

/* ---- drawn ---- */

static void drawn_routing_has_its_rate(void **state)
{
    (void)state;
    enum { TOKENS = 64 };
    static const double rates[] = {0, 0.25, 0.5, 1};
    uint64_t seed = test_seed();
    for (int time = 0; time < 8; time++) {
        const cot_engine_routing routing = {.lar = rates[time % 4]};
        struct setting s;
        draw_setting(&s, &seed);
        s.ranks = 2 + (int)(draw(&seed) % 3);
        s.predict = NULL;
        s.step_tokens = 0;
        s.routing = &routing;
        cot_engine *engine = must_open(&s);
        const cot_engine_info *info = cot_engine_describe(engine);
        cot_request requests[4];
        int32_t *ids = drawn_ids(TOKENS, info->vocab, &seed);
        for (int i = 0; i < 4; i++) requests[i] = forced_request(ids + 16 * i, 16, 16);
        const int64_t share = TOKENS / s.ranks; // the least of a rank's tokens
        struct records all = must_run(engine, requests, 4);
        cot_stats stats;
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        assert_int_equal(stats.activations, TOKENS * info->moe_layers * info->top_k);
        // a rank rounds down once a layer and step
        if (fabs(stats.lar - routing.lar) > 1.0 / (double)(share * info->top_k))
            fail_msg("a rate of %g for %g on %d ranks", stats.lar, routing.lar, s.ranks);
        for (int i = 0; i < 4; i++)
            for (int64_t at = 0; at < 16 * (int64_t)routed(info); at++)
                if (at % info->top_k)
                    assert_true(all.record[i].experts[at] > all.record[i].experts[at - 1] &&
                                all.record[i].experts[at] < info->experts);
        cot_stats_clear(&stats);
        records_free(&all);
        free(ids);
        cot_engine_close(engine);
    }
}

/* ---- homes ---- */

static uint64_t sum_of(const uint64_t *pairs, int ranks)
{
    uint64_t sum = 0;
    for (int i = 0; i < ranks * ranks; i++) sum += pairs[i];
    return sum;
}

/* Activations that stay at home in one step of all tokens, by the rule in plain words. */
static uint64_t plain_local(const struct record_of_routing *r, const cot_engine_info *info, int ranks,
                            bool worst)
{
    const int64_t n = r->trace.n_tokens;
    int16_t *rank = must_allocate((size_t)n, sizeof *rank), *home = must_allocate((size_t)n, sizeof *home);
    uint16_t *sure = must_allocate((size_t)n, sizeof *sure);
    float *score = must_allocate((size_t)(n * ranks), sizeof *score);
    uint64_t local = 0;
    for (int32_t l = 0; l < info->moe_layers; l++) {
        for (int64_t t = 0; t < n; t++) {
            float *on = score + t * ranks;
            for (int d = 0; d < ranks; d++) on[d] = 0;
            for (int32_t k = 0; k < info->top_k; k++)
                on[cot_trace_home(cot_trace_expert(&r->trace, l, t, k), info->experts, ranks)] +=
                    worst ? -1 : 1;
            rank[t] = 0;
            for (int16_t d = 1; d < ranks; d++)
                if (on[d] > on[rank[t]]) rank[t] = d;
            sure[t] = (uint16_t)(100 + on[rank[t]]);
        }
        plain_even_shares(home, rank, sure, score, n, ranks);
        for (int64_t t = 0; t < n; t++) local += (uint64_t)fabsf(score[t * ranks + home[t]]);
    }
    free(rank);
    free(home);
    free(sure);
    free(score);
    return local;
}

static void homes_by_the_record(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct setting plain = {.folder = TINY, .kv_tokens = 64};
    cot_engine *model = must_open(&plain);
    for (int time = 0; time < 6; time++) {
        struct record_of_routing r;
        const bool worst = time % 2;
        struct setting s = {.folder = TINY,
                            .ranks = 2 + (int)(draw(&seed) % 7),
                            .pipeline = "s-moe",
                            .predict = worst ? "worst" : "oracle",
                            .kv_tokens = 512};
        draw_record(&r, cot_engine_describe(model), &seed);
        s.routing = &r.routing;
        for (int i = 0; i < SEQUENCES; i++) { // all in one step
            cot_request *q = &r.request[i];
            *q = forced_request(q->prompt, q->prompt_tokens + q->forced_tokens,
                                q->prompt_tokens + q->forced_tokens);
            q->recorded = i;
            q->all_logits = false;
        }
        cot_engine *engine = must_open(&s);
        const cot_engine_info *info = cot_engine_describe(engine);
        struct records all = must_run(engine, r.request, SEQUENCES);
        cot_stats stats;
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        assert_int_equal(stats.steps, 1);
        assert_string_equal(info->predict, s.predict);
        assert_int_equal(stats.local_activations, plain_local(&r, info, s.ranks, worst));
        assert_int_equal(sum_of(stats.bytes[ATTENTION], s.ranks),
                         (uint64_t)(2 * info->layers * (s.ranks - 1) * r.trace.n_tokens * info->hidden) *
                             sizeof(float));
        cot_stats_clear(&stats);
        records_free(&all);
        cot_engine_close(engine);
        cot_trace_close(&r.trace);
    }
    cot_engine_close(model);
}

/* A guess by the next layer's gate is no chance: more stays at home than without. Two bytes ride with each row. */
static void the_gate_foretells(void **state)
{
    (void)state;
    enum { TOKENS = 200 };
    uint64_t seed = test_seed(), local[2];
    int32_t *ids = drawn_ids(TOKENS, 300, &seed);
    const cot_request request = forced_request(ids, TOKENS, TOKENS);
    for (int asked = 0; asked < 2; asked++) {
        struct setting s = {.folder = TINY,
                            .ranks = 4,
                            .pipeline = "s-moe",
                            .predict = asked ? "gate" : "none",
                            .kv_tokens = 512};
        cot_engine *engine = must_open(&s);
        const cot_engine_info *info = cot_engine_describe(engine);
        struct records all = must_run(engine, &request, 1);
        cot_stats stats;
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        const int64_t row = info->hidden * (int64_t)sizeof(float);
        assert_int_equal(sum_of(stats.bytes[ATTENTION], 4),
                         3 * TOKENS * (2 * info->layers * row + (asked ? 2 * info->moe_layers : 0)));
        local[asked] = stats.local_activations;
        cot_stats_clear(&stats);
        records_free(&all);
        cot_engine_close(engine);
    }
    if (local[1] < local[0] + local[0] / 10)
        fail_msg("%llu activations stay with the gate's guess, %llu without", (unsigned long long)local[1],
                 (unsigned long long)local[0]);
    free(ids);
}

/* ---- what is refused ---- */

static void refuse(struct setting s, const char *word)
{
    cot_engine *engine;
    cot_error error = {0};
    const cot_engine_options options = options_of(&s);
    const cot_status status = cot_engine_open(&engine, TINY, &options, NULL, &error);
    if (status != COT_INVALID_ARGUMENT || engine || !strstr(error.message, word))
        fail_msg("status %d, '%s' lacks '%s'", status, error.message, word);
}

static void what_cannot_be_replayed(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct setting plain = {.folder = TINY, .kv_tokens = 64};
    cot_engine *model = must_open(&plain);
    struct record_of_routing r;
    draw_record(&r, cot_engine_describe(model), &seed);
    cot_trace other = r.trace;
    const cot_engine_routing routing = {.trace = &other, .name = "other"},
                             cut = {.trace = &other, .name = "other", .first_layer = 1, .cut = true};
    const struct setting s = {.routing = &routing};
    other.top_k--;
    refuse(s, "'other' has routing to");
    other = r.trace;
    other.n_experts++;
    refuse(s, "'other' has routing to");
    other = r.trace;
    other.n_layers--;
    refuse(s, "'other' has ");
    other = r.trace;
    refuse((struct setting){.routing = &cut}, "'other' has ");
    other.kind = COT_TRACE_COUNTS;
    refuse(s, "'other' has counts");
    other = r.trace;
    uint8_t *twice = must_allocate((size_t)(r.trace.n_layers * r.trace.n_tokens * r.trace.top_k), 1);
    memset(twice, 7, (size_t)(r.trace.n_layers * r.trace.n_tokens * r.trace.top_k));
    other.experts_u8 = twice;
    refuse(s, "'other' has expert 7 twice");
    free(twice);
    refuse((struct setting){.routing = &r.routing, .pipeline = "s-moe", .predict = "gate", .ranks = 2},
           "which replayed routing does not");
    const cot_engine_routing drawn = {.lar = 0.5}, beyond = {.lar = 1.5};
    refuse((struct setting){.routing = &drawn, .pipeline = "s-moe", .predict = "oracle", .ranks = 2},
           "needs recorded routing");
    refuse((struct setting){.routing = &beyond}, "is not in [0, 1]");
    refuse((struct setting){.routing = &drawn, .ranks = 1}, "cannot be drawn");
    cot_expert_map map = drawn_placement(TINY, 2, &seed);
    refuse((struct setting){.routing = &drawn, .placement = &map, .ranks = 2}, "takes no replicas");
    cot_expert_map_free(&map);
    struct setting right = plain;
    right.routing = &r.routing;
    cot_engine *engine = must_open(&right);
    cot_error error = {0};
    cot_request q = r.request[0];
    uint64_t id;
    q.recorded = SEQUENCES;
    assert_int_equal(cot_engine_submit(engine, &id, &q, 0, &(cot_events){0}, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "no recorded sequence 3"));
    int32_t ids[MOST + 2] = {0};
    q = forced_request(ids, MOST + 2, MOST + 2);
    assert_int_equal(cot_engine_submit(engine, &id, &q, 0, &(cot_events){0}, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "of recorded sequence 0 there are"));
    cot_engine_close(engine);
    ids[0] = -1;
    q = forced_request(ids, 2, 2);
    assert_int_equal(cot_engine_submit(model, &id, &q, 0, &(cot_events){0}, &error), COT_INVALID_ARGUMENT);
    cot_engine_close(model);
    cot_trace_close(&r.trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_on_record_is_called), cmocka_unit_test(a_recorded_run_replays),
        cmocka_unit_test(drawn_routing_has_its_rate),  cmocka_unit_test(homes_by_the_record),
        cmocka_unit_test(the_gate_foretells),          cmocka_unit_test(what_cannot_be_replayed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
