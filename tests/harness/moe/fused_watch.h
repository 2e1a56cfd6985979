/* What must hold at every step of a simulated schedule, whatever the operator thinks: no write meets a reader or
 * another write, nobody is more than one epoch ahead, no worker idles while there is work. */
#ifndef COT_TESTS_HARNESS_MOE_FUSED_WATCH_H
#define COT_TESTS_HARNESS_MOE_FUSED_WATCH_H
#include "harness/moe/faulty_fabric.h"
#include "harness/moe/fused_call.h"

#include "moe/fused/fused.h"
#include "moe/fused/state.h"

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

enum { SIM_THREADS = 4, SIM_FLIGHTS = SIM_THREADS + 1 };

struct sim_flight {
    cot_fused_task task;
    bool ran;
};

struct sim_tile {
    bool begun, up_done, down_done, done; // done: its replies are put, too
};

/* When a rank is to die. */
enum sim_moment {
    SIM_AT_ONCE,
    SIM_AFTER_GATING,
    SIM_AMONG_PACKETS, // it has sent some tokens, not the end
    SIM_BEFORE_REPLIES,
    SIM_BEFORE_SIGNALS, // tiles are done, nobody was told
    SIM_BEFORE_COMBINE,
    SIM_MOMENTS
};

struct sim_rank {
    cot_fused *moe;
    cot_sym slots;
    cot_moe_layer layer;
    struct part part;
    int at; // step of the script
    bool in_call, dead;
    struct sim_flight flight[SIM_FLIGHTS];
    int flying;
    struct sim_tile *tile;                   // of the pass
    uint32_t *written;                       // [heap] the epoch of each byte's last write
    uint64_t told[FAULTY_RANKS];             // the epoch of the reply signal to each
    uint64_t finals[FAULTY_RANKS];           // and of the last packet
    uint64_t dispatched_value[FAULTY_RANKS]; // the last dispatch signal to each
    uint64_t tile_passes;
    int passes;
};

struct sim {
    const struct world *world;
    int ranks, threads;
    int32_t slots;
    struct draw *draw;
    struct faulty_group *group;
    const struct step *script;
    int steps;
    int victim; // a rank that is to die; -1: none
    int death_step;
    enum sim_moment moment;
    struct sim_rank rank[FAULTY_RANKS];
};

void sim_print(const struct sim *sim);

/* Every put of every rank, before it is on its way: from now on it may arrive. */
void watch_message(void *context, int from, int to, cot_sym where, size_t bytes, cot_sym signal,
                   uint64_t value);

/* A pass begins. */
void watch_pass(struct sim *sim, int r);

void watch_take(struct sim *sim, int r, const cot_fused_task *task);

/* What a task writes to its own rank's symmetric memory without a put, and what it reads there. */
void watch_run(struct sim *sim, int r, const cot_fused_task *task);

void watch_finish(struct sim *sim, int r, const cot_fused_task *task, int32_t tile);

/* A free worker found nothing: nothing was there. */
void watch_idleness(struct sim *sim, int r);

/* A pass is over: nothing is left lying about. */
void watch_over(struct sim *sim, int r);

/* An expert's weights are read once where its rows fit a tile, however many ranks sent them. */
void watch_passes_over_tiles(struct sim *sim, int r, cot_status status);

/* Whether the moment has come at which the victim stops. */
bool sim_dies(const struct sim *sim, int r);

#endif
