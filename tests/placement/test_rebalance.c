/* What rebalancing decides, in random histories, against an oracle that knows a layout as a table of who holds what, adds up a step's
 * time from the formula, and tries every single change there is. */
#include "placement/rebalance.h"

#include "base/rng.h"
#include "harness/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST_E = 12, MOST_P = 6, MOST_L = 4, MOST_K = 4, MOST_TOKENS = 60 };

static uint64_t at;
static double uniform(void)
{
    return cot_random_uniform(test_seed(), 40, at++);
}
static int32_t below(int32_t n)
{
    return (int32_t)(uniform() * n);
}

/* ---- the oracle ---- */

typedef struct holder { // one layer
    bool has[MOST_P][MOST_E];
} holder;

typedef struct world {
    cot_rebalance_options o;
    double copy_ns[MOST_L], distance[MOST_P * MOST_P], calls[MOST_L * MOST_E], steps;
    int64_t tokens;
    uint16_t experts[MOST_TOKENS * MOST_L * MOST_K]; // [tokens][L][K]
    int16_t home[MOST_TOKENS];
    holder layer[MOST_L];
} world;

static int32_t replicas(const holder *h, const world *w, int32_t e)
{
    int32_t n = 0;
    for (int32_t r = 0; r < w->o.ranks; r++) n += h->has[r][e];
    return n;
}

static int32_t held(const holder *h, const world *w, int32_t r)
{
    int32_t n = 0;
    for (int32_t e = 0; e < w->o.experts; e++) n += h->has[r][e];
    return n;
}

/* Which rank serves expert e of the sample's token t: its home, else the replicas take turns in the order of their ranks. */
static int32_t server(const holder *h, const world *w, int32_t e, int32_t home, int32_t t)
{
    int32_t list[MOST_P], n = 0;
    for (int32_t r = 0; r < w->o.ranks; r++)
        if (h->has[r][e]) list[n++] = r;
    return h->has[home][e] ? home : list[(home + t) % n];
}

static double sends(const holder *h, const world *w, int32_t l)
{
    double sum = 0;
    for (int32_t t = 0; t < w->tokens; t++) {
        bool reached[MOST_P] = {false};
        for (int32_t k = 0; k < w->o.top_k; k++)
            reached[server(h, w, w->experts[(t * w->o.layers + l) * w->o.top_k + k], w->home[t], t)] = true;
        for (int32_t r = 0; r < w->o.ranks; r++)
            if (reached[r] && r != w->home[t])
                sum += w->o.distance ? w->o.distance[w->home[t] * w->o.ranks + r] : 1;
    }
    return sum;
}

static double rank_ns(const holder *h, const world *w, int32_t l, int32_t r)
{
    double ns = 0;
    for (int32_t e = 0; e < w->o.experts; e++) {
        const double x = w->calls[l * w->o.experts + e] / w->steps / fmax(1, replicas(h, w, e));
        if (h->has[r][e]) ns += w->o.expert_ns * (1 - exp(-x)) + w->o.row_ns * x;
    }
    return ns;
}

static double busiest_ns(const holder *h, const world *w, int32_t l)
{
    double most = 0;
    for (int32_t r = 0; r < w->o.ranks; r++) most = fmax(most, rank_ns(h, w, l, r));
    return most;
}

static double step_ns(const holder *h, const world *w, int32_t l)
{
    double ns = busiest_ns(h, w, l), all = 0;
    for (int32_t e = 0; e < w->o.experts; e++) all += w->calls[l * w->o.experts + e] / w->steps;
    if (w->o.mode == COT_REBALANCE_JOINT && w->tokens)
        ns += w->o.send_ns * sends(h, w, l) / (double)w->tokens * (all / w->o.top_k) / w->o.ranks;
    return ns;
}

