/* What tables foretell of a prompt's experts, against a mean of the plain table; and which tables are refused. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/requests.h"
#include "harness/engine/steps.h"
#include "harness/engine/tables.h"
#include "harness/seed.h"

#include "coterie/model.h"
#include "engine/engine_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cot_engine *must_open(const cot_engine_options *o)
{
    cot_engine *engine;
    cot_error error;
    if (cot_engine_open(&engine, TINY, o, NULL, &error) != COT_OK) fail_msg("%s", error.message);
    return engine;
}

/* What the tables say of one token in a layer, by a look-up of it alone. */
static bool of_one(float *scores, const cot_predictor *tables, int32_t layer, int32_t id)
{
    int32_t row;
    cot_predict_rows(&row, tables, &id, 1);
    const cot_predict_batch batch = {.layer = layer, .n_tokens = 1, .row = &row};
    cot_predict_experts(scores, tables, COT_PREDICT_TOKEN_TABLE, &batch);
    return row >= 0;
}

/* The mean over the last COT_PREDICT_TEXT_TOKENS tokens, those aside that the tables do not know; nothing where these are all. */
static void prompts_are_foretold_by_their_last_tokens(void **state)
{
    (void)state;
    enum { PROMPTS = 40, MOST = 300 };
    uint64_t seed = test_seed();
    char path[TABLES_PATH];
    assert_true(drawn_tables(path, TINY, 3, false, &seed)); // of another number of ranks than the engine's
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.batch.signature_tables = path;
    cot_engine *engine = must_open(&o);
    const cot_scheduler_foresight *f = &engine->loop.scheduler.limits.foresight;
    const int32_t layers = engine->signatures.n_layers, experts = engine->signatures.n_experts;
    assert_int_equal(f->cells, layers * experts);
    uint8_t *share = malloc((size_t)f->cells);
    float *one = malloc((size_t)experts * sizeof *one);
    int64_t unknown = 0;
    for (int i = 0; i < PROMPTS; i++) {
        const int64_t n = 1 + (int64_t)(draw(&seed) % (i % 2 ? MOST : 3)),
                      begin = n > COT_PREDICT_TEXT_TOKENS ? n - COT_PREDICT_TEXT_TOKENS : 0;
        int32_t *ids =
            drawn_ids(n, i % 4 ? engine->info.vocab : 1 << 30, &seed); // ids that none has learnt, too
        int64_t known = 0;
        for (int64_t t = begin; t < n; t++) known += of_one(one, engine->signatures.tables, 0, ids[t]);
        unknown += !known;
        const cot_request text = generating_from(ids, n, 1);
        assert_int_equal(f->expect(f->context, share, &text), known > 0);
        for (int32_t l = 0; l < layers && known; l++) {
            double *sum = calloc((size_t)experts, sizeof *sum);
            for (int64_t t = begin; t < n; t++)
                if (of_one(one, engine->signatures.tables, l, ids[t]))
                    for (int32_t e = 0; e < experts; e++) sum[e] += (double)one[e];
            for (int32_t e = 0; e < experts; e++)
                assert_true(fabs(share[l * experts + e] / 255.0 - fmin(sum[e] / (double)known, 1)) <
                            0.51 / 255);
            free(sum);
        }
        free(ids);
    }
    assert_true(unknown > 0 && unknown < PROMPTS);
    free(share);
    free(one);
    cot_engine_close(engine);
    o.batch.schedule = "fcfs"; // then nobody asks
    cot_error error;
    assert_int_equal(cot_engine_open(&engine, TINY, &o, NULL, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "signature tables are of no use"));
    o.batch.signature_tables = NULL;
    engine = must_open(&o);
    assert_int_equal(engine->loop.scheduler.limits.foresight.cells, 0);
    cot_engine_close(engine);
    unlink(path);
}

static void on_profile(void *context, const cot_profile_told *told)
{
    memcpy(context, told->prompt, (size_t)told->cells);
}

/* K counts over all of the layer's, at most 1, in layers that the signature keeps; the others, and whatever is not cached, as the
 * tables say, or all alike. */
