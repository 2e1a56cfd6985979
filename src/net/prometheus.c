#include "net/prometheus.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(cot_prometheus *out, const char *text, size_t count)
{
    if (!out->failed && !cot_buffer_append(&out->text, text, count)) out->failed = true;
}

static void put_text(cot_prometheus *out, const char *text)
{
    put(out, text, strlen(text));
}

/* A backslash before backslashes, quotes where they would end the text, and for line ends. */
static void put_escaped(cot_prometheus *out, const char *text, bool quoted)
{
    for (; *text; text++) {
        if (*text == '\n')
            put_text(out, "\\n");
        else if (*text == '\\' || (quoted && *text == '"'))
            put(out, (const char[]){'\\', *text}, 2);
        else
            put(out, text, 1);
    }
}

/* The shortest of two spellings that reads back as the same number; with a point in every locale. */
static const char *spell(double value, char text[static 40])
{
    if (isnan(value)) return "NaN";
    if (isinf(value)) return value > 0 ? "+Inf" : "-Inf";
    snprintf(text, 40, "%.15g", value);
    if (strtod(text, NULL) != value) snprintf(text, 40, "%.17g", value);
    char *const comma = strchr(text, ',');
    if (comma) *comma = '.';
    return text;
}

/* name{labels, and le if there is one} value */
static void put_line(cot_prometheus *out, const char *name, const char *suffix,
                     const cot_prometheus_label *labels, size_t count, const double *le, double value)
{
    char text[40];
    put_text(out, name);
    put_text(out, suffix);
    const char *before = "{";
    for (size_t i = 0; i < count; i++, before = ",") {
        put_text(out, before);
        put_text(out, labels[i].name);
        put_text(out, "=\"");
        put_escaped(out, labels[i].value, true);
        put_text(out, "\"");
    }
    if (le) {
        put_text(out, before);
        put_text(out, "le=\"");
        put_text(out, spell(*le, text));
        put_text(out, "\"");
    }
    put_text(out, count || le ? "} " : " ");
    put_text(out, spell(value, text));
    put_text(out, "\n");
}

void cot_prometheus_metric(cot_prometheus *out, const char *name, const char *type, const char *help)
{
    put_text(out, "# HELP ");
    put_text(out, name);
    put_text(out, " ");
    put_escaped(out, help, false);
    put_text(out, "\n# TYPE ");
    put_text(out, name);
    put_text(out, " ");
    put_text(out, type);
    put_text(out, "\n");
}

void cot_prometheus_value(cot_prometheus *out, const char *name, const cot_prometheus_label *labels,
                          size_t count, double value)
{
    put_line(out, name, "", labels, count, NULL, value);
}

void cot_prometheus_observe(cot_prometheus_histogram *histogram, double value)
{
    size_t bucket = 0;
    while (bucket < histogram->buckets && !(value <= histogram->bounds[bucket])) bucket++;
    histogram->counts[bucket]++;
    histogram->sum += value;
}

void cot_prometheus_histogram_lines(cot_prometheus *out, const char *name, const cot_prometheus_label *labels,
                                    size_t count, const cot_prometheus_histogram *histogram)
{
    uint64_t all = 0;
    for (size_t b = 0; b <= histogram->buckets; b++) {
        const double bound = b < histogram->buckets ? histogram->bounds[b] : INFINITY;
        all += histogram->counts[b];
        put_line(out, name, "_bucket", labels, count, &bound, (double)all);
    }
    put_line(out, name, "_sum", labels, count, NULL, histogram->sum);
    put_line(out, name, "_count", labels, count, NULL, (double)all);
}

void cot_prometheus_free(cot_prometheus *out)
{
    cot_buffer_free(&out->text);
    *out = (cot_prometheus){0};
}
