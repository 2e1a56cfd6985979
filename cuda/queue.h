/* A rank's queue: what has to run for what else may run, who says so, and who takes it.
 *
 * A task has a place in `ready`; places are given out by one word (`published`), tickets for them by another (`next`), so that
 * whoever finds that tasks may run puts them there: the scheduler, or the processor that ends the last part of what they wait
 * for. A ticket's place is written by somebody who waits for nothing between being given the place and writing it.
 *
 * Parts of one thing are counted down in one word by updates that acquire and release. Who takes the last part from it has
 * acquired what all others released there: each update reads what the one before it wrote, so that they are one release sequence.
 * What follows from the last part is said by a release after that, so that who acquires it knows all parts. */
#ifndef COT_CUDA_QUEUE_H
#define COT_CUDA_QUEUE_H
#include "cuda/fused.h"

namespace cot {

/* Parts that so many columns of a tile are cut in, which are the more the more rows it has; at most, of the fullest tile. */
template <typename Engine> COT_DEVICE int parts_of(int columns, int rows = FUSED_TILE_ROWS)
{
    return (columns + Engine::columns_of(rows) - 1) / Engine::columns_of(rows);
}

/* Parts of the fullest tiles' UP and DOWN: of numbers of UP a tile has those from lane up on, of DOWN from lane down on. */
struct tile_parts {
    int up, down;
};
template <typename Engine> COT_DEVICE tile_parts parts_of_tiles(const cot_cuda_fused &c)
{
    const int expert = up_columns(c.networks[0]), shared = up_columns(c.networks[1]);
    return {parts_of<Engine>(expert > shared ? expert : shared), parts_of<Engine>(c.gate.hidden)};
}

/* Tiles of the shared expert, and rows of the i-th. */
template <scope S> COT_DEVICE int shared_tiles(const fused_warp<S> &w)
{
    return w.call.networks[1].intermediate ? (w.tokens + w.tile_rows() - 1) >> w.call.tile_shift : 0;
}
template <scope S> COT_DEVICE int shared_tile_rows(const fused_warp<S> &w, int i)
{
    const int left = w.tokens - static_cast<int>(w.first_of(i));
    return left < w.tile_rows() ? left : w.tile_rows();
}

/* By a whole warp: takes `count` places, which the caller writes with put_tasks; the first of them. What the warp's lanes did
 * and knew before is known to whoever takes such a task. */
template <scope S> COT_DEVICE uint32_t begin_tasks(const fused_warp<S> &w, int count)
{
    uint32_t first = 0;
    if (lane_of_warp() == 0)
        first = add_relaxed<scope::gpu>(&w.rank.state->published, static_cast<uint32_t>(count));
    COT_UNLESS(queue_lanes_before_tasks) __syncwarp();
    COT_UNLESS(queue_release) fence<scope::gpu>();
    return __shfl_sync(ALL_LANES, first, 0);
}

/* Tasks number, number + step, ... in places `first` and on. */
template <scope S>
COT_DEVICE void put_tasks(const fused_warp<S> &w, uint32_t first, task kind, int number, int count,
                          int step = 1)
{
    for (int i = lane_of_warp(); i < count; i += 32)
        store_relaxed<scope::gpu>(w.rank.ready + first + i, task_word(w.epoch, kind, number + i * step));
}

template <scope S>
COT_DEVICE void publish(const fused_warp<S> &w, task kind, int number, int count, int step = 1)
{
    if (count > 0) put_tasks(w, begin_tasks(w, count), kind, number, count, step);
}

/* Tells the scheduler what has ended. By one lane. */
template <scope S> COT_DEVICE void tell_end(const fused_warp<S> &w, uint64_t word)
{
    uint64_t *const to = w.rank.finished + add_relaxed<scope::gpu>(&w.rank.state->finished, 1u);
    COT_EITHER(queue_end_release, store_release<scope::gpu>(to, word), store_relaxed<scope::gpu>(to, word));
}

/* A part has ended, of which one counts as `part`: what was left before it, itself included. By one lane, for all that it met at a
 * barrier. */
COT_DEVICE uint32_t count_part(uint32_t *left, uint32_t part = 1)
{
    return COT_EITHER(queue_count, add_acq_rel<scope::gpu>(left, 0u - part),
                      add_relaxed<scope::gpu>(left, 0u - part));
}

/* alone: a tile's DOWNs are in the queue, by a whole warp. Behind the last ones there is nothing but ends: what follows from a DOWN is
 * done by who runs it, so processors leave when there is no other DOWN. */
template <scope S> COT_DEVICE void end_after_downs(const fused_warp<S> &w)
{
    uint32_t left = 0;
    if (lane_of_warp() == 0) left = count_part(&w.rank.state->tiles_left);
    if (__shfl_sync(ALL_LANES, left, 0) == 1) publish(w, task::end, 0, w.shared->processors);
}

/* After a task, by one warp of a processor: what comes after the last part of something. */
template <scope S> COT_DEVICE void end_task(const fused_warp<S> &w, uint64_t word)
{
    fused_state *const state = w.rank.state;
    const task kind = kind_of(word);
    if (kind == task::enter) { // the subscriber looks at what is left
        if (lane_of_warp() == 0) count_part(&state->units_left);
        return;
    }
    const int lane =
        number_of(word) / (kind == task::up ? w.shared->up_parts : w.shared->down_parts); // of a tile's
    uint32_t *const left = kind == task::gate                       ? &state->gates_left
                           : kind == task::combine                  ? &state->combines_left
                           : kind == task::up || kind == task::down ? &state->tile_left[lane]
                                                                    : nullptr;
    const uint32_t part = kind == task::down ? TILE_DOWN : 1;
    uint32_t before = kind == task::reply;
    if (left && lane_of_warp() == 0) before = count_part(left, part);
    if (kind == task::up) {
        before = __shfl_sync(ALL_LANES, before, 0);
        if (before % TILE_DOWN == 1) {
            publish(w, task::down, lane * w.shared->down_parts, static_cast<int>(before / TILE_DOWN));
            if (w.alone()) end_after_downs(w);
        }
    } else if (lane_of_warp() == 0 && before == part) {
        tell_end(w, word);
    }
}

/* Whether no more tasks are known from a ticket on than there are processors, so that whoever is done next will find none. */
template <scope S> COT_DEVICE bool is_dry(const fused_warp<S> &w, uint32_t known, uint32_t ticket)
{
    return static_cast<int32_t>(known - ticket) <= w.shared->processors;
}

/* The task of a ticket, when it is there, acquired; or `end` where the call has failed. `known`: places that were given out by then. By
 * one thread. */
template <scope S> COT_DEVICE uint64_t wait_for_task(const fused_warp<S> &w, uint32_t ticket, uint32_t &known)
{
    const uint64_t *const place = w.rank.ready + ticket;
    for (;;) {
        known = load_relaxed<scope::gpu>(&w.rank.state->published); // on its way beside the task
        const uint64_t word = load_relaxed<scope::gpu>(place);
        if (word >> 28 == w.epoch)
            return COT_EITHER(queue_acquire, load_acquire<scope::gpu>(place),
                              load_relaxed<scope::gpu>(place));
        if (COT_EITHER(queue_watch, w.failed(), false)) return task_word(w.epoch, task::end, 0);
        back_off();
    }
}

/* The next task, in shared memory for all threads of the team: `end` where the call is over or has failed; and whether it is dry behind it. */
template <scope S> COT_DEVICE void take_task(const fused_warp<S> &w)
{
    fused_shared *const s = w.shared;
    if (team_thread(w) == 0) {
        uint64_t word = s->coming;
        if (word != NO_TASK) {
            s->dry = false; // else it had not been taken early
        } else {
            const uint32_t early = s->ticket, ticket = early != NO_TICKET
                                                           ? early
                                                           : add_relaxed<scope::gpu>(&w.rank.state->next, 1u);
            uint32_t known;
            word = wait_for_task(w, ticket, known);
            s->dry = is_dry(w, known, ticket);
        }
        s->task = word;
        s->coming = NO_TASK;
        s->ticket = NO_TICKET;
    }
    COT_UNLESS(queue_task_for_all) team_barrier(w);
}

/* Beside a product that begins: takes the ticket of the task behind it and looks whether that is there. What is not there is not waited
 * for: it may follow from the task in hand, and processors would each wait for another's in a ring. Where no more tasks are left than there
 * are processors no ticket is taken, since another one would begin that task sooner; ends, which are behind all DOWNs where the rank is
 * alone, are none of these. By one thread, for all that pass the product's first barrier. */
template <scope S> COT_DEVICE void look_ahead(const fused_warp<S> &w)
{
    fused_shared *const s = w.shared;
    fused_state *const state = w.rank.state;
    s->coming = NO_TASK;
    s->ticket = NO_TICKET;
    const uint32_t known = load_relaxed<scope::gpu>(&state->published),
                   left = w.alone() ? load_relaxed<scope::gpu>(&state->tiles_left) : 1u,
                   ends = left ? 0u : static_cast<uint32_t>(s->processors);
    if (COT_EITHER(queue_dry, is_dry(w, known - ends, load_relaxed<scope::gpu>(&state->next)), false)) return;
    const uint32_t ticket = add_relaxed<scope::gpu>(&state->next, 1u);
    const uint64_t *const place = w.rank.ready + ticket;
    uint64_t word;
    do word = load_relaxed<scope::gpu>(place);
    while (COT_EITHER(queue_peek, false, word >> 28 != w.epoch));
    if (word >> 28 == w.epoch)
        s->coming = COT_EITHER(queue_ahead_acquire, load_acquire<scope::gpu>(place), word);
    else
        s->ticket = ticket;
}

} // namespace cot

#endif
