#include "plot.h"

#include "paths.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CELLS = 512, SIDE = 512, MARGIN = 46 };

void cot_plot_text(FILE *stream, const char *text)
{
    for (; *text; text++)
        if (*text == '<' || *text == '>' || *text == '&')
            fputs(*text == '<' ? "&lt;" : *text == '>' ? "&gt;" : "&amp;", stream);
        else
            fputc(*text, stream);
}

/* From near white through blue to near black: lightness falls evenly, so that it prints. */
static void colour(FILE *stream, double share)
{
    static const double stops[4][3] = {{247, 251, 255}, {158, 202, 225}, {33, 113, 181}, {8, 29, 71}};
    double at = fmin(fmax(share, 0), 1) * 3;
    int i = at >= 3 ? 2 : (int)at;
    int rgb[3];
    for (int k = 0; k < 3; k++)
        rgb[k] = (int)lround(stops[i][k] + (at - i) * (stops[i + 1][k] - stops[i][k]));
    fprintf(stream, "#%02x%02x%02x", rgb[0], rgb[1], rgb[2]);
}

/* Mean of the block of the matrix that cell (i, k) of m x n stands for. */
static double block(const double *matrix, int32_t rows, int32_t columns, int32_t m, int32_t n, int32_t i,
                    int32_t k)
{
    int32_t top = (int32_t)((int64_t)i * rows / m), bottom = (int32_t)((int64_t)(i + 1) * rows / m);
    int32_t left = (int32_t)((int64_t)k * columns / n), right = (int32_t)((int64_t)(k + 1) * columns / n);
    double sum = 0;
    for (int32_t a = top; a < bottom; a++)
        for (int32_t b = left; b < right; b++) sum += matrix[(size_t)a * (size_t)columns + (size_t)b];
    return sum / (double)((int64_t)(bottom - top) * (right - left));
}

static void label(FILE *stream, double x, double y, const char *anchor, const char *text)
{
    fprintf(stream, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    cot_plot_text(stream, text);
    fputs("</text>\n", stream);
}

static void number(FILE *stream, double x, double y, const char *anchor, double value)
{
    char text[32];
    snprintf(text, sizeof text, value >= 1e6 ? "%.3g" : value >= 1e4 ? "%.0f" : "%.4g", value);
    label(stream, x, y, anchor, text);
}

/* Runs of equal cells of a row are one rectangle. */
static void cells(FILE *stream, const double *matrix, int32_t rows, int32_t columns, double low, double high)
{
    int32_t m = rows < MOST_CELLS ? rows : MOST_CELLS, n = columns < MOST_CELLS ? columns : MOST_CELLS;
    double h = (double)SIDE / m, w = (double)SIDE / n;
    for (int32_t i = 0; i < m; i++)
        for (int32_t k = 0, end; k < n; k = end) {
            double value = block(matrix, rows, columns, m, n, i, k);
            for (end = k + 1; end < n && block(matrix, rows, columns, m, n, i, end) == value; end++)
                ;
            fprintf(stream, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"",
                    MARGIN + k * w, MARGIN + i * h, (end - k) * w + 0.02, h + 0.02);
            colour(stream, high > low ? (value - low) / (high - low) : 0);
            fputs("\"/>\n", stream);
        }
}

void cot_plot_matrix(FILE *stream, const double *matrix, int32_t rows, int32_t columns, const char *title,
                     const char *x, const char *y)
{
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < (size_t)rows * (size_t)columns; i++) {
        low = fmin(low, matrix[i]);
        high = fmax(high, matrix[i]);
    }
    fprintf(stream,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "font-family=\"sans-serif\" "
            "font-size=\"13\" shape-rendering=\"crispEdges\">\n<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"white\"/>\n",
            SIDE + 2 * MARGIN + 64, SIDE + 2 * MARGIN, SIDE + 2 * MARGIN + 64);
    label(stream, MARGIN + SIDE / 2.0, 24, "middle", title);
    cells(stream, matrix, rows, columns, low, high);
    fprintf(stream, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#444\"/>\n",
            MARGIN, MARGIN, SIDE, SIDE);
    label(stream, MARGIN + SIDE / 2.0, SIDE + MARGIN + 32, "middle", x);
    fprintf(stream, "<g transform=\"rotate(-90)\">");
    label(stream, -(MARGIN + SIDE / 2.0), 16, "middle", y);
    fputs("</g>\n", stream);
    number(stream, MARGIN, SIDE + MARGIN + 16, "middle", 0);
    number(stream, MARGIN + SIDE, SIDE + MARGIN + 16, "middle", columns - 1);
    number(stream, MARGIN - 6, MARGIN + 10, "end", 0);
    number(stream, MARGIN - 6, MARGIN + SIDE, "end", rows - 1);
    for (int i = 0; i < 64; i++) {
        fprintf(stream, "<rect x=\"%d\" y=\"%.1f\" width=\"16\" height=\"4.1\" fill=\"", SIDE + MARGIN + 14,
                MARGIN + (63 - i) * 4.0);
        colour(stream, i / 63.0);
        fputs("\"/>\n", stream);
    }
    number(stream, SIDE + MARGIN + 36, MARGIN + 256, "start", low);
    number(stream, SIDE + MARGIN + 36, MARGIN + 10, "start", high);
    fputs("</svg>\n", stream);
}

void cot_plot_bars(FILE *stream, const double *value, int32_t n, double mark, const char *title,
                   const char *x)
{
    const int wide = 760, high = 200, left = 84, top = 36;
    double most = mark;
    for (int32_t i = 0; i < n; i++) most = fmax(most, value[i]);
    if (most <= 0) most = 1;
    fprintf(stream,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "font-family=\"sans-serif\" "
            "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            wide + left + 20, high + top + 44, wide + left + 20);
    label(stream, left + wide / 2.0, 22, "middle", title);
    for (int32_t i = 0; i < n; i++) {
        double h = value[i] / most * high;
        fprintf(stream, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"#2171b5\"/>\n",
                left + (double)i * wide / n, top + high - h, fmax((double)wide / n * 0.85, 0.5), h);
    }
    if (mark > 0) {
        double y = top + high - mark / most * high;
        fprintf(stream,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%.2f\" y2=\"%.2f\" stroke=\"#c0392b\" stroke-dasharray=\"5 "
                "3\"/>\n",
                left, left + wide, y, y);
    }
    fprintf(stream, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#444\"/>\n", left, top, top + high,
            left + wide);
    number(stream, left - 6, top + 10, "end", most);
    number(stream, left - 6, top + high, "end", 0);
    number(stream, left, top + high + 16, "start", 0);
    number(stream, left + wide, top + high + 16, "end", n - 1);
    label(stream, left + wide / 2.0, top + high + 34, "middle", x);
    fputs("</svg>\n", stream);
}

int cot_plot_matrix_file(const char *path, const double *matrix, int32_t rows, int32_t columns,
                         const char *title)
{
    cot_file_writer writer;
    if (!cot_open_output(&writer, path)) return COT_EXIT_FAILURE;
    cot_plot_matrix(writer.stream, matrix, rows, columns, title, "to rank", "from rank");
    return cot_close_output(&writer) ? COT_EXIT_OK : COT_EXIT_FAILURE;
}
