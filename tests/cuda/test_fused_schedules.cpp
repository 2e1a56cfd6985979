/* One layer under many drawn schedules, and each word that orders something weakened in turn.
 *   cuda_test_fused_schedules [SCHEDULES]     300 unless told */
#include "fused_variants.h"

extern "C" {
#include "harness/seed.h"
}

#include <cstdio>

using emulate::Fault;

static int schedules = 300;

/* Ranks, blocks, devices, combine and rounding drawn; in each rounding `exact` has the same bits every time. */
static void many_schedules(void **)
{
    struct draw draw = {test_seed(), 10, 0};
    for (const Variant *v : {&variants[4], &variants[6]}) {
        struct world w = world_of(*v, 11, &draw);
        std::vector<float> bits[static_cast<int>(emulate::Rounding::COUNT)];
        for (int i = 0; i < schedules / 2; i++) {
            const int ranks = 1 + static_cast<int>(draw_below(&draw, 3));
            const struct plan p = i % 2 ? plan_drawn(&w, ranks, &draw) : plan_replicated(&w, ranks, &draw);
            Grid grid = even_grid(ranks, 1);
            grid.blocks[static_cast<size_t>(draw_below(&draw, ranks))] +=
                static_cast<int>(draw_below(&draw, 2));
            grid.devices = draw_below(&draw, 2);
            const bool reduced = draw_below(&draw, 3) == 0;
            w.options.combine = reduced ? COT_COMBINE_REDUCED : COT_COMBINE_EXACT;
            w.options.combine_type = reduced ? COT_F32 : v->type;
            emulate::Options options = seeded(test_seed() + static_cast<uint64_t>(i));
            options.rounding = static_cast<emulate::Rounding>(i % 3);
            Layer layer(w, p, grid);
            expect_none(layer.launch(options));
            const Outcome o = layer.outcome();
            outcome_agrees(o.get(), &w, &p);
            const size_t h = static_cast<size_t>(w.options.expert.hidden);
            std::vector<float> y(static_cast<size_t>(w.tokens) * h);
            for (size_t t = 0; t < static_cast<size_t>(w.tokens); t++)
                memcpy(y.data() + static_cast<size_t>(p.order[t]) * h, o->y + t * h, h * sizeof(float));
            if (reduced) continue;
            std::vector<float> &before = bits[i % 3];
            if (before.empty()) before = y;
            assert_memory_equal(y.data(), before.data(), y.size() * sizeof(float));
        }
        world_free(&w);
    }
    printf("%d schedules\n", schedules / 2 * 2);
}

/* On one device or, every other time, on two. */
static Grid grid_of_seed(int ranks, uint64_t seed)
{
    Grid grid = even_grid(ranks, 1);
    grid.devices = seed % 2;
    return grid;
}

/* A silent rank is named by all that wait for it, within twice the time-out, and nobody stays. */
static uint64_t failure_of_call(const struct world &w, const struct plan &p, const char *mutant,
                                uint64_t seed, emulate::Result &result)
{
    Layer layer(w, p, grid_of_seed(p.ranks, seed));
    result = layer.launch(seeded(seed, mutant));
    const uint64_t failure = *layer.call.fabric.failure;
    if (result.fault == Fault::NONE && failure) {
        const uint64_t none = 0;
        layer.session.write(layer.call.fabric.failure, &none, 8);
        for (cot::fused_rank &r : layer.ranks) { // the host makes whole what a silent rank left behind
            cot::fused_state state = {};
            state.epoch = 1, state.unsound = ~0u;
            layer.session.write(r.state, &state, sizeof state);
        }
        expect_none(layer.launch(seeded(seed)));
        const Outcome o = layer.outcome();
        outcome_agrees(o.get(), &w, &p);
    }
    return failure;
}

static void a_silent_rank_and_lost_signals_are_named(void **)
{
    struct draw draw = {test_seed(), 11, 0};
    struct world w = world_of(variants[1], 9, &draw);
    const struct plan p = plan_even(&w, 3);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        emulate::Result result;
        uint64_t failure = failure_of_call(w, p, "fused_rank_1_is_silent", seed, result);
        expect_none(result);
        assert_int_equal(failure >> 48 & 0xff, 1);
        assert_int_equal(failure >> 40 & 0xff, cot::PHASE_DISPATCH);
        assert_int_equal(failure & 0xffffffffff, 1);
        failure = failure_of_call(w, p, "fused_final_is_lost", seed, result);
        expect_none(result);
        /* Rank 1 waits for a packet of rank 0, which waits for the answer to it: either may say so first. */
        assert_true((failure >> 48 & 0xff) <= 1);
        assert_int_equal(failure & 0xffffffffff, 1);
        failure = failure_of_call(w, p, "fused_reply_is_lost", seed, result);
        expect_none(result);
        assert_int_equal(failure >> 56 & 0x7f, 2);
        assert_int_equal(failure >> 48 & 0xff, 1);
        assert_int_equal(failure >> 40 & 0xff, cot::PHASE_COMBINE);
        assert_int_equal(failure & 0xffffffffff, 1);
    }
    world_free(&w);
}

