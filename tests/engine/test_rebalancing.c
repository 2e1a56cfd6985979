/* Experts that an engine moves by itself: those that are called most begin on one rank, and leave it while requests run, whose texts,
 * logits and routing are those of an engine whose experts stay, to the bit; a cycle that is asked for says what it does and does what it
 * says; what does not go with it is refused by name. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/random_model.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/steps.h"
#include "harness/engine/tables.h"
#include "harness/seed.h"

#include "engine/engine_state.h"
#include "engine/rebalancing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, REQUESTS = 6, MOST_ROUNDS = 200 };

struct way {
    const char *mode, *attention;
    bool processes;
    int32_t spare;
    int64_t moves_a_cycle;
};

static cot_engine_options options_for(const struct way *w, const char *interval)
{
    const struct setting s = {.folder = TINY,
                              .ranks = RANKS,
                              .attention = w->attention,
                              .precision = "fp32",
                              .step_tokens = 32,
                              .sequences = REQUESTS,
                              .half_life = 4096};
    cot_engine_options o = options_of(&s);
    o.group.fabric = w->processes && CAN_FORK ? "processes" : NULL;
    o.experts.rebalance = w->mode;
    o.experts.rebalance_interval = interval;
    o.experts.moves_a_cycle = w->moves_a_cycle;
    o.experts.spare_slots = w->spare;
    if (strcmp(w->mode, "off") != 0) o.experts.migration_share = 1;
    return o;
}

static cot_engine *open_with(const cot_engine_options *o)
{
    cot_engine *engine;
    cot_error error;
    fflush(stdout);
    if (cot_engine_open(&engine, TINY, o, NULL, &error) != COT_OK) fail_msg("%s", error.message);
    return engine;
}

static void must_refuse(const cot_engine_options *o, const char *text)
{
    cot_engine *engine;
    cot_error error = {0};
    if (cot_engine_open(&engine, TINY, o, NULL, &error) == COT_OK) fail_msg("'%s' is taken", text);
    if (!strstr(error.message, text)) fail_msg("'%s', expected '%s'", error.message, text);
}

/* ---- requests, and what is called ---- */

struct texts {
    int32_t *ids[REQUESTS];
    cot_request request[REQUESTS];
};

static struct texts draw_texts(int64_t vocab, uint64_t *seed)
{
    struct texts t;
    for (int i = 0; i < REQUESTS; i++) {
        const int64_t prompt = 1 + (int64_t)(draw(seed) % 20);
        t.ids[i] = drawn_ids(64, vocab, seed);
        t.request[i] = i % 2 ? generating_from(t.ids[i], prompt, 20) : forced_request(t.ids[i], 40, prompt);
        t.request[i].all_logits = true;
        t.request[i].sampling.ignore_eos = true;
    }
    return t;
}

static void free_texts(struct texts *t)
{
    for (int i = 0; i < REQUESTS; i++) free(t->ids[i]);
}

static void assert_same(const struct records *a, const struct records *b)
{
    const size_t vocab = (size_t)a->info->vocab, each = routed(a->info);
    for (size_t i = 0; i < REQUESTS; i++) {
        const struct record *x = &a->record[i], *y = &b->record[i];
        const size_t n = (size_t)x->capacity;
        assert_int_equal(x->sampled_tokens, y->sampled_tokens);
        assert_memory_equal(x->sampled, y->sampled, (size_t)x->sampled_tokens * sizeof *x->sampled);
        assert_memory_equal(x->logits, y->logits, n * vocab * sizeof *x->logits);
        assert_memory_equal(x->experts, y->experts, n * each * sizeof *x->experts);
    }
}

static double *calls_of(const cot_engine *engine)
{
    double *calls = calloc((size_t)(engine->info.moe_layers * engine->info.experts), sizeof *calls);
    assert_non_null(calls);
    assert_true(cot_engine_popularity(calls, engine, COT_HOME_ANY) > 0);
    return calls;
}

