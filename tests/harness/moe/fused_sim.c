#include "harness/moe/fused_sim.h"

#include "harness/cmocka.h"

#include <stdlib.h>
#include <string.h>

struct sim_style {
    int64_t deliver;                   // of 16 steps
    int slow_rank, slow_from, slow_to; // these get every 32nd turn; -1: none
    bool eager;                        // a task that is taken runs and ends at once
};

void sim_open(struct sim *sim, const struct world *w, int ranks, int threads, int32_t slots,
              struct draw *draw)
{
    *sim = (struct sim){
        .world = w, .ranks = ranks, .threads = threads, .slots = slots, .draw = draw, .victim = -1};
    cot_moe_options options = w->options;
    options.slots = slots;
    options.threads = threads;
    const size_t slot_bytes = cot_ffn_layout_of(&options.expert).bytes;
    sim->group = faulty_open(
        ranks, cot_alloc_bytes((size_t)slots * slot_bytes) + cot_moe_fused.heap_bytes(&options, ranks), draw);
    for (int r = 0; r < ranks; r++) {
        struct sim_rank *rank = &sim->rank[r];
        cot_error error;
        options.fabric = &sim->group->endpoints[r].fabric;
        assert_int_equal(cot_alloc(options.fabric, &rank->slots, (size_t)slots * slot_bytes, NULL), COT_OK);
        cot_moe *moe;
        if (cot_moe_fused.open(&moe, &options, &error) != COT_OK) fail_msg("%s", error.message);
        rank->moe = (cot_fused *)moe;
        rank->tile = calloc((size_t)rank->moe->tiles_most, sizeof *rank->tile);
        rank->written = calloc(sim->group->heap_bytes, sizeof *rank->written);
        assert_true(rank->tile && rank->written);
    }
    sim->group->watch = watch_message;
    sim->group->context = sim;
}

void sim_close(struct sim *sim)
{
    for (int r = 0; r < sim->ranks; r++) {
        if (sim->rank[r].in_call) part_free(&sim->rank[r].part);
        cot_moe_fused.close(&sim->rank[r].moe->moe);
        free(sim->rank[r].tile), free(sim->rank[r].written);
    }
    faulty_close(sim->group);
}

/* A rank's part of the next call: its experts' weights to their slots, its outputs poisoned, its tokens in. */
static void sim_begin_call(struct sim *sim, int r)
{
    const struct world *w = sim->world;
    struct sim_rank *rank = &sim->rank[r];
    const struct step *step = &sim->script[rank->at];
    struct call *call = step->call;
    const struct plan *p = &call->plan;
    const size_t slot_bytes = cot_ffn_layout_of(&w->options.expert).bytes;
    uint8_t *slots = cot_local(rank->moe->options.fabric, rank->slots);
    memset(slots, 0xff, (size_t)sim->slots * slot_bytes);
    for (int64_t e = 0; e < w->options.experts; e++)
        for (int32_t i = p->replica_begin[e]; i < p->replica_begin[e + 1]; i++)
            if (p->rank[i] == r)
                memcpy(slots + (size_t)p->slot[i] * slot_bytes, w->experts[e].packed, slot_bytes);
    rank->layer = (cot_moe_layer){.gate = call->given ? NULL : &w->gate.gate,
                                  .placement = {p->rank, p->slot, p->replica_begin},
                                  .slots = rank->slots,
                                  .slot_bytes = slot_bytes,
                                  .shared = call->shared ? w->shared.packed : NULL,
                                  .shared_gate = call->shared ? w->shared_gate : NULL};
    rank->part = part_of(w, step, r);
    rank->tile_passes = rank->moe->times.tile_passes;
    cot_fused_begin_call(rank->moe, &rank->layer, rank->part.y, rank->part.experts, rank->part.weights,
                         rank->part.x, rank->part.tokens);
    rank->in_call = true;
    rank->passes = 0;
    watch_pass(sim, r);
}

static bool sim_take(struct sim *sim, int r)
{
    struct sim_rank *rank = &sim->rank[r];
    if (!rank->in_call || rank->flying == SIM_FLIGHTS) return false;
    struct sim_flight *flight = &rank->flight[rank->flying];
    if (!cot_fused_take(rank->moe, &flight->task)) {
        if (rank->flying < sim->threads) watch_idleness(sim, r);
        return false;
    }
    assert_true(rank->flying < sim->threads);
    flight->ran = false;
    rank->flying++;
    watch_take(sim, r, &flight->task);
    return true;
}

static bool sim_run(struct sim *sim, int r)
{
    struct sim_rank *rank = &sim->rank[r];
    if (!rank->flying) return false;
    struct sim_flight *flight = &rank->flight[draw_below(sim->draw, rank->flying)];
    if (flight->ran) return false;
    watch_run(sim, r, &flight->task);
    cot_fused_run(rank->moe, &flight->task);
    flight->ran = true;
    return true;
}

static bool sim_finish(struct sim *sim, int r)
{
    struct sim_rank *rank = &sim->rank[r];
    if (!rank->flying) return false;
    struct sim_flight *flight = &rank->flight[draw_below(sim->draw, rank->flying)];
    if (!flight->ran) return false;
    const cot_fused_task task = flight->task;
    *flight = rank->flight[--rank->flying];
    const int32_t tile = task.lane < 0 ? -1 : rank->moe->lane[task.lane].tile;
    cot_fused_finish(rank->moe, &task);
    watch_finish(sim, r, &task, tile);
    return true;
}

