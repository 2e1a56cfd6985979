/* Pipelines move tokens in different ways and change nothing: the same greedy text whatever the pipeline, the prediction, the
 * operator, the placement, the number and kind of ranks; the same bits where sums are added in the same order; one residual
 * stream on all ranks; and tokens are where an evaluation of the tables says. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/tables.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "coterie/predict_evaluate.h"
#include "base/rng.h"
#include "engine/engine_state.h"
#include "model/runner_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One way to run. */
struct way {
    struct setting s;
    char tables[TABLES_PATH];
    cot_expert_map map;
};

/* Random ones of everything that must not matter to the text. */
static void draw_way(struct way *w, const char *folder, int ranks, uint64_t *seed)
{
    static const char *const predictions[] = {NULL,          "none", "token-table", "device-sequence",
                                              "algorithm-2", "gate"};
    static const char *const collectives[] = {NULL, "direct", "ring"};
    const int pipeline = (int)(draw(seed) % 4); // s-moe half the time
    *w = (struct way){.s = {.folder = folder,
                            .ranks = ranks,
                            .threads = 1 + (int)(draw(seed) % 3),
                            .pipeline = pipeline ? pipeline > 1 ? "s-moe" : "ds-moe" : NULL,
                            .collective = collectives[draw(seed) % 3],
                            .op = draw(seed) % 2 ? "bulk" : "fused",
                            .processes = draw(seed) % 3 == 0,
                            .step_tokens = draw(seed) % 2 ? 0 : 7,
                            .kv_tokens = 1024}};
    static const char *const kinds[] = {NULL, "padded", "two-phase", "one-shot"};
    const bool bulk = !strcmp(w->s.op, "bulk");
    if (bulk) w->s.a2a = kinds[draw(seed) % 4];
    if (bulk && draw(seed) % 2) w->s.dedup = draw(seed) % 2 && w->s.a2a != kinds[1] ? "on" : "off";
    if ((!bulk || (w->s.dedup && !strcmp(w->s.dedup, "on"))) && draw(seed) % 2) w->s.combine = "reduced";
    const bool tables = draw(seed) % 4 && drawn_tables(w->tables, folder, ranks, draw(seed) % 4 == 0, seed);
    if (tables) w->s.tables = w->tables;
    if (tables && pipeline > 1) w->s.predict = predictions[draw(seed) % 6];
    if (!tables && pipeline > 1 && draw(seed) % 2) w->s.predict = "gate";
    if (!tables && pipeline < 2 && draw(seed) % 2) {
        w->map = drawn_placement(folder, ranks, seed);
        w->s.placement = &w->map;
    }
}

static void clear_way(struct way *w)
{
    if (*w->tables) unlink(w->tables);
    cot_expert_map_free(&w->map);
}

static const char *name_of(const struct way *w)
{
    static char name[256];
    const struct setting *s = &w->s;
    snprintf(
        name, sizeof name,
        "%d %s, pipeline %s, prediction %s, collective %s, %s, %s, a2a %s, dedup %s, %s, %lld tokens a step",
        s->ranks, s->processes ? "processes" : "threads", s->pipeline ? s->pipeline : "-",
        s->predict ? s->predict : "-", s->collective ? s->collective : "-", s->op,
        s->combine ? s->combine : "exact", s->a2a ? s->a2a : "-", s->dedup ? s->dedup : "-",
        s->tables      ? "tables"
        : s->placement ? "placed"
                       : "consecutive",
        (long long)s->step_tokens);
    return name;
}

/* ---- text ---- */

enum { PROMPTS = 4, LONGEST = 40, SAID = 5, SAID_LONG = 16 };

/* Tokens of each text. What is wrong with decode shows in the second or third. */
static int64_t said_tokens(void)
{
    return getenv("COT_LONG") ? SAID_LONG : SAID;
}

struct prompts {
    int32_t ids[PROMPTS][LONGEST];
    cot_request request[PROMPTS];
};

