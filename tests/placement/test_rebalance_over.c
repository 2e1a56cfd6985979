/* Layouts that moves left which were cut off: a rank has one expert more than slots, in that through which experts come. Cycles take it away, whatever
 * else is there, and go on as ever. What they do is counted from lists of who has what. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "placement/rebalance.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_L = 3, MOST_E = 12, MOST_P = 5, MOST_SLOTS = MOST_E, CASES = 2000 };

static uint64_t at;
static int32_t below(int32_t n)
{
    return (int32_t)(cot_random_uniform(test_seed(), 43, at++) * n);
}

struct world {
    cot_rebalance_options o;
    double copy_ns[MOST_L], calls[MOST_L * MOST_E];
    int64_t slot_bytes[MOST_L];
    bool has[MOST_L][MOST_P][MOST_E];
    int32_t layers[MOST_L];
};

static int32_t experts_of(const struct world *w, int32_t l, int32_t rank)
{
    int32_t n = 0;
    for (int32_t e = 0; e < w->o.experts; e++) n += w->has[l][rank][e];
    return n;
}

static int32_t ranks_of(const struct world *w, int32_t l, int32_t e)
{
    int32_t n = 0;
    for (int32_t rank = 0; rank < w->o.ranks; rank++) n += w->has[l][rank][e];
    return n;
}

static bool is_over(const struct world *w)
{
    bool over = false;
    for (int32_t l = 0; l < w->o.layers; l++)
        for (int32_t rank = 0; rank < w->o.ranks; rank++) over |= experts_of(w, l, rank) > w->o.slots;
    return over;
}

/* Slots beyond the base, by bytes: what both worlds fill on the way from one to the other. */
static int64_t spare_of(const struct world *w, const struct world *other)
{
    int64_t bytes = 0;
    for (int32_t l = 0; l < w->o.layers; l++)
        for (int32_t rank = 0; rank < w->o.ranks; rank++) {
            const int32_t a = experts_of(w, l, rank), b = experts_of(other, l, rank), most = a > b ? a : b;
            if (most > w->o.base) bytes += (most - w->o.base) * w->slot_bytes[l];
        }
    return bytes;
}

/* An expert comes to a rank that has no more than so many, too or in place of where it was. */
static void draw_copy(struct world *w, int32_t l, int32_t most)
{
    const int32_t e = below(w->o.experts), to = below(w->o.ranks), from = below(w->o.ranks);
    if (w->has[l][to][e] || experts_of(w, l, to) >= most) return;
    w->has[l][to][e] = true;
    if (below(2) && w->has[l][from][e] && from != to) w->has[l][from][e] = false;
}

/* A rank has what nobody else has, one more than slots, and all others are full of the rest. */
static void crowd(struct world *w, int32_t l)
{
    const int32_t own = w->o.slots + 1, rest = w->o.experts - own, full = below(w->o.ranks);
    if (rest <= 0) return;
    memset(w->has[l], 0, sizeof w->has[l]);
    for (int32_t e = 0; e < own; e++) w->has[l][full][e] = true;
    for (int32_t rank = 0, next = 0; rank < w->o.ranks; rank++)
        for (int32_t s = 0; rank != full && s < w->o.slots && s < rest; s++)
            w->has[l][rank][own + next++ % rest] = true;
}

static struct world drawn_world(void)
{
    struct world w = {.o = {.mode = COT_REBALANCE_LOAD,
                            .layers = 1 + below(MOST_L),
                            .ranks = 2 + below(MOST_P - 1),
                            .top_k = 1,
                            .interval_steps = 100,
                            .cool_down = 1,
                            .margin = 1,
                            .moves_a_cycle = 1 + below(20),
                            .row_ns = 1,
                            .expert_ns = below(5)}};
    w.o.experts = w.o.ranks + below(MOST_E - w.o.ranks + 1);
    w.o.base = (w.o.experts + w.o.ranks - 1) / w.o.ranks;
    w.o.slots = w.o.base + below(3);
    for (int32_t l = 0; l < w.o.layers; l++) {
        w.layers[l] = l;
        w.slot_bytes[l] = 100;
        for (int32_t e = 0; e < w.o.experts; e++) {
            w.has[l][e % w.o.ranks][e] = true;
            w.calls[l * w.o.experts + e] = below(4) ? 10 * below(100) : 0;
        }
        for (int i = below(60); i > 0; i--) draw_copy(&w, l, w.o.slots);
        for (int i = below(3); i > 0; i--) draw_copy(&w, l, w.o.slots + 1);
        if (!below(8)) crowd(&w, l);
    }
    return w;
}

