/* Pages of HTML, one file each with its figures inside, and numbers for people. */
#ifndef COT_CLI_PLAN_PAGE_H
#define COT_CLI_PLAN_PAGE_H
#include "cli/plan/plot.h"

#include <stddef.h>
#include <stdio.h>

/* Begins a page, up to its heading and a line that says which version made it, when, by which command; and ends it. */
void cli_page_begin(FILE *stream, const char *title);
void cli_page_end(FILE *stream);
/* cli_plot_matrix and cli_plot_bars as a part of a page, which scrolls by itself where the screen is narrow. */
void cli_page_matrix(FILE *stream, const double *matrix, int32_t rows, int32_t columns,
                     const cli_plot_map *how);
void cli_page_bars(FILE *stream, const double *value, int32_t n, const cli_plot_chart *how);
/* Text with <, > and & spelled out. */
void cli_page_text(FILE *stream, const char *text);

/* A number in few characters: 0.0123, 34,799, 209 million; at most 24 of them, with the end. Returns `text`. */
enum { CLI_PEOPLE_BYTES = 24 };
const char *cli_people_number(char text[CLI_PEOPLE_BYTES], double x);

#endif
