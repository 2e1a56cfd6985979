/* A chunk of an expert's weights on its way from a slot of one rank to a slot of another. */
#ifndef COT_MODEL_CHUNK_H
#define COT_MODEL_CHUNK_H
#include <stdint.h>

typedef struct cot_runner_chunk {
    int32_t layer, expert; // layer: its number among MoE layers
    int32_t from, from_slot, to, to_slot;
    int64_t begin, bytes; // of the slot; begin 0: the first
    int32_t last;         // the slot is whole with it
    int32_t move;         // whose chunk it is, as whoever asks for it counts
    int32_t place;        // of the pool of `to`, that to_slot has from its first chunk on
} cot_runner_chunk;

/* What became of it. */
typedef enum cot_runner_verdict {
    COT_RUNNER_SAME,    // it came as it was sent
    COT_RUNNER_DIFFERS, // it did not
    COT_RUNNER_FAILED   // the rank has no use for it: its device is full, say
} cot_runner_verdict;

#endif
