#include "moe/ffn.h"

#include "base/integers.h"

#include <stdalign.h>

/* Tiles of a product over all jobs: enough to even out the threads. Where there are few threads rows are so laid out less often. */
static const int64_t tasks_a_thread = 8, tasks_most = 32;

static size_t act_bytes(const cot_ffn_shape *shape, int64_t rows)
{
    size_t bytes = (size_t)(rows * shape->intermediate) * cot_dtype_bytes(shape->type);
    return (bytes + 63) / 64 * 64;
}

/* What run remembers of a job. */
struct place {
    int64_t first_row;            // of its activations
    int64_t first_up, first_down; // tile
};

size_t cot_ffn_scratch_bytes(const cot_ffn_shape *shape, int64_t rows, int64_t count)
{
    return act_bytes(shape, rows) + (size_t)count * sizeof(struct place);
}

struct run {
    const cot_kernels *kernels;
    const cot_ffn_shape *shape;
    const cot_ffn_job *jobs;
    int64_t count, tasks; // jobs, and tiles that each of them should make in a product
    uint8_t *act;         // [rows][I]
    struct place *places; // [count]
    bool down;            // which product is in hand: the second one
};

static int64_t first_tile(const struct run *run, int64_t job)
{
    return run->down ? run->places[job].first_down : run->places[job].first_up;
}

/* The job of a tile: the last that begins at or before it (jobs without rows have none). */
static int64_t job_of(const struct run *run, int64_t tile)
{
    int64_t low = 0, high = run->count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (first_tile(run, middle) <= tile)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tiles of a job: rows go fastest, so that threads that run side by side read the same panels. */
static void run_tile(void *context, int64_t tile)
{
    const struct run *run = context;
    const cot_ffn_shape *shape = run->shape;
    const int64_t j = job_of(run, tile);
    const cot_ffn_job *job = &run->jobs[j];
    const cot_ffn_blocks blocks = cot_ffn_blocks_of(shape, job->count, run->tasks);
    const int64_t row_tiles = cot_divide_up(job->count, blocks.rows), i = tile - first_tile(run, j);
    const int64_t columns = run->down ? blocks.down_columns : blocks.up_columns,
                  n = run->down ? shape->hidden : shape->intermediate;
    const int64_t m0 = i % row_tiles * blocks.rows, c0 = i / row_tiles * columns;
    const int64_t m = job->count - m0 < blocks.rows ? job->count - m0 : blocks.rows,
                  c1 = c0 + columns < n ? c0 + columns : n;
    const int64_t width = shape->intermediate;
    const size_t bytes = cot_dtype_bytes(shape->type);
    uint8_t *act = run->act + (size_t)((run->places[j].first_row + m0) * width) * bytes;
    cot_ffn_tile piece = {.shape = shape, .weights = job->weights, .m = m, .c0 = c0, .c1 = c1};
    if (run->down) {
        piece.in = act;
        piece.in_stride = width;
        piece.out = job->y + m0 * shape->hidden + c0;
        piece.out_stride = shape->hidden;
        cot_ffn_down_tile(run->kernels, &piece);
        return;
    }
    alignas(64) float scratch[COT_FFN_TILE_FLOATS];
    piece.in = (const uint8_t *)job->x + (job->rows ? 0 : (size_t)(m0 * shape->hidden) * bytes);
    piece.in_stride = shape->hidden;
    piece.rows = job->rows ? job->rows + m0 : NULL;
    piece.out = act;
    piece.out_stride = width;
    cot_ffn_up_tile(run->kernels, &piece, scratch);
}

void cot_ffn_run(const cot_kernels *kernels, cot_pool *pool, const cot_ffn_shape *shape,
                 const cot_ffn_job *jobs, int64_t count, void *scratch)
{
    int64_t rows = 0, busy = 0;
    for (int64_t j = 0; j < count; j++) {
        rows += jobs[j].count;
        busy += jobs[j].count > 0;
    }
    if (!rows) return;
    const int64_t tasks = cot_smaller(tasks_a_thread * cot_pool_threads(pool), tasks_most);
    struct run run = {.kernels = kernels,
                      .shape = shape,
                      .jobs = jobs,
                      .count = count,
                      .tasks = cot_divide_up(tasks, busy),
                      .act = scratch,
                      .places = (struct place *)(void *)((uint8_t *)scratch + act_bytes(shape, rows))};
    struct place next = {0};
    for (int64_t j = 0; j < count; j++) {
        run.places[j] = next;
        if (!jobs[j].count) continue;
        const cot_ffn_blocks blocks = cot_ffn_blocks_of(shape, jobs[j].count, run.tasks);
        const int64_t row_tiles = cot_divide_up(jobs[j].count, blocks.rows);
        next.first_row += jobs[j].count;
        next.first_up += row_tiles * cot_divide_up(shape->intermediate, blocks.up_columns);
        next.first_down += row_tiles * cot_divide_up(shape->hidden, blocks.down_columns);
    }
    cot_pool_run(pool, next.first_up, run_tile, &run);
    run.down = true;
    cot_pool_run(pool, next.first_down, run_tile, &run);
}