static int32_t copies(const holder *from, const holder *to, const world *w)
{
    int32_t n = 0;
    for (int32_t r = 0; r < w->o.ranks; r++)
        for (int32_t e = 0; e < w->o.experts; e++) n += to->has[r][e] && !from->has[r][e];
    return n;
}

static int32_t moves(const holder *from, const holder *to, const world *w)
{
    const int32_t come = copies(from, to, w), go = copies(to, from, w);
    return come > go ? come : go;
}

static bool is_good(const holder *h, const world *w)
{
    for (int32_t e = 0; e < w->o.experts; e++)
        if (!replicas(h, w, e)) return false;
    for (int32_t r = 0; r < w->o.ranks; r++)
        if (held(h, w, r) > w->o.slots) return false;
    return true;
}

/* What becomes of expert e of rank a. */
typedef enum way { LEAVES, SPREADS, CHANGES_PLACES, WAYS } way;

/* It goes to rank b, where g makes room, -1: nothing; b is a: it goes. Returns whether there is such a change. */
static bool change(holder *to, const holder *h, const world *w, int32_t e, int32_t a, int32_t b, int32_t g,
                   way how)
{
    *to = *h;
    if (!h->has[a][e]) return false;
    if (a == b) {
        to->has[a][e] = false;
        return how == LEAVES && g < 0 && is_good(to, w);
    }
    if (h->has[b][e] || (g >= 0 && (g == e || !h->has[b][g]))) return false;
    if (how == CHANGES_PLACES ? g < 0 || h->has[a][g] : g >= 0 && held(h, w, b) < w->o.slots) return false;
    to->has[a][e] = how == SPREADS;
    to->has[b][e] = true;
    if (g >= 0) to->has[b][g] = false;
    if (how == CHANGES_PLACES) to->has[a][g] = true;
    return is_good(to, w);
}

/* No single change of what a busiest rank has, or any where sends count, is worth its moves. */
static void check_none_pays(const holder *h, const world *w, int32_t l, double horizon, bool at_any_price)
{
    const double now = step_ns(h, w, l), busiest = busiest_ns(h, w, l);
    const int32_t P = w->o.ranks, E = w->o.experts;
    for (int64_t i = 0; i < (int64_t)E * P * P * (E + 1) * WAYS; i++) {
        const int32_t e = (int32_t)(i % E), a = (int32_t)(i / E % P), b = (int32_t)(i / E / P % P),
                      g = (int32_t)(i / E / P / P % (E + 1)) - 1;
        const way how = (way)(i / E / P / P / (E + 1));
        holder to;
        if (!w->tokens && rank_ns(h, w, l, a) < busiest * (1 - 1e-12)) continue;
        if (!change(&to, h, w, e, a, b, g, how)) continue;
        const double saved = now - step_ns(&to, w, l), price = moves(h, &to, w) * w->copy_ns[l];
        if (saved < 4e-9 * now) continue;
        if (at_any_price || saved * horizon > w->o.margin * price * (1 + 1e-9))
            fail_msg("layer %d: expert %d from %d to %d, way %d, beside %d, saves %g of %g for moves of %g",
                     l, e, a, b, (int)how, g, saved, now, price);
    }
}

/* ---- drawing ---- */

/* K of the experts, none twice. */
static void draw_token(uint16_t *experts, const world *w)
{
    uint16_t all[MOST_E];
    for (int32_t e = 0; e < w->o.experts; e++) all[e] = (uint16_t)e;
    for (int32_t k = 0; k < w->o.top_k; k++) {
        const int32_t from = k + below(w->o.experts - k);
        experts[k] = all[from];
        all[from] = all[k];
    }
}

static void draw_calls(world *w)
{
    const double skew = uniform() * 2;
    w->steps = 1 + uniform() * 100;
    for (int32_t i = 0; i < w->o.layers * w->o.experts; i++)
        w->calls[i] = below(8) ? w->steps * 20 * pow(uniform(), skew) : 0;
    w->tokens = w->o.mode == COT_REBALANCE_JOINT ? below(MOST_TOKENS) : 0;
    for (int64_t t = 0; t < w->tokens; t++) w->home[t] = (int16_t)below(w->o.ranks);
    for (int64_t row = 0; row < w->tokens * w->o.layers; row++) draw_token(w->experts + row * w->o.top_k, w);
}

