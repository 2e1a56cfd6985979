/* What `coterie bench moe` found, for people and for programs. */
#ifndef COT_CLI_BENCH_REPORT_H
#define COT_CLI_BENCH_REPORT_H
#include "bench_lists.h"
#include "coterie/file.h"

/* One case and what every operator did with it. */
typedef struct bench_found {
    const cot_bench_shape *shape;
    const bench_routing *routing;
    int64_t tokens;
    int ranks, repeats;
    cot_roof roof;
    cot_bench_load load;
    cot_bench_result results[COT_BENCH_MOST_OPS];
    double capacity_ns[COT_BENCH_MOST_OPS]; // medians of runs at capacity factor 1; 0: none
    const struct bench_found *fewest;       // the same with the fewest ranks so far, or NULL
} bench_found;

/* A note on stderr where an operator outran the roofs, which a busy machine had slowed. */
void bench_report_doubt(const bench_found *found, const bench_lists *lists);
/* weights: as --weights says, or NULL. */
void bench_report_print(const bench_found *found, const bench_lists *lists, const char *precision,
                        const char *weights);
/* The median and the worst of bulk's time over fused's, where both were asked for and there are two cases. */
void bench_report_print_summary(const bench_found *found, size_t n, const bench_lists *lists);
/* Both return false after a line on stderr. */
bool bench_report_json(const bench_found *found, size_t n, const bench_lists *lists);
/* Everything about every point, as JSON in a file. */
bool bench_report_details(const char *path, const bench_found *found, size_t n, const bench_lists *lists);

/* A file in Chrome's trace format (JSON, an event a line; chrome://tracing and ui.perfetto.dev show it): a
 * process for every case and operator, a row for every thread. */
typedef struct bench_timeline {
    cot_file_writer writer; // all zero: none was asked for
    int processes;          // named so far
} bench_timeline;
/* Returns false after a line on stderr. */
bool bench_timeline_open(bench_timeline *timeline, const char *path);
/* The events that follow are this operator's. */
void bench_timeline_begin(bench_timeline *timeline, const bench_found *found, const char *op, bool linked);
void bench_timeline_add(bench_timeline *timeline, const cot_bench_event *event);
/* Returns false after a line on stderr. A timeline that was not opened is fine. */
bool bench_timeline_close(bench_timeline *timeline);

#endif
