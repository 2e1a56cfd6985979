/* Figures as SVG text, written by hand: one file, no script, no font of ours. */
#ifndef COT_CLI_PLOT_H
#define COT_CLI_PLOT_H
#include "command.h"
#include <stdio.h>

/* A heat map of `matrix` [rows][columns], dark is large, with a scale beside it; x to the right, y down. Matrices of
 * more than 512 rows or columns are drawn as means of blocks. */
void cot_plot_matrix(FILE *stream, const double *matrix, int32_t rows, int32_t columns, const char *title,
                     const char *x, const char *y);
/* Bars of `value` [n] from 0, with a line at `mark` (0: none). */
void cot_plot_bars(FILE *stream, const double *value, int32_t n, double mark, const char *title,
                   const char *x);
/* Text with <, > and & spelled out. */
void cot_plot_text(FILE *stream, const char *text);
/* A heat map alone in a file; returns a COT_EXIT_ value. */
int cot_plot_matrix_file(const char *path, const double *matrix, int32_t rows, int32_t columns,
                         const char *title);

#endif