static void draw_layout(world *w)
{
    memset(w->layer, 0, sizeof w->layer);
    for (int32_t l = 0; l < w->o.layers; l++) {
        holder *h = &w->layer[l];
        for (int32_t e = 0; e < w->o.experts; e++) {
            int32_t r = below(w->o.ranks);
            while (held(h, w, r) == w->o.slots) r = (r + 1) % w->o.ranks;
            h->has[r][e] = true;
        }
        for (int32_t i = below(w->o.ranks * w->o.slots); i > 0; i--) {
            const int32_t r = below(w->o.ranks);
            if (held(h, w, r) < w->o.slots) h->has[r][below(w->o.experts)] = true;
        }
    }
}

static void draw_world(world *w, cot_rebalance_mode mode)
{
    *w = (world){0};
    w->o = (cot_rebalance_options){.mode = mode,
                                   .layers = 1 + below(MOST_L),
                                   .experts = 1 + below(MOST_E),
                                   .ranks = 1 + below(MOST_P),
                                   .interval_steps = 1 + below(100),
                                   .cool_down = 1 + below(4),
                                   .margin = below(2) ? 2 : 0.1 + uniform(),
                                   .moves_a_cycle = below(3) ? 1000 : 1 + below(6),
                                   .row_ns = below(4) ? uniform() * 100 : 0,
                                   .expert_ns = 1 + (below(4) ? uniform() * 1000 : 0),
                                   .send_ns = below(4) ? uniform() * 400 : 0};
    w->o.top_k = 1 + below(w->o.experts < MOST_K ? w->o.experts : MOST_K);
    w->o.slots = (w->o.experts + w->o.ranks - 1) / w->o.ranks + below(3);
    w->o.copy_ns = w->copy_ns;
    for (int32_t l = 0; l < w->o.layers; l++) w->copy_ns[l] = below(4) ? pow(10, uniform() * 5) : 0;
    if (below(2)) w->o.distance = w->distance;
    for (int32_t i = 0; i < w->o.ranks * w->o.ranks; i++) w->distance[i] = below(5);
    draw_layout(w);
    draw_calls(w);
}

/* A layout whose slots are in any order, with gaps. */
static cot_expert_layout layout_of(const world *w)
{
    cot_expert_layout layout;
    cot_expert_map map;
    cot_error error;
    const int32_t room = w->o.slots + 1, shift = below(room);
    assert_int_equal(cot_expert_map_new(&map, w->o.layers, w->o.experts, w->o.ranks, room, &error), COT_OK);
    for (int32_t l = 0; l < w->o.layers; l++) {
        map.layers[l] = 2 * l + 1;
        for (int32_t r = 0; r < w->o.ranks; r++)
            for (int32_t e = w->o.experts - 1, n = 0; e >= 0; e--)
                if (w->layer[l].has[r][e]) map.expert[(l * w->o.ranks + r) * room + (shift + n++) % room] = e;
    }
    const cot_expert_layout_shape shape = {w->o.layers, w->o.experts, w->o.ranks, map.layers, room};
    assert_int_equal(cot_expert_layout_of_map(&layout, &shape, &map, "a drawn map", &error), COT_OK);
    cot_expert_map_free(&map);
    return layout;
}

/* ---- one plan ---- */

static holder holder_of(const cot_expert_map *map, int32_t l, const world *w)
{
    holder h = {0};
    for (int32_t r = 0; r < w->o.ranks; r++)
        for (int32_t i = 0; i < map->slots_per_rank; i++) {
            const int32_t e = map->expert[(l * map->n_ranks + r) * map->slots_per_rank + i];
            if (e < 0) continue;
            assert_false(h.has[r][e]);
            h.has[r][e] = true;
        }
    return h;
}

