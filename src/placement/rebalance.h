/* When experts should move while a group serves, and which: pure. Counts of calls, the layout in force, what things take and the
 * time are handed in; a plan comes out, of each layer what is done or why nothing is.
 *
 * A step's time in a layer is taken to be
 *
 *     max over ranks r of sum over replicas on r of expert_ns (1 - exp(-x)) + row_ns x          x: the replica's calls a step
 *   + send_ns (token, rank) sends a step / ranks                                                 joint alone
 *
 * since a rank reads an expert's weights when a step calls it at all, and multiplies once for each call. An expert's calls are shared by its
 * replicas evenly. Sends are counted on a sample of the tokens: a token goes once to each rank that serves it, other than its
 * home, and a send counts as often as its distance says.
 *
 * What changes a layer is, over and over, the one change that saves the most time for a copy: another replica, one in the place of
 * another expert's, an expert on another rank, two that change places, a replica less. Changes are taken, a few of a layer together where
 * one alone brings little, as long as what they save until the experts may move again is `margin` times what their moves take. A
 * move is a replica that comes to a rank, and takes a copy; replicas that go beyond those that come count as much, since what is given up
 * may have to be copied again. */
#ifndef COT_PLACEMENT_REBALANCE_H
#define COT_PLACEMENT_REBALANCE_H
#include "coterie/layout.h"

#include <stdbool.h>

enum { COT_REBALANCE_MOST_RANKS = 64, COT_REBALANCE_LEAST_CALLS = 8 };

typedef enum cot_rebalance_mode {
    COT_REBALANCE_OFF,
    COT_REBALANCE_LOAD,
    COT_REBALANCE_JOINT
} cot_rebalance_mode;
extern const char *const cot_rebalance_mode_names[]; // by mode; NULL ends

/* Reads an interval as people write it: "4096steps", "60s" or both with a comma between, of which the first counts that is over; what is not said
 * becomes 0. Errors: INVALID_ARGUMENT: another text, none above 0. */
cot_status cot_rebalance_read_interval(int64_t *steps, int64_t *ns, const char *text, cot_error *error);

typedef struct cot_rebalance_options {
    cot_rebalance_mode mode; // not OFF
    int32_t layers, experts, ranks, top_k;
    int32_t slots;                       // of a layer that a rank may fill
    int32_t base;                        // those of them that are there anyhow; the others are spare
    const int64_t *slot_bytes;           // [L] of a spare one; NULL: no budget holds them, none is spare
    int64_t interval_steps, interval_ns; // a cycle is due after either; 0: not by that, and one is not 0
    int32_t cool_down;     // intervals that a (layer, expert) which changed stays where it is; 1 or more
    double margin;         // times its moves' copies that a change must save in that time
    int64_t moves_a_cycle; // at most; what a cycle leaves of them the next one may make, too
    double row_ns, expert_ns, send_ns;
    const double *copy_ns;  // [L] that steps are longer for one copy of an expert
    const double *distance; // [P][P] a send's from the row's rank to the column's; NULL: 1 of any two
} cot_rebalance_options;

typedef struct cot_rebalance_clock {
    int64_t steps, ns;
} cot_rebalance_clock;

typedef struct cot_rebalance {
    cot_rebalance_options o;
    double *copy_ns, *distance;
    int64_t *slot_bytes;
    int64_t spare_bytes;      // that spare slots with an expert in them may take together
    cot_rebalance_clock last; // when the last cycle was
    int64_t cycles;
    int64_t saved_moves;          // of earlier cycles, no more than those of one
    cot_rebalance_clock *changed; // [L][E] when it last did
    bool *has_changed;            // [L][E]
    double usual_change;          // of what is called, from one cycle to the next
    int32_t changes;              // that it is the mean of
} cot_rebalance;

/* The first cycle is due an interval after `now`. Errors: INVALID_ARGUMENT, naming what is wrong; OUT_OF_MEMORY. Close either way. */
cot_status cot_rebalance_open(cot_rebalance *r, const cot_rebalance_options *options, cot_rebalance_clock now,
                              cot_error *error);
void cot_rebalance_close(cot_rebalance *r);
/* Times that are known better now, in place of those of the options. Errors: INVALID_ARGUMENT, nothing has changed then. */
typedef struct cot_rebalance_costs {
    double row_ns, expert_ns, send_ns;
    const double *copy_ns; // [L]
} cot_rebalance_costs;
cot_status cot_rebalance_learn(cot_rebalance *r, const cot_rebalance_costs *costs, cot_error *error);
/* Spare slots that have an expert may take so many bytes from now on, at first as many as there are. */
void cot_rebalance_allow(cot_rebalance *r, int64_t spare_bytes);
bool cot_rebalance_due(const cot_rebalance *r, cot_rebalance_clock now);

