/* Experts that move while an engine serves: the protocol alone. It is told what has happened and says what is to be done next;
 * it sends nothing, waits for nobody and has no clock.
 *
 * A migration turns the layout in force into another, a (layer, expert) at a time. What a rank lacks is a move, which goes
 * through
 *
 *     waiting -> reserved -> copying -> compared -> published -> released
 *
 *     waiting     its round has not come, or its rank has no free place in the layer
 *     reserved    a free place of the rank is the move's
 *     copying     chunks are put there, one after the other, each with a checksum that its rank compares
 *     compared    the place holds the expert's weights
 *     published   all ranks have been told the epoch that has the place, and perhaps lacks others
 *     released    all have answered: nobody reads what only the epoch before had, and those places are free
 *
 * Moves go in the rounds of cot_place_transfers: in a round no rank takes part in two. A layer is published when its last round is over,
 * so that a swap is two copies and one epoch, with those of its moves that are compared. What the target lacks is dropped with that,
 * unless no other replica is left. What is then still missing, because it found no free place, is
 * dealt out anew in further passes, until one has made no place free. That leaves nothing undone where each
 * rank has a free place more than it needs for the target: of ranks without one each loses more experts than it gets, and of
 * those that it loses one at least is not on its way to another such rank.
 *
 * Places are those of a rank's pools, one for the layers whose slots have the same size: each layer has as many of its own as it has
 * slots, and which place a slot has changes as moves take them. With `transit` each pool has one place more, for one layer at a time,
 * the layer in hand, which may then have a slot more than its own on each rank; so a swap stays one epoch, and no two layers wait for
 * each other's places. It is the first that has moves or, behind a pass that nothing came of, one behind that.
 *
 * A move is given up, and the expert stays where it was: when it is not compared in time, when a chunk differs as often as it may
 * be sent, when there is no place, when its rank cannot take it, when the epoch is refused, when all is cancelled. Its place is
 * free at once; but where a chunk is under way, only when that is answered. Once published, a move cannot be given up. */
#ifndef COT_ENGINE_MIGRATE_H
#define COT_ENGINE_MIGRATE_H
#include "coterie/engine.h"
#include "coterie/layout.h"
#include "coterie/place.h"
#include "model/chunk.h"

typedef enum cot_migrate_kind {
    COT_MIGRATE_NOTHING, // until more is told
    COT_MIGRATE_COPY,    // chunks, no two of one rank; each is answered by cot_migrate_copied
    COT_MIGRATE_PLACE, // changes (placement/epoch.h) for all ranks, answered by cot_migrate_placed when all have taken them
    COT_MIGRATE_OVER // nothing is under way, nothing is left to do
} cot_migrate_kind;
typedef struct cot_migrate_command {
    cot_migrate_kind kind;
    const cot_runner_chunk *chunk; // [chunks] until the next call
    int32_t chunks;
    const int32_t *words; // [count] the same
    int64_t count;
} cot_migrate_command;

typedef enum cot_migrate_state {
    COT_MIGRATE_WAITING,
    COT_MIGRATE_RESERVED,
    COT_MIGRATE_COPYING,
    COT_MIGRATE_COMPARED,
    COT_MIGRATE_PUBLISHED,
    COT_MIGRATE_RELEASED,
    COT_MIGRATE_GIVEN_UP
} cot_migrate_state;
typedef struct cot_migrate_move {
    cot_runner_chunk chunk; // the one under way, or the next: begin is how much of the slot is right
    cot_migrate_state state;
    bool asked; // a chunk is under way
    int32_t round, tries;
    int64_t since_ns; // its place is reserved
} cot_migrate_move;

/* What a slot of a rank, and the place that it has, is. */
typedef enum cot_migrate_place {
    COT_MIGRATE_FREE,
    COT_MIGRATE_IN_FORCE, // the epoch in force has it
    COT_MIGRATE_TAKEN,    // a move's
    COT_MIGRATE_RETIRING, // the epoch in force has it, the one published has not
    COT_MIGRATE_DRAINING  // it was a move's that is given up, whose chunk is under way
} cot_migrate_place;

