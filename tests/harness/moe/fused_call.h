/* One call of a group: who has which tokens and experts, and what each rank should answer, from the oracle and from
 * a rank alone. */
#ifndef COT_TESTS_HARNESS_MOE_FUSED_CALL_H
#define COT_TESTS_HARNESS_MOE_FUSED_CALL_H
#include "harness/moe/plan.h"

#include <stdbool.h>
#include <stdint.h>

struct call {
    struct plan plan;
    int64_t tokens; // of all ranks, in the plan's order
    bool given, shared;
    uint16_t *experts; // [T][K] where the routing is given
    float *weights;
    float *x;   // [T][H]
    double *y;  // [T][H]
    bool *sure; // [T]
    double tolerance;
    float *alone, *before; // [T][H]: what one rank alone answered; what another schedule did
    bool has_before;
};

/* A call as a schedule makes it: with tokens of one rank spoilt, or as it is. */
struct step {
    struct call *call;
    int guilty;     // -1: nobody
    int64_t spoilt; // its first token that is
    int64_t every;  // and each that comes so many behind another; 0: no others
};

/* What one rank hands to a call. */
struct part {
    int64_t tokens;
    float *x, *y, *weights;
    uint16_t *experts;
};

/* A call of so many drawn tokens by the drawn placement and shares of `ranks` ranks; slots: at most so many. */
struct call *call_new(const struct world *w, int ranks, int64_t tokens, struct draw *draw);

void call_free(struct call *call);

/* The same tokens on one rank. */
struct call call_alone(const struct call *call, const struct world *w);

/* Tiles that a rank begins in a call of one pass: as many as it has experts with rows, and the shared expert's.
 * -1 where some expert has more rows than a tile. */
int64_t call_tiles(const struct world *w, const struct call *call, int rank);

/* Copies of what a rank hands in, spoilt where the step says so; outputs hold NaN. */
struct part part_of(const struct world *w, const struct step *step, int rank);

void part_free(struct part *part);

/* What rank `rank` should have got, and gets in every schedule; frees the part. */
void part_agrees(const struct world *w, const struct step *step, int rank, struct part *part,
                 cot_status status, const char *message);

#endif