/* Of all tokens alike, which one rank's experts take; of one token; and of drawn ones. */
static void draw_prompts(struct prompts *p, int64_t vocab, uint64_t *seed)
{
    for (int i = 0; i < PROMPTS; i++) {
        const int32_t one = (int32_t)(draw(seed) % (uint64_t)vocab);
        const int64_t tokens = i == 0 ? LONGEST : i == 1 ? 1 : 2 + (int64_t)(draw(seed) % (LONGEST - 1));
        for (int t = 0; t < LONGEST; t++)
            p->ids[i][t] = i == 0 ? one : (int32_t)(draw(seed) % (uint64_t)vocab);
        p->request[i] = generating_from(p->ids[i], tokens, said_tokens());
        p->request[i].sampling.ignore_eos = true;
    }
}

/* Every number of ranks several times, each in a way of its own. */
static void the_same_text(void **state)
{
    (void)state;
    static const char *const folders[] = {TINY, COT_SHARED "/golden/qwen2-moe",
                                          COT_SHARED "/golden/deepseek-v3"};
    uint64_t seed = test_seed();
    const int times = getenv("COT_LONG") ? 40 : 1;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        if (!folder_exists(folders[f])) {
            printf("SKIPPED: there is no '%s'\n", folders[f]);
            continue;
        }
        struct prompts prompts;
        cot_engine_info info, plain;
        struct setting alone = {.folder = folders[f], .quiet = true, .kv_tokens = 1024};
        draw_prompts(&prompts, 300, &seed);
        struct records want = run_once(&alone, prompts.request, PROMPTS, &plain);
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int time = 0; time < times; time++) {
                struct way w;
                draw_way(&w, folders[f], ranks, &seed);
                // one alone, so that some ranks have nothing, or all
                const size_t first = draw(&seed) % PROMPTS, count = draw(&seed) % 3 ? PROMPTS - first : 1;
                struct records got = run_once(&w.s, prompts.request + first, count, &info);
                for (size_t i = 0; i < count; i++) {
                    const struct record *a = &want.record[first + i], *b = &got.record[i];
                    if (a->sampled_tokens != b->sampled_tokens ||
                        memcmp(a->sampled, b->sampled, (size_t)a->sampled_tokens * sizeof *a->sampled) != 0)
                        fail_msg("%s: another text of prompt %zu: %s", folders[f], first + i, name_of(&w));
                }
                records_free(&got);
                clear_way(&w);
            }
        assert_int_equal(want.record[0].sampled_tokens, said_tokens());
        records_free(&want);
    }
}

/* ---- a pairwise cover ---- */

/* What a way to run is made of; every two choices of different kinds that go together are met in some way. */
enum {
    PIPELINE,
    OPERATOR,
    PREDICTION,
    PLACEMENT,
    COLLECTIVE,
    A2A,
    DEDUP,
    RANKS,
    FABRIC,
    FACTORS,
    LEVELS = 8
};
enum { DS_MOE, S_MOE };
enum { FUSED, BULK };
enum { CONSECUTIVE, PLACED, TABLES };
enum { PADDED, TWO_PHASE, ONE_SHOT };
static const int levels[FACTORS] = {2, 2, 4, 3, 2, 3, 2, 8, 2};

static bool goes_together(const int f[FACTORS])
{
    if (f[OPERATOR] == FUSED && (f[A2A] != ONE_SHOT || !f[DEDUP])) return false;
    if (f[A2A] == PADDED && f[DEDUP]) return false;
    if (f[PREDICTION] && (f[PIPELINE] == DS_MOE || f[PLACEMENT] != TABLES)) return false;
    return f[PIPELINE] == DS_MOE || f[PLACEMENT] != PLACED; // whose replicas s-moe refuses
}

/* The ways that go together, all of them, in a drawn order. */
struct choices {
    int f[FACTORS];
};

