#include "model/attend.h"

#include "base/integers.h"
#include "kernels/pack.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum {
    TILE_ROWS = 64,   // (token, head) pairs that share a KV head and are multiplied together
    BLOCK_PAGES = 16, // of keys at a time: their scores stay in a core's cache
    BLOCK = BLOCK_PAGES * COT_KV_PAGE
};

/* Pairs [pair0, pair0 + pairs) of a run under one KV head; pair i is token i / g, head j0 + i % g of its g
 * heads. */
struct tile {
    int32_t run, kv_head, pair0;
};

/* Room for a tile at work. */
struct workspace {
    atomic_bool taken;
    float *scores;       // [TILE_ROWS][BLOCK]
    void *probabilities; // kv type, the same shape
    float *out;          // [TILE_ROWS][value_width]
};

struct cot_attend_scratch {
    int workspaces;
    struct workspace workspace[];
};

struct cot_attend {
    cot_attend_scratch *scratch;
    struct tile *tiles;
    int64_t tile_room, tile_count;
    const cot_attend_args *args;
};

cot_attend_scratch *cot_attend_scratch_lay_out(cot_arena *arena, cot_dtype type, int64_t value_width,
                                               int threads)
{
    cot_attend_scratch *scratch =
        cot_arena_take(arena, 1, sizeof *scratch + (size_t)threads * sizeof *scratch->workspace);
    if (scratch) scratch->workspaces = threads;
    for (int i = 0; i < threads; i++) {
        float *scores = cot_arena_take(arena, TILE_ROWS, BLOCK * sizeof(float));
        void *probabilities = cot_arena_take(arena, TILE_ROWS, BLOCK * cot_dtype_bytes(type));
        float *out = cot_arena_take(arena, TILE_ROWS, (size_t)value_width * sizeof(float));
        if (scratch)
            scratch->workspace[i] =
                (struct workspace){.scores = scores, .probabilities = probabilities, .out = out};
    }
    return scratch;
}

cot_attend *cot_attend_lay_out(cot_arena *arena, cot_attend_scratch *scratch, int64_t kv_heads, int64_t heads,
                               int64_t rows)
{
    const int64_t tile_room = kv_heads * rows + heads * rows / TILE_ROWS + 1;
    cot_attend *attend = cot_arena_take(arena, 1, sizeof *attend);
    struct tile *tiles = cot_arena_take(arena, (size_t)tile_room, sizeof *tiles);
    if (attend) *attend = (cot_attend){.scratch = scratch, .tiles = tiles, .tile_room = tile_room};
    return attend;
}

/* The local query heads [*begin, *end) that read a local KV head. */
static void heads_of(const cot_attend_args *a, int64_t kv_head, int64_t *begin, int64_t *end)
{
    int64_t first = (a->weights->kv_head0 + kv_head) * a->group - a->weights->head0, last = first + a->group;
    *begin = first < 0 ? 0 : first;
    *end = last > a->weights->heads ? a->weights->heads : last;
}

/* A thread that finds none free waits for one that computes. */
static struct workspace *take_workspace(cot_attend_scratch *scratch)
{
    for (int i = 0;; i = (i + 1) % scratch->workspaces)
        if (!atomic_exchange_explicit(&scratch->workspace[i].taken, true, memory_order_acquire))
            return &scratch->workspace[i];
}

/* A tile, and what is known of its rows so far. */
struct work {
    const cot_attend_args *a;
    const struct workspace *w;
    const cot_run *run;
    int64_t kv_head, head0, heads, pair0, pairs;
    int64_t page0, page1; // all keys that any of its rows sees
    int32_t rows[TILE_ROWS];
    cot_softmax_sums sums[TILE_ROWS];
};

static void begin_work(struct work *work, const cot_attend_args *a, const struct tile *tile)
{
    const cot_run *run = work->run = &a->runs[tile->run];
    int64_t head1;
    work->a = a;
    work->kv_head = tile->kv_head;
    work->pair0 = tile->pair0;
    heads_of(a, tile->kv_head, &work->head0, &head1);
    const int64_t heads = work->heads = head1 - work->head0;
    work->pairs = cot_smaller(run->tokens * heads - tile->pair0, TILE_ROWS);
    const int64_t first = run->position + tile->pair0 / heads,
                  last = run->position + (tile->pair0 + work->pairs - 1) / heads;
    work->page0 = (a->window ? cot_larger(first + 1 - a->window, 0) : 0) / COT_KV_PAGE;
    work->page1 = last / COT_KV_PAGE + 1;
    for (int64_t i = 0; i < work->pairs; i++) {
        const int64_t pair = tile->pair0 + i, head = work->head0 + pair % heads;
        work->rows[i] = (int32_t)((run->row + pair / heads) * a->weights->heads + head);
        work->sums[i] = a->weights->sinks ? (cot_softmax_sums){a->weights->sinks[head], 1}
                                          : (cot_softmax_sums){-INFINITY, 0};
    }
}

