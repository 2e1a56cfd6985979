/* `coterie bench kernels`: products of weights in each form, by rows, against both roofs. */
#include "cli/bench/bench_lists.h"
#include "cli/commands.h"
#include "cli/frame/progress.h"
#include "cli/bench/roof_trust.h"

#include "coterie/bench_kernels.h"

#include <jansson.h>
#include <stdio.h>

struct settings {
    const char *shape, *rows, *isa;
    int weights, precision;
    int64_t threads, mib;
    bool json;
};

struct report {
    const char *shape; // in hand
    int64_t hidden, intermediate;
    int threads;
    json_t *rows;     // NULL: it prints a table
    bool begun;       // the table has its heading
    const char *form; // of the row before
    cli_progress progress;
};

static const char *const forms[] = {"each", "bf16",  "fp32", "int8",   "fp8",  "int4", "mxfp4",
                                    "q4_1", "q5_0",  "q5_1", "iq4_nl", "q2_k", "q4_k", "q5_k",
                                    "q6_k", "nvfp4", "q8_0", "q4_0",   NULL};
static const char *const precisions[] = {"each", "bf16", "fp32", "int8", NULL};

/* The roof of the row's arithmetic, in operations a second. */
static double multiply_roof(const cot_bench_kernels_row *row)
{
    switch (row->precision[0]) {
    case 'f':
        return row->roof.f32_flops;
    case 'b':
        return row->roof.bf16_flops;
    default:
        return row->roof.int8_ops;
    }
}

static bool is_doubtful(const cot_bench_kernels_row *row)
{
    char why[96];
    const double share = row->read_share > row->multiply_share ? row->read_share : row->multiply_share;
    return *cli_roof_doubt(why, share, row->drift);
}

static json_t *json_of(const struct report *r, const cot_bench_kernels_row *row)
{
    return json_pack("{s:s, s:I, s:I, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
                     "s:f, s:f, s:b, s:b}",
                     "shape", r->shape, "hidden", (json_int_t)r->hidden, "intermediate",
                     (json_int_t)r->intermediate, "weights", row->weights, "precision", row->precision, "isa",
                     row->isa, "threads", r->threads, "rows", (json_int_t)row->rows, "experts",
                     (json_int_t)row->experts, "weight_bytes", (json_int_t)row->weight_bytes, "operations",
                     row->operations, "least_ns", row->least_ns, "median_ns", row->median_ns, "most_ns",
                     row->most_ns, "read_share", row->read_share, "multiply_share", row->multiply_share,
                     "read_roof", row->roof.read_bytes_per_second, "multiply_roof", multiply_roof(row),
                     "over_roof", row->over_roof, "reads_bound", row->reads_bound, "busy", is_doubtful(row));
}

static void print_row(void *context, const cot_bench_kernels_row *row)
{
    struct report *r = context;
    if (r->rows) {
        json_array_append_new(r->rows, json_of(r, row));
        return;
    }
    cli_progress_end(&r->progress);
    if (!r->begun) {
        printf("experts of %s, %lld by %lld; %s, %d threads, last-level cache %.0f MiB; median (least to "
               "most) of "
               "%d runs\n\n%-7s %-6s %5s %8s %22s %9s %9s %9s %14s\n",
               r->shape, (long long)r->hidden, (long long)r->intermediate, row->isa, r->threads,
               (double)cot_last_level_cache_bytes() / (1 << 20), COT_BENCH_KERNELS_RUNS, "weights", "by",
               "rows", "GB/s", "of the read roof", "GFLOP/s", "of roof", "roof", "of larger roof");
        r->begun = true;
    }
    const double again = row->median_ns * row->read_share;
    char spread[32];
    snprintf(spread, sizeof spread, "%.1f %% (%.1f to %.1f)", 100 * row->read_share,
             100 * again / row->most_ns, 100 * again / row->least_ns);
    printf("%-7s %-6s %5lld %8.1f %22s %9.1f %7.1f %% %9.1f %5.2fx %8s%s\n", row->weights, row->precision,
           (long long)row->rows, (double)row->weight_bytes / row->median_ns, spread,
           row->operations / row->median_ns, 100 * row->multiply_share, multiply_roof(row) / 1e9,
           row->over_roof, row->reads_bound ? "read" : "multiply", is_doubtful(row) ? "  busy" : "");
    fflush(stdout);
}

static void show(void *context, size_t done, size_t total)
{
    struct report *r = context;
    cli_progress_show(&r->progress, done, total);
}

