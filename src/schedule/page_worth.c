#include "schedule/page_worth.h"

#include "base/error.h"
#include "base/rng.h"
#include "schedule/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t block_count(int64_t pages, int64_t block_tokens)
{
    return block_tokens ? pages * (COT_KV_PAGE / block_tokens) : 0;
}

static size_t table_size(int64_t blocks)
{
    size_t size = 2;
    while (size < (size_t)blocks * 2) size *= 2;
    return size;
}

size_t cot_page_worth_bytes(int64_t pages, int64_t block_tokens)
{
    const cot_page_worth *w = NULL;
    const size_t blocks = (size_t)block_count(pages, block_tokens);
    return 2 * blocks * (sizeof *w->hash + sizeof *w->sum + sizeof *w->has) + blocks * sizeof *w->line +
           table_size((int64_t)blocks) * sizeof *w->table;
}

cot_status cot_page_worth_open(cot_page_worth *w, int64_t pages, int64_t block_tokens, cot_error *error)
{
    const int64_t blocks = block_count(pages, block_tokens);
    const size_t times = 2 * (size_t)blocks + 1, size = table_size(blocks);
    *w = (cot_page_worth){.pages = pages,
                          .blocks = blocks,
                          .block_tokens = block_tokens,
                          .hash = calloc(times, sizeof *w->hash),
                          .sum = calloc(times, sizeof *w->sum),
                          .has = calloc(times, sizeof *w->has),
                          .table = calloc(size, sizeof *w->table),
                          .line = calloc((size_t)blocks + 1, sizeof *w->line),
                          .mask = size - 1};
    if (w->line && w->hash && w->sum && w->has && w->table) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the order of use of %lld blocks",
                    (long long)blocks);
}

void cot_page_worth_close(cot_page_worth *w)
{
    free(w->hash);
    free(w->sum);
    free(w->has);
    free(w->table);
    free(w->line);
    *w = (cot_page_worth){0};
}

/* ---- the order of use ---- */

static void add(cot_page_worth *w, int64_t time, int32_t change)
{
    for (int64_t i = time + 1; i <= 2 * w->blocks; i += i & -i) w->sum[i] += change;
}

/* Blocks of times up to this one, itself included. */
static int64_t up_to(const cot_page_worth *w, int64_t time)
{
    int64_t sum = 0;
    for (int64_t i = time + 1; i > 0; i -= i & -i) sum += w->sum[i];
    return sum;
}

/* Where the hash stands in the table, or would. */
static uint64_t place_of(const cot_page_worth *w, uint64_t hash)
{
    uint64_t at = cot_mix64(hash) & w->mask;
    while (w->table[at] && w->hash[w->table[at] - 1] != hash) at = (at + 1) & w->mask;
    return at;
}

/* Takes an entry of the table out; those behind it that could stand there do. */
static void take_out(cot_page_worth *w, uint64_t at)
{
    for (uint64_t next = (at + 1) & w->mask; w->table[next]; next = (next + 1) & w->mask) {
        const uint64_t home = cot_mix64(w->hash[w->table[next] - 1]) & w->mask;
        if (((next - home) & w->mask) < ((next - at) & w->mask)) continue;
        w->table[at] = w->table[next];
        at = next;
    }
    w->table[at] = 0;
}

static void forget(cot_page_worth *w, int64_t time)
{
    take_out(w, place_of(w, w->hash[time]));
    add(w, time, -1);
    w->has[time] = 0;
    w->count--;
}

static void put(cot_page_worth *w, uint64_t hash)
{
    w->hash[w->next] = hash;
    w->has[w->next] = 1;
    add(w, w->next, 1);
    w->table[place_of(w, hash)] = (int32_t)++w->next;
    w->count++;
}

/* Times from 0 on, in the same order. */
static void deal_out(cot_page_worth *w)
{
    const int64_t end = w->next;
    memset(w->table, 0, (size_t)(w->mask + 1) * sizeof *w->table);
    memset(w->sum, 0, (size_t)(2 * w->blocks + 1) * sizeof *w->sum);
    w->next = w->first = w->count = 0;
    for (int64_t t = 0; t < end; t++) {
        if (!w->has[t]) continue;
        w->has[t] = 0;
        put(w, w->hash[t]); // at t or before
    }
}

void cot_page_worth_use(cot_page_worth *w, uint64_t hash)
{
    if (!w->blocks) return;
    const int32_t entry = w->table[place_of(w, hash)];
    if (entry) forget(w, entry - 1);
    if (w->next == 2 * w->blocks) deal_out(w);
    if (w->count == w->blocks) {
        while (!w->has[w->first]) w->first++;
        forget(w, w->first);
    }
    put(w, hash);
}

/* ---- what is saved ---- */

void cot_page_worth_add(cot_page_worth *w, double pages, double ns)
{
    const double bin = floor(pages * COT_PAGE_WORTH_BINS / (double)w->pages);
    if (bin < COT_PAGE_WORTH_BINS) w->saved_ns[(int)fmax(bin, 0)] += ns;
}

void cot_page_worth_look_up(cot_page_worth *w, int64_t count)
{
    for (int64_t i = 0; i < count; i++) { // deeper and deeper, as blocks are used
        const int32_t entry = w->table[place_of(w, w->line[i])];
        if (!entry) break;
        const int64_t depth = w->count - up_to(w, entry - 1);
        cot_page_worth_add(w, (double)depth * w->block_pages, (double)w->block_tokens * w->token_ns);
    }
    while (count) cot_page_worth_use(w, w->line[--count]);
}

void cot_page_worth_elapse(cot_page_worth *w, double steps, double half_life_steps)
{
    const double left = exp2(-steps / half_life_steps);
    for (int i = 0; i < COT_PAGE_WORTH_BINS; i++) w->saved_ns[i] *= left;
    w->steps = (w->steps + steps) * left;
}

void cot_page_worth_of(const cot_page_worth *w, double *ns)
{
    double sum = 0;
    ns[0] = 0;
    for (int i = 0; i < COT_PAGE_WORTH_BINS; i++)
        ns[i + 1] = w->steps > 0 ? (sum += w->saved_ns[i]) / w->steps : 0;
}