static void what_called_the_prefix_comes_before_tables(void **state)
{
    (void)state;
    enum { BLOCK = 16, PREFIX = 3 * BLOCK, PROMPT = PREFIX + 5, MOST_CELLS = 4096 };
    uint64_t seed = test_seed();
    char path[TABLES_PATH];
    assert_true(drawn_tables(path, TINY, 2, false, &seed));
    for (int way = 0; way < 4; way++) {
        const bool tables = way % 2, keeps_all = way < 2;
        cot_engine_options o;
        cot_engine_options_init(&o);
        o.batch.signature_tables = tables ? path : NULL;
        o.batch.schedule = "experts";
        o.memory.block_tokens = BLOCK;
        o.watch.popularity_half_life = 100;
        cot_engine *e = must_open(&o);
        const cot_scheduler_foresight *f = &e->loop.scheduler.limits.foresight;
        cot_signature_shape *shape = &e->loop.profiles.shape;
        const int64_t experts = e->info.experts, K = e->info.top_k;
        uint8_t signature[MOST_CELLS], share[MOST_CELLS], by_tokens[MOST_CELLS] = {0};
        assert_true(f->cells <= MOST_CELLS && e->info.moe_layers > 1);
        cot_engine_watch_profiles(e, &(cot_profile_events){signature, on_profile});
        int32_t *ids = drawn_ids(PROMPT, e->info.vocab, &seed);
        const cot_request whole = generating_from(ids, PROMPT, 1), prefix = generating_from(ids, PREFIX, 1);
        assert_int_equal(f->expect(f->context, share, &whole), tables); // nothing is cached
        must_submit(e, &prefix, 0, &(cot_events){0});
        must_finish(e);
        if (!keeps_all) { // as of a model with more cells than a signature has
            shape->every = 2;
            shape->kept = (shape->n_layers + 1) / 2;
        }
        memset(share, 7, sizeof share);
        assert_true(f->expect(f->context, share, &whole));
        const bool by_table = cot_engine_signature(&e->signatures, by_tokens, ids, PROMPT);
        assert_int_equal(by_table, tables);
        int64_t others = 0;
        for (int64_t l = 0; l < e->info.moe_layers; l++) {
            const bool kept = keeps_all || l % 2 == 0;
            const uint8_t *counts = signature + (keeps_all ? l : l / 2) * experts;
            double sum = 0;
            for (int64_t i = 0; i < experts; i++) sum += counts[i];
            for (int64_t i = 0; i < experts; i++) {
                const double wanted = kept       ? fmin(1, (double)(K * counts[i]) / sum)
                                      : by_table ? by_tokens[l * experts + i] / 255.
                                                 : (double)K / (double)experts;
                assert_true(fabs(share[l * experts + i] / 255. - wanted) < 0.51 / 255);
                others += share[l * experts + i] != by_tokens[l * experts + i];
            }
        }
        assert_true(others > 0);
        free(ids);
        cot_engine_close(e);
    }
    unlink(path);
}

/* A request that runs, and what it was seen to call. */
struct running {
    uint64_t id;
    int64_t prompt, position, told;
    const cot_signature_shape *shape;
    uint8_t signature[4096], then[4096]; // now; when it was last to be told
};

static void on_routing(void *context, uint64_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights)
{
    struct running *r = context;
    (void)request, (void)token, (void)weights;
    cot_signature_add(r->signature, r->shape, experts, r->shape->top_k); // [layers][K]
    r->position = position + 1;
}

/* Whether a request's shares are those of the signature that it had when they were last told. */
static void must_be_foretold(const cot_engine *e, struct running *r)
{
    const int64_t experts = e->info.experts, K = e->info.top_k;
    const cot_request_state *state = cot_scheduler_find(&e->loop.scheduler, r->id);
    if (!state || r->position < r->prompt) return;
    if (!r->told || r->position / COT_PROFILE_TOLD != r->told / COT_PROFILE_TOLD) {
        memcpy(r->then, r->signature, sizeof r->then);
        r->told = r->position;
    }
    assert_non_null(state->share);
    for (int64_t l = 0; l < e->info.moe_layers; l++) {
        double sum = 0;
        for (int64_t i = 0; i < experts; i++) sum += r->then[l * experts + i];
        for (int64_t i = 0; i < experts; i++) {
            const double wanted = fmin(1, (double)(K * r->then[l * experts + i]) / sum);
            assert_true(fabs(state->share[l * experts + i] / 255. - wanted) < 0.51 / 255);
        }
    }
}

