#include "cli/bench/drift_report.h"

#include "cli/frame/terminal.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

cli_drift_sum cli_drift_sum_of(const cot_bench_drift_row *row, int64_t from, int64_t to)
{
    cli_drift_sum s = {0};
    double tokens = 0, sends = 0;
    for (int64_t i = from; i < to; i++) {
        const cot_bench_drift_interval *v = &row->interval[i];
        s.seconds += (v->ns + v->gap_ns) / 1e9;
        s.gap_seconds += v->gap_ns / 1e9;
        s.peak += v->peak / (double)(to - from);
        s.copies += (double)v->copies;
        tokens += (double)v->tokens;
        sends += (double)v->sends;
    }
    s.tokens_per_s = tokens / s.seconds;
    s.sends_per_token = sends / tokens;
    return s;
}

/* ---- for people ---- */

enum { COLUMNS = 98 };

/* Sequences as ranges, in lines that a terminal holds. */
static void print_list(const cot_bench_drift_half *h)
{
    int column = COLUMNS;
    for (int32_t i = 0; i < h->sequences; i++) {
        int32_t last = i;
        char range[32];
        while (last + 1 < h->sequences && h->sequence[last + 1] == h->sequence[last] + 1) last++;
        const int n =
            last > i ? snprintf(range, sizeof range, "%d-%d", (int)h->sequence[i], (int)h->sequence[last])
                     : snprintf(range, sizeof range, "%d", (int)h->sequence[i]);
        if (column + n + 1 > COLUMNS)
            column = printf("%s\n  ", i ? "," : "") - 1 - (i > 0);
        else
            column += printf(",");
        column += printf("%s", range);
        i = last;
    }
    printf("\n");
}

static void print_lists(const cli_drift_told *t)
{
    for (int half = 0; half < 2; half++) {
        const cot_bench_drift_half *h = &t->options->half[half];
        printf("%-12s %d sequences, %d at a time", half ? "second half" : "first half", (int)h->sequences,
               (int)h->width);
        print_list(h);
    }
}

static void print_costs(const cli_drift_told *t)
{
    const cot_bench_drift_costs *c = &t->options->costs;
    printf("experts      of %s, %.1f MB each, on %d ranks with %d spare slots a layer\n", t->shape,
           t->expert_bytes / 1e6, (int)t->options->ranks, (int)t->options->spare);
    printf("a layer      %.1f us + %.1f us an expert called + %.2f us a call", c->layer_ns / 1e3,
           c->expert_ns / 1e3, c->row_ns / 1e3);
    if (t->fit_error >= 0) printf(", measured, to %.0f %%", 100 * t->fit_error);
    printf("\n  a send     %.2f us over the ranks; a copy %.2f ms\n", c->send_ns / 1e3, c->copy_ns / 1e6);
}

static void print_reasons(const cli_drift_told *t, cot_bench_drift_kind kind)
{
    const cot_bench_drift_reason *r = t->drift->row[kind].reason;
    printf("%-12s", cot_bench_drift_names[kind]);
    for (int i = 0, n = 0; i < COT_BENCH_DRIFT_REASONS && r[i].text; i++)
        if (r[i].layers) printf("%s %s %" PRId64, n++ ? "," : "", r[i].text, r[i].layers);
    printf("\n");
}

static void print_anew(const cli_drift_told *t)
{
    const cot_bench_drift_anew *a = &t->drift->anew;
    printf(
        "anew         each step placed for itself takes %.2f ms, under load %.2f, and %.0f copies a step\n",
        a->ns / 1e6, a->load_ns / 1e6, a->copies);
    printf("  of %.0f calls a layer; ", a->rows);
    if (a->break_even_rows > 0)
        printf("it would pay from %.0f calls on\n", a->break_even_rows);
    else
        printf("it saves nothing\n");
}