static int64_t list_choices(struct choices **all, uint64_t *seed)
{
    int64_t product = 1, n = 0;
    for (int i = 0; i < FACTORS; i++) product *= levels[i];
    *all = must_allocate((size_t)product, sizeof **all);
    for (int64_t number = 0; number < product; number++) {
        struct choices c;
        int64_t left = number;
        for (int i = 0; i < FACTORS; left /= levels[i++]) c.f[i] = (int)(left % levels[i]);
        if (!goes_together(c.f)) continue;
        const int64_t at = (int64_t)(draw(seed) % (uint64_t)++n); // after Fisher and Yates
        (*all)[n - 1] = (*all)[at];
        (*all)[at] = c;
    }
    return n;
}

typedef bool pairs_met[FACTORS][LEVELS][FACTORS][LEVELS];

/* Pairs of a way that no way before has met; they are marked where `mark` says so. */
static int new_pairs(pairs_met met, const struct choices *c, bool mark)
{
    int found = 0;
    for (int i = 0; i < FACTORS; i++)
        for (int j = i + 1; j < FACTORS; j++) {
            bool *pair = &met[i][c->f[i]][j][c->f[j]];
            found += !*pair;
            *pair |= mark;
        }
    return found;
}

/* Of all ways the one that meets most new pairs; false: all pairs are met. */
static bool next_choice(struct choices *best, pairs_met met, const struct choices *all, int64_t n)
{
    int most = 0;
    for (int64_t i = 0; i < n; i++) {
        const int found = new_pairs(met, &all[i], false);
        if (found > most) *best = all[i];
        most = found > most ? found : most;
    }
    if (most) new_pairs(met, best, true);
    return most > 0;
}

static void make_way(struct way *w, const struct choices *c, uint64_t *seed)
{
    static const char *const pipelines[] = {"ds-moe", "s-moe"}, *const operators[] = {"fused", "bulk"},
                             *const collectives[] = {"ring", "direct"}, *const dedups[] = {"off", "on"},
                             *const kinds[] = {"padded", "two-phase", "one-shot"},
                             *const predictions[] = {"none", "token-table", "device-sequence", "algorithm-2"};
    const int *f = c->f;
    *w = (struct way){.s = {.folder = TINY,
                            .ranks = 1 + f[RANKS],
                            .threads = 2,
                            .pipeline = pipelines[f[PIPELINE]],
                            .op = operators[f[OPERATOR]],
                            .collective = collectives[f[COLLECTIVE]],
                            .a2a = kinds[f[A2A]],
                            .dedup = dedups[f[DEDUP]],
                            .processes = f[FABRIC],
                            .kv_tokens = 1024}};
    if (f[PIPELINE] == S_MOE) w->s.predict = predictions[f[PREDICTION]];
    if (f[PLACEMENT] == TABLES) {
        assert_true(drawn_tables(w->tables, TINY, w->s.ranks, false, seed));
        w->s.tables = w->tables;
    } else if (f[PLACEMENT] == PLACED) {
        w->map = drawn_placement(TINY, w->s.ranks, seed);
        w->s.placement = &w->map;
    }
}

/* Of one token again and again, of one token alone, and of drawn ones: the text of one rank, in any way. */
static void every_two_choices_give_the_same_text(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct choices *all, c;
    const int64_t n = list_choices(&all, &seed);
    static pairs_met met;
    struct prompts prompts;
    cot_engine_info info;
    const struct setting alone = {.folder = TINY, .quiet = true, .kv_tokens = 1024};
    draw_prompts(&prompts, 300, &seed);
    struct records want = run_once(&alone, prompts.request, PROMPTS, &info);
    int64_t ways = 0;
    for (const bool whole = getenv("COT_LONG"); whole ? ways < n : next_choice(&c, met, all, n); ways++) {
        struct way w;
        make_way(&w, whole ? &all[ways] : &c, &seed);
        struct records got = run_once(&w.s, prompts.request, PROMPTS, &info);
        for (size_t i = 0; i < PROMPTS; i++)
            if (want.record[i].sampled_tokens != got.record[i].sampled_tokens ||
                memcmp(want.record[i].sampled, got.record[i].sampled,
                       (size_t)want.record[i].sampled_tokens * sizeof *got.record[i].sampled) != 0)
                fail_msg("another text of prompt %zu: %s", i, name_of(&w));
        records_free(&got);
        clear_way(&w);
    }
    assert_true(ways >= levels[RANKS] * levels[PREDICTION]); // each rank count with each prediction
    records_free(&want);
    free(all);
}