/* With every sixteenth token anew; steps have no room for all at times. */
static void who_runs_is_foretold_by_what_it_called(void **state)
{
    (void)state;
    enum { REQUESTS = 10, AT_ONCE = 6, PROMPT = 40, MORE = 60 };
    static struct running running[REQUESTS];
    uint64_t seed = test_seed();
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.batch.schedule = "experts";
    o.batch.sequences = AT_ONCE;
    o.batch.step_tokens = AT_ONCE;
    o.memory.block_tokens = 0; // no text begins with another's
    o.watch.popularity_half_life = 100;
    o.watch.capture_routing = true;
    char path[TABLES_PATH];
    assert_true(drawn_tables(path, TINY, 2, false, &seed));
    o.batch.signature_tables = path;
    cot_engine *e = must_open(&o);
    memset(running, 0, sizeof running);
    for (int i = 0; i < REQUESTS; i++) {
        struct running *r = &running[i];
        r->prompt = 1 + (int64_t)(draw(&seed) % PROMPT);
        r->shape = &e->loop.profiles.shape;
        int32_t *ids = drawn_ids(r->prompt, e->info.vocab, &seed);
        cot_request text = generating_from(ids, r->prompt, 1 + (int64_t)(draw(&seed) % MORE));
        text.sampling.ignore_eos = true;
        const cot_events events = {.context = r, .on_routing = on_routing};
        r->id = must_submit(e, &text, 0, &events);
        free(ids);
    }
    for (size_t left = 1; left;) {
        assert_int_equal(cot_engine_step(e, &left, NULL), COT_OK);
        for (int i = 0; i < REQUESTS; i++) must_be_foretold(e, &running[i]);
    }
    cot_engine_load load;
    cot_engine_get_load(e, &load);
    assert_true(load.waited_steps > 0);
    cot_engine_close(e);
    unlink(path);
}

static void must_refuse(const char *tables, const char *text)
{
    cot_engine *engine;
    cot_error error = {0};
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.batch.schedule = "experts";
    o.batch.signature_tables = tables;
    assert_int_equal(cot_engine_open(&engine, TINY, &o, NULL, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, text)) fail_msg("'%s', expected '%s'", error.message, text);
}

static void other_tables_are_refused(void **state)
{
    (void)state;
    cot_trace_builder *builder;
    cot_trace trace;
    cot_predictor *tables;
    char path[] = "/tmp/coterie-signatures-XXXXXX";
    const uint16_t experts[] = {1, 2, 0, 3};
    close(mkstemp(path));
    assert_int_equal(cot_trace_builder_open(&builder, "other", 2, NULL, 5, 2, NULL), COT_OK);
    assert_int_equal(cot_trace_builder_append(builder, 0, 7, experts, NULL, NULL), COT_OK);
    assert_int_equal(cot_trace_builder_finish(&trace, builder, NULL), COT_OK);
    cot_trace_builder_close(builder);
    const cot_predictor_options options = {.size = sizeof options, .ranks = 1, .counts_only = true};
    assert_int_equal(cot_predictor_train(&tables, &trace, &options, NULL), COT_OK);
    assert_int_equal(cot_predictor_write(tables, path, NULL), COT_OK);
    must_refuse(path, "has tables of 2 of 5 experts a token, the model has ");
    must_refuse(NULL, "schedule 'experts' needs signature tables");
    cot_predictor_close(tables);
    cot_trace_close(&trace);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(prompts_are_foretold_by_their_last_tokens),
                                       cmocka_unit_test(what_called_the_prefix_comes_before_tables),
                                       cmocka_unit_test(who_runs_is_foretold_by_what_it_called),
                                       cmocka_unit_test(other_tables_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