/* Those that are called most, of each layer, on rank 0, the next on rank 1. */
static cot_expert_map hot_first(const cot_engine *engine, const double *calls)
{
    const cot_engine_info *info = &engine->info;
    const int32_t E = (int32_t)info->experts, each = E / RANKS;
    cot_expert_map map;
    assert_int_equal(cot_expert_map_new(&map, (int32_t)info->moe_layers, E, RANKS, each, NULL), COT_OK);
    memcpy(map.layers, info->moe_layer, (size_t)info->moe_layers * sizeof *map.layers);
    for (int32_t l = 0; l < map.n_layers; l++)
        for (int32_t e = 0; e < E; e++) {
            int32_t at = 0; // as many are called more
            for (int32_t other = 0; other < E; other++) {
                const double here = calls[l * E + e], there = calls[l * E + other];
                at += there > here || (there >= here && other < e);
            }
            map.expert[l * E + at] = e;
        }
    return map;
}

/* Texts that an engine was asked for: what came of them, what they called, and the map that has that on the first ranks. */
struct asked {
    struct texts texts;
    struct records wanted;
    cot_engine_info info; // of the engine, for `wanted` when that is closed
    double *calls;
    cot_expert_map map;
};

static void ask(struct asked *a, cot_engine *engine, uint64_t *seed)
{
    a->texts = draw_texts(engine->info.vocab, seed);
    a->info = engine->info;
    a->wanted = must_run(engine, a->texts.request, REQUESTS);
    a->wanted.info = &a->info;
    a->calls = calls_of(engine);
    a->map = hot_first(engine, a->calls);
}

/* Asks for them again: the answers are the same. */
static void ask_again(const struct asked *a, cot_engine *engine)
{
    struct records now = must_run(engine, a->texts.request, REQUESTS);
    assert_same(&a->wanted, &now);
    records_free(&now);
}

static void forget(struct asked *a)
{
    cot_expert_map_free(&a->map);
    free(a->calls);
    records_free(&a->wanted);
    free_texts(&a->texts);
}

/* Of all calls those that rank 0 gets, an expert's shared by its replicas. */
static double part_of_first(cot_engine *engine, const double *calls)
{
    cot_expert_layout l;
    double first = 0, all = 0;
    assert_int_equal(cot_engine_layout(engine, &l, NULL, NULL), COT_OK);
    for (int32_t layer = 0; layer < l.n_layers; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(&l, layer);
        for (int32_t e = 0; e < l.n_experts; e++)
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++) {
                const double part = calls[layer * l.n_experts + e] / (r.begin[e + 1] - r.begin[e]);
                all += part;
                first += r.rank[i] == 0 ? part : 0;
            }
    }
    cot_expert_layout_free(&l);
    return first / all;
}

static cot_engine_moves moves_of(cot_engine *engine)
{
    cot_engine_moves moves;
    cot_engine_get_moves(engine, &moves);
    return moves;
}

static cot_engine_rebalancing told_of(cot_engine *engine)
{
    cot_engine_rebalancing told;
    cot_engine_get_rebalancing(engine, &told);
    return told;
}

/* ---- by itself ---- */

static void live_through(const struct way *way, uint64_t *seed)
{
    const struct way still = {.mode = "off", .attention = way->attention};
    cot_engine_options o = options_for(&still, NULL);
    cot_engine *engine = open_with(&o);
    struct asked asked;
    ask(&asked, engine, seed);
    assert_int_equal(told_of(engine).stayed + told_of(engine).moved, 0); // it is off
    cot_engine_close(engine);

    o = options_for(way, "16steps");
    o.experts.placement = &asked.map;
    engine = open_with(&o);
    assert_true(engine->info.movable);
    const double before = part_of_first(engine, asked.calls);
    for (int rounds = 0; rounds < MOST_ROUNDS && !told_of(engine).moved; rounds++) ask_again(&asked, engine);
    while (moves_of(engine).id && !moves_of(engine).over) must_step(engine);
    ask_again(&asked, engine);
    const cot_engine_rebalancing told = told_of(engine);
    const cot_engine_moves moves = moves_of(engine);
    int64_t layers = 0;
    for (int i = 0; i < COT_ENGINE_REASONS; i++) layers += told.layers[i];
    assert_string_equal(told.mode, way->mode);
    assert_true(told.moved > 0);
    assert_int_equal(moves.id, told.moved);
    assert_int_equal(told.refused, 0);
    assert_int_equal(layers, (told.moved + told.stayed) * asked.info.moe_layers);
    assert_true(told.layers[0] >= told.moved);
    assert_in_range(told.copies, 1,
                    (told.moved + told.stayed) * (way->moves_a_cycle ? way->moves_a_cycle : 64));
    assert_true(told.plan_ns > 0);
    const double after = part_of_first(engine, asked.calls);
    printf("%s, %s: rank 0 got %.1f %% of calls, and gets %.1f %% behind %lld of %lld cycles, %lld copies\n",
           way->mode, way->attention, 100 * before, 100 * after, (long long)told.moved,
           (long long)(told.moved + told.stayed), (long long)told.copies);
    assert_true(after < before);
    cot_engine_close(engine);
    forget(&asked);
}

