/* One layer of a cycle of rebalancing (rebalance.h): what its steps take where experts sit, and changes that save time. */
#ifndef COT_PLACEMENT_REBALANCE_LAYER_H
#define COT_PLACEMENT_REBALANCE_LAYER_H
#include "placement/rebalance.h"

/* Whether so many intervals have gone by between two times. */
bool cot_rebalance_passed(const cot_rebalance_options *options, cot_rebalance_clock from,
                          cot_rebalance_clock to, int64_t intervals);

/* Other ranks for up to two experts, and for a third one that makes room. */
enum { COT_REBALANCE_CHANGED = 3 };
typedef struct cot_rebalance_change {
    int n;
    int32_t expert[COT_REBALANCE_CHANGED];
    uint64_t ranks[COT_REBALANCE_CHANGED]; // a bit each
} cot_rebalance_change;

/* The state behind so many changes. */
typedef struct cot_rebalance_mark {
    cot_rebalance_change change;
    double ns;
    int32_t moves; // against where experts were
    int32_t spare; // slots with an expert
} cot_rebalance_mark;

typedef struct cot_rebalance_search {
    const cot_rebalance_options *o;
    const double *distance;
    const bool *fixed;    // [E] the expert may not change; NULL: all may
    uint64_t *was, *now;  // [E] ranks of each expert
    int32_t *used, *most; // [P] experts of each rank, and how many it may have
    int32_t spare;        // of `used`, beyond the base
    double *share_ns;     // [E][P + 1] what a replica of e takes where there are so many
    double *rank_ns;      // [P]
    int32_t come, go;     // replicas, against `was`
    double ns;            // a step
    double spread;        // sum over ranks of rank_ns squared
    /* Of joint, else no tokens. */
    int32_t tokens;
    const uint16_t *experts; // [tokens][stride], of which the first K count
    const int16_t *home;     // [tokens]
    int64_t stride;
    double send_ns;                     // a step for a send of distance 1 of a token of the sample
    double sends;                       // of the sample, by distance
    int32_t *begin, *token;             // [E + 1], [tokens K] the tokens that call each expert, ascending
    double *token_sends, *expert_sends; // [tokens]; [E] of the tokens that call it
    cot_rebalance_mark *mark;           // [marks] what was found
    int32_t marks, room;
} cot_rebalance_search;

/* Room for any layer, with a sample of so many tokens. Errors: OUT_OF_MEMORY. Close either way. */
cot_status cot_rebalance_search_open(cot_rebalance_search *s, const cot_rebalance_options *options,
                                     const double *distance, int64_t tokens, cot_error *error);
void cot_rebalance_search_close(cot_rebalance_search *s);
/* Layer l: experts sit on `was`, and are called so often a step. */
void cot_rebalance_search_begin(cot_rebalance_search *s, const double *calls, const cot_rebalance_seen *seen,
                                int32_t l, const bool *fixed);
/* No rank may fill more spare slots than it has filled. */
void cot_rebalance_search_keep_slots(cot_rebalance_search *s);
/* Changes, one after another, until none saves time: a mark behind each. Errors: OUT_OF_MEMORY. */
cot_status cot_rebalance_search_run(cot_rebalance_search *s, cot_error *error);
/* Ranks that have more than `most` experts, the base or more, come to have so many, by what costs least, one expert after the other: a replica goes, or an
 * expert that has no other into a slot that is there anyhow. No rank fills another spare slot. A mark behind each. Errors: OUT_OF_MEMORY. */
cot_status cot_rebalance_search_emptying(cot_rebalance_search *s, int32_t most, cot_error *error);

#endif