typedef struct cot_migrate_options {
    const int64_t *slot_bytes; // [L], which lives on
    int64_t timeout_ns;        // of a move, from reserved to compared
    int32_t tries;             // how often a chunk is sent at most
    /* The last slots of layers whose slots have the same size have one place of a rank together; what the target has on a rank leaves one of a
     * layer's free. */
    bool transit;
    int32_t *place; // [L][P][slots] of each slot in its rank's pool, -1: none; kept up as places are taken
    const int32_t
        *own; // [L][P] slots that the layer may have there, `transit` aside; NULL: as many as there are
} cot_migrate_options;

typedef struct cot_migrate {
    cot_migrate_options o;
    cot_expert_map now, to; // of the epoch in force, and the target; layers by their numbers among MoE layers
    uint8_t *place;         // [L][P][slots] cot_migrate_place
    uint8_t *given_up;      // [L][E][P] the expert is no longer to come to the rank
    uint8_t *differs;       // [L] the layer is not the target's
    cot_migrate_move *move; // [moves] of this pass
    int64_t moves;
    int32_t round, rounds;
    bool placing, stopped; // PLACE is under way; no more is begun
    int32_t in_hand;       // the layer that may have a slot more than its own; L: none
    bool begun;            // the round's moves have had their chance of a place
    bool advanced;         // this pass has published something, or a place has become free
    cot_runner_chunk *chunk;
    int32_t *words, *keeps; // scratch: of an epoch; [E]
    uint8_t *changed;       // [E]
    /* What was to be done, and what became of it. */
    int64_t copies, copied, drops, dropped, epochs, gone[COT_MOVE_OUTCOMES];
    uint64_t bytes, chunks;
} cot_migrate;

/* From `now` to where `to` has experts, two layouts of the same sizes; which slots of a rank `to` says does not matter. Close either
 * way. Errors: OUT_OF_MEMORY. */
cot_status cot_migrate_open(cot_migrate *m, const cot_migrate_options *options, const cot_expert_layout *now,
                            const cot_expert_layout *to, cot_error *error);
void cot_migrate_close(cot_migrate *m);

/* What is to be done now; of each slot at most so many bytes, 0: nothing is copied. Errors: OUT_OF_MEMORY, when a pass begins: as
 * cancelled. */
cot_status cot_migrate_next(cot_migrate *m, cot_migrate_command *command, int64_t bytes, int64_t now_ns,
                            cot_error *error);
/* The chunk that a move has under way is answered. */
void cot_migrate_copied(cot_migrate *m, int32_t move, cot_runner_verdict verdict);
/* All ranks have adopted the epoch; or none has, and none will. */
void cot_migrate_placed(cot_migrate *m, bool adopted);
/* It is later: moves that take too long are given up. */
void cot_migrate_tick(cot_migrate *m, int64_t now_ns);
/* What is not published is given up; what is stays. */
void cot_migrate_cancel(cot_migrate *m);
/* The same, since all of it takes too long. */
void cot_migrate_time_out(cot_migrate *m);
/* A move whose chunks are under way or have begun, NULL: there is none. */
const cot_migrate_move *cot_migrate_at_work(const cot_migrate *m);

/* How much may be copied beside a step: a share of its median time, or bytes a second. Over any n steps chunks take at most n
 * shares and one chunk's time, however wrong the guess is of what a chunk will take. */
enum { COT_MIGRATE_MEDIAN_OF = 31, COT_MIGRATE_LEAST_BYTES = 16 << 10, COT_MIGRATE_MOST_BYTES = 1 << 20 };
typedef struct cot_migrate_budget {
    double share;       // of the median step
    double bytes_per_s; // in its place, where not 0
    double credit;      // ns, or bytes, that may be spent; below 0: to be saved up first
    double ns_a_byte;   // as learnt
    int64_t step_ns[COT_MIGRATE_MEDIAN_OF], steps;
    int64_t looked_ns; // the time of the last look, 0: there was none
} cot_migrate_budget;
/* Bytes of a chunk that may be sent behind a step that took step_ns, 0: none. Without steps (0) by share the most at once. */
int64_t cot_migrate_allow(cot_migrate_budget *budget, int64_t step_ns, int64_t now_ns);
/* How long so many bytes should take at most: one after the other, at the rate that the budget gives, and `timeout_ns`. INT64_MAX: what a byte
 * takes is not known yet. */
int64_t cot_migrate_longest_ns(const cot_migrate_budget *budget, int64_t bytes, int64_t timeout_ns);
/* What was sent, chunks of so many bytes at the same time, has taken so long. */
void cot_migrate_pay(cot_migrate_budget *budget, int64_t bytes, int64_t ns);

#endif
