#include "cli/bench/bench_report.h"

#include "cli/frame/command.h"
#include "cli/bench/median.h"
#include "cli/frame/paths.h"
#include "cli/bench/roof_trust.h"
#include "cli/frame/terminal.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool has_link(const cli_bench_lists *lists)
{
    return lists->link_bytes_per_s > 0;
}

static double wire_ns(const cot_bench_result *r, const cli_bench_lists *lists)
{
    if (!has_link(lists)) return 0;
    return (double)lists->link_latency_ns + (double)r->bytes * 1e9 / lists->link_bytes_per_s;
}

/* What is asked for: with a link where there is one. */
static double median_ns(const cot_bench_result *r, const cli_bench_lists *lists)
{
    return has_link(lists) ? r->linked_median_ns : r->median_ns;
}

static double roof_share(const cli_bench_found *f, const cot_bench_result *r)
{
    return f->load.floor_ns / r->median_ns;
}

/* Roofs are measured before a case alone: there is no drift to judge them by. */
static bool roof_is_doubted(const cli_bench_found *f, const cot_bench_result *r)
{
    return *cli_roof_doubt((char[96]){0}, roof_share(f, r), 1);
}

void cli_bench_report_doubt(const cli_bench_found *f, const cli_bench_lists *lists)
{
    bool doubted = false;
    for (int i = 0; lists->ops[i]; i++) doubted |= roof_is_doubted(f, &f->results[i]);
    if (doubted)
        fprintf(
            stderr,
            "note: %s, %lld tokens, %d ranks, %s: faster than the roofs: the machine was busy when they were "
            "measured, and shares of them are not to be trusted\n",
            f->shape->name, (long long)f->tokens, f->ranks, f->routing->text);
}

/* ---- bulk over fused ---- */

static int index_of(const cli_bench_lists *lists, const char *op)
{
    for (int i = 0; lists->ops[i]; i++)
        if (!strcmp(lists->ops[i], op)) return i;
    return -1;
}

/* The median and the least of bulk's time over fused's; false where there is nothing to compare. */
static bool compare(double *median, double *worst, const cli_bench_found *found, size_t n,
                    const cli_bench_lists *lists)
{
    int bulk = index_of(lists, "bulk"), fused = index_of(lists, "fused");
    double *ratios = bulk >= 0 && fused >= 0 && n ? malloc(n * sizeof *ratios) : NULL;
    if (!ratios) return false;
    for (size_t i = 0; i < n; i++)
        ratios[i] = median_ns(&found[i].results[bulk], lists) / median_ns(&found[i].results[fused], lists);
    *median = cli_sort_median(ratios, n);
    *worst = ratios[0];
    free(ratios);
    return true;
}

/* ---- for people ---- */

/* "12.3 ms" in the unit that suits. */
static const char *time_text(double ns, char text[16])
{
    if (ns >= 1e9)
        snprintf(text, 16, "%.3g s", ns / 1e9);
    else if (ns >= 1e6)
        snprintf(text, 16, ns < 100e6 ? "%.3g ms" : "%.0f ms", ns / 1e6);
    else
        snprintf(text, 16, ns < 100e3 ? "%.3g us" : "%.0f us", ns / 1e3);
    return text;
}
#define TIME(ns) time_text(ns, (char[16]){0})

static const char *bytes_text(double bytes, char text[16])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int unit = 0;
    for (; bytes >= 999.5 && unit < 4; unit++) bytes /= 1000;
    snprintf(text, 16, "%.3g %s", bytes, units[unit]);
    return text;
}
#define BYTES(bytes) bytes_text((double)(bytes), (char[16]){0})

static void print_head(const cli_bench_found *f, const char *precision, const char *weights)
{
    const cot_bench_shape *s = f->shape;
    const cot_bench_load *l = &f->load;
    printf("%s (H %lld, I %lld, top %lld of %lld), %lld tokens, %d ranks, %s, %s%s%s\n", s->name,
           (long long)s->hidden, (long long)s->intermediate, (long long)s->top_k, (long long)s->experts,
           (long long)f->tokens, f->ranks, f->routing->text, precision, weights ? ", weights " : "",
           weights ? weights : "");
    printf("  %lld rows to %lld experts: %.3g GFLOP, %s of weights; roofs %.1f GFLOP/s, read %.1f GB/s: "
           "at least %s to %s; %d runs each\n",
           (long long)l->rows, (long long)l->touched, l->flops / 1e9, BYTES(l->weight_bytes),
           l->roof_flops / 1e9, f->roof.read_bytes_per_second / 1e9, TIME(l->floor_ns),
           l->reads_bound ? "read" : "multiply", f->repeats);
}

