/* Turns to compute, word by word: one thread plays several ranks, and writes what others would. */
#include "harness/cmocka.h"
#include "harness/fabric/job.h"

#include "fabric/posts.h"
#include "fabric/threads/state.h"
#include "fabric/threads/threads.h"
#include "fabric/turns.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { RANKS = 4 };
static const int64_t short_ns = 2000000, long_ns = 3600000000000;

static cot_fabric_group *group;
static cot_turns *turns;

static cot_fabric *rank(int r)
{
    return cot_fabric_group_rank(group, r);
}

static void open_group(int running, int64_t timeout_ns)
{
    const cot_fabric_group_options options = {
        .ranks = RANKS, .heap_bytes = 4096, .running = running, .timeout_ns = timeout_ns};
    assert_int_equal(cot_fabric_group_open(&group, &options, NULL), COT_OK);
    turns = rank(0)->turns;
}

#define assert_free(count) assert_int_equal(atomic_load(&turns->permits), count)

/* That rank asks since before all that the thread plays; or no longer. */
static void ask_first(int r, bool asks)
{
    atomic_store(&turns->waiting[r], asks ? 1 : 0);
    if (!atomic_load(&turns->tickets)) atomic_store(&turns->tickets, 1);
}

static cot_status idle(int r, int from, bool overdue, cot_error *error)
{
    cot_fabric *fabric = rank(r);
    const int64_t now_ns = fabric->ops->now_ns(fabric);
    fabric->silent_ns = now_ns; // a wait that has lasted
    fabric->looked_ns = now_ns;
    fabric->missed_ns = overdue ? 2 * long_ns : 0;
    return cot_turns_idle(fabric, now_ns, now_ns, from, COT_PHASE_COMBINE, error);
}

static void who_asked_first_is_served_first(void **state)
{
    (void)state;
    open_group(1, short_ns);
    ask_first(1, true);
    cot_turns_enter(rank(0)); // goes on without
    assert_free(1);
    assert_int_equal(atomic_load(&turns->waiting[0]), 0);
    cot_turns_leave(rank(0));
    assert_free(1);
    atomic_store(&turns->waiting[1], UINT64_MAX); // asks later than all
    cot_turns_enter(rank(0));
    assert_free(0);
    cot_turns_leave(rank(0));
    assert_free(1);
    cot_fabric_group_close(group);

    open_group(2, short_ns); // a permit for who asked first, one for the next, none for the third
    ask_first(1, true);
    cot_turns_enter(rank(0));
    assert_free(1);
    cot_turns_enter(rank(2));
    assert_free(1);
    cot_turns_leave(rank(2));
    assert_free(1);
    cot_turns_leave(rank(0));
    assert_free(2);
    cot_fabric_group_close(group);
}

/* The table of turns.c, seen from what is free. */
static void a_permit_is_given_back_once(void **state)
{
    (void)state;
    open_group(1, short_ns);
    assert_int_equal(idle(0, 1, false, NULL), COT_OK); // not computing: nothing to give
    assert_true(cot_turns_resume(rank(0), false) && cot_turns_resume(rank(0), true));
    ask_first(1, true);
    cot_turns_pass(rank(0));
    cot_turns_leave(rank(0));
    assert_free(1);

    ask_first(1, false);
    cot_turns_enter(rank(0));
    cot_turns_pass(rank(0)); // nobody asks
    assert_free(0);
    for (int i = 0; i < 2; i++) assert_int_equal(idle(0, 1, false, NULL), COT_OK);
    assert_free(1);
    ask_first(1, true);
    assert_false(cot_turns_resume(rank(0), false)); // somebody asked before
    assert_free(1);
    ask_first(1, false);
    assert_true(cot_turns_resume(rank(0), false));
    assert_free(0);
    assert_int_equal(idle(0, 1, false, NULL), COT_OK);
    assert_true(cot_turns_resume(rank(0), true));
    assert_free(0);
    ask_first(1, true);
    cot_turns_pass(rank(0)); // given away, and not back in time
    assert_free(1);
    cot_turns_leave(rank(0));
    assert_free(1);
    cot_fabric_group_close(group);
}

