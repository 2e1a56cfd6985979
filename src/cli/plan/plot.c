#include "cli/plan/plot.h"

#include "cli/plan/page.h"
#include "cli/frame/paths.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Pixels. RIGHT holds a scale, LEFT and FOOT numbers or, with more room (left_of, foot_of), names. */
enum { MOST_CELLS = 256, SIDE = 480, LEFT = 110, TOP = 40, RIGHT = 140, FOOT = 50, SHADES = 96 };
enum { CHART_WIDE = 760, CHART_HIGH = 200, CHART_LEFT = 126 };
/* Letters of a place's name, at the foot and on the left side; the least distance of two; the room of the left side's title,
 * and of a letter. */
enum { LETTERS = 16, SIDE_LETTERS = 32, LINE = 15, TITLE = 32, LETTER = 8 };

/* In the dark the maps' shades are turned round: what is small is near the ground in both. */
static const char style[] =
    "text{fill:#222}.rule{stroke:#444;fill:none}.back{fill:#fff}.front{fill:#2171b5}.pale{fill:#c3ccd6}.mark{"
    "stroke:#c0392b}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.rule{stroke:#999}.back{fill:#181a1d}.front{fill:#"
    "5aa2dc}"
    ".pale{fill:#59636e}.mark{stroke:#ff8a7a}.shades{filter:invert(.9) hue-rotate(180deg)}}";

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

static void begin(FILE *stream, int wide, int high)
{
    fprintf(stream,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"13\">\n<style>%s</style>\n"
            "<rect class=\"back\" width=\"100%%\" height=\"100%%\"/>\n",
            wide, high, wide, style);
}

