/* The protocol under drawn schedules: thousands of orders of events, each repeatable from its seed. */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/moe/faulty_fabric.h"
#include "harness/moe/fused_call.h"
#include "harness/moe/fused_sim.h"
#include "harness/moe/fused_watch.h"
#include "harness/moe/plan.h"
#include "harness/moe/world.h"
#include "harness/seed.h"

#include <stdlib.h>

enum { CALLS = 4, STEPS = 6 };

/* A layer of drawn sizes and the calls made of it. */
struct setting {
    struct world world;
    int ranks, threads;
    struct call *calls[CALLS];
};

static int64_t draw_tokens(struct draw *draw, bool large)
{
    const int64_t kind = draw_below(draw, 16);
    if (large) return 513 + draw_below(draw, 300);
    if (kind == 0) return 0;
    return kind < 12 ? 1 + draw_below(draw, 40) : 41 + draw_below(draw, 160);
}

static void open_setting(struct setting *s, int ranks, struct draw *draw)
{
    const bool large = draw_below(draw, 24) == 0;
    const cot_dtype type = draw_below(draw, 2) ? COT_BF16 : COT_F32;
    const int64_t hidden = 4 + draw_below(draw, large ? 3 : 17), experts = 1 + draw_below(draw, 9);
    cot_moe_options options = {.expert = {.type = type,
                                          .gate = cot_format_of(type),
                                          .up = cot_format_of(type),
                                          .down = cot_format_of(type),
                                          .activation = (cot_ffn_activation)draw_below(draw, 3),
                                          .hidden = hidden,
                                          .intermediate = 1 + draw_below(draw, 12),
                                          .biased = draw_below(draw, 2)},
                               .shared = {.type = type,
                                          .gate = cot_format_of(type),
                                          .up = cot_format_of(type),
                                          .down = cot_format_of(type),
                                          .hidden = hidden,
                                          .intermediate = draw_below(draw, 8)},
                               .experts = experts,
                               .top_k = 1 + draw_below(draw, experts < 4 ? experts : 4)};
    const cot_gate rules = {.hidden = hidden,
                            .experts = experts,
                            .top_k = options.top_k,
                            .groups = 1,
                            .group_limit = 1,
                            .scaling = 1,
                            .normalise = true};
    s->world = world_new(&cot_moe_fused, &options, &rules, false, false,
                         options.shared.intermediate && draw_below(draw, 2), 1, draw);
    s->world.options.combine = draw_below(draw, 2) ? COT_COMBINE_EXACT : COT_COMBINE_REDUCED;
    s->world.options.combine_type = draw_below(draw, 2) ? COT_BF16 : COT_F32;
    s->ranks = ranks;
    s->threads = 1 + (int)draw_below(draw, SIM_THREADS);
    for (int i = 0; i < CALLS; i++) {
        s->calls[i] = call_new(&s->world, ranks, draw_tokens(draw, large && i % 2 == 0), draw);
        if (s->world.options.tokens < s->calls[i]->tokens) s->world.options.tokens = s->calls[i]->tokens;
    }
}

static void close_setting(struct setting *s)
{
    for (int i = 0; i < CALLS; i++) call_free(s->calls[i]);
    world_free(&s->world);
}

/* Calls of the setting, of which some have spoilt tokens. */
static void draw_script(struct step *script, const struct setting *s, struct draw *draw)
{
    for (int i = 0; i < STEPS; i++) {
        struct call *call = s->calls[draw_below(draw, CALLS)];
        script[i] = (struct step){.call = call, .guilty = -1};
        const int guilty = (int)draw_below(draw, s->ranks);
        const int64_t tokens = call->plan.begin[guilty + 1] - call->plan.begin[guilty];
        if (!tokens || draw_below(draw, 4)) continue;
        script[i].guilty = guilty;
        script[i].spoilt = draw_below(draw, tokens);
        script[i].every = draw_below(draw, 2) ? 1 + draw_below(draw, 100) : 0;
    }
}

static void solve_alone(const struct setting *s, struct draw *draw)
{
    struct sim sim;
    for (int i = 0; i < CALLS; i++) {
        if (!s->calls[i]->tokens) continue;
        struct call alone = call_alone(s->calls[i], &s->world);
        sim_open(&sim, &s->world, 1, 1, alone.plan.slots, draw);
        const struct step step = {.call = &alone, .guilty = -1};
        assert_true(sim_schedule(&sim, &step, 1));
        sim_close(&sim);
    }
}

static int32_t slots_of(const struct setting *s)
{
    int32_t slots = 1;
    for (int i = 0; i < CALLS; i++)
        if (s->calls[i]->plan.slots > slots) slots = s->calls[i]->plan.slots;
    return slots;
}

