#include "kernels/matmul.h"

#include "base/integers.h"

#include <math.h>

/* A task should be worth many times what it costs to hand out (a microsecond), and there should be enough of
 * them that the last ones to finish leave no thread idle for long. Costs are those of a middling core; only
 * their order of magnitude matters. */
static const double task_ns = 60e3, tasks_at_least = 32, tasks_at_most = 512, tasks_of_a_thread = 8;
static const double flops_per_ns = 60, bytes_per_ns = 10;
enum {
    ROW_UNIT = 12,    // rows are cut at multiples of this: whole register tiles of every table
    MANY_ROWS = 96,   // a table reads its panels once for so many rows: only beyond are rows cut
    FEW_ROWS = 8,     // up to here laying out the rows of A, which every task does for itself, costs nothing
    WIDE = 4,         // beyond, it is a tenth of a task of one panel, and little of one as wide as this
    WIDE_ROUNDED = 16 // the same of rows that are rounded, which takes several times as long
};

struct grid {
    int64_t rows, panels;           // of a task
    int64_t row_tasks, panel_tasks; // how many
};

struct work {
    const cot_kernels *kernels;
    const cot_gemm *gemms;
    double total_ns, piece_ns;
    double rounded_tasks; // of products of rounded rows: so many at least
};

static double panel_ns(const cot_gemm *g, int64_t rows)
{
    double multiply = 2.0 * COT_PANEL * (double)rows * (double)g->k / flops_per_ns;
    double read = (double)(COT_PANEL * g->k) * cot_format_row_of(g->format)->bits / 8 / bytes_per_ns;
    return 1 + fmax(multiply, read);
}

/* Panels of a task that hide laying out its rows, as far as that leaves tasks enough. */
static double wide_panels(const cot_gemm *g, const struct work *work)
{
    if (!g->rounded) return WIDE;
    const int64_t rows = cot_smaller(g->m, MANY_ROWS);
    return fmax(WIDE, fmin(WIDE_ROUNDED, work->total_ns / work->rounded_tasks / panel_ns(g, rows)));
}

static struct grid grid_of(const cot_gemm *g, const struct work *work)
{
    int64_t panels = cot_panels(g->n);
    if (g->m <= 0 || panels <= 0) return (struct grid){0};
    struct grid grid = {.rows = g->m};
    const double wide = wide_panels(g, work);
    double width = work->piece_ns / panel_ns(g, g->m);
    if (width < wide && g->m > MANY_ROWS) {
        double rows = fmax((double)g->m * width / wide, MANY_ROWS);
        grid.row_tasks = g->m / (int64_t)rows > 1 ? g->m / (int64_t)rows : 1;
        grid.rows = cot_divide_up(cot_divide_up(g->m, grid.row_tasks), ROW_UNIT) * ROW_UNIT;
        width = wide;
    } else if (width < wide && g->m > FEW_ROWS) {
        width = fmax(width, fmin(wide, work->total_ns / tasks_at_least / panel_ns(g, g->m)));
    }
    grid.panels = width < 1 ? 1 : width > (double)panels ? panels : (int64_t)width;
    grid.panel_tasks = cot_divide_up(panels, grid.panels);
    grid.panels = cot_divide_up(panels, grid.panel_tasks);
    grid.panel_tasks = cot_divide_up(panels, grid.panels);
    grid.row_tasks = cot_divide_up(g->m, grid.rows);
    return grid;
}

/* Task i: rows go fastest, so that threads that run side by side read the same panels. */
static void run_task(void *context, int64_t i)
{
    const struct work *work = context;
    const cot_gemm *g = work->gemms;
    struct grid grid = grid_of(g, work);
    for (; i >= grid.row_tasks * grid.panel_tasks; grid = grid_of(g, work)) {
        i -= grid.row_tasks * grid.panel_tasks;
        g++;
    }
    int64_t m0 = i % grid.row_tasks * grid.rows, p0 = i / grid.row_tasks * grid.panels;
    int64_t m1 = m0 + grid.rows < g->m ? m0 + grid.rows : g->m;
    int64_t p1 = p0 + grid.panels < cot_panels(g->n) ? p0 + grid.panels : cot_panels(g->n);
    work->kernels->gemm(g, m0, m1, p0, p1);
}

void cot_matmul(const cot_kernels *kernels, cot_pool *pool, const cot_gemm *gemms, int64_t count)
{
    double total_ns = 0;
    for (int64_t i = 0; i < count; i++)
        total_ns += (double)cot_panels(gemms[i].n) * panel_ns(&gemms[i], gemms[i].m);
    struct work work = {kernels, gemms, total_ns, fmax(task_ns, total_ns / tasks_at_most),
                        fmax(tasks_at_least, tasks_of_a_thread * cot_pool_threads(pool))};
    int64_t tasks = 0;
    for (int64_t i = 0; i < count; i++) {
        struct grid grid = grid_of(&gemms[i], &work);
        tasks += grid.row_tasks * grid.panel_tasks;
    }
    cot_pool_run(pool, tasks, run_task, &work);
}