static bool is_same(const holder *a, const holder *b, const world *w, int32_t e)
{
    for (int32_t r = 0; r < w->o.ranks; r++)
        if (a->has[r][e] != b->has[r][e]) return false;
    return true;
}

/* `cools` [L][E]: experts that changed less than a cool-down ago; `saved`: moves that earlier cycles left. Returns how many it makes, and
 * counts what the plan's layers became of. */
static int64_t check_plan(const cot_rebalance_plan *plan, const world *w, const bool *cools, double horizon,
                          int64_t saved, int *reasons)
{
    const int32_t E = w->o.experts;
    int64_t all = 0, come = 0, drops = 0;
    double before = 0, saving = 0;
    assert_true(fabs(plan->horizon_steps - horizon) <= 1e-9 * horizon);
    for (int32_t l = 0; l < w->o.layers; l++) {
        const holder *from = &w->layer[l], to = holder_of(&plan->to, l, w);
        const cot_rebalance_layer *told = &plan->layer[l];
        const double ns = step_ns(from, w, l), then = step_ns(&to, w, l);
        const int32_t n = copies(from, &to, w), gone = copies(&to, from, w), most = moves(from, &to, w);
        double calls = 0;
        bool any_cools = false, moved = false;
        assert_int_equal(plan->to.layers[l], 2 * l + 1);
        assert_true(is_good(&to, w));
        reasons[told->reason]++;
        for (int32_t e = 0; e < E; e++) {
            const bool same = is_same(from, &to, w, e);
            calls += w->calls[l * E + e];
            any_cools |= cools[l * E + e];
            moved |= !same;
            assert_int_equal(plan->changes[l * E + e], !same);
            assert_true(same || !cools[l * E + e]);
        }
        all += most;
        come += n;
        drops += gone;
        assert_int_equal(moved, told->reason == COT_REBALANCE_MOVES);
        assert_int_equal(told->reason == COT_REBALANCE_FEW, calls < COT_REBALANCE_LEAST_CALLS * (double)E);
        if (told->reason == COT_REBALANCE_FEW) continue;
        before += ns;
        assert_true(fabs(told->before_ns - ns) <= 1e-9 * ns);
        if (moved) {
            saving += ns - then;
            assert_int_equal(told->moves, most);
            assert_true(fabs(told->after_ns - then) <= 1e-9 * ns);
            assert_true(then < ns &&
                        (ns - then) * horizon >= w->o.margin * most * w->copy_ns[l] * (1 - 1e-6));
            if (w->copy_ns[l] == 0 && w->o.moves_a_cycle == 1000 && !any_cools)
                check_none_pays(&to, w, l, horizon, true);
        }
        if (told->reason == COT_REBALANCE_LIMIT)
            assert_true(w->o.moves_a_cycle < 1000 && told->after_ns < ns);
        if (told->reason == COT_REBALANCE_COOLING) assert_true(any_cools);
        if (told->reason == COT_REBALANCE_COST) check_none_pays(from, w, l, horizon, false);
        if (told->reason == COT_REBALANCE_LEAST && any_cools) check_none_pays(from, w, l, horizon, false);
        if (told->reason == COT_REBALANCE_LEAST && !any_cools) check_none_pays(from, w, l, horizon, true);
    }
    assert_true(all <= w->o.moves_a_cycle + saved);
    assert_int_equal(plan->copies, come);
    assert_int_equal(plan->drops, drops);
    assert_true(fabs(plan->before_ns - before) <= 1e-9 * before &&
                fabs(plan->saving_ns - saving) <= 1e-9 * before);
    return all;
}

