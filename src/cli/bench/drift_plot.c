/* Tokens a second of each row, an interval after the other, as SVG. */
#include "cli/bench/drift_report.h"

#include "cli/frame/paths.h"

#include <inttypes.h>
#include <stdio.h>

enum { LEFT = 60, TOP = 40, WIDE = 640, HIGH = 320, LEGEND = 180, LINE = 20 };

static const char *const colours[COT_BENCH_DRIFT_ROWS] = {
    [COT_BENCH_DRIFT_BLOCKS] = "#888888", [COT_BENCH_DRIFT_FIRST] = "#b58900",
    [COT_BENCH_DRIFT_SECOND] = "#cb6a16", [COT_BENCH_DRIFT_EPLB] = "#d33682",
    [COT_BENCH_DRIFT_TOP] = "#6c71c4",    [COT_BENCH_DRIFT_LOAD] = "#268bd2",
    [COT_BENCH_DRIFT_JOINT] = "#2aa198"};

static double rate(const cot_bench_drift_interval *v)
{
    return (double)v->tokens * 1e9 / (v->ns + v->gap_ns);
}

static double highest(const cot_bench_drift *d)
{
    double most = 0;
    for (int kind = 0; kind < COT_BENCH_DRIFT_ROWS; kind++)
        for (int64_t i = 0; i < d->intervals; i++) {
            const double here = rate(&d->row[kind].interval[i]);
            most = here > most ? here : most;
        }
    return most;
}

static void draw_axes(FILE *f, const cli_drift_told *t, double most)
{
    enum { TICKS = 4 };
    const cot_bench_drift *d = t->drift;
    const double change = LEFT + (double)WIDE * (double)d->change / (double)d->intervals;
    fprintf(f,
            "<text x=\"%d\" y=\"%d\">tokens a second by the model, experts of %s, intervals of %" PRId64
            " steps</text>\n",
            LEFT, TOP - 16, t->shape, t->options->interval);
    for (int i = 0; i <= TICKS; i++) {
        const double y = TOP + HIGH - (double)HIGH * i / TICKS;
        fprintf(f, "<line class=\"rule\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", LEFT, y,
                LEFT + WIDE, y);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n", LEFT - 6, y + 4,
                most * i / TICKS);
    }
    fprintf(f,
            "<line class=\"rule\" stroke-dasharray=\"4 4\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n",
            change, TOP, change, TOP + HIGH);
    fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">the domain changes</text>\n", change,
            TOP + HIGH + LINE);
}

static void draw_row(FILE *f, const cot_bench_drift *d, int kind, double most)
{
    const int y = TOP + 12 + kind * LINE, x = LEFT + WIDE + 16;
    fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colours[kind]);
    for (int64_t i = 0; i < d->intervals; i++)
        fprintf(f, "%.1f,%.1f ", LEFT + WIDE * ((double)i + 0.5) / (double)d->intervals,
                TOP + HIGH * (1 - rate(&d->row[kind].interval[i]) / most));
    fprintf(f, "\"/>\n<line stroke=\"%s\" stroke-width=\"3\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>\n",
            colours[kind], x, y, x + 18, y);
    fprintf(f, "<text x=\"%d\" y=\"%d\">%s</text>\n", x + 24, y + 4, cot_bench_drift_names[kind]);
}

bool cli_drift_plot(const cli_drift_told *t, const char *path)
{
    cot_file_writer writer = {0};
    FILE *f = cli_open_output(&writer, path);
    if (!f) return false;
    const double most = highest(t->drift);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n"
            "<style>text{fill:#222}.rule{stroke:#ccc}.back{fill:#fff}"
            "@media(prefers-color-scheme:dark){text{fill:#ddd}.rule{stroke:#444}.back{fill:#111}}</style>\n"
            "<rect class=\"back\" width=\"100%%\" height=\"100%%\"/>\n",
            LEFT + WIDE + LEGEND, TOP + HIGH + 2 * LINE);
    draw_axes(f, t, most);
    for (int kind = 0; kind < COT_BENCH_DRIFT_ROWS; kind++) draw_row(f, t->drift, kind, most);
    fputs("</svg>\n", f);
    return cli_close_output(&writer);
}