static void hot_experts_leave_their_rank(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {"load", "tp", false, 0, 0}, {"joint", "dp", false, 1, 3}, {"joint", "tp", true, 0, 0}};
    uint64_t seed = test_seed();
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) live_through(&ways[w], &seed);
}

/* Texts of so many cycles at least, made of four tokens from `first` on. */
static void run_tokens(cot_engine *engine, int32_t first, int64_t cycles, uint64_t *seed)
{
    const int64_t until = told_of(engine).moved + told_of(engine).stayed + cycles;
    while (told_of(engine).moved + told_of(engine).stayed < until) {
        struct texts texts = draw_texts(4, seed);
        for (int i = 0; i < REQUESTS; i++) {
            texts.request[i] = forced_request(texts.ids[i], 64, 32);
            for (int t = 0; t < 64; t++) texts.ids[i][t] += first;
        }
        struct records now = must_run(engine, texts.request, REQUESTS);
        records_free(&now);
        free_texts(&texts);
    }
}

/* Where other experts are called than before the last cycle, what was before it is left out; a cycle that is but asked about changes nothing. */
static void what_is_not_called_any_more_is_left_out(void **state)
{
    (void)state;
    const struct way way = {.mode = "joint", .attention = "tp"};
    uint64_t seed = test_seed();
    cot_engine_options o = options_for(&way, "16steps");
    cot_engine *engine = open_with(&o);
    const cot_popularity *p = &engine->loop.profiles.popularity;
    cot_engine_cycle cycle;
    run_tokens(engine, 300, 5, &seed);
    assert_int_equal(p->left.seen, 0);
    assert_int_equal(told_of(engine).turns, 0);
    assert_in_range(p->marked.seen, 1, p->seen);
    const int64_t marked = p->marked.seen, before = p->seen;
    while (moves_of(engine).id && !moves_of(engine).over) must_step(engine);
    assert_int_equal(cot_engine_rebalance(&cycle, engine, true, NULL), COT_OK);
    cot_engine_cycle_free(&cycle);
    assert_int_equal(p->marked.seen, marked);
    run_tokens(engine, 40, 2, &seed);
    assert_in_range(p->left.seen, marked, before + 16 * 32);
    assert_in_range(told_of(engine).turns, 1, 2); // the look in whose midst they changed may be one
    // one that is asked for looks, too, where enough was called
    while (moves_of(engine).id && !moves_of(engine).over) must_step(engine);
    const int64_t look = p->marked.seen;
    const bool few =
        cot_popularity_since(p) * p->options.top_k < COT_REBALANCE_LEAST_CALLS * p->options.n_experts;
    assert_int_equal(cot_engine_rebalance(&cycle, engine, false, NULL), COT_OK);
    cot_engine_cycle_free(&cycle);
    assert_int_equal(p->marked.seen, few ? look : p->seen);
    cot_engine_close(engine);
}

/* Looks at few calls, as of an idle server, neither teach what is usual nor have all else left out. */
static void few_calls_are_not_looked_at(void **state)
{
    (void)state;
    enum { E = 16, K = 2 };
    const cot_popularity_options options = {
        .n_layers = 1, .n_experts = E, .top_k = K, .n_homes = 1, .half_life_tokens = 1e5, .reservoir = 64};
    cot_popularity p;
    cot_rebalance r = {0};
    uint64_t seed = test_seed();
    assert_int_equal(cot_popularity_open(&p, &options, NULL), COT_OK);
    const struct {
        int tokens, first; // of these two and the six behind them
        bool looks, turns;
    } now[] = {{4000, 0, true, false}, {4000, 0, true, false}, {4000, 0, true, false}, {3, 8, false, false},
               {3, 0, false, false},   {50, 8, false, false},  {4000, 0, true, false}, {4000, 8, true, true},
               {10, 0, false, false},  {4000, 8, true, false}};
    for (size_t i = 0; i < sizeof now / sizeof *now; i++) {
        for (int t = 0; t < now[i].tokens; t++) {
            const uint16_t one = (uint16_t)(draw(&seed) % 8),
                           other = (uint16_t)((one + 1 + draw(&seed) % 7) % 8);
            const uint16_t experts[K] = {(uint16_t)(now[i].first + one), (uint16_t)(now[i].first + other)};
            cot_popularity_add(&p, 0, experts, K);
        }
        assert_int_equal(cot_rebalancing_look(&r, &p), now[i].turns);
        assert_int_equal(p.marked.seen == p.seen, now[i].looks);
    }
    cot_popularity_close(&p);
}