/* Who does not look at the clock, or at what others say of it, stays for ever where a rank is silent. */
static void waits_that_are_not_bounded(void **)
{
    struct draw draw = {test_seed(), 13, 0};
    struct world w = world_of(variants[1], 9, &draw);
    const struct plan p = plan_even(&w, 3);
    for (const char *mutant : {"fabric_timeout fused_rank_1_is_silent", "queue_watch fused_rank_1_is_silent",
                               "schedule_watch fused_rank_1_is_silent"})
        for (uint64_t seed = 1; seed <= 3; seed++) {
            Layer layer(w, p, grid_of_seed(3, seed));
            expect(layer.launch(seeded(seed, mutant)), Fault::DEADLOCK, "polling");
        }
    world_free(&w);
}

/* A subscriber whose tasks nobody takes, since another rank has failed and all processors have left. */
static void subscriber_alone(cot_cuda_fused call)
{
    unsigned char *const memory = static_cast<unsigned char *>(emulate::shared_memory());
    cot::fused_warp<cot::scope::gpu> w = {
        call, call.ranks[0], call.fabric, 1, reinterpret_cast<cot::fused_shared *>(memory), memory, 80, 0};
    cot::arrivals in = {};
    if (cot::lane_of_warp() == 0) in.units[0] = 2;
    call.ranks[0].y[threadIdx.x] = cot::run_units(w, in, 2, false);
}

static void tasks_that_nobody_takes(void **)
{
    struct draw draw = {test_seed(), 16, 0};
    struct world w = world_of(variants[4], 80, &draw);
    const struct plan p = plan_even(&w, 2);
    Layer layer(w, p, even_grid(2, 1));
    const uint64_t failure = 1;
    layer.session.write(layer.call.fabric.failure, &failure, sizeof failure);
    const emulate::Shape one_warp = {1, 32, sizeof(cot::fused_shared)};
    expect_none(emulate::launch(one_warp, seeded(test_seed()), subscriber_alone, layer.call));
    for (int i = 0; i < 32; i++) assert_true(layer.ranks[0].y[i] == 0);
    expect(emulate::launch(one_warp, seeded(test_seed(), "subscribe_watch"), subscriber_alone, layer.call),
           Fault::DEADLOCK, "polling");
    world_free(&w);
}

/* Processors that take tickets early though there are as many as tasks hold places that are empty, and are right all the same; were they
 * to wait for them, each would wait for what follows from another's task in hand. */
static void early_tickets_are_not_waited_for(void **)
{
    struct draw draw = {test_seed(), 15, 0};
    struct world w = world_of(variants[4], 11, &draw);
    int rings = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        const int ranks = 1 + static_cast<int>(seed % 2);
        const struct plan p = plan_even(&w, ranks);
        const Grid grid = even_grid(ranks, 2 + static_cast<int>(seed / 4));
        Layer layer(w, p, grid), waiting(w, p, grid);
        emulate::Result r = layer.launch(seeded(seed, "queue_dry"));
        expect_none(r);
        assert_true(r.counters.mutant_reached > 0);
        const Outcome o = layer.outcome();
        outcome_agrees(o.get(), &w, &p);
        r = waiting.launch(seeded(seed, "queue_dry queue_peek"));
        rings += r.fault == Fault::DEADLOCK;
    }
    printf("rings of processors in %d of 12 schedules\n", rings);
    assert_true(rings > 0);
    world_free(&w);
}