static int bench_kernels(const void *settings)
{
    const struct settings *s = settings;
    cli_bench_lists lists;
    int64_t rows[CLI_BENCH_MOST_ITEMS];
    size_t n_rows;
    if (!cli_bench_integers_parse(rows, &n_rows, "rows", s->rows, COT_BENCH_KERNELS_MOST_ROWS))
        return CLI_EXIT_USAGE;
    if (!cli_bench_lists_parse(&lists, &(cli_bench_list_texts){.shape = s->shape})) {
        cli_bench_lists_free(&lists);
        return CLI_EXIT_USAGE;
    }
    struct report r = {.threads = cli_roof_threads(s->threads),
                       .rows = s->json ? json_array() : NULL,
                       .progress = {"measuring", 0}};
    cot_error error;
    cot_status status = COT_OK;
    for (size_t i = 0; i < lists.n_shapes && status == COT_OK; i++) {
        const cot_bench_shape *shape = &lists.shapes[i];
        const cot_bench_kernels_options options = {.size = sizeof options,
                                                   .hidden = shape->hidden,
                                                   .intermediate = shape->intermediate,
                                                   .weights = s->weights ? forms[s->weights] : NULL,
                                                   .precision =
                                                       s->precision ? precisions[s->precision] : NULL,
                                                   .rows = rows,
                                                   .n_rows = n_rows,
                                                   .threads = r.threads,
                                                   .isa = s->isa,
                                                   .weight_bytes = s->mib << 20};
        if (i && !s->json) printf("\n");
        r.shape = shape->name;
        r.hidden = shape->hidden;
        r.intermediate = shape->intermediate;
        r.begun = false;
        status = cot_bench_kernels(&options, print_row, show, &r, &error);
        cli_progress_end(&r.progress);
    }
    if (status == COT_OK && s->json) {
        json_dumpf(r.rows, stdout, JSON_INDENT(1));
        printf("\n");
    }
    json_decref(r.rows);
    cli_bench_lists_free(&lists);
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

#define AT(field) offsetof(struct settings, field)
static const cli_option options[] = {
    {"shape", 0, CLI_OPTION_TEXT, "LIST", "olmoe",
     "names (as of bench moe), or H,I,E,K, of which H and I count", AT(shape)},
    {"weights", 0, CLI_OPTION_CHOICE, "TYPE", "each",
     "what weights are kept as; GGUF's own forms and nvfp4 (q4_1 and on) only where they are named",
     AT(weights), .choices = forms},
    {"precision", 0, CLI_OPTION_CHOICE, "TYPE", "each",
     "arithmetic; int8: rows are rounded to whole numbers; each: all that multiply the weights",
     AT(precision), .choices = precisions},
    {"rows", 0, CLI_OPTION_TEXT, "LIST", "1,2,4,8,16,128", "rows of an expert", AT(rows)},
    {"mib", 0, CLI_OPTION_INTEGER, "N", "0",
     "MiB of weights that are multiplied one after another, and that the read roof reads (0: twice the "
     "last-level cache, 512 to 2048)",
     AT(mib), .least = 0, .most = 65536},
    {"threads", 't', CLI_OPTION_INTEGER, "N", "0", "threads (0: as many as cores)", AT(threads), .least = 0,
     .most = 256},
    {"isa", 0, CLI_OPTION_TEXT, "NAME", NULL, "caps the instruction set (see coterie info)", AT(isa)},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cli_command cli_cmd_bench_kernels = {
    .name = "bench kernels",
    .summary = "measure products of weights in each form, by rows, against both roofs",
    .details =
        "The products are those of SwiGLU experts, gate, up and down, with random weights; as many "
        "experts follow one "
        "another as no cache holds, but with more than 64 rows it is one. Of the read roof: bytes as "
        "they are stored. "
        "GFLOP/s are held against the multiply-add roof of the arithmetic. Of larger roof: how many times as "
        "long the median is as the larger of both roofs' times, and which one is larger. Roofs are measured "
        "before "
        "and after the "
        "rows of each form and arithmetic, and the higher ones count; busy: they differ 1.5 times, or "
        "a median came "
        "to more than 105 % of one, since other programs slowed them.",
    .examples = (const char *const[]){"coterie bench kernels",
                                      "coterie bench kernels --weights mxfp4 --shape gpt-oss --threads 1",
                                      "coterie bench kernels --precision int8 --rows 1,8 --json", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", options, 0}, {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = bench_kernels};