/* ---- as asked for ---- */

static bool holds(cot_engine *engine, const struct cot_engine_cycle_change *c)
{
    cot_expert_layout l;
    bool found = false;
    assert_int_equal(cot_engine_layout(engine, &l, NULL, NULL), COT_OK);
    for (int32_t layer = 0; layer < l.n_layers; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(&l, layer);
        for (int32_t i = r.begin[c->expert]; l.layers[layer] == c->layer && i < r.begin[c->expert + 1]; i++)
            found |= r.rank[i] == c->rank;
    }
    cot_expert_layout_free(&l);
    return found;
}

static void assert_changes(cot_engine *engine, const cot_engine_cycle *cycle, bool made)
{
    int64_t comes = 0;
    for (int64_t i = 0; i < cycle->copies + cycle->drops; i++) {
        assert_int_equal(holds(engine, &cycle->change[i]), cycle->change[i].comes == made);
        comes += cycle->change[i].comes;
    }
    assert_int_equal(comes, cycle->copies);
}

static bool ask_inside(void *context, uint64_t request, int32_t token)
{
    (void)request, (void)token;
    cot_engine_cycle cycle;
    cot_error error = {0};
    assert_int_equal(cot_engine_rebalance(&cycle, context, true, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "callback"));
    return true;
}

static void a_cycle_does_what_it_says(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    const struct way way = {"load", "dp", false, 1, 0};
    cot_engine_options o = options_for(&way, "1000000000steps"); // never by itself
    cot_engine *engine = open_with(&o);
    struct texts texts = draw_texts(engine->info.vocab, &seed);
    cot_engine_cycle dry, again, real;
    cot_error error = {0};

    assert_int_equal(cot_engine_rebalance(&dry, engine, false, &error), COT_OK); // nothing was counted yet
    assert_int_equal(dry.id + (uint64_t)(dry.copies + dry.drops), 0);
    assert_int_equal(dry.n_layers, engine->info.moe_layers);
    for (int32_t l = 0; l < dry.n_layers; l++) {
        assert_int_equal(dry.layer[l].layer, engine->info.moe_layer[l]);
        assert_string_equal(cot_engine_rebalance_reasons()[dry.layer[l].reason], "too few calls counted");
    }
    cot_engine_cycle_free(&dry);
    assert_int_equal(told_of(engine).stayed, 1);

    while (engine->loop.steps < COT_SAVING_STEPS + 10) {
        struct records r = must_run(engine, texts.request, REQUESTS);
        records_free(&r);
    }
    must_submit(engine, &texts.request[1], 0, &(cot_events){.context = engine, .on_token = ask_inside});
    must_finish(engine);
    assert_int_equal(cot_engine_rebalance(&dry, engine, true, &error), COT_OK);
    assert_int_equal(cot_engine_rebalance(&again, engine, true, &error), COT_OK);
    assert_true(dry.copies > 0 && dry.saving_ns > 0 && dry.saving_ns < dry.before_ns);
    assert_int_equal(dry.id, 0);
    assert_int_equal(dry.copies, again.copies);
    assert_memory_equal(dry.change, again.change, (size_t)(dry.copies + dry.drops) * sizeof *dry.change);
    assert_changes(engine, &dry, false);
    assert_int_equal(moves_of(engine).id, 0); // nothing has moved, and no cycle counts
    assert_int_equal(told_of(engine).moved, 0);
    cot_engine_cycle_free(&again);

    assert_int_equal(cot_engine_rebalance(&real, engine, false, &error), COT_OK);
    assert_int_equal(real.id, 1);
    assert_int_equal(real.copies, dry.copies);
    assert_int_equal(cot_engine_rebalance(&again, engine, true, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "experts are moving (1)"));
    while (!moves_of(engine).over) must_step(engine);
    assert_changes(engine, &real, true);
    assert_int_equal(moves_of(engine).copied, real.copies);
    assert_int_equal(told_of(engine).copies, real.copies);
    assert_true(told_of(engine).since_ns > 0);
    assert_int_equal(told_of(engine).compared, 0);
    for (int64_t over = engine->loop.steps; engine->loop.steps <= over + COT_SAVING_STEPS;) {
        struct records r = must_run(engine, texts.request, REQUESTS);
        records_free(&r);
    }
    assert_int_equal(told_of(engine).compared, 1);
    assert_true(told_of(engine).foreseen_ns == real.saving_ns);
    assert_true(told_of(engine).realised_ns != 0 && fabs(told_of(engine).realised_ns) < 1e12);
    cot_engine_cycle_free(&real);
    assert_int_equal(cot_engine_rebalance(&again, engine, true, &error), COT_OK);
    for (int64_t i = 0; i < again.copies + again.drops; i++) // what has moved cools down
        for (int64_t k = 0; k < dry.copies + dry.drops; k++)
            assert_false(again.change[i].layer == dry.change[k].layer &&
                         again.change[i].expert == dry.change[k].expert);
    cot_engine_cycle_free(&again);
    cot_engine_cycle_free(&dry);
    free_texts(&texts);
    cot_engine_close(engine);
}