/* ---- bits ---- */

static void assert_same_bits(const struct records *a, const struct records *b, size_t count,
                             const cot_engine_info *info, const char *folder, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        const struct record *x = &a->record[i], *y = &b->record[i];
        const size_t n = (size_t)x->capacity, r = routed(info);
        if (memcmp(x->logits, y->logits, n * (size_t)info->vocab * sizeof *x->logits) != 0 ||
            memcmp(x->experts, y->experts, n * r * sizeof *x->experts) != 0 ||
            memcmp(x->weights, y->weights, n * r * sizeof *x->weights) != 0)
            fail_msg("%s: sequence %zu has other bits: %s", folder, i, name);
    }
}

/* Where sums go straight home, logits and routing are those of ds-moe at the same number of ranks, to the bit. */
static void the_same_bits(void **state)
{
    (void)state;
    enum { SEQUENCES = 3, TOKENS = 50 };
    static const char *const folders[] = {TINY, COT_SHARED "/golden/olmoe", COT_SHARED "/golden/gpt-oss",
                                          COT_SHARED "/golden/qwen2-moe"};
    uint64_t seed = test_seed();
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        if (!folder_exists(folders[f])) {
            printf("SKIPPED: there is no '%s'\n", folders[f]);
            continue;
        }
        int32_t *ids = drawn_ids(SEQUENCES * TOKENS, 300, &seed);
        cot_request requests[SEQUENCES];
        for (int i = 0; i < SEQUENCES; i++) {
            const int64_t tokens = 2 + (int64_t)(draw(&seed) % (TOKENS - 1));
            requests[i] = forced_request(ids + i * TOKENS, tokens, 1 + tokens / 2);
        }
        for (int time = 0; time < 4; time++) {
            struct way w;
            draw_way(&w, folders[f], 2 + (int)(draw(&seed) % 7), &seed);
            w.s.precision = time % 2 ? "bf16" : "fp32";
            w.s.combine = NULL;
            w.s.pipeline = "s-moe";
            w.s.collective = NULL;
            w.s.placement = NULL;
            struct setting plain = {.folder = w.s.folder,
                                    .ranks = w.s.ranks,
                                    .precision = w.s.precision,
                                    .step_tokens = 1 + (int64_t)(draw(&seed) % 60),
                                    .collective = "direct",
                                    .kv_tokens = 1024};
            cot_engine_info info;
            struct records want = run_once(&plain, requests, SEQUENCES, &info);
            struct records got = run_once(&w.s, requests, SEQUENCES, &info);
            for (size_t i = 0; i < SEQUENCES; i++) assert_told_once(&got, i, &requests[i], true);
            assert_same_bits(&want, &got, SEQUENCES, &info, folders[f], name_of(&w));
            records_free(&want);
            records_free(&got);
            clear_way(&w);
        }
        free(ids);
    }
}

/* ---- copies ---- */

static uint64_t hash_stream(const cot_runner *r)
{
    uint64_t hash = 0;
    for (int64_t i = 0; i < r->rows.count * r->c->hidden; i++) {
        uint32_t bits;
        memcpy(&bits, &r->rows.x[i], sizeof bits);
        hash = cot_mix64(hash ^ bits);
    }
    return hash;
}

/* A rank's hash travels in place of a time that nobody here reads. */
cot_status __real_cot_runner_stats(cot_runner *r, cot_rank_stats *stats, cot_error *error);
cot_status __wrap_cot_runner_stats(cot_runner *r, cot_rank_stats *stats, cot_error *error);
cot_status __wrap_cot_runner_stats(cot_runner *r, cot_rank_stats *stats, cot_error *error)
{
    r->results.stats.logits_ns = (int64_t)(hash_stream(r) >> 8); // those of all ranks may be added up
    return __real_cot_runner_stats(r, stats, error);
}

