/* Measures what processor time rounding weights to few bits takes: bench_round [ROUNDS]. A round takes the formats one after the other over the
 * same numbers, which are about normally distributed and rounded to bf16, as weights are. */
#include "base/rng.h"
#include "kernels/quantise.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROWS = 256, COLUMNS = 2048, GROUPS = ROWS * COLUMNS / 32, FORMATS = 3 };

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now_ns(void) // of this thread's processor time
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static float draw(uint64_t i)
{
    double sum = 0;
    for (uint64_t k = 0; k < 12; k++) sum += (double)(cot_mix64(12 * i + k) >> 11) * 0x1p-53;
    return cot_bf16_to_f32(cot_f32_to_bf16((float)(0.02 * (sum - 6))));
}

int main(int count, char **arguments)
{
    static const cot_format formats[FORMATS] = {COT_FORMAT_INT4, COT_FORMAT_MXFP4, COT_FORMAT_INT8};
    static float x[ROWS][COLUMNS], scales[COLUMNS];
    static int8_t codes[COLUMNS];
    const int rounds = count > 1 ? atoi(arguments[1]) : 15;
    double *ns[FORMATS] = {0}, *ratio = calloc((size_t)(rounds > 0 ? rounds : 1), sizeof *ratio);
    for (int f = 0; f < FORMATS; f++) ns[f] = calloc((size_t)(rounds > 0 ? rounds : 1), sizeof *ns[f]);
    if (rounds < 1 || !ratio || !ns[0] || !ns[1] || !ns[2]) {
        fprintf(stderr, "usage: bench_round [ROUNDS]\n");
        return 2;
    }
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i / COLUMNS][i % COLUMNS] = draw((uint64_t)i);
    for (int r = -1; r < rounds; r++) { // the first is not counted
        for (int f = 0; f < FORMATS; f++) {
            const double start = now_ns();
            for (int i = 0; i < ROWS; i++) cot_quantise_row(codes, scales, formats[f], x[i], COLUMNS);
            if (r >= 0) ns[f][r] = (now_ns() - start) / GROUPS;
        }
        if (r >= 0) ratio[r] = ns[0][r] / ns[1][r];
    }
    for (int f = 0; f < FORMATS; f++) {
        qsort(ns[f], (size_t)rounds, sizeof *ns[f], by_value);
        printf("%-6s %7.1f ns for 32 numbers (%.1f to %.1f)\n", cot_formats[formats[f]].name,
               ns[f][rounds / 2], ns[f][0], ns[f][rounds - 1]);
        free(ns[f]);
    }
    qsort(ratio, (size_t)rounds, sizeof *ratio, by_value);
    printf("int4 takes %.2f times mxfp4's time (%.2f to %.2f)\n", ratio[rounds / 2], ratio[0],
           ratio[rounds - 1]);
    free(ratio);
    return 0;
}