/* Moves of a cycle are given up as soon as they take longer than they should, those that somebody asked for are not; texts go on. */
static void moves_of_a_cycle_have_an_end(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    const struct way way = {"load", "dp", false, 1, 0};
    cot_engine_options o = options_for(&way, "1000000000steps"); // never by itself
    cot_engine *engine = open_with(&o);
    struct asked asked;
    cot_engine_cycle cycle;
    cot_error error;
    uint64_t id;
    ask(&asked, engine, &seed);
    for (int by_cycle = 0; by_cycle < 2; by_cycle++) {
        if (by_cycle)
            assert_int_equal(cot_engine_rebalance(&cycle, engine, false, &error), COT_OK);
        else
            assert_int_equal(cot_engine_move_experts(engine, &asked.map, "hot first", NULL, &id, &error),
                             COT_OK);
        const cot_engine_moves begun = moves_of(engine);
        assert_true(begun.copies > 0);
        engine->moving.timeout_ns = 1;
        engine->moving.budget.ns_a_byte = 1e-12; // it is late from now on
        ask_again(&asked, engine);
        while (!moves_of(engine).over) must_step(engine);
        const cot_engine_moves over = moves_of(engine);
        int64_t late = 0;
        for (int i = 0; i < COT_MOVE_OUTCOMES; i++)
            if (strcmp(cot_engine_move_outcomes()[i], "timed out") == 0) late = over.given_up[i];
        assert_int_equal(told_of(engine).given_up, by_cycle);
        assert_int_equal(late, by_cycle ? over.copies : 0);
        assert_int_equal(over.copied, by_cycle ? 0 : over.copies);
        if (by_cycle) cot_engine_cycle_free(&cycle);
    }
    cot_engine_close(engine);
    forget(&asked);
}

/* Layers and ranks with more experts than slots: one is in the slot through which others come. */
static int over_full(cot_engine *engine)
{
    cot_expert_layout l;
    int over = 0;
    assert_int_equal(cot_engine_layout(engine, &l, NULL, NULL), COT_OK);
    for (int32_t layer = 0; layer < l.n_layers; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(&l, layer);
        int32_t used[RANKS] = {0};
        for (int32_t i = 0; i < r.begin[l.n_experts]; i++) used[r.rank[i]]++;
        for (int rank = 0; rank < RANKS; rank++) over += used[rank] > engine->info.expert_slots;
    }
    cot_expert_layout_free(&l);
    return over;
}

