#include "model/attend.h"

#include "kernels/pack.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { TILE_ROWS = 64 }; // (token, head) pairs that share a KV head and are multiplied together

/* Pairs [pair0, pair0 + pairs) of a run under one KV head; pair i is token i / g, head j0 + i % g of its g
 * heads. */
struct tile {
    int32_t run, kv_head, pair0;
};

struct workspace {
    atomic_bool taken;
    float *scores; // [TILE_ROWS][context, whole pages]
    void *chances; // kv type, the same shape
    float *out;    // [TILE_ROWS][value_width]
};

struct cot_attend {
    int64_t columns; // of scores
    int workspaces;
    struct workspace *workspace;
    struct tile *tiles;
    int64_t tile_room, tile_count;
    const cot_attend_args *args;
};

cot_attend *cot_attend_place(cot_arena *arena, const cot_kv *kv, int64_t heads, int64_t rows, int64_t context,
                             int helpers)
{
    int64_t columns = (context + COT_KV_PAGE - 1) / COT_KV_PAGE * COT_KV_PAGE;
    int64_t tile_room = kv->heads * rows + heads * rows / TILE_ROWS + 1;
    cot_attend *attend = cot_arena_take(arena, 1, sizeof *attend);
    struct workspace *workspace = cot_arena_take(arena, (size_t)helpers, sizeof *workspace);
    struct tile *tiles = cot_arena_take(arena, (size_t)tile_room, sizeof *tiles);
    if (attend)
        *attend = (cot_attend){.columns = columns,
                               .workspaces = helpers,
                               .workspace = workspace,
                               .tiles = tiles,
                               .tile_room = tile_room};
    for (int i = 0; i < helpers; i++) {
        float *scores = cot_arena_take(arena, TILE_ROWS, (size_t)columns * sizeof(float));
        void *chances = cot_arena_take(arena, TILE_ROWS, (size_t)columns * cot_dtype_bytes(kv->type));
        float *out = cot_arena_take(arena, TILE_ROWS, (size_t)kv->value_width * sizeof(float));
        if (attend) workspace[i] = (struct workspace){.scores = scores, .chances = chances, .out = out};
    }
    return attend;
}

/* The local query heads [*begin, *end) that read a local KV head. */
static void heads_of(const cot_attend_args *a, int64_t kv_head, int64_t *begin, int64_t *end)
{
    int64_t first = (a->weights->kv_head0 + kv_head) * a->group - a->weights->head0, last = first + a->group;
    *begin = first < 0 ? 0 : first;
    *end = last > a->weights->heads ? a->weights->heads : last;
}

static struct workspace *take_workspace(cot_attend *attend)
{
    for (int i = 0;; i = (i + 1) % attend->workspaces)
        if (!atomic_exchange_explicit(&attend->workspace[i].taken, true, memory_order_acquire))
            return &attend->workspace[i];
}

static void run_tile(void *context, int64_t index)
{
    cot_attend *attend = context;
    const cot_attend_args *a = attend->args;
    const cot_kv *kv = a->kv;
    const struct tile *tile = &attend->tiles[index];
    const cot_run *run = &a->runs[tile->run];
    int64_t head0, head1;
    heads_of(a, tile->kv_head, &head0, &head1);
    int64_t heads = head1 - head0, pairs = run->tokens * heads - tile->pair0;
    if (pairs > TILE_ROWS) pairs = TILE_ROWS;
    struct workspace *w = take_workspace(attend);

    int32_t rows[TILE_ROWS];
    for (int64_t i = 0; i < pairs; i++) {
        int64_t pair = tile->pair0 + i;
        rows[i] = (int32_t)((run->row + pair / heads) * a->weights->heads + head0 + pair % heads);
    }
    int64_t first = run->position + tile->pair0 / heads,
            last = run->position + (tile->pair0 + pairs - 1) / heads;
    int64_t oldest = a->window && first + 1 > a->window ? first + 1 - a->window : 0;
    int64_t page0 = oldest / COT_KV_PAGE, page1 = last / COT_KV_PAGE + 1, origin = page0 * COT_KV_PAGE;
    cot_gemm gemm = {.type = kv->type,
                     .m = pairs,
                     .n = COT_KV_PAGE,
                     .k = kv->key_width,
                     .a = a->q,
                     .a_stride = kv->key_width,
                     .a_rows = rows,
                     .b_panel_stride = cot_panel_elements(kv->key_width),
                     .c_stride = attend->columns};
    for (int64_t page = page0; page < page1; page++) {
        gemm.b = cot_kv_keys(kv, run->sequence, page, a->layer, tile->kv_head);
        gemm.c = w->scores + (page - page0) * COT_KV_PAGE;
        a->kernels->gemm(&gemm, 0, pairs, 0, cot_panels(gemm.n));
    }
    size_t bytes = cot_dtype_bytes(kv->type);
    for (int64_t i = 0; i < pairs; i++) {
        int64_t pair = tile->pair0 + i, position = run->position + pair / heads;
        int64_t begin = a->window && position + 1 > a->window ? position + 1 - a->window : 0;
        const float *sink = a->weights->sinks ? a->weights->sinks + head0 + pair % heads : NULL;
        a->kernels->softmax((uint8_t *)w->chances + (size_t)(i * attend->columns) * bytes, kv->type,
                            w->scores + i * attend->columns, (page1 - page0) * COT_KV_PAGE, begin - origin,
                            position + 1 - origin, a->scale, sink);
    }
    gemm = (cot_gemm){.type = kv->type,
                      .m = pairs,
                      .n = kv->value_width,
                      .k = COT_KV_PAGE,
                      .a_stride = attend->columns,
                      .b_panel_stride = cot_panel_elements(COT_KV_PAGE),
                      .c = w->out,
                      .c_stride = kv->value_width};
    for (int64_t page = page0; page < page1; page++) {
        gemm.a = (uint8_t *)w->chances + (size_t)((page - page0) * COT_KV_PAGE) * bytes;
        gemm.b = cot_kv_values(kv, run->sequence, page, a->layer, tile->kv_head);
        gemm.accumulate = page > page0;
        a->kernels->gemm(&gemm, 0, pairs, 0, cot_panels(gemm.n));
    }
    for (int64_t i = 0; i < pairs; i++)
        a->kernels->scale((uint8_t *)a->out + (size_t)(rows[i] * kv->value_width) * bytes, kv->type,
                          w->out + i * kv->value_width, 1.0f, kv->value_width);
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
