/* Ranks of the fused operator in one thread, under a scheduler that draws what happens next: a message or a piece
 * of one arrives, a worker of some rank takes a task, runs it, finishes it, a rank begins a call or ends a pass. All
 * of a schedule follows from its seed. Beside each rank's memory lies its shadow: in which epoch every byte was
 * last written. fused_watch.h checks every step against it. */
#ifndef COT_TESTS_HARNESS_MOE_FUSED_SIM_H
#define COT_TESTS_HARNESS_MOE_FUSED_SIM_H
#include "harness/moe/fused_watch.h"

#include <stdbool.h>
#include <stdint.h>

void sim_open(struct sim *sim, const struct world *w, int ranks, int threads, int32_t slots,
              struct draw *draw);

void sim_close(struct sim *sim);

bool sim_is_over(struct sim *sim, int r, int *waits_for, cot_phase *phase);

/* One event after the other until all ranks have made all calls: true. Or until nothing can happen any more: false. */
bool sim_schedule(struct sim *sim, const struct step *script, int steps);

#endif
