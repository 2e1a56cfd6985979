/* What came of a benchmark of changing domains, for people, as JSON and as a figure. */
#ifndef COT_CLI_BENCH_DRIFT_REPORT_H
#define COT_CLI_BENCH_DRIFT_REPORT_H
#include "coterie/bench_drift.h"
#include <stdbool.h>

enum { CLI_DRIFT_SETTLED = 3 }; // intervals after the change that rows have to settle in

/* How rows are compared, over intervals from `from` to before `to`. */
typedef struct cli_drift_sum {
    double seconds, gap_seconds, tokens_per_s, peak, sends_per_token;
    double copies;
} cli_drift_sum;
cli_drift_sum cli_drift_sum_of(const cot_bench_drift_row *row, int64_t from, int64_t to);

typedef struct cli_drift_told {
    const cot_bench_drift *drift;
    const cot_bench_drift_options *options;
    const char *shape;
    double expert_bytes, fit_error; // fit_error below 0: costs were given
} cli_drift_told;
void cli_drift_print(const cli_drift_told *told);
void cli_drift_print_json(const cli_drift_told *told);
/* False after a line on stderr. */
bool cli_drift_plot(const cli_drift_told *told, const char *path);

#endif