static void label(FILE *stream, double x, double y, const char *anchor, const char *text)
{
    fprintf(stream, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    cli_page_text(stream, text);
    fputs("</text>\n", stream);
}

/* Text that is read with the head tilted to the left by `degrees`, ending at (x, y) or around it. */
static void tilted(FILE *stream, double x, double y, int degrees, const char *anchor, const char *text)
{
    fprintf(stream, "<text transform=\"translate(%.1f %.1f) rotate(-%d)\" text-anchor=\"%s\">", x, y, degrees,
            anchor);
    cli_page_text(stream, text);
    fputs("</text>\n", stream);
}

/* A tick's number, which is round: "2.5 million", not "2.50 million". */
static void number(FILE *stream, double x, double y, const char *anchor, double value)
{
    char text[CLI_PEOPLE_BYTES], *point = strchr(cli_people_number(text, value), '.');
    if (point) {
        char *unit = point + strcspn(point, " e"), *end = unit;
        while (end[-1] == '0') end--;
        if (end[-1] == '.') end--;
        memmove(end, unit, strlen(unit) + 1);
    }
    label(stream, x, y, anchor, text);
}

/* The least of 1, 2, 5, 10, 20, ... and of their parts that leads from 0 to `most` > 0 in five steps or fewer. */
static double round_step(double most)
{
    const double least = fmax(most, 1e-290) / 5, unit = pow(10, floor(log10(least))),
                 many = least / unit * (1 - 1e-9);
    return unit * (many <= 1 ? 1 : many <= 2 ? 2 : many <= 5 ? 5 : 10);
}

/* The number of such steps that a scale takes to hold `most`. */
static int round_steps(double most)
{
    return (int)ceil(most / round_step(most) * (1 - 1e-9));
}

/* The end of a long name tells it apart: "...rack-07-dgx-3". No character of UTF-8 is cut. */
static void shorten(char text[64], const char *name, int most)
{
    const char *const end = name + strlen(name), *from = end;
    for (int letters = 0; from > name && letters < most; letters++) {
        const char *letter = from;
        do letter--;
        while (letter > name && (*letter & 0xc0) == 0x80);
        if (end - letter > 60) break; // the sign before it takes three bytes
        from = letter;
    }
    snprintf(text, 64, "%s%s", from > name ? "…" : "", from);
}

/* Room below for what places are called. */
static int foot_of(const cli_plot_axis *axis, int32_t n)
{
    char text[64];
    size_t most = 0;
    for (int32_t i = 0; axis->names && i < n; i++) {
        shorten(text, axis->names[i], LETTERS);
        if (strlen(text) > most) most = strlen(text);
    }
    return FOOT + (int)most * 4;
}

/* Room on the left for what places are called, and for the title beside it. */
static int left_of(const cli_plot_axis *axis, int32_t n)
{
    char text[64];
    int most = 0;
    for (int32_t i = 0; axis->names && i < n; i++) {
        int letters = 0;
        shorten(text, axis->names[i], SIDE_LETTERS);
        for (const char *c = text; *c; c++) letters += (*c & 0xc0) != 0x80;
        if (letters > most) most = letters;
    }
    const int left = TITLE + most * LETTER;
    return left > LEFT ? left : LEFT;
}

/* Where the place that begins at i ends. */
static int32_t end_of_place(const cli_plot_axis *axis, int32_t n, int32_t i)
{
    int32_t end = i + 1;
    if (axis->names)
        while (end < n && !strcmp(axis->names[end], axis->names[i])) end++;
    return end;
}

/* Marks the places of a side that is `length` long and begins at (x, y), as many as have room; `down` the left side, else
 * the foot. */
static void places(FILE *stream, const cli_plot_axis *axis, int32_t n, double x, double y, double length,
                   bool down)
{
    int32_t all = 0, at = 0;
    for (int32_t i = 0; i < n; i = end_of_place(axis, n, i)) all++;
    const double room = down ? LINE : axis->names ? 1.5 * LINE : 3 * LINE;
    const int32_t fit = (int32_t)(length / room),
                  step = all > fit ? (all + fit - 1) / (fit > 0 ? fit : 1) : 1;
    for (int32_t i = 0, end; i < n; i = end, at++) {
        end = end_of_place(axis, n, i);
        const double from = length * i / n, middle = length * (i + end) / 2.0 / n;
        if (i && axis->names && all <= fit) {
            if (down)
                fprintf(stream, "<path class=\"rule\" d=\"M%.1f %.1fh-5\"/>\n", x, y + from);
            else
                fprintf(stream, "<path class=\"rule\" d=\"M%.1f %.1fv5\"/>\n", x + from, y);
        }
        if (at % step) continue;
        char text[64];
        if (axis->names)
            shorten(text, axis->names[i], down ? SIDE_LETTERS : LETTERS);
        else
            snprintf(text, sizeof text, "%d", (int)(axis->numbers ? axis->numbers[i] : i));
        if (down)
            label(stream, x - 8, y + middle + 4, "end", text);
        else if (axis->names)
            tilted(stream, x + middle + 4, y + 14, 40, "end", text);
        else
            label(stream, x + middle, y + 17, "middle", text);
    }
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

static int shade(double value, double most)
{
    return most > 0 ? (int)lround(fmin(fmax(value / most, 0), 1) * SHADES) : 0;
}

/* Runs of cells of one shade in a row are one rectangle. */
static void cells(FILE *stream, int left, const double *matrix, int32_t rows, int32_t columns, double most)
{
    int32_t m = rows < MOST_CELLS ? rows : MOST_CELLS, n = columns < MOST_CELLS ? columns : MOST_CELLS;
    double h = (double)SIDE / m, w = (double)SIDE / n;
    fputs("<g class=\"shades\" shape-rendering=\"crispEdges\">\n", stream);
    for (int32_t i = 0; i < m; i++)
        for (int32_t k = 0, end; k < n; k = end) {
            const int of = shade(block(matrix, rows, columns, m, n, i, k), most);
            for (end = k + 1; end < n; end++)
                if (shade(block(matrix, rows, columns, m, n, i, end), most) != of) break;
            fprintf(stream, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"",
                    left + k * w, TOP + i * h, (end - k) * w + 0.02, h + 0.02);
            colour(stream, (double)of / SHADES);
            fputs("\"/>\n", stream);
        }
    fputs("</g>\n", stream);
}

static void scale(FILE *stream, int left, double most, const char *unit)
{
    const double x = left + SIDE + 20, high = 256;
    fputs("<g class=\"shades\" shape-rendering=\"crispEdges\">\n", stream);
    for (int i = 0; i < 64; i++) {
        fprintf(stream, "<rect x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"4.1\" fill=\"", x,
                TOP + 24 + (63 - i) * high / 64);
        colour(stream, i / 63.0);
        fputs("\"/>\n", stream);
    }
    fputs("</g>\n", stream);
    label(stream, x, TOP + 10, "start", unit);
    for (int i = 0, n = most > 0 ? round_steps(most) : 0; i <= n; i++)
        number(stream, x + 22, TOP + 24 + high - (n ? i * high / n : 0) + 5, "start",
               i * (n ? round_step(most) : 0));
}

double cli_plot_largest(const double *x, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, x[i]);
    return most;
}

void cli_plot_matrix(FILE *stream, const double *matrix, int32_t rows, int32_t columns,
                     const cli_plot_map *how)
{
    double most = how->most > 0 ? how->most : cli_plot_largest(matrix, (size_t)rows * (size_t)columns);
    if (most > 0) most = round_steps(most) * round_step(most);
    const int foot = foot_of(&how->x, columns), left = left_of(&how->y, rows);
    begin(stream, left + SIDE + RIGHT, TOP + SIDE + foot);
    label(stream, left + SIDE / 2.0, 24, "middle", how->title);
    cells(stream, left, matrix, rows, columns, most);
    fprintf(stream, "<rect class=\"rule\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", left, TOP, SIDE,
            SIDE);
    places(stream, &how->x, columns, left, TOP + SIDE, SIDE, false);
    places(stream, &how->y, rows, left, TOP, SIDE, true);
    label(stream, left + SIDE / 2.0, TOP + SIDE + foot - 8, "middle", how->x.title);
    tilted(stream, 14, TOP + SIDE / 2.0, 90, "middle", how->y.title);
    scale(stream, left, most, how->unit);
    fputs("</svg>\n", stream);
}

/* The largest of the numbers that bar i of `bars` stands for. */
static double tallest(const double *value, int32_t n, int32_t bars, int32_t i)
{
    const int32_t from = (int32_t)((int64_t)i * n / bars), to = (int32_t)((int64_t)(i + 1) * n / bars);
    double most = value[from];
    for (int32_t k = from; k < to; k++) most = fmax(most, value[k]);
    return most;
}

static void bars(FILE *stream, const double *value, int32_t n, double most, double share, const char *kind)
{
    const int32_t drawn = n < MOST_CELLS ? n : MOST_CELLS;
    const double wide = (double)CHART_WIDE / drawn;
    for (int32_t i = 0; i < drawn; i++) {
        const double h = tallest(value, n, drawn, i) / most * CHART_HIGH;
        if (h <= 0) continue;
        fprintf(stream, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" class=\"%s\"/>\n",
                CHART_LEFT + (i + (1 - share) / 2) * wide, TOP + CHART_HIGH - h, fmax(wide * share, 0.5), h,
                kind);
    }
}

static void key(FILE *stream, double y, const char *kind, const char *name)
{
    const int x = CHART_LEFT + CHART_WIDE + 14;
    char text[64];
    fprintf(stream, "<rect x=\"%d\" y=\"%.1f\" width=\"12\" height=\"12\" class=\"%s\"/>\n", x, y, kind);
    shorten(text, name, LETTERS);
    label(stream, x + 18, y + 11, "start", text);
}

void cli_plot_bars(FILE *stream, const double *value, int32_t n, const cli_plot_chart *how)
{
    double most = fmax(how->mark, cli_plot_largest(value, (size_t)n));
    if (how->behind) most = fmax(most, cli_plot_largest(how->behind, (size_t)n));
    if (most <= 0) most = 1;
    const double step = round_step(most);
    const int steps = round_steps(most);
    most = steps * step;
    const int foot = foot_of(&how->x, n);
    begin(stream, CHART_LEFT + CHART_WIDE + (how->behind ? 160 : 20), TOP + CHART_HIGH + foot);
    label(stream, CHART_LEFT + CHART_WIDE / 2.0, 22, "middle", how->title);
    if (how->behind) bars(stream, how->behind, n, most, 0.94, "pale");
    bars(stream, value, n, most, how->behind ? 0.55 : 0.85, "front");
    if (how->behind) {
        key(stream, TOP, "front", how->name);
        key(stream, TOP + 22, "pale", how->behind_name);
    }
    if (how->mark > 0)
        fprintf(stream, "<path class=\"mark\" d=\"M%d %.2fh%d\" stroke-dasharray=\"5 3\"/>\n", CHART_LEFT,
                TOP + CHART_HIGH - how->mark / most * CHART_HIGH, CHART_WIDE);
    fprintf(stream, "<path class=\"rule\" d=\"M%d %dv%dh%d\"/>\n", CHART_LEFT, TOP, CHART_HIGH, CHART_WIDE);
    for (int i = 0; i <= steps; i++)
        number(stream, CHART_LEFT - 6, TOP + CHART_HIGH - (double)i * CHART_HIGH / steps + 5, "end",
               i * step);
    tilted(stream, 14, TOP + CHART_HIGH / 2.0, 90, "middle", how->unit);
    places(stream, &how->x, n, CHART_LEFT, TOP + CHART_HIGH, CHART_WIDE, false);
    label(stream, CHART_LEFT + CHART_WIDE / 2.0, TOP + CHART_HIGH + foot - 8, "middle", how->x.title);
    fputs("</svg>\n", stream);
}

int cli_plot_matrix_file(const char *path, const double *matrix, int32_t rows, int32_t columns,
                         const cli_plot_map *how)
{
    cot_file_writer writer;
    if (!cli_open_output(&writer, path)) return CLI_EXIT_FAILURE;
    cli_plot_matrix(writer.stream, matrix, rows, columns, how);
    return cli_close_output(&writer) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