bool sim_is_over(struct sim *sim, int r, int *waits_for, cot_phase *phase)
{
    cot_fused *moe = sim->rank[r].moe;
    cot_fused_lock(moe);
    const bool over = cot_fused_is_over(moe, waits_for, phase);
    cot_fused_unlock(moe);
    return over;
}

static bool sim_end(struct sim *sim, int r)
{
    struct sim_rank *rank = &sim->rank[r];
    int from;
    cot_phase phase;
    if (!rank->in_call || !sim_is_over(sim, r, &from, &phase)) return false;
    watch_over(sim, r);
    cot_status status;
    cot_error error = {0};
    if (cot_fused_end_pass(rank->moe, &status, rank->part.experts, rank->part.weights, &error)) {
        assert_int_equal(status, COT_OK);
        watch_pass(sim, r);
        return true;
    }
    part_agrees(sim->world, &sim->script[rank->at], r, &rank->part, status, error.message);
    watch_passes_over_tiles(sim, r, status);
    rank->in_call = false;
    rank->at++;
    return true;
}

static bool sim_poll(struct sim *sim, int r)
{
    if (!sim->rank[r].in_call) return false;
    cot_fused_lock(sim->rank[r].moe);
    cot_fused_poll(sim->rank[r].moe);
    cot_fused_unlock(sim->rank[r].moe);
    return false;
}

static bool sim_act(struct sim *sim, int r, int64_t what)
{
    struct sim_rank *rank = &sim->rank[r];
    if (rank->dead) return false;
    switch (what) {
    case 0:
        if (rank->in_call || rank->at == sim->steps) return false;
        sim_begin_call(sim, r);
        return true;
    case 1:
        return sim_end(sim, r);
    case 2:
        return sim_poll(sim, r);
    case 3:
    case 4:
        return sim_take(sim, r);
    case 5:
    case 6:
        return sim_run(sim, r);
    default:
        return sim_finish(sim, r);
    }
}

enum { SIM_ACTS = 9 };

static bool sim_deliver(struct sim *sim, const struct sim_style *style)
{
    const int ranks = sim->ranks, pairs = ranks * ranks, first = (int)draw_below(sim->draw, pairs);
    for (int i = 0; i < pairs && sim->group->undelivered; i++) {
        const int from = (first + i) % pairs / ranks, to = (first + i) % pairs % ranks;
        const bool slow = style && (style->slow_from == from || style->slow_to == to);
        if (slow && draw_below(sim->draw, 32)) continue;
        if (faulty_deliver(sim->group, from, to)) return true;
    }
    return false;
}

/* Anything that can happen, whatever it is. */
static bool sim_force(struct sim *sim)
{
    if (sim_deliver(sim, NULL)) return true;
    for (int r = 0; r < sim->ranks; r++)
        for (int64_t what = 0; what < SIM_ACTS; what++)
            for (int tries = 0; tries < 64; tries++) // run and finish draw which
                if (sim_act(sim, r, what))
                    return true;
                else if (what < 5)
                    break;
    return false;
}

static bool sim_is_done(const struct sim *sim)
{
    for (int r = 0; r < sim->ranks; r++)
        if (sim->rank[r].at < sim->steps) return false;
    return true;
}

static struct sim_style sim_draw_style(const struct sim *sim)
{
    struct draw *draw = sim->draw;
    struct sim_style style = {1 + draw_below(draw, 15), -1, -1, -1, draw_below(draw, 4) == 0};
    if (draw_below(draw, 2)) style.slow_rank = (int)draw_below(draw, sim->ranks);
    if (draw_below(draw, 3) == 0) style.slow_from = (int)draw_below(draw, sim->ranks);
    if (draw_below(draw, 3) == 0) style.slow_to = (int)draw_below(draw, sim->ranks);
    sim->group->at_once = (int)draw_below(draw, 5);
    return style;
}

bool sim_schedule(struct sim *sim, const struct step *script, int steps)
{
    sim->script = script;
    sim->steps = steps;
    for (int r = 0; r < sim->ranks; r++) sim->rank[r].at = 0;
    const struct sim_style style = sim_draw_style(sim);
    for (int nothing = 0; !sim_is_done(sim);) {
        if (nothing++ == 300) {
            if (!sim_force(sim) && !sim_force(sim)) return false; // a look, too, may change what is known
            nothing = 0;
        }
        if (draw_below(sim->draw, 16) < style.deliver) {
            if (sim_deliver(sim, &style)) nothing = 0;
            continue;
        }
        const int r = (int)draw_below(sim->draw, sim->ranks);
        if (r == style.slow_rank && draw_below(sim->draw, 32)) continue;
        if (r == sim->victim && !sim->rank[r].dead && sim_dies(sim, r)) sim->rank[r].dead = true;
        if (style.eager && sim_take(sim, r)) {
            while (!sim_run(sim, r)) {}
            while (!sim_finish(sim, r)) {}
            nothing = 0;
        } else if (sim_act(sim, r, draw_below(sim->draw, SIM_ACTS))) {
            nothing = 0;
        }
    }
    return true;
}
