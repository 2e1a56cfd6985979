#include "cli/plan/page.h"

#include "coterie/version.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* On narrow screens tables and figures scroll within the page: a shadow at an edge says that more lies behind it (what moves
 * with the content covers it at the end), and a table's first column, which says what a row is, stays. */
#define SCROLLS                                                                                              \
    "overflow-x:auto;background:linear-gradient(var(--ground),var(--ground)) -1px -1px/25px calc(100% + "    \
    "2px) no-repeat local,"                                                                                  \
    "linear-gradient(var(--ground),var(--ground)) calc(100% + 1px) -1px/25px calc(100% + 2px) no-repeat "    \
    "local,"                                                                                                 \
    "linear-gradient(to right,var(--shadow),transparent) 0 0/14px 100% no-repeat,"                           \
    "linear-gradient(to left,var(--shadow),transparent) 100% 0/14px 100% no-repeat"
static const char style[] =
    ":root{color-scheme:light "
    "dark;--ink:#222;--pale:#555;--rule:#ddd;--chosen:#e3eef9;--ground:#fff;--shadow:#888}"
    "@media(prefers-color-scheme:dark){:root{--ink:#ddd;--pale:#aaa;--rule:#444;--chosen:#1d3a57;--ground:#"
    "181a1d;--shadow:#888}}"
    "body{font:15px/1.5 sans-serif;color:var(--ink);background:var(--ground);max-width:1200px;margin:2em "
    "auto;padding:0 1em}"
    "h1{font-size:24px}h2{font-size:18px;margin-top:2em}"
    "table{border-collapse:collapse;margin:1em 0;display:block;width:fit-content;max-width:100%;" SCROLLS "}"
    "td,th{padding:.25em .9em;text-align:right;border-bottom:1px solid var(--rule)}th{vertical-align:bottom}"
    "td:first-child,th:first-child{text-align:left;white-space:nowrap}"
    ".chosen td{background:var(--chosen);font-weight:bold}.note{color:var(--pale);max-width:900px}"
    "code{overflow-wrap:anywhere}"
    ".figure{" SCROLLS "}.figure svg{display:block;max-width:100%;height:auto}.figure .back{fill:none}"
    ".row{display:flex;flex-wrap:wrap;gap:1em}.row .figure{flex:1 1 420px;min-width:0}"
    "@media(max-width:700px){.row{display:block}.figure svg{max-width:none;width:620px}td,th{padding:.25em "
    ".5em}td{white-space:nowrap}td:first-child,th:first-child{position:sticky;left:0;background:var(--ground)"
    ";"
    "min-width:8em;max-width:40vw;white-space:normal;overflow-wrap:anywhere}"
    ".chosen td:first-child{background:var(--chosen)}}";

void cli_page_text(FILE *stream, const char *text)
{
    for (; *text; text++)
        if (*text == '<' || *text == '>' || *text == '&')
            fputs(*text == '<' ? "&lt;" : *text == '>' ? "&gt;" : "&amp;", stream);
        else
            fputc(*text, stream);
}

/* This process's command line, a word in quotes where a shell would need them. */
static void print_command(FILE *stream)
{
    FILE *words = fopen("/proc/self/cmdline", "r");
    char *word = NULL;
    size_t room = 0;
    for (bool first = true; words && getdelim(&word, &room, 0, words) > 0; first = false) {
        const char *slash = strrchr(word, '/'), *quote = strpbrk(word, " \t\n'\"\\$&|;<>()*?#") ? "'" : "";
        if (!first) fputs(" ", stream);
        fputs(quote, stream);
        cli_page_text(stream, first && slash ? slash + 1 : word);
        fputs(quote, stream);
    }
    free(word);
    if (words) fclose(words);
}

static void print_origin(FILE *stream)
{
    const time_t now = time(NULL);
    char date[32] = "";
    struct tm parts;
    if (localtime_r(&now, &parts)) strftime(date, sizeof date, "%Y-%m-%d %H:%M %z", &parts);
    fprintf(stream, "<p class=\"note\">Coterie %s, %s: <code>", cot_version(), date);
    print_command(stream);
    fputs("</code></p>\n", stream);
}

void cli_page_begin(FILE *stream, const char *title)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
          "content=\"width=device-width\"><title>",
          stream);
    cli_page_text(stream, title);
    fprintf(stream, "</title><style>%s</style></head>\n<body><h1>", style);
    cli_page_text(stream, title);
    fputs("</h1>\n", stream);
    print_origin(stream);
}

void cli_page_matrix(FILE *stream, const double *matrix, int32_t rows, int32_t columns,
                     const cli_plot_map *how)
{
    fputs("<div class=\"figure\">\n", stream);
    cli_plot_matrix(stream, matrix, rows, columns, how);
    fputs("</div>\n", stream);
}

void cli_page_bars(FILE *stream, const double *value, int32_t n, const cli_plot_chart *how)
{
    fputs("<div class=\"figure\">\n", stream);
    cli_plot_bars(stream, value, n, how);
    fputs("</div>\n", stream);
}

void cli_page_end(FILE *stream)
{
    fputs("</body></html>\n", stream);
}

const char *cli_people_number(char text[CLI_PEOPLE_BYTES], double x)
{
    static const char *const names[] = {"million", "billion", "trillion"};
    const double size = fabs(x);
    if (size >= 999999.5 && size < 999.5e12) {
        double unit = 1e6;
        int i = 0;
        for (; i < 2 && size >= unit * 999.5; i++) unit *= 1000;
        const double many = size / unit;
        snprintf(text, CLI_PEOPLE_BYTES, "%.*f %s",
                 many < 9.995   ? 2
                 : many < 99.95 ? 1
                                : 0,
                 x / unit, names[i]);
    } else if (size >= 999.5 && size < 999999.5) {
        const long whole = lround(size);
        snprintf(text, CLI_PEOPLE_BYTES, "%s%ld,%03ld", x < 0 ? "-" : "", whole / 1000, whole % 1000);
    } else
        snprintf(text, CLI_PEOPLE_BYTES, size < 1000 && size == round(size) ? "%.0f" : "%.3g", x);
    return text;
}