static void who_gets_no_turn_in_time_goes_on_without(void **state)
{
    (void)state;
    open_group(1, long_ns);
    cot_turns_enter(rank(0));
    assert_int_equal(idle(0, 0, true, NULL), COT_OK);
    assert_free(1);
    assert_true(cot_turns_resume(rank(0), false));
    assert_free(1);
    assert_true(cot_turns_resume(rank(0), true)); // may have one again
    assert_free(0);
    assert_int_equal(idle(0, 0, true, NULL), COT_OK);
    assert_int_equal(idle(0, 0, false, NULL), COT_OK); // waits again, as everybody
    ask_first(1, true);
    assert_false(cot_turns_resume(rank(0), false));
    assert_int_equal(idle(0, 0, true, NULL), COT_OK);
    cot_turns_leave(rank(0));
    assert_free(1);
    (rank(2)->ops->fail)(rank(2)); // in parentheses: cmocka has a macro of that name
    cot_turns_enter(rank(0));      // in a group that failed nobody queues
    assert_free(1);
    cot_error error = {0};
    assert_int_equal(idle(0, 1, false, &error), COT_PEER_FAILED);
    assert_string_equal(error.message, "rank 2 failed while rank 0 waited in 'combine'");
    cot_fabric_group_close(group);
}

static void as_many_permits_as_ranks_are_no_limit(void **state)
{
    (void)state;
    open_group(RANKS, short_ns);
    ask_first(1, true);
    cot_turns_enter(rank(0));
    assert_int_equal(idle(0, 0, false, NULL), COT_OK);
    assert_true(cot_turns_resume(rank(0), false));
    cot_turns_leave(rank(0));
    assert_free(RANKS);
    cot_fabric_group_close(group);
}

static void post_of(int r, cot_post post)
{
    rank(r)->ops->post(rank(r), cot_post_pack(post));
}

static int awaits(int r)
{
    return cot_post_of(rank(0), r).awaits;
}

static void wait_in_vain(const char *message)
{
    cot_sym signal;
    cot_error error = {0};
    assert_int_equal(cot_alloc(rank(0), &signal, 8, NULL), COT_OK);
    assert_int_equal(cot_wait(rank(0), signal, 1, 1, COT_PHASE_COMBINE, &error), COT_TIMED_OUT);
    assert_string_equal(error.message, message);
    for (int r = 1; r < RANKS; r++) { // all hear the same
        cot_status status = cot_fabric_check(rank(r), &error);
        assert_int_equal(status, COT_TIMED_OUT);
        assert_int_equal(rank(r)->ops->failed(rank(r)), rank(0)->ops->failed(rank(0)));
    }
}

/* Rank 0 waits for 1, which waits for 3, which waits for 2. */
static void the_rank_that_all_wait_for_is_named(void **state)
{
    (void)state;
    open_group(RANKS, short_ns);
    post_of(1, (cot_post){.awaits = 1 + 3});
    post_of(3, (cot_post){.awaits = 1 + 2});
    assert_int_equal(idle(0, 1, false, NULL), COT_OK);
    assert_int_equal(awaits(0), 1 + 1);
    cot_turns_resume(rank(0), false);
    assert_int_equal(awaits(0), 1 + 1);
    cot_turns_resume(rank(0), true);
    assert_int_equal(awaits(0), 0);
    cot_stage_enter(rank(0), COT_STAGE_LAYER, 41);
    wait_in_vain("rank 2 did not answer in 'combine' (layer 41) within 0.0 s");
    assert_int_equal(awaits(0), 1 + 1);
    cot_error error = {0};
    assert_int_equal(idle(2, 1, false, &error), COT_TIMED_OUT); // and the one to blame
    assert_string_equal(error.message,
                        "rank 2 was given up by the others in 'combine': it did not answer within 0.0 s");
    cot_fabric_group_close(group);
}

/* A ring of waits has no end: the one that is waited for is as good as any. */
static void a_ring_of_waits_ends(void **state)
{
    (void)state;
    open_group(RANKS, short_ns);
    for (int r = 1; r < RANKS; r++) post_of(r, (cot_post){.awaits = (uint8_t)(1 + (r + 1) % RANKS)});
    wait_in_vain("rank 1 did not answer in 'combine' within 0.0 s");
    cot_fabric_group_close(group);
}

/* Whom rank 0 waits for asks for a turn, which another has. */
static void who_has_the_turn_is_named(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        open_group(2, short_ns);
        post_of(1, (cot_post){.awaits = way & 1 ? 1 + 2 : 0, .turn = COT_TURN_ASKED_FOR});
        post_of(2, (cot_post){.turn = COT_TURN_ASKED_FOR});
        if (way < 2) post_of(3, (cot_post){.turn = COT_TURN_HELD, .stage = COT_STAGE_LAYER, .layer = 7});
        char want[80];
        snprintf(want, sizeof want, "rank %d did not answer in 'combine' within 0.0 s",
                 way < 2    ? 3
                 : way == 2 ? 1
                            : 2); // where nobody has it, nobody is behind who asks
        wait_in_vain(want);
        cot_fabric_group_close(group);
    }
}

