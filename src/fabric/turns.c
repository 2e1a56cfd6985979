/* How a rank waits, and how it takes turns to compute meanwhile.
 *
 * A rank's turn is in one of four states; only LENT keeps it from computing. What an event makes of it:
 *
 *     event      OUT             HELD               LENT               LATE
 *                not computing   has a permit       gave it back       goes on without
 *     ENTER      ask             -                  -                  -
 *     LEAVE      OUT             give; OUT          OUT                OUT
 *     IDLE       OUT             give; LENT         LENT               LENT
 *     OVERDUE    OUT             give; LATE         LATE               LATE
 *     TRY        OUT             HELD               HELD if one is     LATE
 *                                                   free, else LENT
 *     ASK        OUT             HELD               ask                ask
 *     PASS       -               give; ask          -                  -
 *
 * Asking waits, in order, until a permit comes: HELD; or, where the time-out passes or the group fails, LATE. */
#include "fabric/turns.h"

#include "base/wait.h"
#include "fabric/posts.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPINS = 20 };
static const int64_t sleep_after_ns = 300000, shortest_sleep_ns = 10000, longest_sleep_ns = 1000000,
                     longest_patient_sleep_ns = 10000000000;

static struct timespec sleep_of(int64_t ns, int64_t longest_ns)
{
    ns = ns < shortest_sleep_ns ? shortest_sleep_ns : ns > longest_ns ? longest_ns : ns;
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

void cot_back_off(int64_t waited_ns)
{
    if (waited_ns < sleep_after_ns) {
        sched_yield();
        return;
    }
    const struct timespec sleep = sleep_of(waited_ns / 40, longest_sleep_ns);
    nanosleep(&sleep, NULL);
}

/* ---- sleep ---- */

/* For half as long as was waited already, unless the signal has come. The word is exchanged before the signal is read, and by who rouses after the signal was
 * written. Exchanges of one word have one order: either who rouses finds it asleep, or who sleeps has all that came before
 * the rousing, the signal too. Whether it was roused. */
static bool sleep_patiently(cot_fabric *fabric, cot_sym signal, uint64_t value, int64_t waited_ns)
{
    _Atomic uint32_t *asleep = &fabric->turns->asleep[fabric->rank];
    const struct timespec sleep =
        sleep_of(waited_ns / 2, fabric->sleep_ns ? fabric->sleep_ns : longest_patient_sleep_ns);
    bool roused = false;
    atomic_exchange(asleep, 1);
    if (cot_signal_load(fabric, signal) < value && !fabric->ops->failed(fabric)) {
        fabric->slept++;
        roused = syscall(SYS_futex, asleep, FUTEX_WAIT, 1, &sleep, NULL, 0) == 0 || errno == EAGAIN;
    }
    atomic_exchange(asleep, 0);
    fabric->roused += roused;
    return roused;
}

void cot_rouse(cot_fabric *fabric, int rank)
{
    if (!fabric->turns) return;
    if (atomic_exchange(&fabric->turns->asleep[rank], 0))
        syscall(SYS_futex, &fabric->turns->asleep[rank], FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* ---- permits ---- */

void cot_turns_open(cot_turns *turns, int ranks, int permits)
{
    turns->limited = permits < ranks;
    atomic_store(&turns->permits, permits);
}

/* One permit, if there are more than ranks that asked earlier. */
static bool try_permit(cot_fabric *fabric, uint64_t ticket)
{
    cot_turns *turns = fabric->turns;
    int permits = atomic_load(&turns->permits);
    if (permits <= 0) return false;
    int earlier = 0;
    for (int r = 0; r < fabric->ranks; r++) {
        const uint64_t other = atomic_load(&turns->waiting[r]);
        earlier += other && other < ticket;
    }
    return earlier < permits && atomic_compare_exchange_strong(&turns->permits, &permits, permits - 1);
}

static void post_turn(cot_fabric *fabric, int turn)
{
    if (fabric->post.turn == turn) return;
    fabric->post.turn = (uint8_t)turn;
    cot_post_tell(fabric);
}

/* Until a permit comes, the group fails or the time-out is over. */
static bool ask_permit(cot_fabric *fabric)
{
    cot_turns *turns = fabric->turns;
    const int64_t since_ns = fabric->ops->now_ns(fabric);
    post_turn(fabric, COT_TURN_ASKED_FOR);
    const uint64_t ticket = atomic_fetch_add(&turns->tickets, 1) + 1;
    atomic_store(&turns->waiting[fabric->rank], ticket);
    bool got = try_permit(fabric, ticket);
    for (int64_t waited_ns = 0; !got && waited_ns < fabric->timeout_ns && !fabric->ops->failed(fabric);) {
        cot_back_off(waited_ns);
        cot_post_tell(fabric);
        got = try_permit(fabric, ticket);
        waited_ns = fabric->ops->now_ns(fabric) - since_ns;
    }
    atomic_store(&turns->waiting[fabric->rank], 0);
    fabric->queued_ns += fabric->ops->now_ns(fabric) - since_ns;
    return got;
}

static void give_permit(cot_fabric *fabric)
{
    atomic_fetch_add(&fabric->turns->permits, 1);
}

static bool is_asked_for(const cot_fabric *fabric)
{
    for (int r = 0; r < fabric->ranks; r++)
        if (atomic_load(&fabric->turns->waiting[r])) return true;
    return false;
}

/* ---- states ---- */

enum { OUT, HELD, LENT, LATE, STATES };
enum event { ENTER, LEAVE, IDLE, OVERDUE, TRY, ASK, PASS, EVENTS };
enum {
    TRIES = STATES,
    ASKS,
    NEVER,
    GIVES = 8
}; // the first three stand in place of a next state, GIVES beside one

/* The table above. */
static const uint8_t next[EVENTS][STATES] = {
    [ENTER] = {ASKS, NEVER, NEVER, NEVER},
    [LEAVE] = {OUT, GIVES | OUT, OUT, OUT},
    [IDLE] = {OUT, GIVES | LENT, LENT, LENT},
    [OVERDUE] = {OUT, GIVES | LATE, LATE, LATE},
    [TRY] = {OUT, HELD, TRIES, LATE},
    [ASK] = {OUT, HELD, ASKS, ASKS},
    [PASS] = {NEVER, GIVES | ASKS, NEVER, NEVER},
};

static void step(cot_fabric *fabric, enum event event)
{
    if (!fabric->turns || !fabric->turns->limited) return; // OUT for ever
    const int what = next[event][fabric->turn], state = what & ~GIVES;
    assert(what != NEVER);
    if (what & GIVES) give_permit(fabric);
    if (state == TRIES)
        fabric->turn = try_permit(fabric, UINT64_MAX) ? HELD : LENT;
    else
        fabric->turn = state != ASKS ? state : ask_permit(fabric) ? HELD : LATE;
}

static int turn_to_post(const cot_fabric *fabric)
{
    return fabric->turn == HELD ? COT_TURN_HELD : COT_TURN_NONE;
}

static void step_and_tell(cot_fabric *fabric, enum event event)
{
    step(fabric, event);
    post_turn(fabric, turn_to_post(fabric));
}

void cot_turns_enter(cot_fabric *fabric)
{
    step_and_tell(fabric, ENTER);
}

void cot_turns_leave(cot_fabric *fabric)
{
    step_and_tell(fabric, LEAVE);
}

void cot_turns_pass(cot_fabric *fabric)
{
    if (fabric->turn == HELD && is_asked_for(fabric)) step_and_tell(fabric, PASS);
}

/* ---- waiting ---- */

void cot_stage_enter(cot_fabric *fabric, cot_stage stage, int64_t layer)
{
    fabric->post.stage = (uint8_t)stage;
    fabric->post.layer = (uint32_t)layer;
    cot_post_tell(fabric);
}

/* It waits for that rank, or, where that is itself, for a turn. */
static void post_wait(cot_fabric *fabric, int from, cot_phase phase)
{
    const bool turn_alone = from == fabric->rank;
    fabric->post.awaits = turn_alone ? 0 : (uint8_t)(from + 1);
    fabric->post.phase = (uint8_t)phase;
    fabric->post.turn =
        turn_alone && fabric->turn == LENT ? COT_TURN_ASKED_FOR : (uint8_t)turn_to_post(fabric);
    cot_post_tell(fabric);
}

cot_status cot_fabric_check(cot_fabric *fabric, cot_error *error)
{
    const int failed = fabric->ops->failed(fabric);
    return failed ? cot_blame_at_work(fabric, failed - 1, error) : COT_OK;
}

bool cot_fabric_lives(cot_fabric *fabric)
{
    return !fabric->ops->failed(fabric) && (!fabric->ops->lost || !fabric->ops->lost(fabric));
}

/* For how long nothing was heard since silent_ns. A look that comes much later than the one before counts for no more than
 * an eighth of the time-out: it was this process that did not run. */
static int64_t missed(cot_fabric *fabric, int64_t now_ns, int64_t silent_ns)
{
    const int64_t most_ns = fabric->timeout_ns / 8, since_ns = now_ns - fabric->looked_ns;
    if (fabric->silent_ns != silent_ns)
        fabric->missed_ns = 0;
    else
        fabric->missed_ns += since_ns < most_ns ? since_ns : most_ns;
    fabric->silent_ns = silent_ns;
    fabric->looked_ns = now_ns;
    return fabric->missed_ns;
}

/* The first part of being idle: whether the group failed or was silent for too long, and the turn given away. Sets *begin
 * to the time of now. When the time-out is over the others have a quarter of it to tell whom they miss. */
static cot_status become_idle(cot_fabric *fabric, int64_t *begin, int64_t silent_ns, int from,
                              cot_phase phase, cot_error *error)
{
    const int64_t begin_ns = *begin = fabric->ops->now_ns(fabric);
    const bool turn_alone = from == fabric->rank;
    const int64_t patience_ns = fabric->timeout_ns + (turn_alone ? 0 : fabric->timeout_ns / 4);
    const bool overdue = missed(fabric, begin_ns, silent_ns) >= patience_ns;
    step(fabric, overdue ? OVERDUE : IDLE);
    post_wait(fabric, from, phase);
    if (overdue && !turn_alone && !fabric->ops->failed(fabric))
        fabric->ops->accuse(fabric, cot_blame_culprit(fabric, from));
    const int failed = fabric->ops->failed(fabric);
    return failed ? cot_blame_in_wait(fabric, failed - 1, phase, error) : COT_OK;
}

cot_status cot_turns_idle(cot_fabric *fabric, int64_t since_ns, int64_t silent_ns, int from, cot_phase phase,
                          cot_error *error)
{
    int64_t begin_ns;
    const cot_status status = become_idle(fabric, &begin_ns, silent_ns, from, phase, error);
    if (status != COT_OK) return status;
    cot_back_off(begin_ns - since_ns);
    fabric->waited_ns[phase] += fabric->ops->now_ns(fabric) - begin_ns;
    return COT_OK;
}

bool cot_turns_resume(cot_fabric *fabric, bool wait)
{
    if (wait && fabric->post.awaits) {
        fabric->post.awaits = 0;
        cot_post_tell(fabric);
    }
    step_and_tell(fabric, wait ? ASK : TRY);
    return fabric->turn != LENT;
}

/* As idle does, for a wait without end. *since_ns is moved where something may soon be there. */
static cot_status idle_patiently(cot_fabric *fabric, int64_t *since_ns, cot_sym signal, uint64_t value,
                                 int from, cot_phase phase, cot_error *error)
{
    int64_t begin_ns;
    const cot_status status = become_idle(fabric, &begin_ns, fabric->ops->now_ns(fabric), from, phase, error);
    if (status != COT_OK) return status;
    if (begin_ns - *since_ns < sleep_after_ns || !fabric->turns)
        cot_back_off(begin_ns - *since_ns);
    else if (sleep_patiently(fabric, signal, value, begin_ns - *since_ns))
        *since_ns = fabric->ops->now_ns(fabric);
    fabric->waited_ns[phase] += fabric->ops->now_ns(fabric) - begin_ns;
    return COT_OK;
}

static cot_status await(cot_fabric *fabric, cot_sym signal, uint64_t value, int from, cot_phase phase,
                        bool patient, cot_error *error)
{
    for (int spins = 0; spins < SPINS; spins++) {
        if (cot_signal_load(fabric, signal) >= value) return COT_OK;
        cot_pause();
    }
    int64_t since_ns = fabric->ops->now_ns(fabric);
    fabric->waits++;
    while (cot_signal_load(fabric, signal) < value) {
        const cot_status status = patient
                                      ? idle_patiently(fabric, &since_ns, signal, value, from, phase, error)
                                      : cot_turns_idle(fabric, since_ns, since_ns, from, phase, error);
        if (status != COT_OK) return status;
    }
    cot_turns_resume(fabric, true);
    return COT_OK;
}

cot_status cot_wait(cot_fabric *fabric, cot_sym signal, uint64_t value, int from, cot_phase phase,
                    cot_error *error)
{
    return await(fabric, signal, value, from, phase, false, error);
}

cot_status cot_wait_patiently(cot_fabric *fabric, cot_sym signal, uint64_t value, int from, cot_phase phase,
                              cot_error *error)
{
    return await(fabric, signal, value, from, phase, true, error);
}