/* WIDE: of more than one part of columns. ALONE: one rank. UNITS: likewise, with entries that enter by tasks. */
static void each_weakening_is_found(void **)
{
    enum Layer_kind { PLAIN, REDUCED, WIDE, ALONE, UNITS };
    static const struct {
        const char *name;
        Layer_kind kind;
    } mutants[] = {

        {"schedule_tiles_in_turn", REDUCED},
        {"queue_count", WIDE},
        {"process_part_by_all", PLAIN},
        {"process_last_for_all", PLAIN},

        {"process_packet_before_rows", PLAIN},
        {"process_rows_before_signal", PLAIN},
        {"process_done_by_all", PLAIN},
        {"process_product_done_by_all", PLAIN},
        {"process_columns_count", ALONE},
        {"process_columns_for_all", ALONE},
        {"queue_lanes_before_tasks", PLAIN},
        {"queue_release", PLAIN},
        {"queue_acquire", PLAIN},
        {"queue_task_for_all", PLAIN},
        {"queue_end_release", PLAIN},
        {"queue_dry queue_ahead_acquire", WIDE},
        {"subscribe_tiles_before_news", PLAIN},
        {"subscribe_release", PLAIN},
        {"subscribe_counts_before_sums", PLAIN},
        {"subscribe_sums_before_rows", PLAIN},
        {"subscribe_lanes_before_looks", PLAIN},
        {"subscribe_units_acquire", UNITS},
        {"subscribe_gated", PLAIN},
        {"subscribe_dispatch_acquire", PLAIN},
        {"subscribe_reply_acquire", PLAIN},
        {"subscribe_lanes_after_signal", PLAIN},
        {"schedule_gated", PLAIN},
        {"schedule_acquire", PLAIN},
        {"schedule_acquire_all", PLAIN},
        {"schedule_news", PLAIN},
        {"schedule_lanes_after_event", PLAIN},
        {"fabric_raise", PLAIN},
        {"fused_first_barrier", PLAIN},
        {"tile_wait_group", PLAIN},
        {"tile_barrier", PLAIN},
        {"tile_sums_slot", PLAIN}};
    struct draw draw = {test_seed(), 12, 0};
    struct world plain = world_of(variants[4], 11, &draw), many = world_of(variants[4], 40, &draw),
                 wide = world_of(variants[10], 11, &draw);
    int missed = 0;
    printf("%-32s %-10s %s\n", "weakened", "schedules", "found as");
    for (const auto &m : mutants) {
        struct world &w = m.kind == WIDE ? wide : m.kind == UNITS ? many : plain;
        emulate::Result r;
        uint64_t seed = 0, reached = 0;
        do {
            if (seed && seed % 10 == 0) { // routing in which this cannot show, whatever the schedule
                world_free(&w);
                w = world_of(variants[m.kind == WIDE ? 10 : 4], m.kind == UNITS ? 40 : 11, &draw);
            }
            const struct plan p = plan_even(&w, m.kind == ALONE || m.kind == UNITS ? 1 : 2);
            w.options.combine = m.kind == REDUCED ? COT_COMBINE_REDUCED : COT_COMBINE_EXACT;
            w.options.combine_type = m.kind == REDUCED ? COT_F32 : COT_BF16;
            Layer layer(w, p,
                        m.kind == REDUCED ? even_grid(2, 8)
                        : p.ranks == 1    ? even_grid(1, 3)
                                          : Grid{{1, 2}, false});
            r = layer.launch(seeded(++seed, m.name));
            reached += r.counters.mutant_reached;
        } while (r.fault == Fault::NONE && seed < 50);
        missed += r.fault == Fault::NONE;
        printf("%-32s %-10d %s\n", m.name, static_cast<int>(seed), emulate::name_of(r.fault));
        assert_true(reached > 0);
    }
    world_free(&plain);
    world_free(&many);
    world_free(&wide);
    assert_int_equal(missed, 0);
    /* Processors that find nothing to do but leave have told nobody else that they have read the epoch: there are more of them than
     * tasks on one rank at least, wherever the token goes. */
    struct world one = world_of(variants[4], 1, &draw);
    const struct plan alone = plan_even(&one, 2);
    for (uint64_t seed = 1;; seed++) {
        Layer layer(one, alone, {{10, 10}, false});
        const emulate::Result r = layer.launch(seeded(seed, "fused_leave"));
        if (r.fault != Fault::NONE || seed == 50) {
            printf("%-32s %-10d %s\n", "fused_leave", static_cast<int>(seed), emulate::name_of(r.fault));
            assert_true(r.fault == Fault::RACE);
            break;
        }
    }
    world_free(&one);
}

int main(int argc, char **argv)
{
    if (argc > 1) schedules = atoi(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_weakening_is_found),
        cmocka_unit_test(a_silent_rank_and_lost_signals_are_named),
        cmocka_unit_test(waits_that_are_not_bounded),
        cmocka_unit_test(tasks_that_nobody_takes),
        cmocka_unit_test(early_tickets_are_not_waited_for),
        cmocka_unit_test(many_schedules),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
