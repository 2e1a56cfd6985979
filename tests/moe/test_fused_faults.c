/* Ranks that stop, on the fabric of threads and processes: the others end with an error that names who is missing
 * and in which phase. */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/moe/plan.h"
#include "harness/moe/run.h"
#include "harness/moe/world.h"
#include "harness/seed.h"

#include "base/clock.h"
#include "moe/fused/fused.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const cot_gate rules = {
    .hidden = 16, .experts = 6, .top_k = 2, .groups = 1, .group_limit = 1, .scaling = 1, .normalise = true};
static const cot_moe_options sizes = {.expert = {.type = COT_BF16,
                                                 .gate = COT_FORMAT_BF16,
                                                 .up = COT_FORMAT_BF16,
                                                 .down = COT_FORMAT_BF16,
                                                 .hidden = 16,
                                                 .intermediate = 24},
                                      .experts = 6,
                                      .top_k = 2,
                                      .threads = 1};

/* Where the victim stops. */
enum moment {
    NEVER_CALLS,
    BEFORE_GATING,
    BEFORE_PACKETS,
    AMONG_PACKETS,
    BEFORE_REPLIES,
    BEFORE_SIGNALS,
    AMONG_SIGNALS,
    BEFORE_COMBINE,
    MOMENTS
};
/* The victim's endpoint calls through this table. */
static int victim;
static enum moment moment;
static bool only_fails; // calls fail and goes on; else its process is killed
static const cot_fabric_ops *whole;
static int packets, signals; // that it has sent

static void stop_at(cot_fabric *fabric, bool now)
{
    if (!now) return;
    if (!only_fails) kill(getpid(), SIGKILL);
    (whole->fail)(fabric); // cmocka has a macro of that name
}

static void put(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes, cot_phase phase)
{
    stop_at(fabric, moment == BEFORE_REPLIES);
    whole->put(fabric, to, where, data, bytes, phase);
}

static void put_signal(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes,
                       cot_sym signal, uint64_t value, cot_phase phase)
{
    int *sent = phase == COT_PHASE_DISPATCH ? &packets : &signals;
    stop_at(fabric, sent == &packets ? moment == BEFORE_PACKETS || (moment == AMONG_PACKETS && packets == 1)
                                     : moment == BEFORE_SIGNALS || (moment == AMONG_SIGNALS && signals == 1));
    whole->put_signal(fabric, to, where, data, bytes, signal, value, phase);
    ++*sent;
}

static int64_t now_ns(cot_fabric *fabric)
{
    stop_at(fabric, moment == BEFORE_GATING || (moment == BEFORE_COMBINE && signals == fabric->ranks));
    return whole->now_ns(fabric);
}

static bool wounded(cot_fabric *fabric)
{
    static cot_fabric_ops wounded_ops;
    if (fabric->rank != victim) return true;
    if (moment == NEVER_CALLS) {
        if (only_fails) (fabric->ops->fail)(fabric);
        return false;
    }
    whole = fabric->ops;
    wounded_ops = *whole;
    wounded_ops.put = put;
    wounded_ops.put_signal = put_signal;
    wounded_ops.now_ns = now_ns;
    fabric->ops = &wounded_ops;
    return true;
}

/* The victim neither fails nor dies: only time tells. */
static bool is_silent(void)
{
    return !only_fails && moment == NEVER_CALLS;
}

static struct outcome *run_wounded(struct world *w, struct plan *p, bool forked, int64_t timeout_ns,
                                   struct draw *draw)
{
    *w = world_new(cot_moe_operator_find(COT_MOE_FUSED), &sizes, &rules, false, false, false, 40, draw);
    *p = plan_even(w, 2 + (int)draw_below(draw, 4));
    p->passes = 2;
    p->forked = forked;
    p->timeout_ns = timeout_ns;
    p->begins = wounded;
    p->running = is_silent() ? p->ranks : 1 + (int)draw_below(draw, p->ranks);
    victim = (int)draw_below(draw, p->ranks);
    if (!only_fails && !is_silent() && !victim) victim = 1; // with rank 0 all processes end
    packets = signals = 0;
    const int64_t since_ns = cot_now_ns();
    struct outcome *outcome = world_run(w, p);
    const int64_t took_ns = cot_now_ns() - since_ns;
    assert_true(took_ns <
                (is_silent() ? 40000000000 : timeout_ns / 2)); // a death is seen long before the time-out
    return outcome;
}

static void check_dead(struct draw *draw, bool forked)
{
    struct world w;
    struct plan p;
    char name[48];
    struct outcome *outcome = run_wounded(&w, &p, forked, is_silent() ? 1000000000 : 30000000000, draw);
    int named = 0; // who has all it needs of the victim in this pass misses it in the next, in dispatch
    for (int r = 0; r < p.ranks; r++) {
        const char *message = outcome->message[r];
        if (r == victim) continue;
        named++;
        snprintf(name, sizeof name, "rank %d %s ", victim,
                 is_silent() ? "did not" : "was killed by signal 9");
        if (outcome->status[r] != (is_silent() ? COT_TIMED_OUT : COT_PEER_FAILED) ||
            strncmp(message, name, strlen(name)) != 0 ||
            !(strstr(message, "'dispatch'") || (moment >= AMONG_PACKETS && strstr(message, "'combine'"))))
            fail_msg("rank %d of %d, rank %d dead at moment %d: %d '%s'", r, p.ranks, victim, (int)moment,
                     outcome->status[r], message);
    }
    assert_true(named >= 1);
    outcome_free(outcome, &w);
    world_free(&w);
}

static void a_rank_that_never_calls_is_named(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 1, 0};
    only_fails = false;
    moment = NEVER_CALLS;
    for (int forked = 0; forked < 2; forked++) check_dead(&draw, forked);
}

static void a_killed_rank_is_named(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 2, 0};
    only_fails = false;
    for (moment = BEFORE_GATING; moment < MOMENTS; moment++) check_dead(&draw, true);
}

static void a_rank_that_fails_ends_the_others_at_once(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 3, 0};
    only_fails = true;
    for (int forked = 0; forked < 2; forked++)
        for (moment = NEVER_CALLS; moment < MOMENTS; moment++) {
            struct world w;
            struct plan p;
            char name[32];
            struct outcome *outcome = run_wounded(&w, &p, forked, 60000000000, &draw);
            snprintf(name, sizeof name, "rank %d failed", victim);
            int told = 0;
            for (int r = 0; r < p.ranks; r++) {
                if (outcome->status[r] == COT_OK) continue; // it had waited for nobody any more
                assert_int_equal(outcome->status[r], COT_PEER_FAILED);
                assert_non_null(strstr(outcome->message[r], name));
                told++;
            }
            assert_true(told >= 1 || moment > NEVER_CALLS);
            outcome_free(outcome, &w);
            world_free(&w);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_never_calls_is_named),
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_rank_that_fails_ends_the_others_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