static void check_again(const cot_rebalance_plan *plan, const cot_rebalance *r,
                        const cot_expert_layout *layout, const cot_rebalance_seen *seen,
                        cot_rebalance_clock now)
{
    cot_rebalance_plan again;
    cot_error error;
    assert_int_equal(cot_rebalance_plan_open(&again, r, layout, seen, now, &error), COT_OK);
    assert_memory_equal(again.to.expert, plan->to.expert,
                        (size_t)(plan->layers * plan->to.n_ranks * plan->to.slots_per_rank) *
                            sizeof *plan->to.expert);
    cot_rebalance_plan_close(&again);
}

/* ---- histories ---- */

/* Cycles one after another, at odd times, some of them dry: the last changes are kept here, by the oracle's own layouts. */
static void run_history(world *w, int *reasons)
{
    cot_rebalance r;
    cot_error error;
    int64_t steps = below(1000), changed[MOST_L * MOST_E], last = steps, saved = 0;
    for (int i = 0; i < MOST_L * MOST_E; i++) changed[i] = INT64_MIN / 2;
    assert_int_equal(cot_rebalance_open(&r, &w->o, (cot_rebalance_clock){steps, 7}, &error), COT_OK);
    for (int cycle = 0; cycle < 6; cycle++) {
        steps += below((int32_t)(2 * w->o.interval_steps));
        const cot_rebalance_clock now = {steps, 7 + below(1000)};
        assert_int_equal(cot_rebalance_due(&r, now), steps - last >= w->o.interval_steps);
        bool cools[MOST_L * MOST_E];
        for (int i = 0; i < w->o.layers * w->o.experts; i++)
            cools[i] = steps - changed[i] < w->o.cool_down * w->o.interval_steps;
        cot_expert_layout layout = layout_of(w);
        const cot_rebalance_seen seen = {w->calls, w->steps, w->tokens, w->experts, w->home};
        cot_rebalance_plan plan;
        assert_int_equal(cot_rebalance_plan_open(&plan, &r, &layout, &seen, now, &error), COT_OK);
        const int64_t made =
            check_plan(&plan, w, cools, (double)(w->o.cool_down * w->o.interval_steps), saved, reasons);
        check_again(&plan, &r, &layout, &seen, now);
        if (below(5)) {
            for (int32_t l = 0; l < w->o.layers; l++) {
                const holder to = holder_of(&plan.to, l, w);
                for (int32_t e = 0; e < w->o.experts; e++)
                    if (!is_same(&w->layer[l], &to, w, e)) changed[l * w->o.experts + e] = steps;
                w->layer[l] = to;
            }
            cot_rebalance_adopt(&r, &plan, now);
            last = steps;
            saved = saved - made < 0 ? w->o.moves_a_cycle + saved - made : w->o.moves_a_cycle;
        }
        cot_rebalance_plan_close(&plan);
        cot_expert_layout_free(&layout);
        if (below(2)) draw_calls(w);
    }
    cot_rebalance_close(&r);
}

static void run_histories(cot_rebalance_mode mode, int n)
{
    int reasons[COT_REBALANCE_REASONS] = {0};
    for (int i = 0; i < n; i++) {
        world w;
        draw_world(&w, mode);
        run_history(&w, reasons);
    }
    assert_true(reasons[COT_REBALANCE_MOVES] > 0);
    for (int i = 0; i < COT_REBALANCE_REASONS; i++)
        print_message("%s: %d\n", cot_rebalance_reason_names[i], reasons[i]);
}

static void test_load(void **state)
{
    (void)state;
    run_histories(COT_REBALANCE_LOAD, 120);
}

static void test_joint(void **state)
{
    (void)state;
    run_histories(COT_REBALANCE_JOINT, 60);
}

/* ---- what is known beforehand ---- */

static world two_ranks(void)
{ // expert 0 has all there is to do
    world w = {.o = {.mode = COT_REBALANCE_LOAD,
                     .layers = 1,
                     .experts = 2,
                     .ranks = 2,
                     .top_k = 1,
                     .slots = 2,
                     .interval_steps = 10,
                     .cool_down = 4,
                     .margin = 2,
                     .moves_a_cycle = 64,
                     .row_ns = 1},
               .calls = {200, 0},
               .steps = 2};
    w.layer[0].has[0][0] = w.layer[0].has[1][1] = true;
    return w;
}