/* Whatever the types that travel, and whatever is lost on the way, every rank holds the same residual stream. */
static void one_stream(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const char *const precisions[] = {"bf16", "fp32", "int8"}, *const payloads[] = {NULL, "bf16",
                                                                                           "fp32"};
    for (int time = 0; time < 9; time++) {
        struct way w;
        const int ranks = 2 + time % 7;
        draw_way(&w, TINY, ranks, &seed);
        w.s.precision = precisions[draw(&seed) % 3];
        cot_engine_options options = options_of(&w.s);
        options.experts.payload = payloads[draw(&seed) % 3];
        cot_engine *engine;
        cot_error error = {0};
        fflush(stdout);
        if (cot_engine_open(&engine, TINY, &options, NULL, &error) != COT_OK) fail_msg("%s", error.message);
        int32_t *ids = drawn_ids(60, cot_engine_describe(engine)->vocab, &seed);
        cot_request request =
            forced_request(ids, 60, 60 - (int64_t)(draw(&seed) % 2)); // the last step: many, one
        struct records all = must_run(engine, &request, 1);
        cot_rank_stats *stats = must_allocate((size_t)ranks, sizeof *stats);
        uint64_t *calls = calloc((size_t)(engine->info.moe_layers * engine->info.experts), sizeof *calls);
        assert_non_null(calls);
        assert_int_equal(cot_engine_group_stats(engine->group, stats, calls, NULL, NULL), COT_OK);
        assert_true(stats[0].logits_ns != 0);
        for (int r = 1; r < ranks; r++)
            if (stats[r].logits_ns != stats[0].logits_ns)
                fail_msg("rank %d's stream is not rank 0's: %s, %s", r, w.s.precision, name_of(&w));
        free(stats);
        free(calls);
        free(ids);
        records_free(&all);
        cot_engine_close(engine);
        clear_way(&w);
    }
}

/* ---- homes ---- */

struct recorder {
    cot_trace_builder *builder;
};

static void record(void *context, uint64_t request, int64_t position, int32_t token, const uint16_t *experts,
                   const float *weights)
{
    struct recorder *r = context;
    (void)position;
    assert_int_equal(cot_trace_builder_append(r->builder, (int32_t)request, token, experts, weights, NULL),
                     COT_OK);
}

/* The rate that a running engine counts is the one that cot_predict_evaluate finds, in steps of the same tokens, in what it
 * routed: to the last activation. */
