#include "cli/plan/page.h"

#include <math.h>
#include <string.h>

static const char style[] =
    "body{font:15px/1.5 sans-serif;color:#222;max-width:1200px;margin:2em auto;padding:0 1em}"
    "h1{font-size:24px}h2{font-size:18px;margin-top:2em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:.25em .9em;text-align:right;border-bottom:1px solid #ddd}th{vertical-align:bottom}"
    "td:first-child,th:first-child{text-align:left;white-space:nowrap}.chosen "
    "td{background:#e3eef9;font-weight:bold}"
    ".row{display:flex;gap:1em}.row svg{width:49%;height:auto}.note{color:#555;max-width:900px}"
    "svg{max-width:100%;height:auto}";

void cli_page_text(FILE *stream, const char *text)
{
    for (; *text; text++)
        if (*text == '<' || *text == '>' || *text == '&')
            fputs(*text == '<' ? "&lt;" : *text == '>' ? "&gt;" : "&amp;", stream);
        else
            fputc(*text, stream);
}

void cli_page_begin(FILE *stream, const char *title)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", stream);
    cli_page_text(stream, title);
    fprintf(stream, "</title><style>%s</style></head>\n<body><h1>", style);
    cli_page_text(stream, title);
    fputs("</h1>\n", stream);
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