/* What became of a layer in a cycle, and why nothing did. */
typedef enum cot_rebalance_reason {
    COT_REBALANCE_MOVES,   // experts are to move
    COT_REBALANCE_FEW,     // less than LEAST_CALLS calls an expert are counted
    COT_REBALANCE_LEAST,   // no change saves time
    COT_REBALANCE_COST,    // changes save too little for what moves take
    COT_REBALANCE_COOLING, // changes would pay, of experts that changed too lately
    COT_REBALANCE_LIMIT,   // changes would pay, but other layers' pay more and moves a cycle are limited
    COT_REBALANCE_SLOTS,   // changes would pay, but the budget has no slot for them
    COT_REBALANCE_REASONS
} cot_rebalance_reason;
extern const char
    *const cot_rebalance_reason_names[COT_REBALANCE_REASONS + 1]; // few words, for people; NULL ends

typedef struct cot_rebalance_layer {
    cot_rebalance_reason reason;
    int32_t moves;              // those to be made; or those of the best that were refused
    double before_ns, after_ns; // a step's time, and with those moves
} cot_rebalance_layer;

typedef struct cot_rebalance_plan {
    cot_expert_map to;          // layers as the layout has them
    cot_rebalance_layer *layer; // [L]
    bool *changes;              // [L][E] whether the expert's ranks are others
    int32_t layers, experts;
    int64_t copies,
        drops; // (layer, expert, rank) that come and go; drops alone, where slots have to become free first
    double before_ns, saving_ns; // of a step, over all layers
    double horizon_steps;        // that savings were reckoned over
} cot_rebalance_plan;

/* What was counted, as routing/popularity.h keeps it. */
typedef struct cot_rebalance_seen {
    const double *calls; // [L][E] (token, expert) calls, decayed
    double steps;        // in which they were, decayed alike
    /* A sample of tokens, of any size, which joint looks at; without one joint is load. */
    int64_t tokens;
    const uint16_t *experts; // [tokens][L][K]
    const int16_t *home;     // [tokens]
} cot_rebalance_seen;

/* Before a cycle: whether what is called has become another, so that what was called before tells nothing any more. `change`: which part of the
 * calls went to other experts since the last cycle than before it, and `chance` how much so few calls differ by anyhow, as routing/popularity.h
 * counts both; where chance is 0 there is nothing to look at. It has where that is far more than usual, and than chance; a change that comes again and again is usual. */
bool cot_rebalance_turns(cot_rebalance *r, double change, double chance);

/* A cycle, whether or not it is due; nothing is kept of it until it is adopted. Where moves that were cut off have left a rank one expert more than
 * slots, that one goes, and the next cycle does the rest. Errors: INVALID_ARGUMENT: a layout of other sizes, or with more experts on a rank than that; OUT_OF_MEMORY. Close either way. */
cot_status cot_rebalance_plan_open(cot_rebalance_plan *plan, const cot_rebalance *r,
                                   const cot_expert_layout *layout, const cot_rebalance_seen *seen,
                                   cot_rebalance_clock now, cot_error *error);
/* In its place, where more spare slots have an expert than may: a plan that empties some, those first that cost least for their bytes: replicas go, experts that
 * have no other get slots that are there anyhow. */
cot_status cot_rebalance_plan_emptying(cot_rebalance_plan *plan, const cot_rebalance *r,
                                       const cot_expert_layout *layout, const cot_rebalance_seen *seen,
                                       cot_rebalance_clock now, cot_error *error);
void cot_rebalance_plan_close(cot_rebalance_plan *plan);
/* What spare slots take that have an expert in one of two layouts; NULL: of one. */
int64_t cot_rebalance_spare_bytes(const cot_rebalance *r, const cot_expert_layout *layout,
                                  const cot_expert_layout *other);
/* What a step takes less, as far as changes pay, where spare slots may take so many bins of bytes: ns [bins + 1], rising, against what those
 * save that have an expert now. Errors: as of a cycle. */
cot_status cot_rebalance_worth(double *ns, int bins, double bin_bytes, const cot_rebalance *r,
                               const cot_expert_layout *layout, const cot_rebalance_seen *seen,
                               cot_rebalance_clock now, cot_error *error);
/* The cycle was made, and its moves are begun: their experts cool down from now on. */
void cot_rebalance_adopt(cot_rebalance *r, const cot_rebalance_plan *plan, cot_rebalance_clock now);

#endif