static void print_operators(const cli_bench_found *f, const cli_bench_lists *lists)
{
    cli_heading(stdout, "  %-8s %-8s %-9s %-5s %9s %9s %8s %7s %5s %7s %7s %8s %9s %9s %9s\n", "op",
                "combine", "a2a", "dedup", "median", "p95", "GFLOP/s", "of roof", "idle", "overlap", "waits",
                "launches", "straggler", "its p95", "sent");
    for (int i = 0; lists->ops[i]; i++) {
        const cot_bench_result *r = &f->results[i];
        char overlap[16] = "-", share[16] = "busy";
        if (!roof_is_doubted(f, r)) snprintf(share, sizeof share, "%.1f %%", 100 * roof_share(f, r));
        if (f->fewest)
            snprintf(overlap, sizeof overlap, "%.0f %%",
                     100 * f->fewest->results[i].median_ns / r->median_ns);
        printf("  %-8s %-8s %-9s %-5s %9s %9s %8.1f %7s %3.0f %% %7s %7.1f %8.1f %9s %9s %9s\n",
               lists->ops[i], r->combine, r->a2a, r->dedup, TIME(r->median_ns), TIME(r->p95_ns),
               f->load.flops / r->median_ns, share, 100 * r->idle_share, overlap, r->waits, r->launches,
               TIME(r->straggler_median_ns), TIME(r->straggler_p95_ns), BYTES(r->bytes));
    }
    for (int i = 0; lists->ops[i]; i++) {
        const cot_bench_result *r = &f->results[i];
        printf("  %s, all ranks: gate %s, dispatch %s, experts %s (%.0f passes over weights), combine %s; "
               "waiting %s, for a turn %s\n",
               lists->ops[i], TIME(r->gate_ns), TIME(r->dispatch_ns), TIME(r->expert_ns), r->tile_passes,
               TIME(r->combine_ns), TIME(r->waited_ns), TIME(r->queued_ns));
    }
}

static void print_link(const cli_bench_found *f, const cli_bench_lists *lists)
{
    for (int i = 0; lists->ops[i]; i++) {
        const cot_bench_result *r = &f->results[i];
        double wire = wire_ns(r, lists), bytes_ns = wire - (double)lists->link_latency_ns;
        printf("  %s over the link: median %s, p95 %s; wire %s; %.2f of the longer of tiles and wire",
               lists->ops[i], TIME(r->linked_median_ns), TIME(r->linked_p95_ns), TIME(wire),
               r->linked_median_ns / fmax(r->median_ns, wire));
        if (bytes_ns > 0)
            printf("; %.0f %% of communication hidden",
                   100 * (1 - (r->linked_median_ns - r->median_ns) / bytes_ns));
        printf("\n");
    }
}

void cli_bench_report_print(const cli_bench_found *f, const cli_bench_lists *lists, const char *precision,
                            const char *weights)
{
    const cot_bench_load *l = &f->load;
    double median, worst;
    print_head(f, precision, weights);
    print_operators(f, lists);
    if (has_link(lists)) print_link(f, lists);
    printf("  padding to the longest block: %s more; to capacity factor 1 (%lld rows): %s more, %lld rows "
           "dropped:",
           BYTES(l->padding_bytes), (long long)l->capacity, BYTES(l->capacity_bytes),
           (long long)l->capacity_dropped);
    for (int i = 0; lists->ops[i] && f->capacity_ns[0] > 0; i++)
        printf(" %s %s", lists->ops[i], TIME(f->capacity_ns[i]));
    printf("%s\n", f->capacity_ns[0] > 0 ? "" : " not run, as that would take long");
    if (compare(&median, &worst, f, 1, lists)) printf("  bulk / fused %.3f\n", median);
    printf("\n");
}

void cli_bench_report_print_summary(const cli_bench_found *found, size_t n, const cli_bench_lists *lists)
{
    double median, worst;
    if (n > 1 && compare(&median, &worst, found, n, lists))
        printf("bulk / fused: median %.3f, worst %.3f of %zu\n", median, worst, n);
}

