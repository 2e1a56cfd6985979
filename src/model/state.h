/* The states of one rank: what layers without keys keep of a sequence, of one size however long it is. A sequence's states lie
 * together, a layer's after the other. */
#ifndef COT_MODEL_STATE_H
#define COT_MODEL_STATE_H
#include "base/arena.h"

typedef struct cot_state {
    int64_t sequences, layers, floats; // floats: of a sequence in a layer
    float *memory;                     // [sequences][layers][floats]
    bool *held;                        // [sequences] whether memory was touched for it
} cot_state;

/* Takes the memory from the arena (which may measure). */
void cot_state_lay_out(cot_state *state, cot_arena *arena, int64_t sequences, int64_t layers, int64_t floats);
size_t cot_state_bytes(const cot_state *state); // of one sequence
/* Another rank has the sequence now: what it took here goes back to the system. */
void cot_state_give_up(cot_state *state, int64_t sequence);

static inline float *cot_state_of(const cot_state *state, int64_t sequence, int64_t layer)
{
    return state->memory + (sequence * state->layers + layer) * state->floats;
}

#endif