/* Ranks that wait and ask for turns are not to blame where another is mute, wherever in the chain it is. */
static void who_is_mute_is_named(void **state)
{
    (void)state;
    for (int mute = 1; mute < RANKS; mute++)
        for (int way = 0; way < 2; way++) {
            char want[80];
            open_group(RANKS, short_ns);
            post_of(1, (cot_post){.awaits = way ? 0 : 1 + 2, .turn = way ? COT_TURN_ASKED_FOR : 0});
            post_of(2, (cot_post){.awaits = way ? 0 : 1 + 3, .turn = way ? COT_TURN_HELD : 0});
            post_of(3, (cot_post){.awaits = way ? 0 : 1 + 1, .turn = way ? COT_TURN_HELD : 0});
            ((struct endpoint *)rank(mute))->quiet_ns = short_ns / 4;
            snprintf(want, sizeof want, "rank %d did not answer in 'combine' within 0.0 s", mute);
            wait_in_vain(want);
            cot_fabric_group_close(group);
        }
}

/* A look that comes late was late itself: what passed meanwhile is not the others' silence. */
static void who_was_stopped_has_patience(void **state)
{
    (void)state;
    const int64_t second_ns = 1000000000;
    cot_error error = {0};
    open_group(RANKS, 4 * second_ns);
    cot_fabric *fabric = rank(0);
    int looks = 0;
    for (cot_status status = COT_OK; status == COT_OK; looks++) {
        if (looks) fabric->looked_ns -= 100 * second_ns; // as if it had been so long ago
        status = cot_turns_idle(fabric, fabric->ops->now_ns(fabric), 5, 1, COT_PHASE_COMBINE, &error);
    }
    assert_int_equal(error.status, COT_TIMED_OUT);
    assert_int_equal(looks, 1 + 10); // an eighth each, until five quarters are over
    cot_fabric_group_close(group);
}

static cot_sym waited_for;

static void *wait_patiently(void *rank)
{
    return cot_wait_patiently(rank, waited_for, 1, 0, COT_PHASE_CONTROL, NULL) == COT_OK ? rank : NULL;
}

/* Not by the end of its sleep: it counts. */
static void who_sleeps_is_roused(void **state)
{
    (void)state;
    open_group(RANKS, long_ns);
    cot_rouse(rank(0), 1); // nobody sleeps
    assert_int_equal(cot_alloc(rank(0), &waited_for, sizeof(uint64_t), NULL), COT_OK);
    for (int roused = 0; roused < 5; roused++) {
        cot_sym same;
        pthread_t thread;
        void *returned = NULL;
        assert_int_equal(cot_alloc(rank(1), &same, sizeof(uint64_t), NULL), COT_OK);
        waited_for = same;
        assert_int_equal(pthread_create(&thread, NULL, wait_patiently, rank(1)), 0);
        const uint64_t before = rank(1)->roused;
        for (int times = 0; times < 30; times++) { // for nothing: it sleeps again
            while (!atomic_load(&turns->asleep[1])) sched_yield();
            cot_rouse(rank(0), 1); // some of these come as it wakes by itself
        }
        cot_put_signal(rank(0), 1, 0, NULL, 0, waited_for, 1, COT_PHASE_CONTROL);
        cot_rouse(rank(0), 1);
        assert_int_equal(pthread_join(thread, &returned), 0);
        assert_ptr_equal(returned, rank(1));
        assert_int_equal(atomic_load(&turns->asleep[1]), 0);
        assert_true(rank(1)->roused > before);
    }
    cot_fabric_group_close(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_asked_first_is_served_first),
        cmocka_unit_test(a_permit_is_given_back_once),
        cmocka_unit_test(who_gets_no_turn_in_time_goes_on_without),
        cmocka_unit_test(as_many_permits_as_ranks_are_no_limit),
        cmocka_unit_test(the_rank_that_all_wait_for_is_named),
        cmocka_unit_test(a_ring_of_waits_ends),
        cmocka_unit_test(who_has_the_turn_is_named),
        cmocka_unit_test(who_is_mute_is_named),
        cmocka_unit_test(who_was_stopped_has_patience),
        cmocka_unit_test(who_sleeps_is_roused),
    };
    alarm(60); // nothing here waits for long
    return cmocka_run_group_tests(tests, NULL, NULL);
}