static void locality_is_foretold(void **state)
{
    (void)state;
    enum { TOKENS = 300 };
    static const struct {
        const char *name;
        cot_predict_method method;
    } methods[] = {{"token-table", COT_PREDICT_TOKEN_TABLE},
                   {"device-sequence", COT_PREDICT_DEVICE_SEQUENCE},
                   {"algorithm-2", COT_PREDICT_ALGORITHM_2}};
    uint64_t seed = test_seed();
    for (int time = 0; time < 6; time++) {
        char path[TABLES_PATH];
        const int ranks = 2 + (int)(draw(&seed) % 7), m = time % 3;
        const int64_t step = (const int64_t[]){512, 64, 37}[draw(&seed) % 3];
        drawn_tables(path, TINY, ranks, false, &seed);
        struct setting s = {.folder = TINY,
                            .ranks = ranks,
                            .pipeline = "s-moe",
                            .predict = methods[m].name,
                            .tables = path,
                            .step_tokens = step,
                            .kv_tokens = 512};
        cot_engine *engine = must_open(&s);
        const cot_engine_info *info = cot_engine_describe(engine);
        assert_string_equal(info->pipeline, "s-moe");
        assert_string_equal(info->predict, methods[m].name);
        assert_string_equal(info->collective, "direct");
        assert_string_equal(info->a2a, "one-shot");
        assert_string_equal(info->dedup, "on");
        struct recorder r;
        assert_int_equal(cot_trace_builder_open(&r.builder, "tiny", (int32_t)info->moe_layers,
                                                info->moe_layer, (int32_t)info->experts, (int32_t)info->top_k,
                                                NULL),
                         COT_OK);
        int32_t *ids = drawn_ids(TOKENS, info->vocab, &seed);
        const cot_request request = forced_request(ids, TOKENS, TOKENS);
        const cot_events events = {.context = &r, .on_routing = record};
        assert_int_equal(cot_engine_run(engine, &request, 1, &events, NULL, NULL), COT_OK);
        cot_stats stats;
        cot_trace trace;
        cot_predictor *tables;
        cot_predict_evaluation evaluation;
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        assert_int_equal(cot_trace_builder_finish(&trace, r.builder, NULL), COT_OK);
        assert_int_equal(cot_predictor_open(&tables, path, NULL), COT_OK);
        const cot_predict_evaluate_options how = {.size = sizeof how, .step_tokens = step};
        assert_int_equal(cot_predict_evaluate(&evaluation, tables, methods[m].method, &trace, &how, NULL),
                         COT_OK);
        assert_int_equal(stats.activations, TOKENS * info->moe_layers * info->top_k);
        assert_int_equal(stats.local_activations,
                         llround(evaluation.all[COT_FIGURE_LAR_EVEN] * (double)stats.activations));
        assert_true(fabs(stats.lar - evaluation.all[COT_FIGURE_LAR_EVEN]) < 1e-12);
        cot_predict_evaluation_free(&evaluation);
        cot_predictor_close(tables);
        cot_trace_close(&trace);
        cot_trace_builder_close(r.builder);
        cot_stats_clear(&stats);
        free(ids);
        cot_engine_close(engine);
        unlink(path);
    }
}

/* ---- rounds ---- */

/* A layer of one token's step on four ranks takes so many dependent steps of the network, and a step two more. */
static void a_layer_takes_so_many_rounds(void **state)
{
    (void)state;
    static const struct {
        const char *pipeline, *collective, *op, *a2a;
        uint64_t rounds; // a layer, all of which are MoE layers here
    } ways[] = {{"s-moe", "direct", "bulk", "one-shot", 4},  {"s-moe", NULL, "fused", NULL, 4},
                {"s-moe", "direct", "bulk", "two-phase", 5}, {"ds-moe", "direct", "bulk", "two-phase", 6},
                {"ds-moe", "direct", "bulk", "one-shot", 5}, {"ds-moe", NULL, "bulk", NULL, 12},
                {"ds-moe", "direct", "bulk", "padded", 6},   {"s-moe", "ring", "bulk", "one-shot", 8}};
    uint64_t seed = test_seed();
    char path[TABLES_PATH];
    drawn_tables(path, TINY, 4, false, &seed);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const bool s_moe = !strcmp(ways[i].pipeline, "s-moe");
        const struct setting s = {.folder = TINY,
                                  .ranks = 4,
                                  .pipeline = ways[i].pipeline,
                                  .collective = ways[i].collective,
                                  .op = ways[i].op,
                                  .a2a = ways[i].a2a,
                                  .tables = s_moe ? path : NULL,
                                  .dedup = ways[i].a2a && strcmp(ways[i].a2a, "padded") != 0 ? "on" : NULL,
                                  .quiet = true,
                                  .kv_tokens = 64};
        cot_engine *engine = must_open(&s);
        const cot_engine_info *info = cot_engine_describe(engine);
        const int32_t id = 1;
        cot_request request = generating_from(&id, 1, 5);
        request.sampling.ignore_eos = true;
        struct records all = must_run(engine, &request, 1);
        cot_stats stats;
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        uint64_t rounds = 0;
        for (int p = 0; p < COT_STATS_PHASES; p++) rounds += stats.rounds[p];
        assert_string_equal(stats.times[1].name, s_moe ? "reduce-scatter" : "allreduce");
        assert_int_equal(info->layers, info->moe_layers);
        const uint64_t steps = (uint64_t)stats.steps;
        if (rounds != steps * (ways[i].rounds * (uint64_t)info->layers + 2))
            fail_msg("%s, %s: %llu rounds in %llu steps", ways[i].pipeline, ways[i].op,
                     (unsigned long long)rounds, (unsigned long long)steps);
        cot_stats_clear(&stats);
        records_free(&all);
        cot_engine_close(engine);
    }
    unlink(path);
}