/* A replica halves what rank 0 takes, 50 ns of 100 a step, 2000 ns in 40 steps: it may cost 1000. */
static void test_margin(void **state)
{
    (void)state;
    for (int dear = 0; dear < 2; dear++) {
        world w = two_ranks();
        cot_rebalance r;
        cot_rebalance_plan plan;
        cot_error error;
        w.copy_ns[0] = dear ? 1001 : 999;
        w.o.copy_ns = w.copy_ns;
        cot_expert_layout layout = layout_of(&w);
        assert_int_equal(cot_rebalance_open(&r, &w.o, (cot_rebalance_clock){0}, &error), COT_OK);
        const cot_rebalance_seen seen = {w.calls, w.steps, 0, NULL, NULL};
        assert_int_equal(
            cot_rebalance_plan_open(&plan, &r, &layout, &seen, (cot_rebalance_clock){10, 0}, &error), COT_OK);
        assert_int_equal(plan.layer[0].reason, dear ? COT_REBALANCE_COST : COT_REBALANCE_MOVES);
        assert_int_equal(plan.copies, !dear);
        assert_int_equal(plan.layer[0].moves, 1);
        assert_true(plan.layer[0].before_ns == 100 && plan.layer[0].after_ns == 50);
        cot_rebalance_plan_close(&plan);
        cot_rebalance_close(&r);
        cot_expert_layout_free(&layout);
    }
}

/* Of two moves a cycle one goes to each layer: the first saves 50 ns by one, the second 40 and 20 by two, which are more
 * together. */
static void test_what_pays_most_for_a_move(void **state)
{
    (void)state;
    world w = two_ranks();
    cot_rebalance r;
    cot_rebalance_plan plan;
    cot_error error;
    w.o.layers = 2;
    w.o.experts = 4;
    w.o.slots = 3;
    w.o.moves_a_cycle = 2;
    w.o.copy_ns = w.copy_ns;
    memcpy(w.calls, (double[]){200, 0, 0, 0, 80, 80, 80, 0}, 8 * sizeof *w.calls);
    memset(w.layer, 0, sizeof w.layer);
    for (int32_t e = 0; e < 4; e++) w.layer[0].has[e / 2][e] = w.layer[1].has[e / 3][e] = true;
    cot_expert_layout layout = layout_of(&w);
    assert_int_equal(cot_rebalance_open(&r, &w.o, (cot_rebalance_clock){0}, &error), COT_OK);
    const cot_rebalance_seen seen = {w.calls, w.steps, 0, NULL, NULL};
    assert_int_equal(cot_rebalance_plan_open(&plan, &r, &layout, &seen, (cot_rebalance_clock){10, 0}, &error),
                     COT_OK);
    assert_int_equal(plan.layer[0].moves, 1);
    assert_int_equal(plan.layer[1].moves, 1);
    assert_true(plan.layer[0].before_ns == 100 && plan.layer[0].after_ns == 50);
    assert_true(plan.layer[1].before_ns == 120 && plan.layer[1].after_ns == 80);
    cot_rebalance_plan_close(&plan);
    cot_rebalance_close(&r);
    cot_expert_layout_free(&layout);
}

/* Ten experts of one rank of two could go to the other: of two moves a cycle the first makes two; where a cycle has made none the next
 * makes four, and no more where two have. */
