#include "model/state.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void cot_state_lay_out(cot_state *s, cot_arena *arena, int64_t sequences, int64_t snapshots, int64_t layers,
                       int64_t floats)
{
    const size_t rows = (size_t)(sequences + snapshots);
    *s = (cot_state){.sequences = sequences, .snapshots = snapshots, .layers = layers, .floats = floats};
    s->held = cot_arena_take(arena, rows, sizeof *s->held);
    s->memory = cot_arena_take(arena, rows, cot_state_bytes(s));
}

size_t cot_state_bytes(const cot_state *s)
{
    return (size_t)(s->layers * s->floats) * sizeof *s->memory;
}

struct row_copy {
    cot_state *state;
    int64_t to, from;
};

static void copy_layer(void *context, int64_t layer)
{
    const struct row_copy *copy = context;
    cot_state *s = copy->state;
    memcpy(cot_state_of(s, copy->to, layer), cot_state_of(s, copy->from, layer),
           (size_t)s->floats * sizeof *s->memory);
}

void cot_state_assign(cot_state *s, int64_t to, int64_t from, cot_pool *pool)
{
    struct row_copy copy = {s, to, from};
    s->held[to] = true;
    cot_pool_run(pool, s->layers, copy_layer, &copy);
}

/* The system gets what rows [from, to) took, but for its own pages that they share with others. */
static void give_back(const cot_state *s, int64_t from, int64_t to)
{
    const size_t small = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *begin = (uint8_t *)cot_state_of(s, from, 0), *end = (uint8_t *)cot_state_of(s, to, 0);
    begin += (small - (uintptr_t)begin % small) % small;
    end -= (uintptr_t)end % small;
    if (begin < end) madvise(begin, (size_t)(end - begin), MADV_DONTNEED);
}

void cot_state_give_up(cot_state *s, int64_t row)
{
    if (!s->layers || !s->held[row]) return;
    s->held[row] = false;
    give_back(s, row, row + 1);
}

void cot_state_use_small_pages(const cot_state *s)
{
    if (!s->layers) return;
    const int64_t rows = s->sequences + s->snapshots;
    uint8_t *begin = (uint8_t *)cot_state_of(s, 0, 0), *end = (uint8_t *)cot_state_of(s, rows, 0);
    begin -= (uintptr_t)begin % (size_t)sysconf(_SC_PAGESIZE); // where others are, too, they have small ones
    if (begin < end) madvise(begin, (size_t)(end - begin), MADV_NOHUGEPAGE);
    give_back(s, 0, rows); // a huge page of what lies beside them may have been touched
}
