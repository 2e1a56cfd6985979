/* The sizes of tiles. A tile should be worth many times what handing it out costs (a microsecond), and there should
 * be enough of them that the last ones to finish leave no thread idle for long.
 *
 *   rows          columns                                                            bound by
 *   1 .. 8        what task_ns reads of the weights                                  memory
 *   9 .. 96       the same until multiplying takes longer, four times as much where
 *                 rows are rounded, which each tile does for itself; at least WIDE   both
 *   97 ..         rows cut evenly into tiles of at most 96, WIDE columns or more     multiply-add units
 *
 * 96 rows laid out (BLOCK_ROWS of kernels/template/gemm.h) take a fraction of a second cache of 512 KiB or more.
 * Costs are those of a core with AVX-512; only their order of magnitude matters, and a slower core's tiles take longer. */
#include "base/integers.h"
#include "moe/ffn.h"

static const double task_ns = 60e3, flops_per_ns = 240, bytes_per_ns = 20,
                    rounded_ns = 240e3; // a task's where it rounds many rows, which each does for itself
enum {
    ROW_UNIT = 12, // rows are cut at multiples of this: whole register tiles of every table
    FEW_ROWS = 8,  // up to here laying out the rows of A, which every tile does for itself, costs nothing
    WIDE = 256     // beyond, a tile this wide hides it
};

/* Columns of a tile of [k][n], `matrices` of them side by side; never 0. */
static int64_t columns_of(const cot_ffn_shape *shape, cot_format format, int64_t rows, int64_t row_tiles,
                          int64_t k, int64_t n, int64_t matrices, int64_t tasks)
{
    const int64_t whole = shape->rounded ? 2 : 1,                  // multiplied faster
        slow = shape->rounded || cot_format_zeros(format) ? 2 : 1; // rows of A take longer to lay out
    double multiply = 2.0 * (double)(rows * k * matrices) / ((double)whole * flops_per_ns),
           read = (double)(k * matrices) * cot_format_row_of(format)->bits / 8 / bytes_per_ns;
    double worth =
        (shape->rounded && rows > FEW_ROWS ? rounded_ns : task_ns) / (multiply > read ? multiply : read);
    int64_t panels = cot_panels(n), wanted = worth < (double)n ? (int64_t)worth / COT_PANEL : panels;
    if (rows > FEW_ROWS) wanted = cot_larger(wanted, slow * WIDE / COT_PANEL / matrices);
    wanted =
        cot_smaller(wanted, panels * row_tiles / cot_larger(tasks, 1)); // more tiles where there are too few
    wanted = cot_larger(cot_smaller(wanted, panels), 1);
    return cot_divide_up(panels, cot_divide_up(panels, wanted)) * COT_PANEL;
}

cot_ffn_blocks cot_ffn_blocks_of(const cot_ffn_shape *shape, int64_t rows, int64_t tasks)
{
    int64_t row_tiles = cot_divide_up(rows, COT_FFN_TILE_ROWS), matrices = cot_ffn_is_gated(shape) ? 2 : 1;
    cot_ffn_blocks blocks = {.rows = rows};
    if (row_tiles > 1) blocks.rows = cot_divide_up(cot_divide_up(rows, row_tiles), ROW_UNIT) * ROW_UNIT;
    blocks.up_columns = columns_of(shape, shape->up, blocks.rows, row_tiles, shape->hidden,
                                   shape->intermediate, matrices, tasks);
    blocks.up_columns = cot_smaller(blocks.up_columns,
                                    COT_FFN_TILE_FLOATS / (blocks.rows * matrices) / COT_PANEL * COT_PANEL);
    blocks.down_columns =
        columns_of(shape, shape->down, blocks.rows, row_tiles, shape->intermediate, shape->hidden, 1, tasks);
    return blocks;
}
