/* Replicas that a budget of slots holds: what cycles leave in spare slots, counted from the maps alone, is no more than may be, on the way there too; what is over is
 * emptied; and what slots are worth is what plans say that they save. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "placement/rebalance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_L = 4, MOST_E = 16, MOST_P = 5, MOST_SPARE = 3, CASES = 400, BINS = 8 };

static uint64_t at;
static int32_t below(int32_t n)
{
    return (int32_t)(cot_random_uniform(test_seed(), 41, at++) * n);
}

struct world {
    cot_rebalance_options o;
    double copy_ns[MOST_L], calls[MOST_L * MOST_E];
    int64_t slot_bytes[MOST_L];
    cot_expert_layout layout;
    cot_rebalance r;
    cot_rebalance_seen seen;
};

/* Each rank begins with its share; replicas are drawn into spare slots, and some experts go there from elsewhere. */
static cot_expert_map draw_map(const struct world *w)
{
    const cot_rebalance_options *o = &w->o;
    cot_expert_map map;
    assert_int_equal(cot_expert_map_new(&map, o->layers, o->experts, o->ranks, o->slots, NULL), COT_OK);
    for (int32_t l = 0; l < o->layers; l++) {
        int32_t *row = map.expert + l * o->ranks * o->slots;
        for (int32_t e = 0; e < o->experts; e++) row[e % o->ranks * o->slots + e / o->ranks] = e;
        for (int32_t i = below(o->ranks * (o->slots - o->base) * 2); i > 0; i--) {
            int32_t *const to = row + below(o->ranks) * o->slots, e = below(o->experts);
            int32_t s = 0;
            while (s < o->slots && to[s] >= 0 && to[s] != e) s++;
            if (s == o->slots || to[s] == e) continue;
            to[s] = e;
            for (int32_t k = 0; below(3) == 0 && k < o->ranks * o->slots; k++) // it leaves where it was
                if (row[k] == e && row + k != to + s) {
                    const int32_t rank = k / o->slots;
                    int32_t last = o->slots - 1;
                    while (row[rank * o->slots + last] < 0) last--;
                    row[k] = row[rank * o->slots + last];
                    row[rank * o->slots + last] = -1;
                    break;
                }
        }
    }
    return map;
}

/* Bytes of slots beyond the base that the maps fill; with two, the larger of both of each rank and layer. */
static int64_t spare_of(const struct world *w, const cot_expert_map *a, const cot_expert_map *b)
{
    int64_t bytes = 0;
    for (int32_t l = 0; l < w->o.layers; l++)
        for (int32_t rank = 0; rank < w->o.ranks; rank++) {
            int32_t used[2] = {0};
            for (int32_t s = 0; s < w->o.slots; s++) {
                used[0] += a->expert[(l * w->o.ranks + rank) * w->o.slots + s] >= 0;
                used[1] += b && b->expert[(l * w->o.ranks + rank) * w->o.slots + s] >= 0;
            }
            const int32_t most = used[1] > used[0] ? used[1] : used[0];
            bytes += most > w->o.base ? (most - w->o.base) * w->slot_bytes[l] : 0;
        }
    return bytes;
}

static void assert_all_there(const struct world *w, const cot_expert_map *map)
{
    for (int32_t l = 0; l < w->o.layers; l++)
        for (int32_t e = 0; e < w->o.experts; e++) {
            int32_t n = 0;
            for (int32_t s = 0; s < w->o.ranks * w->o.slots; s++)
                n += map->expert[l * w->o.ranks * w->o.slots + s] == e;
            assert_true(n > 0);
        }
}

static cot_expert_map open_world(struct world *w)
{
    *w = (struct world){.o = {.mode = COT_REBALANCE_LOAD,
                              .layers = 1 + below(MOST_L),
                              .ranks = 2 + below(MOST_P - 1),
                              .top_k = 1,
                              .interval_steps = 100,
                              .cool_down = 1,
                              .margin = 1,
                              .moves_a_cycle = 1 << 20,
                              .row_ns = 1 + below(20),
                              .expert_ns = 1 + below(20)}};
    w->o.experts = w->o.ranks + below(MOST_E - w->o.ranks + 1);
    w->o.base = (w->o.experts + w->o.ranks - 1) / w->o.ranks;
    w->o.slots = w->o.base + 1 + below(MOST_SPARE);
    const int sizes = 1 + below(2);
    for (int32_t l = 0; l < MOST_L; l++) {
        w->slot_bytes[l] = l % 2 < sizes ? 100 : 70;
        w->copy_ns[l] = below(3) * 10;
    }
    w->o.copy_ns = w->copy_ns;
    w->o.slot_bytes = w->slot_bytes;
    for (int32_t i = 0; i < w->o.layers * w->o.experts; i++) w->calls[i] = pow(2, below(8)) * 10 + 10;
    w->seen = (cot_rebalance_seen){.calls = w->calls, .steps = 10 + below(100)};
    cot_expert_map map = draw_map(w);
    int32_t layers[MOST_L] = {0, 1, 2, 3};
    const cot_expert_layout_shape shape = {w->o.layers, w->o.experts, w->o.ranks, layers, w->o.slots};
    memcpy(map.layers, layers, (size_t)w->o.layers * sizeof *layers);
    cot_error error;
    if (cot_expert_layout_of_map(&w->layout, &shape, &map, "the map", &error) != COT_OK)
        fail_msg("%s", error.message);
    if (cot_rebalance_open(&w->r, &w->o, (cot_rebalance_clock){0, 0}, &error) != COT_OK)
        fail_msg("%s", error.message);
    return map;
}

