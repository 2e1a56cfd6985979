/* What `coterie bench moe` found, for people and for programs. */
#ifndef COT_CLI_BENCH_BENCH_REPORT_H
#define COT_CLI_BENCH_BENCH_REPORT_H
#include "cli/bench/bench_lists.h"
#include "coterie/file.h"

/* One case and what every operator did with it. */
typedef struct cli_bench_found {
    const cot_bench_shape *shape;
    const cli_bench_routing *routing;
    int64_t tokens;
    int ranks, repeats;
    cot_roof roof;
    cot_bench_load load;
    cot_bench_result results[COT_BENCH_MOST_OPS];
    double capacity_ns[COT_BENCH_MOST_OPS]; // medians of runs at capacity factor 1; 0: none
    const struct cli_bench_found *fewest;   // the same with the fewest ranks so far, or NULL
} cli_bench_found;

/* A note on stderr where an operator outran the roofs, which a busy machine had slowed. */
void cli_bench_report_doubt(const cli_bench_found *found, const cli_bench_lists *lists);
/* weights: as --weights says, or NULL. */
void cli_bench_report_print(const cli_bench_found *found, const cli_bench_lists *lists, const char *precision,
                            const char *weights);
/* The median and the worst of bulk's time over fused's, where both were asked for and there are two cases. */
void cli_bench_report_print_summary(const cli_bench_found *found, size_t n, const cli_bench_lists *lists);
/* Both return false after a line on stderr. */
bool cli_bench_report_json(const cli_bench_found *found, size_t n, const cli_bench_lists *lists);
/* Everything about every point, as JSON in a file. */
bool cli_bench_report_details(const char *path, const cli_bench_found *found, size_t n,
                              const cli_bench_lists *lists);

/* A file in Chrome's trace format (JSON, an event a line; chrome://tracing and ui.perfetto.dev show it): a
 * process for every case and operator, a row for every thread. */
typedef struct cli_bench_timeline {
    cot_file_writer writer; // all zero: none was asked for
    int processes;          // named so far
} cli_bench_timeline;
/* Returns false after a line on stderr. */
bool cli_bench_timeline_open(cli_bench_timeline *timeline, const char *path);
/* The events that follow are this operator's. */
void cli_bench_timeline_begin(cli_bench_timeline *timeline, const cli_bench_found *found, const char *op,
                              bool linked);
void cli_bench_timeline_add(cli_bench_timeline *timeline, const cot_bench_event *event);
/* Returns false after a line on stderr. A timeline that was not opened is fine. */
bool cli_bench_timeline_close(cli_bench_timeline *timeline);

#endif