/* scores = q . keys of pages [page0, page1) */
static void score(const struct work *work, int64_t page0, int64_t page1)
{
    const cot_attend_args *a = work->a;
    const cot_kv *kv = a->kv;
    cot_gemm gemm = {.type = kv->type,
                     .format = cot_format_of(kv->type),
                     .m = work->pairs,
                     .n = COT_KV_PAGE,
                     .k = kv->key_width,
                     .a = a->q,
                     .a_stride = kv->key_width,
                     .a_rows = work->rows,
                     .b_panel_bytes = cot_panel_bytes(cot_format_of(kv->type), kv->key_width),
                     .c_stride = BLOCK};
    for (int64_t page = page0; page < page1; page++) {
        gemm.b = cot_kv_keys(kv, work->run->sequence, page, a->layer, work->kv_head);
        gemm.c = work->w->scores + (page - page0) * COT_KV_PAGE;
        a->kernels->gemm(&gemm, 0, work->pairs, 0, cot_panels(gemm.n));
    }
}

/* Scores become probabilities among all keys so far; what earlier blocks gave shrinks accordingly. */
static void normalise(struct work *work, int64_t page0, int64_t page1)
{
    const cot_attend_args *a = work->a;
    const struct workspace *w = work->w;
    const size_t bytes = cot_dtype_bytes(a->kv->type);
    const int64_t origin = page0 * COT_KV_PAGE, columns = (page1 - page0) * COT_KV_PAGE,
                  width = a->kv->value_width;
    for (int64_t i = 0; i < work->pairs; i++) {
        uint8_t *probabilities = (uint8_t *)w->probabilities + (size_t)(i * BLOCK) * bytes;
        const int64_t end = work->run->position + (work->pair0 + i) / work->heads + 1,
                      begin = a->window ? cot_larger(end - a->window, 0) : 0;
        const int64_t from = cot_larger(begin - origin, 0), to = cot_smaller(end - origin, columns);
        if (from >= to) { // none of its keys is here
            memset(probabilities, 0, (size_t)columns * bytes);
            continue;
        }
        const float left = a->kernels->softmax(probabilities, a->kv->type, w->scores + i * BLOCK, columns,
                                               from, to, a->scale, &work->sums[i]);
        if (page0 > work->page0)
            a->kernels->scale(w->out + i * width, COT_F32, w->out + i * width, left, width);
    }
}

/* out += probabilities values of pages [page0, page1) */
static void add_values(const struct work *work, int64_t page0, int64_t page1)
{
    const cot_attend_args *a = work->a;
    const cot_kv *kv = a->kv;
    cot_gemm gemm = {.type = kv->type,
                     .format = cot_format_of(kv->type),
                     .m = work->pairs,
                     .n = kv->value_width,
                     .k = COT_KV_PAGE,
                     .a_stride = BLOCK,
                     .b_panel_bytes = cot_panel_bytes(cot_format_of(kv->type), COT_KV_PAGE),
                     .c = work->w->out,
                     .c_stride = kv->value_width};
    for (int64_t page = page0; page < page1; page++) {
        gemm.a = (uint8_t *)work->w->probabilities +
                 (size_t)((page - page0) * COT_KV_PAGE) * cot_dtype_bytes(kv->type);
        gemm.b = cot_kv_values(kv, work->run->sequence, page, a->layer, work->kv_head);
        gemm.accumulate = page > work->page0;
        a->kernels->gemm(&gemm, 0, work->pairs, 0, cot_panels(gemm.n));
    }
}

/* Softmax by blocks of positions, as online softmax does it (Milakov, Gimelshein 2018). Blocks begin at fixed
 * positions, so that a row's sums do not depend on the tile that it is in. */
static void run_tile(void *context, int64_t index)
{
    cot_attend *attend = context;
    const cot_attend_args *a = attend->args;
    struct work work;
    begin_work(&work, a, &attend->tiles[index]);
    struct workspace *w = take_workspace(attend->scratch);
    work.w = w;
    for (int64_t page0 = work.page0, page1; page0 < work.page1; page0 = page1) {
        page1 = cot_smaller((page0 / BLOCK_PAGES + 1) * BLOCK_PAGES, work.page1);
        score(&work, page0, page1);
        normalise(&work, page0, page1);
        add_values(&work, page0, page1);
    }
    const int64_t width = a->kv->value_width;
    for (int64_t i = 0; i < work.pairs; i++)
        a->kernels->scale((uint8_t *)a->out + (size_t)(work.rows[i] * width) * cot_dtype_bytes(a->kv->type),
                          a->kv->type, w->out + i * width, 1.0f, width);
    atomic_store_explicit(&w->taken, false, memory_order_release);
}

void cot_attend_run(cot_attend *attend, const cot_attend_args *args)
{
    attend->args = args;
    attend->tile_count = 0;
    for (int64_t r = 0; r < args->run_count; r++)
        for (int64_t kv_head = 0; kv_head < args->kv->heads; kv_head++) {
            int64_t begin, end;
            heads_of(args, kv_head, &begin, &end);
            int64_t pairs = args->runs[r].tokens * (end - begin);
            for (int64_t pair0 = (pairs - 1) / TILE_ROWS * TILE_ROWS; pair0 >= 0;
                 pair0 -= TILE_ROWS) { // longest first
                assert(attend->tile_count < attend->tile_room);
                attend->tiles[attend->tile_count++] =
                    (struct tile){(int32_t)r, (int32_t)kv_head, (int32_t)pair0};
            }
        }
    cot_pool_run(args->pool, attend->tile_count, run_tile, attend);
}
