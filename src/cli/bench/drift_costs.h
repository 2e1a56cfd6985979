/* What a rank takes for a layer of experts, fitted to measurements of one: layer_ns + expert_ns experts called + row_ns calls. */
#ifndef COT_CLI_BENCH_DRIFT_COSTS_H
#define COT_CLI_BENCH_DRIFT_COSTS_H
#include "coterie/bench_drift.h"
#include "coterie/bench_moe.h"
#include <stdbool.h>

enum { CLI_DRIFT_POINTS = 16 };
typedef struct cli_drift_point {
    double experts, rows, ns;
} cli_drift_point;

/* Fills in layer_ns, expert_ns and row_ns, none below 0, so that the squares of relative errors are least. Returns the root of their
 * mean. */
double cli_drift_fit(cot_bench_drift_costs *costs, const cli_drift_point *point, int points);
/* Measures one rank and one thread. False after a line on stderr. */
bool cli_drift_measure(cot_bench_drift_costs *costs, double *error, const cot_bench_shape *shape,
                       const char *precision);

#endif
