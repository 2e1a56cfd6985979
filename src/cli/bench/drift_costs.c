#include "cli/bench/drift_costs.h"

#include "cli/frame/command.h"

#include <math.h>
#include <stdlib.h>

enum { TERMS = 3 };

static double term(const cli_drift_point *p, int i)
{
    return i == 0 ? 1 : i == 1 ? p->experts : p->rows;
}

/* The least squares of relative errors with the terms that `used` has bits for. False where they do not say. */
static bool solve(double x[TERMS], const cli_drift_point *point, int points, unsigned used)
{
    double a[TERMS][TERMS + 1] = {{0}};
    for (int i = 0; i < TERMS; i++) {
        x[i] = 0;
        if (!(used >> i & 1)) {
            a[i][i] = 1;
            continue;
        }
        for (int n = 0; n < points; n++) {
            const double w = term(&point[n], i) / (point[n].ns * point[n].ns);
            for (int j = 0; j < TERMS; j++)
                if (used >> j & 1) a[i][j] += w * term(&point[n], j);
            a[i][TERMS] += w * point[n].ns;
        }
    }
    for (int i = 0; i < TERMS; i++) {
        if (!(a[i][i] > 0)) return false;
        for (int j = i + 1; j < TERMS; j++) {
            const double f = a[j][i] / a[i][i];
            for (int k = i; k <= TERMS; k++) a[j][k] -= f * a[i][k];
        }
    }
    for (int i = TERMS - 1; i >= 0; i--) {
        x[i] = a[i][TERMS];
        for (int j = i + 1; j < TERMS; j++) x[i] -= a[i][j] * x[j];
        x[i] /= a[i][i];
    }
    return x[0] >= 0 && x[1] >= 0 && x[2] >= 0;
}

static double error_of(const double x[TERMS], const cli_drift_point *point, int points)
{
    double sum = 0;
    for (int n = 0; n < points; n++) {
        double ns = 0;
        for (int i = 0; i < TERMS; i++) ns += x[i] * term(&point[n], i);
        sum += (ns / point[n].ns - 1) * (ns / point[n].ns - 1);
    }
    return sqrt(sum / points);
}

double cli_drift_fit(cot_bench_drift_costs *costs, const cli_drift_point *point, int points)
{
    double least = INFINITY;
    for (unsigned used = 1; used < 1u << TERMS; used++) {
        double x[TERMS];
        if (!solve(x, point, points, used)) continue;
        const double error = error_of(x, point, points);
        if (error >= least) continue;
        least = error;
        costs->layer_ns = x[0];
        costs->expert_ns = x[1];
        costs->row_ns = x[2];
    }
    return least;
}

static const int64_t tokens[] = {1, 2, 4, 8, 16, 32, 64};
enum { SIZES = sizeof tokens / sizeof *tokens };
_Static_assert(2 * SIZES <= CLI_DRIFT_POINTS, "more cases than points");

static cot_status measure(cli_drift_point *point, cot_bench_moe *bench, cot_error *error)
{
    static const cot_bench_routing routings[] = {COT_BENCH_UNIFORM, COT_BENCH_ZIPF};
    cot_status status = COT_OK;
    for (int i = 0; status == COT_OK && i < 2 * SIZES; i++) {
        const cot_bench_case what = {
            .size = sizeof what,
            .tokens = tokens[i / 2],
            .routing = routings[i % 2],
            .repeats = 15,
            .budget_ns = 2000000000,
            .roof = {
                .f32_flops = 1, .bf16_flops = 1, .int8_ops = 1, .read_bytes_per_second = 1}}; // nobody asks
        cot_bench_load load;
        cot_bench_result result;
        int repeats;
        status = cot_bench_moe_run(bench, &load, &result, &repeats, &what, error);
        if (status == COT_OK)
            point[i] = (cli_drift_point){(double)load.touched, (double)load.rows, result.median_ns};
    }
    return status;
}

bool cli_drift_measure(cot_bench_drift_costs *costs, double *error, const cot_bench_shape *shape,
                       const char *precision)
{
    static const char *const ops[] = {"fused", NULL};
    const cot_bench_moe_options options = {.size = sizeof options,
                                           .shape = *shape,
                                           .ranks = 1,
                                           .threads = 1,
                                           .precision = precision,
                                           .combine = "exact",
                                           .ops = ops,
                                           .tokens = tokens,
                                           .n_tokens = SIZES,
                                           .seed = 1};
    cot_bench_moe *bench;
    cot_error why;
    cli_drift_point point[CLI_DRIFT_POINTS];
    cot_status status = cot_bench_moe_open(&bench, &options, &why);
    if (status == COT_OK) status = measure(point, bench, &why);
    cot_bench_moe_close(bench);
    if (status != COT_OK) {
        cli_complain_of(&why);
        return false;
    }
    *error = cli_drift_fit(costs, point, 2 * SIZES);
    return true;
}