void cli_drift_print(const cli_drift_told *t)
{
    const cot_bench_drift *d = t->drift;
    const int64_t n = d->intervals, settled = d->change + CLI_DRIFT_SETTLED;
    const int64_t from = settled < n ? settled : n - 1;
    print_lists(t);
    print_costs(t);
    cli_heading(stdout, "%-19s %8s %8s %8s %8s %6s %6s %7s %8s %7s\n", "tokens a second", "before", "change",
                "settled", "all", "peak", "sends", "copies", "GB", "gaps s");
    for (int kind = 0; kind < COT_BENCH_DRIFT_ROWS; kind++) {
        const cot_bench_drift_row *row = &d->row[kind];
        const cli_drift_sum all = cli_drift_sum_of(row, 0, n);
        printf("%-19s %8.2f %8.2f %8.2f %8.2f %6.3f %6.2f %7.0f %8.2f %7.2f\n", cot_bench_drift_names[kind],
               cli_drift_sum_of(row, 0, d->change).tokens_per_s,
               cli_drift_sum_of(row, d->change, from).tokens_per_s,
               cli_drift_sum_of(row, from, n).tokens_per_s, all.tokens_per_s, all.peak, all.sends_per_token,
               all.copies, all.copies * t->expert_bytes / 1e9, all.gap_seconds);
    }
    printf("found by     %s; %s\n", d->found_by[0], d->found_by[1]);
    print_reasons(t, COT_BENCH_DRIFT_LOAD);
    print_reasons(t, COT_BENCH_DRIFT_JOINT);
    print_anew(t);
}

/* ---- JSON ---- */

static json_t *list_json(const cot_bench_drift_half *h)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < h->sequences; i++) json_array_append_new(list, json_integer(h->sequence[i]));
    return json_pack("{s:i, s:o}", "width", (int)h->width, "sequences", list);
}

static json_t *row_json(const cli_drift_told *t, int kind)
{
    const cot_bench_drift_row *row = &t->drift->row[kind];
    json_t *intervals = json_array(), *reasons = json_object();
    for (int64_t i = 0; i < t->drift->intervals; i++) {
        const cot_bench_drift_interval *v = &row->interval[i];
        json_array_append_new(intervals,
                              json_pack("{s:f, s:f, s:f, s:I, s:I, s:I}", "ns", v->ns, "gap_ns", v->gap_ns,
                                        "peak_over_mean", v->peak, "tokens", (json_int_t)v->tokens, "sends",
                                        (json_int_t)v->sends, "copies", (json_int_t)v->copies));
    }
    for (int i = 0; i < COT_BENCH_DRIFT_REASONS && row->reason[i].text; i++)
        json_object_set_new(reasons, row->reason[i].text, json_integer(row->reason[i].layers));
    return json_pack("{s:s, s:o, s:o}", "name", cot_bench_drift_names[kind], "reasons", reasons, "intervals",
                     intervals);
}

void cli_drift_print_json(const cli_drift_told *t)
{
    const cot_bench_drift *d = t->drift;
    const cot_bench_drift_options *o = t->options;
    const cot_bench_drift_costs *c = &o->costs;
    json_t *rows = json_array();
    for (int kind = 0; kind < COT_BENCH_DRIFT_ROWS; kind++) json_array_append_new(rows, row_json(t, kind));
    json_t *costs = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "layer_ns", c->layer_ns, "expert_ns",
                              c->expert_ns, "row_ns", c->row_ns, "send_ns", c->send_ns, "copy_ns", c->copy_ns,
                              "expert_bytes", t->expert_bytes);
    json_t *anew = json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "steps", (json_int_t)d->anew.steps, "ns",
                             d->anew.ns, "load_ns", d->anew.load_ns, "copies", d->anew.copies, "rows",
                             d->anew.rows, "break_even_rows", d->anew.break_even_rows);
    json_t *all =
        json_pack("{s:s, s:i, s:i, s:I, s:I, s:I, s:i, s:I, s:[o,o], s:o, s:[s,s], s:o, s:o}", "shape",
                  t->shape, "ranks", (int)o->ranks, "spare", (int)o->spare, "interval_steps",
                  (json_int_t)o->interval, "intervals", (json_int_t)d->intervals, "change",
                  (json_int_t)d->change, "cool_down", (int)o->cool_down, "seed", (json_int_t)o->seed,
                  "halves", list_json(&o->half[0]), list_json(&o->half[1]), "costs", costs, "best_found_by",
                  d->found_by[0], d->found_by[1], "rows", rows, "anew", anew);
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    printf("\n");
    json_decref(all);
}