/* Moves are cut off while a rank has one expert more than slots; the next cycle takes that away, and those after it are like others. */
static void what_was_cut_off_is_made_good(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    int cut_off = 0;
    for (int32_t spare = 0; spare < 2; spare++) {
        const struct way way = {"load", "dp", false, spare, 0};
        cot_engine_options o = options_for(&way, "1000000000steps"); // never by itself
        cot_engine *engine = open_with(&o);
        struct asked asked;
        cot_engine_cycle cycle;
        cot_error error;
        uint64_t id;
        ask(&asked, engine, &seed);
        for (int round = 0; round < 4; round++) {
            if (cot_engine_move_experts(engine, &asked.map, "hot first", NULL, &id, &error) != COT_OK)
                fail_msg("%s", error.message);
            while (!moves_of(engine).over && over_full(engine) <= round) must_step(engine);
            if (!moves_of(engine).over) assert_int_equal(cot_engine_cancel_moves(engine, id, NULL), COT_OK);
            cut_off += over_full(engine) > 0;
            for (int cycles = 0; cycles < 2; cycles++) {
                if (cot_engine_rebalance(&cycle, engine, false, &error) != COT_OK)
                    fail_msg("%s", error.message);
                if (cycle.id)
                    while (!moves_of(engine).over) must_step(engine);
                cot_engine_cycle_free(&cycle);
                assert_int_equal(over_full(engine), 0);
            }
            ask_again(&asked, engine);
        }
        cot_engine_close(engine);
        forget(&asked);
    }
    printf("%d of 8 moves were cut off with a rank over-full\n", cut_off);
    assert_true(cut_off > 1);
}

/* Only their proportions count. */
static void distances_are_those_of_ranks(void **state)
{
    (void)state;
    const struct way way = {"joint", "dp", false, 0, 0};
    double distance[RANKS * RANKS], sum = 0;
    for (int i = 0; i < RANKS * RANKS; i++) distance[i] = 5 + i;
    cot_engine_options o = options_for(&way, NULL);
    o.experts.distances = distance;
    cot_engine *engine = open_with(&o);
    const double *taken = engine->rebalancing.controller.o.distance;
    for (int a = 0; a < RANKS; a++)
        for (int b = 0; b < RANKS; b++) {
            if (a != b) sum += taken[a * RANKS + b];
            assert_true(fabs(taken[a * RANKS + b] * 6 - taken[1] * (5 + a * RANKS + b)) < 1e-9);
        }
    assert_true(fabs(sum - RANKS * (RANKS - 1)) < 1e-9);
    cot_engine_close(engine);
    memset(distance, 0, sizeof distance); // all are as near
    engine = open_with(&o);
    assert_null(engine->rebalancing.controller.o.distance);
    cot_engine_close(engine);
    distance[1] = -1;
    distance[2] = 7;
    must_refuse(&o, "distances that are not 0 or more");
    o.experts.rebalance = "load";
    must_refuse(&o, "distances of ranks: rebalance is not joint");
}

/* ---- refused ---- */

static void what_does_not_go_with_it_is_named(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    const struct way way = {"joint", "tp", false, 0, 0};
    cot_engine_options o = options_for(&way, "0steps");
    cot_engine_cycle cycle;
    cot_error error;
    must_refuse(&o, "'0steps' is no interval to rebalance");
    o = options_for(&way, NULL);
    o.attention.pipeline = "s-moe";
    must_refuse(&o, "rebalance 'joint' does not go with pipeline s-moe");
    char path[TABLES_PATH], named[TABLES_PATH + 64];
    assert_true(drawn_tables(path, TINY, RANKS, false, &seed));
    o.experts.tables = path;
    o.attention.pipeline = "ds-moe";
    snprintf(named, sizeof named, "does not go with tables: experts are where '%s' has them", path);
    must_refuse(&o, named);
    unlink(path);
    o = options_for(&way, NULL);
    const cot_engine_routing drawn = {.lar = 0.5};
    o.experts.routing = &drawn;
    must_refuse(&o, "rebalance 'joint' does not go with drawn routing");

    struct setting s = {.ranks = 1, .step_tokens = 8, .sequences = 2};
    cot_engine *engine = open_random("1", &s); // it is off
    assert_int_equal(cot_engine_rebalance(&cycle, engine, true, &error), COT_UNSUPPORTED);
    assert_non_null(strstr(error.message, "rebalancing is off"));
    cot_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hot_experts_leave_their_rank),
                                       cmocka_unit_test(what_is_not_called_any_more_is_left_out),
                                       cmocka_unit_test(few_calls_are_not_looked_at),
                                       cmocka_unit_test(a_cycle_does_what_it_says),
                                       cmocka_unit_test(moves_of_a_cycle_have_an_end),
                                       cmocka_unit_test(what_was_cut_off_is_made_good),
                                       cmocka_unit_test(distances_are_those_of_ranks),
                                       cmocka_unit_test(what_does_not_go_with_it_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
