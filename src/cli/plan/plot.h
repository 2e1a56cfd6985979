/* Figures as SVG text, written by hand: one file, no script, no font of ours. All scales begin at 0 and have round ticks, the
 * last at what is largest or above it; colours follow the reader's choice of light or dark. */
#ifndef COT_CLI_PLAN_PLOT_H
#define COT_CLI_PLAN_PLOT_H
#include "cli/frame/command.h"
#include <stdio.h>

/* What the places along a side are called. */
typedef struct cli_plot_axis {
    const char *title;
    const char *const *names; // [n]: equal neighbours are one place with one name; NULL: numbers are shown
    const int32_t *numbers;   // [n]; NULL: 0, 1, ...
} cli_plot_axis;

/* A heat map of `matrix` [rows][columns], what is large is far from the ground's colour, with a scale of `unit` beside it, up to
 * `most` or somewhat above (0: the largest number); x to the right, y down. More than 256 rows or columns are drawn as means of blocks. */
typedef struct cli_plot_map {
    const char *title, *unit;
    cli_plot_axis x, y;
    double most;
} cli_plot_map;
void cli_plot_matrix(FILE *stream, const double *matrix, int32_t rows, int32_t columns,
                     const cli_plot_map *how);
double cli_plot_largest(const double *x, size_t n); // at least 0

/* Bars of `value` [n], with a line at `mark` (0: none), before paler ones of `behind` [n] (NULL: none). More than 256
 * bars are drawn as the largest of neighbours. */
typedef struct cli_plot_chart {
    const char *title, *unit;
    cli_plot_axis x;
    const double *behind;
    const char *name, *behind_name; // what the two colours stand for
    double mark;
} cli_plot_chart;
void cli_plot_bars(FILE *stream, const double *value, int32_t n, const cli_plot_chart *how);
/* A heat map alone in a file; returns a CLI_EXIT_ value. */
int cli_plot_matrix_file(const char *path, const double *matrix, int32_t rows, int32_t columns,
                         const cli_plot_map *how);

#endif