/* ---- for programs ---- */

static json_t *point(const cli_bench_found *f, int op, const cli_bench_lists *lists)
{
    const cot_bench_result *r = &f->results[op];
    double p95_ns = has_link(lists) ? r->linked_p95_ns : r->p95_ns, share = roof_share(f, r);
    return json_pack("{s:s, s:I, s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:I}", "shape",
                     f->shape->name, "tokens", (json_int_t)f->tokens, "ranks", f->ranks, "routing",
                     f->routing->text, "op", lists->ops[op], "combine", r->combine, "a2a", r->a2a, "dedup",
                     r->dedup, "median_ns", (json_int_t)llround(median_ns(r, lists)), "p95_ns",
                     (json_int_t)llround(p95_ns), "tile_ns", (json_int_t)llround(r->median_ns), "wire_ns",
                     (json_int_t)llround(wire_ns(r, lists)), "roof_share", share < 1 ? share : 1, "bytes",
                     (json_int_t)r->bytes);
}

static json_t *points_of(const cli_bench_found *found, size_t n, const cli_bench_lists *lists,
                         json_t *(*of)(const cli_bench_found *, int, const cli_bench_lists *))
{
    json_t *points = json_array();
    for (size_t i = 0; i < n; i++)
        for (int op = 0; lists->ops[op]; op++)
            if (json_array_append_new(points, of(&found[i], op, lists)) != 0) {
                json_decref(points);
                cli_complain("a result cannot be written as JSON: its names are no UTF-8");
                return NULL;
            }
    return points;
}

bool cli_bench_report_json(const cli_bench_found *found, size_t n, const cli_bench_lists *lists)
{
    double median, worst;
    json_t *points = points_of(found, n, lists, point);
    if (!points) return false;
    bool compared = compare(&median, &worst, found, n, lists);
    json_t *all = json_pack("{s:o, s:{s:o, s:o}}", "points", points, "summary", "bulk_over_fused_median",
                            compared ? json_real(median) : json_null(), "bulk_over_fused_worst",
                            compared ? json_real(worst) : json_null());
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(all);
    return true;
}

static json_t *detail(const cli_bench_found *f, int op, const cli_bench_lists *lists)
{
    const cot_bench_load *l = &f->load;
    const cot_bench_result *r = &f->results[op];
    json_t *d = point(f, op, lists);
    json_t *more = json_pack(
        "{s:i, s:I, s:I, s:I, s:f, s:f, s:f, s:b, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:f, "
        "s:f, s:f, s:f, s:f, s:f}",
        "repeats", f->repeats, "rows", (json_int_t)l->rows, "experts_touched", (json_int_t)l->touched,
        "weight_bytes", (json_int_t)l->weight_bytes, "flops", l->flops, "roof_flops", l->roof_flops,
        "roof_read_bytes_per_second", f->roof.read_bytes_per_second, "reads_bound", l->reads_bound,
        "padding_bytes", (json_int_t)l->padding_bytes, "capacity_rows", (json_int_t)l->capacity,
        "capacity_padding_bytes", (json_int_t)l->capacity_bytes, "capacity_dropped_rows",
        (json_int_t)l->capacity_dropped, "floor_ns", l->floor_ns, "idle_share", r->idle_share, "waits",
        r->waits, "launches", r->launches, "tile_passes", r->tile_passes, "straggler_median_ns",
        r->straggler_median_ns, "straggler_p95_ns", r->straggler_p95_ns, "gate_ns", r->gate_ns, "dispatch_ns",
        r->dispatch_ns, "expert_ns", r->expert_ns, "combine_ns", r->combine_ns, "waited_ns", r->waited_ns,
        "queued_ns", r->queued_ns);
    json_object_update(d, more);
    json_object_set_new(d, "roof_share", json_real(roof_share(f, r))); // not capped: roofs drift, too
    json_object_set_new(d, "roof_busy", json_boolean(roof_is_doubted(f, r)));
    json_decref(more);
    return d;
}

bool cli_bench_report_details(const char *path, const cli_bench_found *found, size_t n,
                              const cli_bench_lists *lists)
{
    json_t *points = points_of(found, n, lists, detail);
    return points && cli_write_json(path, points);
}
