/* The threads' part: who drives the actors, and how a rank waits. */
#include "base/wait.h"
#include "moe/fused/state.h"

enum { SPINS = 20 };

static void do_task(cot_fused *moe, cot_fused_task *task)
{
    cot_fused_run(moe, task);
    cot_fused_finish(moe, task);
}

static bool help(void *context)
{
    cot_fused *moe = context;
    cot_fused_task task;
    const bool found = cot_fused_take(moe, &task);
    if (found) do_task(moe, &task);
    return found;
}

/* What a rank without work looks at: the word it waits for, and whether anything happened. */
struct watch {
    int from;
    cot_phase phase;
    uint64_t word, progress;
};

static uint64_t awaited_word(cot_fused *moe, const struct watch *watch)
{
    const cot_sym words = watch->phase == COT_PHASE_DISPATCH ? moe->dispatch_signals : moe->reply_signals;
    return cot_signal_load(moe->options.fabric, words + (cot_sym)watch->from * COT_FUSED_LINE);
}

/* Whether the pass is over; else what to watch. */
static bool is_over(cot_fused *moe, struct watch *watch)
{
    cot_fused_lock(moe);
    const bool over = cot_fused_is_over(moe, &watch->from, &watch->phase);
    watch->progress = moe->progress;
    if (!over) watch->word = awaited_word(moe, watch);
    cot_fused_unlock(moe);
    return over;
}

static bool has_changed(cot_fused *moe, const struct watch *watch)
{
    if (moe->progress != watch->progress) return true;
    cot_fused_lock(moe); // signal words are loaded by one thread at a time
    const bool changed = awaited_word(moe, watch) != watch->word;
    cot_fused_unlock(moe);
    return changed;
}

static bool spin(cot_fused *moe, const struct watch *watch)
{
    for (int i = 0; i < SPINS; i++) {
        if (has_changed(moe, watch)) return true;
        cot_pause();
    }
    return false;
}

/* What a rank's own thread does in a pass: any task of its own, else a piece of what others offer, else it
 * gives its turn away until there is something new for it, or a turn that nobody wants. */
static cot_status drive(cot_fused *moe, cot_error *error)
{
    cot_fabric *fabric = moe->options.fabric;
    cot_status status = COT_OK;
    cot_fused_task task;
    struct watch watch;
    uint64_t progress = 0;
    int64_t since_ns = 0, silent_ns = 0; // since_ns: 0 while there is work
    for (bool turn = true; status == COT_OK;) {
        if (turn && cot_fused_take(moe, &task)) {
            if (since_ns) cot_turns_resume(fabric, true); // others see that this rank waits for nobody now
            since_ns = 0;
            do_task(moe, &task);
            // All that this rank's tokens need of others is on its way: others wait for the packets of ranks that
            // wait for a turn.
            if (task.op == COT_FUSED_SEND && task.last) cot_turns_pass(fabric);
            continue;
        }
        if (!turn) {
            cot_fused_lock(moe);
            cot_fused_poll(moe);
            cot_fused_unlock(moe);
        }
        if (is_over(moe, &watch)) break;
        if (turn && (cot_pool_help(moe->options.pool) || spin(moe, &watch))) {
            since_ns = silent_ns = 0; // whom others keep busy waits for nobody
            continue;
        }
        if (since_ns == 0) {
            since_ns = fabric->ops->now_ns(fabric);
            fabric->waits++;
        }
        if (silent_ns == 0 || progress != watch.progress) silent_ns = fabric->ops->now_ns(fabric);
        progress = watch.progress;
        do {
            status = cot_turns_idle(fabric, since_ns, silent_ns, watch.from, watch.phase, error);
            turn = cot_turns_resume(fabric, false);
        } while (status == COT_OK && !turn && !has_changed(moe, &watch));
    }
    if (status == COT_OK) cot_turns_resume(fabric, true);
    return status;
}

cot_status cot_fused_forward(cot_moe *open, const cot_moe_layer *layer, float *y, uint16_t *experts,
                             float *weights, const float *x, int64_t tokens, cot_error *error)
{
    cot_fused *moe = (cot_fused *)open;
    const cot_moe_options *o = &moe->options;
    moe->times.launches++;
    cot_fused_begin_call(moe, layer, y, experts, weights, x, tokens);
    cot_status status;
    do {
        cot_pool_offer *offer = cot_pool_offer_work(o->pool, help, moe);
        status = drive(moe, error);
        cot_pool_withdraw(o->pool, offer);
        if (status != COT_OK) {
            o->fabric->ops->fail(o->fabric);
            return status;
        }
    } while (cot_fused_end_pass(moe, &status, experts, weights, error));
    return status;
}