static void test_moves_that_a_cycle_leaves(void **state)
{
    (void)state;
    for (int idle = 0; idle < 3; idle++) {
        world w = two_ranks();
        cot_rebalance r;
        cot_rebalance_plan plan;
        cot_error error;
        w.o.experts = w.o.slots = 10;
        w.o.moves_a_cycle = 2;
        w.o.copy_ns = w.copy_ns;
        memset(w.layer, 0, sizeof w.layer);
        for (int32_t e = 0; e < 10; e++) {
            w.layer[0].has[0][e] = true;
            w.calls[e] = 100 + e;
        }
        cot_expert_layout layout = layout_of(&w);
        assert_int_equal(cot_rebalance_open(&r, &w.o, (cot_rebalance_clock){0}, &error), COT_OK);
        const double none[MOST_L * MOST_E] = {0};
        for (int cycle = 0; cycle <= idle; cycle++) {
            const cot_rebalance_seen seen = {cycle < idle ? none : w.calls, w.steps, 0, NULL, NULL};
            const cot_rebalance_clock now = {10 * (cycle + 1), 0};
            assert_int_equal(cot_rebalance_plan_open(&plan, &r, &layout, &seen, now, &error), COT_OK);
            assert_int_equal(plan.layer[0].moves, cycle < idle ? 0 : idle ? 4 : 2);
            cot_rebalance_adopt(&r, &plan, now);
            cot_rebalance_plan_close(&plan);
        }
        cot_rebalance_close(&r);
        cot_expert_layout_free(&layout);
    }
}

/* By time alone, and by whichever comes first; what moves stays for as many steps as there are in that time. */
static void test_time(void **state)
{
    (void)state;
    world w = two_ranks();
    cot_rebalance r;
    cot_rebalance_plan plan;
    cot_error error;
    w.o.copy_ns = w.copy_ns;
    w.o.interval_ns = 1000;
    cot_expert_layout layout = layout_of(&w);
    const cot_rebalance_seen seen = {w.calls, w.steps, 0, NULL, NULL};
    assert_int_equal(cot_rebalance_open(&r, &w.o, (cot_rebalance_clock){5, 50}, &error), COT_OK);
    assert_false(cot_rebalance_due(&r, (cot_rebalance_clock){14, 1049}));
    assert_true(cot_rebalance_due(&r, (cot_rebalance_clock){15, 60}));
    assert_true(cot_rebalance_due(&r, (cot_rebalance_clock){6, 1050}));
    assert_int_equal(
        cot_rebalance_plan_open(&plan, &r, &layout, &seen, (cot_rebalance_clock){8, 1050}, &error), COT_OK);
    assert_true(plan.horizon_steps == 4 * 3);
    cot_rebalance_plan_close(&plan);
    assert_int_equal(
        cot_rebalance_plan_open(&plan, &r, &layout, &seen, (cot_rebalance_clock){25, 1050}, &error), COT_OK);
    assert_true(plan.horizon_steps == 4 * 10);
    cot_rebalance_plan_close(&plan);
    cot_rebalance_close(&r);
    w.o.interval_steps = 0;
    assert_int_equal(cot_rebalance_open(&r, &w.o, (cot_rebalance_clock){5, 50}, &error), COT_OK);
    assert_false(cot_rebalance_due(&r, (cot_rebalance_clock){INT32_MAX, 1049}));
    assert_true(cot_rebalance_due(&r, (cot_rebalance_clock){5, 1050}));
    cot_rebalance_close(&r);
    cot_expert_layout_free(&layout);
}

static void refuses(const cot_rebalance_options *o, const char *why)
{
    cot_rebalance r;
    cot_error error;
    assert_int_equal(cot_rebalance_open(&r, o, (cot_rebalance_clock){0}, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, why)) fail_msg("'%s' lacks '%s'", error.message, why);
    cot_rebalance_close(&r);
}

