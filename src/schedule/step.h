/* What one step of the whole group computes; the same on every rank. */
#ifndef COT_SCHEDULE_STEP_H
#define COT_SCHEDULE_STEP_H
#include <stdbool.h>
#include <stdint.h>

enum { COT_KV_PAGE = 64 }; // positions of a page

/* Pages that so many positions of one sequence fill or begin. */
static inline int64_t cot_page_count(int64_t positions)
{
    return (positions + COT_KV_PAGE - 1) / COT_KV_PAGE;
}

/* Positions that so many pages hold. */
static inline int64_t cot_page_positions(int64_t pages)
{
    return pages * COT_KV_PAGE;
}

/* Consecutive tokens of one sequence. */
typedef struct cot_span {
    int32_t sequence; // its row in the page tables
    int32_t home;     // the rank that holds it under data-parallel attention
    int32_t position; // of its first token
    int32_t tokens;
    int32_t logits;   // its last `logits` tokens want logits, 0 to tokens
    int32_t recorded; // the sequence of recorded routing that it replays, where there is any (model/replay.h)
} cot_span;

/* Page `page` is the sequence's page number `index` from this step on. Of page `from`, which may be the same, it has the
 * first `keep` positions, 0 to 64; the others are cleared. Maps take effect one after the other. */
typedef struct cot_page_map {
    int32_t sequence, index, page, from;
    int16_t home, keep;
} cot_page_map;

/* A copy of the states of a sequence, where layers have some (model/state.h): before the step from a snapshot, which is what the
 * sequence's span goes on from; or in it, to a snapshot, of what its tokens before `position` leave. Copies of a sequence
 * follow one another, in the order of spans and positions. */
typedef struct cot_state_copy {
    int32_t sequence, snapshot, position;
    int16_t home;
    bool from; // the snapshot
} cot_state_copy;

typedef struct cot_step {
    int32_t tokens, spans, maps, states, logits; // totals
    bool reports;                                // every rank tells rank 0 what it counted
    /* Rank 0 gets the experts of every so manieth of its tokens, the first of them routed_first, less than that; 0: of none. */
    int32_t routed_every, routed_first;
    const int32_t *ids; // [tokens], span after span
    const cot_span *span;
    const cot_page_map *map;
    const cot_state_copy *state;
} cot_step;

static inline bool cot_step_wants_routing(const cot_step *step, int64_t token)
{
    return token % step->routed_every == step->routed_first;
}

#endif
