#include "model/kv.h"

#include "base/integers.h"
#include "kernels/pack.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void cot_kv_lay_out(cot_kv *kv, cot_arena *arena)
{
    const cot_format format = cot_format_of(kv->type);
    kv->key_bytes = (size_t)cot_packed_bytes(format, kv->key_width, COT_KV_PAGE);
    kv->head_bytes = kv->key_bytes + (size_t)cot_packed_bytes(format, COT_KV_PAGE, kv->value_width);
    kv->page_bytes = (size_t)(kv->layers * kv->heads) * kv->head_bytes;
    kv->table =
        cot_arena_take(arena, (size_t)kv->sequences, (size_t)kv->pages_a_sequence * sizeof *kv->table);
    kv->zeros = cot_arena_take(arena, (size_t)cot_larger(kv->key_width, kv->value_width), sizeof *kv->zeros);
    kv->held = cot_arena_take(arena, (size_t)kv->pages, sizeof *kv->held);
    kv->memory = cot_arena_take(arena, (size_t)kv->pages, kv->page_bytes);
}

/* One position of all layers and heads. */
static void clear(cot_kv *kv, int64_t sequence, int64_t position)
{
    for (int64_t layer = 0; layer < kv->layers; layer++)
        for (int64_t head = 0; head < kv->heads; head++)
            cot_kv_store(kv, sequence, position, layer, head, kv->zeros, kv->zeros);
}

void cot_kv_map(cot_kv *kv, int64_t sequence, int64_t index, int32_t page, int32_t from, int64_t keep)
{
    uint8_t *memory = kv->memory + (size_t)page * kv->page_bytes;
    kv->table[sequence * kv->pages_a_sequence + index] = page;
    kv->held[page] = true;
    if (!keep)
        memset(memory, 0, kv->page_bytes);
    else if (from != page)
        memcpy(memory, kv->memory + (size_t)from * kv->page_bytes, kv->page_bytes);
    for (int64_t place = keep; keep && place < COT_KV_PAGE; place++)
        clear(kv, sequence, index * COT_KV_PAGE + place);
}

/* The system gets what pages [from, to) took, but for its own pages that they share with others. */
static void give_back(const cot_kv *kv, int64_t from, int64_t to)
{
    const size_t small = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *begin = kv->memory + (size_t)from * kv->page_bytes,
            *end = kv->memory + (size_t)to * kv->page_bytes;
    begin += (small - (uintptr_t)begin % small) % small;
    end -= (uintptr_t)end % small;
    if (begin < end) madvise(begin, (size_t)(end - begin), MADV_DONTNEED);
}

void cot_kv_give_up(cot_kv *kv, int32_t page)
{
    if (!kv->held[page]) return;
    kv->held[page] = false;
    give_back(kv, page, page + 1);
}

void cot_kv_use_small_pages(const cot_kv *kv)
{
    const size_t small = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *begin =
                kv->memory - (uintptr_t)kv->memory % small, // where others are, too, they have small ones
        *end = kv->memory + (size_t)kv->pages * kv->page_bytes;
    if (begin < end) madvise(begin, (size_t)(end - begin), MADV_NOHUGEPAGE);
    give_back(kv, 0, kv->pages); // a huge page of what lies beside them may have been touched
}

/* Where what was in a page is by these pairs. */
static int32_t page_now(const int32_t *moved, int64_t moves, int32_t page)
{
    int64_t first = 0, end = moves;
    while (first < end) {
        const int64_t middle = first + (end - first) / 2;
        if (moved[2 * middle] < page)
            first = middle + 1;
        else
            end = middle;
    }
    return first < moves && moved[2 * first] == page ? moved[2 * first + 1] : page;
}

void cot_kv_resize(cot_kv *kv, const int32_t *moved, int64_t moves, int64_t open)
{
    for (int64_t i = 0; i < moves; i++) {
        const int32_t from = moved[2 * i], to = moved[2 * i + 1];
        if (!kv->held[from]) { // of another rank
            cot_kv_give_up(kv, to);
            continue;
        }
        memcpy(kv->memory + (size_t)to * kv->page_bytes, kv->memory + (size_t)from * kv->page_bytes,
               kv->page_bytes);
        kv->held[to] = true;
    }
    for (int64_t i = 0; moves && i < kv->sequences * kv->pages_a_sequence; i++)
        kv->table[i] = page_now(moved, moves, kv->table[i]);
    if (open == kv->pages) return;
    give_back(kv, open, kv->pages);
    memset(kv->held + open, 0, (size_t)(kv->pages - open) * sizeof *kv->held);
}

void cot_kv_store(cot_kv *kv, int64_t sequence, int64_t position, int64_t layer, int64_t head,
                  const float *key, const float *value)
{
    int64_t index = position / COT_KV_PAGE, place = position % COT_KV_PAGE;
    const cot_format format = cot_format_of(kv->type);
    cot_pack_column(cot_kv_keys(kv, sequence, index, layer, head), format,
                    cot_panel_bytes(format, kv->key_width), place, key, kv->key_width);
    cot_pack_row(cot_kv_values(kv, sequence, index, layer, head), format,
                 cot_panel_bytes(format, COT_KV_PAGE), place, value, kv->value_width);
}
