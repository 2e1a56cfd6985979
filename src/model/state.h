/* The states of one rank: what layers without keys keep of a sequence, of one size however long it is. A sequence's states lie
 * together, a layer's after the other; behind those of sequences lie snapshots of such, of which the scheduler says what they are
 * of (schedule/prefix.h). */
#ifndef COT_MODEL_STATE_H
#define COT_MODEL_STATE_H
#include "base/arena.h"
#include "base/pool.h"

typedef struct cot_state {
    int64_t sequences, snapshots, layers, floats; // floats: of a sequence in a layer
    float *memory;                                // [sequences + snapshots][layers][floats]
    bool *held;                                   // [sequences + snapshots] whether memory was touched for it
} cot_state;

/* Takes the memory from the arena (which may measure). */
void cot_state_lay_out(cot_state *state, cot_arena *arena, int64_t sequences, int64_t snapshots,
                       int64_t layers, int64_t floats);
size_t cot_state_bytes(const cot_state *state); // of one row
/* Rows: a sequence's number is its row, and this is a snapshot's. */
static inline int64_t cot_state_row(const cot_state *state, int64_t snapshot)
{
    return state->sequences + snapshot;
}
/* All layers' states of a row become those of another, the pool helping (NULL: alone). */
void cot_state_assign(cot_state *state, int64_t to, int64_t from, cot_pool *pool);
/* Another rank has the row now: what it took here goes back to the system. */
void cot_state_give_up(cot_state *state, int64_t row);
/* Before anything is stored: so that nothing is taken beside rows that are held, rows lie in small pages of the system from now on. */
void cot_state_use_small_pages(const cot_state *state);

static inline float *cot_state_of(const cot_state *state, int64_t row, int64_t layer)
{
    return state->memory + (row * state->layers + layer) * state->floats;
}

#endif