static void close_world(struct world *w, cot_expert_map *map)
{
    cot_rebalance_close(&w->r);
    cot_expert_layout_free(&w->layout);
    cot_expert_map_free(map);
}

static const cot_rebalance_clock now = {100, 1000};

static void a_budget_holds_replicas(void **state)
{
    (void)state;
    int copies = 0, held = 0, only_drops = 0;
    for (int c = 0; c < CASES; c++) {
        struct world w;
        cot_expert_map map = open_world(&w);
        const int64_t filled = spare_of(&w, &map, NULL), more = below(4) * 100;
        cot_rebalance_plan plan, unbound;
        assert_int_equal(cot_rebalance_spare_bytes(&w.r, &w.layout, NULL), filled);
        assert_int_equal(cot_rebalance_plan_open(&unbound, &w.r, &w.layout, &w.seen, now, NULL), COT_OK);
        cot_rebalance_allow(&w.r, filled + more);
        assert_int_equal(cot_rebalance_plan_open(&plan, &w.r, &w.layout, &w.seen, now, NULL), COT_OK);
        const int64_t most = spare_of(&w, &map, &plan.to);
        if (most > filled + more)
            fail_msg("%lld bytes on the way, %lld may be", (long long)most, (long long)(filled + more));
        assert_all_there(&w, &plan.to);
        copies += plan.copies > 0;
        only_drops += plan.drops && !plan.copies && unbound.copies;
        held += spare_of(&w, &map, &unbound.to) > filled + more;
        for (int32_t l = 0; l < w.o.layers; l++)
            assert_true(plan.layer[l].after_ns <= plan.layer[l].before_ns);
        cot_rebalance_plan_close(&plan);
        cot_rebalance_plan_close(&unbound);
        close_world(&w, &map);
    }
    assert_true(copies > CASES / 10 && held > CASES / 10 && only_drops > 0);
}

static void what_is_over_is_emptied(void **state)
{
    (void)state;
    int emptied = 0, moved = 0;
    for (int c = 0; c < CASES; c++) {
        struct world w;
        cot_expert_map map = open_world(&w);
        const int64_t filled = spare_of(&w, &map, NULL), may = filled * below(4) / 4;
        cot_rebalance_plan plan;
        cot_rebalance_allow(&w.r, may);
        assert_int_equal(cot_rebalance_plan_emptying(&plan, &w.r, &w.layout, &w.seen, now, NULL), COT_OK);
        const int64_t left = spare_of(&w, &plan.to, NULL);
        assert_true(left <= may && left >= may - 99 * (left < filled)); // and no slot more
        assert_int_equal(spare_of(&w, &map, &plan.to), filled);
        assert_all_there(&w, &plan.to);
        emptied += left < filled;
        moved += plan.copies > 0;
        cot_rebalance_plan_close(&plan);
        close_world(&w, &map);
    }
    assert_true(emptied > CASES / 4 && moved > 0);
}

static double saved_by(struct world *w, int64_t bytes)
{
    cot_rebalance_plan plan;
    cot_rebalance_allow(&w->r, bytes);
    assert_int_equal(cot_rebalance_plan_emptying(&plan, &w->r, &w->layout, &w->seen, now, NULL), COT_OK);
    const double saved = plan.saving_ns;
    cot_rebalance_plan_close(&plan);
    return saved;
}

static void slots_are_worth_what_plans_save(void **state)
{
    (void)state;
    int rises = 0;
    for (int c = 0; c < CASES; c++) {
        struct world w;
        cot_expert_map map = open_world(&w);
        const int64_t filled = spare_of(&w, &map, NULL),
                      all = w.o.layers * w.o.ranks * (w.o.slots - w.o.base) * 100;
        const double bin = (double)all / BINS, close = 1e-6;
        const int bins_now = (int)ceil((double)filled / bin);
        double ns[BINS + 1], least = -INFINITY;
        cot_rebalance_allow(&w.r, filled);
        assert_int_equal(cot_rebalance_worth(ns, BINS, bin, &w.r, &w.layout, &w.seen, now, NULL), COT_OK);
        for (int i = 0; i < bins_now; i++) {
            least = fmax(least, saved_by(&w, (int64_t)(i * bin)));
            if (fabs(ns[i] - least) > close)
                fail_msg("%d of %d bins: %g, plans say %g", i, bins_now, ns[i], least);
        }
        assert_true(ns[bins_now] >= 0);
        for (int i = 1; i <= BINS; i++) assert_true(ns[i] >= ns[i - 1]);
        rises += ns[BINS] > ns[bins_now];
        close_world(&w, &map);
    }
    assert_true(rises > CASES / 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_budget_holds_replicas),
                                       cmocka_unit_test(what_is_over_is_emptied),
                                       cmocka_unit_test(slots_are_worth_what_plans_save)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
