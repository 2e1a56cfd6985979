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

/* The mean over the last COT_ENGINE_SIGNATURE_TOKENS tokens, those aside that the tables do not know; nothing where these are all. */
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
                      begin = n > COT_ENGINE_SIGNATURE_TOKENS ? n - COT_ENGINE_SIGNATURE_TOKENS : 0;
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
                                       cmocka_unit_test(other_tables_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