/* Of a rank's slots there is one more than those of the controller, as in the engine. */
static cot_expert_layout layout_of(struct world *w)
{
    const int32_t slots = w->o.slots + 1;
    cot_expert_map map;
    cot_expert_layout layout;
    cot_error error;
    assert_int_equal(cot_expert_map_new(&map, w->o.layers, w->o.experts, w->o.ranks, slots, NULL), COT_OK);
    memcpy(map.layers, w->layers, (size_t)w->o.layers * sizeof *w->layers);
    for (int32_t l = 0; l < w->o.layers; l++)
        for (int32_t rank = 0; rank < w->o.ranks; rank++)
            for (int32_t e = 0, s = 0; e < w->o.experts; e++)
                if (w->has[l][rank][e]) map.expert[(l * w->o.ranks + rank) * slots + s++] = e;
    const cot_expert_layout_shape shape = {w->o.layers, w->o.experts, w->o.ranks, w->layers, slots};
    if (cot_expert_layout_of_map(&layout, &shape, &map, "the map", &error) != COT_OK)
        fail_msg("%s", error.message);
    cot_expert_map_free(&map);
    return layout;
}

/* The world behind a plan, which has all experts and no rank over its slots. */
static struct world behind(const struct world *w, const cot_rebalance_plan *plan)
{
    struct world then = *w;
    memset(then.has, 0, sizeof then.has);
    for (int32_t l = 0; l < w->o.layers; l++) {
        for (int32_t i = 0; i < w->o.ranks * w->o.slots; i++) {
            const int32_t e = plan->to.expert[l * w->o.ranks * w->o.slots + i];
            if (e >= 0) then.has[l][i / w->o.slots][e] = true;
        }
        for (int32_t e = 0; e < w->o.experts; e++) assert_true(ranks_of(&then, l, e) > 0);
    }
    assert_false(is_over(&then));
    return then;
}

/* Of an over-full rank one goes; layers that have none stay as they are, and no rank fills a spare slot more. */
static void check_returns(const struct world *w, const struct world *then)
{
    if (w->o.slot_bytes) assert_int_equal(spare_of(w, then), spare_of(w, w));
    for (int32_t l = 0; l < w->o.layers; l++) {
        int32_t over = 0, gone = 0;
        for (int32_t rank = 0; rank < w->o.ranks; rank++) {
            over += experts_of(w, l, rank) > w->o.slots;
            for (int32_t e = 0; e < w->o.experts; e++) gone += w->has[l][rank][e] && !then->has[l][rank][e];
        }
        assert_in_range(gone, over, 2 * over); // a replica may make room
        if (!over) assert_memory_equal(w->has[l], then->has[l], sizeof w->has[l]);
    }
}

static void what_was_cut_off_is_made_good(void **state)
{
    (void)state;
    int over = 0, copied = 0;
    for (int c = 0; c < CASES; c++) {
        struct world w = drawn_world();
        const cot_rebalance_seen seen = {.calls = w.calls, .steps = 10};
        const cot_rebalance_clock now = {100, 1000};
        cot_expert_layout layout = layout_of(&w);
        cot_rebalance r;
        cot_rebalance_plan plan;
        cot_error error;
        w.o.copy_ns = w.copy_ns;
        w.o.slot_bytes = below(2) ? w.slot_bytes : NULL;
        w.o.base = w.o.slot_bytes ? w.o.base : 0; // which nobody asks for
        if (cot_rebalance_open(&r, &w.o, (cot_rebalance_clock){0, 0}, &error) != COT_OK)
            fail_msg("%s", error.message);
        if (w.o.slot_bytes && below(2)) cot_rebalance_allow(&r, 100 * below(10));
        const bool emptying = w.o.slot_bytes && below(2);
        if ((emptying ? cot_rebalance_plan_emptying : cot_rebalance_plan_open)(&plan, &r, &layout, &seen, now,
                                                                               &error) != COT_OK)
            fail_msg("%s", error.message);
        const struct world then = behind(&w, &plan);
        if (is_over(&w)) check_returns(&w, &then);
        over += is_over(&w);
        copied += is_over(&w) && plan.copies;
        cot_rebalance_plan_close(&plan);
        cot_rebalance_close(&r);
        cot_expert_layout_free(&layout);
    }
    print_message("%d of %d over, %d where an expert came elsewhere\n", over, CASES, copied);
    assert_true(over > CASES / 4 && copied > CASES / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_cut_off_is_made_good)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