/* So many schedules of one setting, one after the other on the same operators. */
static void explore(int ranks, int64_t number, int schedules)
{
    struct draw draw = {test_seed(), (uint64_t)number * 16 + (uint64_t)ranks, 0};
    struct setting s;
    struct sim sim;
    struct step script[STEPS];
    open_setting(&s, ranks, &draw);
    solve_alone(&s, &draw);
    sim_open(&sim, &s.world, ranks, s.threads, slots_of(&s), &draw);
    for (int i = 0; i < schedules; i++) {
        draw_script(script, &s, &draw);
        if (!sim_schedule(&sim, script, STEPS)) {
            sim_print(&sim);
            fail_msg("setting %lld of %d ranks, schedule %d: nothing can happen any more", (long long)number,
                     ranks, i);
        }
        for (int c = 0; c < STEPS; c++) script[c].call->has_before |= script[c].guilty < 0;
    }
    assert_int_equal(sim.group->undelivered, 0);
    sim_close(&sim);
    close_setting(&s);
}

static void every_schedule_gives_the_answer(void **state)
{
    (void)state;
    const bool is_long = getenv("COT_LONG") != NULL;
    const int settings = is_long ? 1000 : 25, schedules = 10;
    for (int i = 0; i < settings; i++)
        for (int ranks = 1; ranks <= FAULTY_RANKS; ranks++) explore(ranks, i, schedules);
}

/* Opens a setting for a fault: its calls are sound. */
static void open_for_fault(struct setting *s, struct sim *sim, struct step *script, int ranks,
                           struct draw *draw)
{
    open_setting(s, ranks, draw);
    solve_alone(s, draw);
    sim_open(sim, &s->world, ranks, s->threads, slots_of(s), draw);
    for (int i = 0; i < STEPS; i++)
        script[i] = (struct step){.call = s->calls[draw_below(draw, CALLS)], .guilty = -1};
}

/* Whoever the signal was for stands still and says who should have sent it, and in which phase. */
static void a_lost_signal_is_missed_by_name(void **state)
{
    (void)state;
    const int times = getenv("COT_LONG") ? 10000 : 200;
    int missed = 0;
    for (int i = 0; i < times; i++) {
        struct draw draw = {test_seed(), 1u << 20 | (uint64_t)i, 0};
        const int ranks = 2 + i % (FAULTY_RANKS - 1);
        struct setting s;
        struct sim sim;
        struct step script[STEPS];
        open_for_fault(&s, &sim, script, ranks, &draw);
        sim.group->lose = draw_below(&draw, (int64_t)STEPS * 2 * ranks * (ranks - 1));
        if (!sim_schedule(&sim, script, STEPS)) {
            const bool dispatch = cot_fused_signal_epoch(sim.group->lost_value) > 0;
            int from;
            cot_phase phase;
            assert_true(sim.rank[sim.group->lost_to].in_call);
            assert_false(sim_is_over(&sim, sim.group->lost_to, &from, &phase));
            assert_int_equal(from, sim.group->lost_from);
            assert_int_equal(phase, dispatch ? COT_PHASE_DISPATCH : COT_PHASE_COMBINE);
            missed++;
        } else { // a later one said the same and more
            assert_int_equal(cot_fused_signal_flags(sim.group->lost_value), 0);
        }
        sim_close(&sim);
        close_setting(&s);
    }
    assert_true(missed > times / 2);
}

/* From any rank that stands still the chain of who waits for whom ends at the dead one. */
static void a_dead_rank_is_missed_by_all(void **state)
{
    (void)state;
    const int times = getenv("COT_LONG") ? 10000 : 200;
    int stood_still = 0;
    for (int i = 0; i < times; i++) {
        struct draw draw = {test_seed(), 2u << 20 | (uint64_t)i, 0};
        const int ranks = 2 + i % (FAULTY_RANKS - 1);
        struct setting s;
        struct sim sim;
        struct step script[STEPS];
        open_for_fault(&s, &sim, script, ranks, &draw);
        sim.victim = (int)draw_below(&draw, ranks);
        sim.death_step = (int)draw_below(&draw, STEPS);
        sim.moment = (enum sim_moment)draw_below(&draw, SIM_MOMENTS);
        if (!sim_schedule(&sim, script, STEPS))
            for (int r = 0; r < ranks; r++) {
                int from = r, next, hops = 0;
                cot_phase phase;
                if (r == sim.victim || sim.rank[r].at == STEPS) continue;
                for (; from != sim.victim && hops < ranks; from = next, hops++)
                    assert_false(sim_is_over(&sim, from, &next, &phase));
                assert_int_equal(from, sim.victim);
                stood_still++;
            }
        sim_close(&sim);
        close_setting(&s);
    }
    assert_true(stood_still > times / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_gives_the_answer),
        cmocka_unit_test(a_lost_signal_is_missed_by_name),
        cmocka_unit_test(a_dead_rank_is_missed_by_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
