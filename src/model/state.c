#include "model/state.h"

#include <sys/mman.h>
#include <unistd.h>

void cot_state_lay_out(cot_state *s, cot_arena *arena, int64_t sequences, int64_t layers, int64_t floats)
{
    *s = (cot_state){.sequences = sequences, .layers = layers, .floats = floats};
    s->held = cot_arena_take(arena, (size_t)sequences, sizeof *s->held);
    s->memory = cot_arena_take(arena, (size_t)sequences, cot_state_bytes(s));
}

size_t cot_state_bytes(const cot_state *s)
{
    return (size_t)(s->layers * s->floats) * sizeof *s->memory;
}

void cot_state_give_up(cot_state *s, int64_t sequence)
{
    if (!s->layers || !s->held[sequence]) return;
    s->held[sequence] = false;
    const size_t small = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *begin = (uint8_t *)cot_state_of(s, sequence, 0), *end = begin + cot_state_bytes(s);
    begin += (small - (uintptr_t)begin % small) % small;
    end -= (uintptr_t)end % small;
    if (begin < end) madvise(begin, (size_t)(end - begin), MADV_DONTNEED);
}