static void test_refused(void **state)
{
    (void)state;
    world w = two_ranks();
    w.o.copy_ns = w.copy_ns;
    cot_rebalance_options o = w.o;
    o.interval_steps = 0;
    refuses(&o, "an interval of 0 steps and 0 ns");
    o = w.o;
    o.ranks = 65;
    refuses(&o, "65 ranks");
    o = w.o;
    o.mode = COT_REBALANCE_OFF;
    refuses(&o, "off");
    o = w.o;
    o.slots = 0;
    refuses(&o, "0 slots");
    o = w.o;
    o.cool_down = 0;
    refuses(&o, "cool-down of 0");
    o = w.o;
    o.row_ns = -1;
    refuses(&o, "times");
    o = w.o;
    const double far[4] = {0, INFINITY, 1, 0};
    o.distance = far;
    refuses(&o, "distances");

    cot_rebalance r;
    cot_rebalance_plan plan;
    cot_error error;
    const cot_rebalance_seen seen = {w.calls, w.steps, 0, NULL, NULL};
    w.o.ranks = w.o.experts = 3;
    w.layer[0].has[2][2] = true;
    o = w.o;
    o.slots = 1;
    assert_int_equal(cot_rebalance_open(&r, &o, (cot_rebalance_clock){0}, &error), COT_OK);
    w.layer[0].has[0][1] = w.layer[0].has[0][2] = true; // two more than slots
    cot_expert_layout layout = layout_of(&w);
    assert_int_equal(cot_rebalance_plan_open(&plan, &r, &layout, &seen, (cot_rebalance_clock){10, 0}, &error),
                     COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "rank 0 has more than 2 experts of layer 1"));
    cot_rebalance_plan_close(&plan);
    layout.n_ranks = 4;
    assert_int_equal(cot_rebalance_plan_open(&plan, &r, &layout, &seen, (cot_rebalance_clock){10, 0}, &error),
                     COT_INVALID_ARGUMENT);
    cot_rebalance_plan_close(&plan);
    cot_expert_layout_free(&layout);
    cot_rebalance_close(&r);
}

/* What things are found to take counts as if it had been given at first; what cannot be changes nothing. */
static void test_learnt(void **state)
{
    (void)state;
    world w = two_ranks();
    cot_rebalance r;
    cot_error error;
    const double dear[] = {1001}, cheap[] = {999}, wrong[] = {NAN};
    const cot_rebalance_seen seen = {w.calls, w.steps, 0, NULL, NULL};
    w.copy_ns[0] = 1001;
    w.o.copy_ns = w.copy_ns;
    cot_expert_layout layout = layout_of(&w);
    assert_int_equal(cot_rebalance_open(&r, &w.o, (cot_rebalance_clock){0}, &error), COT_OK);
    const struct {
        cot_rebalance_costs costs;
        double before_ns;
        bool taken, moves;
    } tries[] = {{{w.o.row_ns, w.o.expert_ns, w.o.send_ns, cheap}, 100, true, true},
                 {{w.o.row_ns, w.o.expert_ns, w.o.send_ns, wrong}, 100, false, true},
                 {{-1, w.o.expert_ns, w.o.send_ns, dear}, 100, false, true},
                 {{w.o.row_ns, w.o.expert_ns, w.o.send_ns, dear}, 100, true, false},
                 {{2 * w.o.row_ns, 2 * w.o.expert_ns, w.o.send_ns, dear}, 200, true, true}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        cot_rebalance_plan plan;
        assert_int_equal(cot_rebalance_learn(&r, &tries[i].costs, &error) == COT_OK, tries[i].taken);
        assert_int_equal(
            cot_rebalance_plan_open(&plan, &r, &layout, &seen, (cot_rebalance_clock){10, 0}, &error), COT_OK);
        assert_int_equal(plan.copies, tries[i].moves);
        assert_true(plan.before_ns == tries[i].before_ns);
        cot_rebalance_plan_close(&plan);
    }
    cot_rebalance_close(&r);
    cot_expert_layout_free(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_load),
                                       cmocka_unit_test(test_joint),
                                       cmocka_unit_test(test_margin),
                                       cmocka_unit_test(test_what_pays_most_for_a_move),
                                       cmocka_unit_test(test_moves_that_a_cycle_leaves),
                                       cmocka_unit_test(test_time),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_learnt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
