/* `coterie bench fabric`: what carries messages between ranks, by size. */
#include "cli/commands.h"
#include "coterie/bench_fabric.h"
#include "coterie/started.h"
#include "cli/run/engine_settings.h"

#include <jansson.h>
#include <stdio.h>

struct settings {
    int64_t ranks, bytes;
    double seconds;
    int64_t timeout_ns;
    const char *fabric, *hostfile;
    bool json;
};

static const char *const names[COT_BENCH_TRANSFERS] = {"put + signal", "allgather", "reduce-scatter"};

struct report {
    json_t *rows; // NULL: it prints a table
    int last;     // the transfer of the row before, or -1
};

static void print_row(void *context, const cot_bench_fabric_row *row)
{
    struct report *report = context;
    if (report->rows) {
        json_array_append_new(report->rows,
                              json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f}", "transfer",
                                        names[row->transfer], "carriers", row->carriers, "bytes",
                                        (json_int_t)row->bytes, "repeats", (json_int_t)row->repeats,
                                        "least_ns", row->least_ns, "median_ns", row->median_ns, "average_ns",
                                        row->average_ns, "bytes_per_second", row->bytes_per_s));
        return;
    }
    if (report->last < 0) printf("carried by %s\n\n", row->carriers);
    if (report->last != (int)row->transfer)
        printf("%s%-16s %12s %11s %11s %11s %12s\n", report->last < 0 ? "" : "\n", names[row->transfer],
               "# iterations", "least us", "50.0%ile us", "average us", "MB/s");
    report->last = (int)row->transfer;
    printf("%10lld bytes %12lld %11.3f %11.3f %11.3f %12.2f\n", (long long)row->bytes,
           (long long)row->repeats, row->least_ns / 1e3, row->median_ns / 1e3, row->average_ns / 1e3,
           row->bytes_per_s / 1e6);
    fflush(stdout);
}

static int bench_fabric(const void *settings)
{
    const struct settings *s = settings;
    struct report report = {.rows = s->json ? json_array() : NULL, .last = -1};
    const cot_bench_fabric_options options = {.size = sizeof options,
                                              .ranks = s->ranks        ? (int)s->ranks
                                                       : cli_is_rank() ? cot_launch_started().ranks
                                                                       : 2,
                                              .fabric = s->fabric,
                                              .timeout_ns = s->timeout_ns,
                                              .most_bytes = s->bytes,
                                              .budget_ns = (int64_t)(s->seconds * 1e9)};
    cot_error error;
    const cot_status status = cot_bench_fabric(&options, print_row, &report, &error);
    if (status == COT_OK && s->json) {
        json_dumpf(report.rows, stdout, JSON_INDENT(1));
        printf("\n");
    }
    json_decref(report.rows);
    if (status == COT_SERVED) return CLI_EXIT_OK; // the first rank tells
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

#define AT(field) offsetof(struct settings, field)
static const cli_option options[] = {
    {"ranks", 'r', CLI_OPTION_INTEGER, "P", NULL, "ranks; default: 2, or as many as oshrun has started",
     AT(ranks), .least = 2, .most = 64},
    {"fabric", 0, CLI_OPTION_TEXT, "NAME", NULL, "what ranks are (see coterie info)", AT(fabric)},
    CLI_HOSTFILE_ROW(AT(hostfile)),
    {"bytes", 0, CLI_OPTION_INTEGER, "N", "4194304", "sizes are 8, 32, 128 and so on up to N", AT(bytes),
     .least = COT_BENCH_FABRIC_LEAST_BYTES, .most = COT_BENCH_FABRIC_MOST_BYTES},
    {"seconds", 0, CLI_OPTION_REAL, "S", "0.3", "about how long each size is repeated, 5 to 1,000 times",
     AT(seconds), .min = 1e-6, .max = 1e3},
    CLI_TIMEOUT_ROW(AT(timeout_ns)),
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cli_command cli_cmd_bench_fabric = {
    .name = "bench fabric",
    .summary = "measure latency and bandwidth of messages between ranks, by size",
    .details = "put + signal: from the first rank to the last; latency is half of the time there and back, "
               "bandwidth that of 16 "
               "puts, one behind the other, until the last is answered. allgather: bytes are what every rank "
               "has in the end; "
               "reduce-scatter: what every rank brings. Their latency is that of a call, their bandwidth "
               "what a rank sends.",
    .examples =
        (const char *const[]){"coterie bench fabric", "coterie bench fabric --ranks 4 --fabric processes",
                              "coterie bench fabric --bytes 65536 --json", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", options, 0}, {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = bench_fabric};