/* ---- options ---- */

static void refuse(struct setting s, const char *word)
{
    cot_engine *engine;
    cot_error error = {0};
    s.folder = TINY;
    if (!s.ranks) s.ranks = 4;
    const cot_engine_options options = options_of(&s);
    const cot_status status = cot_engine_open(&engine, TINY, &options, NULL, &error);
    if (status != COT_INVALID_ARGUMENT || engine || !strstr(error.message, word))
        fail_msg("status %d, '%s' lacks '%s'", status, error.message, word);
}

static void what_does_not_go_together(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    char path[TABLES_PATH];
    drawn_tables(path, TINY, 4, false, &seed);
    cot_expert_map map = drawn_placement(TINY, 4, &seed);
    refuse((struct setting){.pipeline = "t-moe"}, "unknown pipeline 't-moe'");
    refuse((struct setting){.pipeline = "s-moe", .predict = "context"}, "unknown prediction 'context'");
    refuse((struct setting){.collective = "tree"}, "unknown collective 'tree'");
    refuse((struct setting){.pipeline = "s-moe", .attention = "dp"}, "of attention tp");
    refuse((struct setting){.pipeline = "ds-moe", .attention = "dp"}, "of attention tp");
    refuse((struct setting){.predict = "none", .attention = "dp"}, "of attention tp");
    refuse((struct setting){.collective = "ring", .attention = "dp"}, "of attention tp");
    refuse((struct setting){.predict = "algorithm-2"}, "ds-moe foretells nothing");
    refuse((struct setting){.pipeline = "ds-moe", .predict = "token-table", .tables = path},
           "ds-moe foretells nothing");
    refuse((struct setting){.pipeline = "s-moe", .predict = "token-table"}, "needs tables");
    refuse((struct setting){.pipeline = "ds-moe", .predict = "gate"}, "ds-moe foretells nothing");
    refuse((struct setting){.pipeline = "s-moe", .predict = "oracle"}, "needs recorded routing");
    refuse((struct setting){.pipeline = "s-moe", .predict = "worst"}, "needs recorded routing");
    refuse((struct setting){.pipeline = "s-moe", .predict = "tables"}, "unknown prediction 'tables'");
    refuse((struct setting){.pipeline = "s-moe", .placement = &map}, "takes no replicas");
    refuse((struct setting){.op = "bulk", .a2a = "three-phase"}, "unknown a2a 'three-phase'");
    refuse((struct setting){.op = "bulk", .dedup = "yes"}, "unknown dedup 'yes'");
    refuse((struct setting){.op = "fused", .a2a = "two-phase"}, "a2a 'two-phase' is of 'bulk'");
    refuse((struct setting){.op = "fused", .a2a = "padded", .tables = path}, "a2a 'padded' is of 'bulk'");
    refuse((struct setting){.op = "fused", .dedup = "off"}, "dedup off is of 'bulk'");
    refuse((struct setting){.op = "bulk", .a2a = "padded", .dedup = "on"}, "no dedup");
    refuse((struct setting){.op = "bulk", .combine = "reduced"}, "combine must be exact");
    refuse((struct setting){.op = "bulk", .combine = "reduced", .dedup = "off", .tables = path},
           "combine must be exact");
    cot_expert_map_free(&map);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_text),
                                       cmocka_unit_test(every_two_choices_give_the_same_text),
                                       cmocka_unit_test(the_same_bits),
                                       cmocka_unit_test(one_stream),
                                       cmocka_unit_test(locality_is_foretold),
                                       cmocka_unit_test(a_layer_takes_so_many_rounds),
                                       cmocka_unit_test(what_does_not_go_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
